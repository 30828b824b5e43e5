"""Sorted tables in LevelDB's format, which the index of a TensorFlow bundle is: keys with the entries of their tensors.

TensorFlow writes one with every bundle and offers no way to write one alone. The format:
https://github.com/google/leveldb/blob/main/doc/table_format.md. Written here is one block, read are any number; neither
is ever compressed, as TensorFlow never compresses them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES = 48
_TRAILER = struct.Struct("<BI")  # how the block is compressed, its checksum
_UNCOMPRESSED = 0
_RESTART_INTERVAL = 16


class TableError(Exception):
    """A file is no table, or is damaged."""


def read_table(path: Path) -> dict[bytes, bytes]:
    """Return the values of a table by their keys.

    Raises:
      TableError: it is damaged.
      OSError: it cannot be read.
    """
    content = path.read_bytes()
    if len(content) < _FOOTER_BYTES or not content.endswith(_MAGIC):
        raise TableError("the file does not end as a table does")
    try:
        footer = content[-_FOOTER_BYTES:]
        _, at = _read_handle(footer, 0)  # of a block for filters, which is empty
        index, _ = _read_handle(footer, at)
        found: dict[bytes, bytes] = {}
        for _, handle in _entries(_block(content, *index)):
            found.update(_entries(_block(content, *_read_handle(handle, 0)[0])))
        return found
    except (IndexError, struct.error) as error:
        raise TableError("the file is cut off") from error


def write_table(path: Path, entries: Mapping[bytes, bytes]) -> None:
    """Write a table."""
    keys = sorted(entries)
    parts: list[bytes] = []
    entries_at = _append(parts, _made_block([(key, entries[key]) for key in keys]))
    filters_at = _append(parts, _made_block([]))
    index_at = _append(parts, _made_block([(keys[-1], entries_at)]))
    footer = (filters_at + index_at).ljust(_FOOTER_BYTES - len(_MAGIC), b"\0")
    path.write_bytes(b"".join([*parts, footer, _MAGIC]))


def _append(parts: list[bytes], block: bytes) -> bytes:
    """Add a block with its trailer; return where it lies, as a table says it."""
    offset = sum(map(len, parts))
    kind = bytes([_UNCOMPRESSED])
    parts += [block, _TRAILER.pack(_UNCOMPRESSED, masked(crc32c(block + kind)))]
    return _varint(offset) + _varint(len(block))


def _made_block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Return a block. A key says how much of its beginning is that of the key before; every 16th is whole."""
    content, restarts, last = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        num_shared = 0
        if number % _RESTART_INTERVAL == 0:
            restarts.append(len(content))
        else:
            shorter = min(len(key), len(last))
            num_shared = next((at for at in range(shorter) if key[at] != last[at]), shorter)
        content += _varint(num_shared) + _varint(len(key) - num_shared) + _varint(len(value))
        content += key[num_shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(content) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _block(content: bytes, offset: int, size: int) -> bytes:
    kind, checksum = _TRAILER.unpack_from(content, offset + size)
    block = content[offset : offset + size]
    if kind != _UNCOMPRESSED:
        raise TableError("it is compressed")
    if masked(crc32c(block + bytes([kind]))) != checksum:
        raise TableError("the checksum of its bytes is another than that which was recorded")
    return block


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (num_restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end, at, key = len(block) - 4 * (num_restarts + 1), 0, b""
    while at < end:
        num_shared, at = _read_varint(block, at)
        num_other, at = _read_varint(block, at)
        num_value, at = _read_varint(block, at)
        key = key[:num_shared] + block[at : at + num_other]
        at += num_other
        yield key, block[at : at + num_value]
        at += num_value


def _read_handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _read_varint(content, at)
    size, at = _read_varint(content, at)
    return (offset, size), at


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        at += 1
        if content[at - 1] < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _crc_table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return tuple(found)


_CRC = _crc_table()


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of some bytes. For kilobytes: it goes byte by byte."""
    crc, table = 0xFFFFFFFF, _CRC
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return a checksum as LevelDB keeps it, so that a checksum of checksums is none."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
