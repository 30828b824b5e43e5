"""Tensor memory the forked worker must not share with the trainer. Runs in the trainer, around the fork.

A page both processes map is copied when the trainer next writes it. For a gigabyte of variables, and about as
much of gradients and other temporaries, that costs seconds right after the fork. The worker needs none of it,
so these pages are left out of the child (``MADV_DONTFORK``), and the holes are filled with fresh zero pages
there, because the allocator the child inherits still believes in them.

Leaving out the variables alone is not enough. TensorFlow's CPU allocator takes memory from the system in regions
of up to gigabytes and hands out variables *and* temporaries from them; measured with 1 GB of state, half of the
copy-on-write faults came from the temporaries. The regions are ordinary aligned allocations of the C library, each
in an ``mmap`` of its own with a header in front that holds its size, which is how they are found here.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

PAGE_BYTES = 4096
_SCAN_BYTES = 1 << 20
REGION_MIN_BYTES = 8 << 20  # smaller ones are cheap to copy and may hold what the child needs

# glibc's malloc_chunk for an mmapped block: two words (offset of the chunk in its mapping, size | IS_MMAPPED)
# in front of the memory handed out. posix_memalign(64) puts the chunk 0x30 bytes into the mapping.
_CHUNK = struct.Struct("=QQ")
_IS_MMAPPED = 2
_SIZE_AT = 8
_ALIGNED_OFFSET = 0x30
_PLAIN_OFFSET = 0

# /proc/self/pagemap: a word for each page, whose two highest bits say whether it is in memory or swapped out
_ENTRY_BYTES = 8
_PRESENT_OR_SWAPPED = 0x40

_MADV_DONTFORK = 10
_MADV_DOFORK = 11
_MAP_FLAGS = 0x02 | 0x10 | 0x20 | 0x4000  # MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE
_PROT_READ_WRITE = 0x1 | 0x2


class Region(NamedTuple):
    """Whole pages of the trainer's address space, ``start`` included and ``end`` not."""

    start: int
    end: int


def tensor_regions() -> list[Region]:
    """Return the large aligned allocations of this process: the regions of TensorFlow's CPU allocator.

    Empty where the C library is not glibc or keeps its headers elsewhere; the fork then merely costs more.
    """
    if not sys.platform.startswith("linux"):
        return []
    with _Memory() as memory:
        return [region for mapping in _large_mappings() for region in _regions_in(memory, mapping)]


class _Memory:
    """This process's memory, read through files: what another thread unmaps meanwhile is an error, not a crash."""

    def __enter__(self) -> _Memory:
        self._bytes = os.open("/proc/self/mem", os.O_RDONLY)
        self._pages = os.open("/proc/self/pagemap", os.O_RDONLY)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._bytes)
        os.close(self._pages)

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return what lies there; nothing where no page is, since reading one would make it."""
        first, end = start // PAGE_BYTES, -(-(start + num_bytes) // PAGE_BYTES)
        try:
            entries = os.pread(self._pages, (end - first) * _ENTRY_BYTES, first * _ENTRY_BYTES)
            is_there = max(entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES], default=0) >= _PRESENT_OR_SWAPPED
            return os.pread(self._bytes, num_bytes, start) if is_there else b""
        except OSError:
            return b""


def _large_mappings() -> list[Region]:
    """Private, writable, unnamed mappings; the kernel merges neighbours, so one may hold several regions."""
    pattern = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*$")
    with open("/proc/self/maps") as maps:
        matches = filter(None, (pattern.match(line) for line in maps))
        found = [Region(int(m[1], 16), int(m[2], 16)) for m in matches]
    return [mapping for mapping in found if mapping.end - mapping.start >= REGION_MIN_BYTES]


def _regions_in(memory: _Memory, mapping: Region) -> Iterator[Region]:
    page = mapping.start
    while page < mapping.end:
        for candidate in _header_candidates(memory, page, mapping.end):
            offset, end = _mmapped_block(memory, candidate, mapping.end)
            if offset is not None:
                break
        else:
            page += _SCAN_BYTES
            continue
        if offset == _ALIGNED_OFFSET and end - candidate >= REGION_MIN_BYTES:
            # The first page keeps the header, the child's allocator may read it.
            yield Region(candidate + PAGE_BYTES, end)
        page = end


def _header_candidates(memory: _Memory, start: int, limit: int) -> list[int]:
    """Return the pages of the next stretch that may begin with a header: `start` first, it mostly is one."""
    if _mmapped_block(memory, start, limit)[0] is not None:
        return [start]
    stretch = memory.read(start, min(_SCAN_BYTES, limit - start))
    first_bytes = stretch[_SIZE_AT::PAGE_BYTES]
    return [start + at * PAGE_BYTES for at, byte in enumerate(first_bytes) if byte == _IS_MMAPPED]


def _mmapped_block(memory: _Memory, page: int, limit: int) -> tuple[int | None, int]:
    """Return the offset of the header and the end of the mmapped block that begins at ``page``, if one does."""
    head = memory.read(page, 64)
    for offset in (_ALIGNED_OFFSET, _PLAIN_OFFSET):  # an aligned block still has its plain header in front
        if len(head) < 64:
            break
        lead, size = _CHUNK.unpack_from(head, offset)
        end = page + offset + (size & ~7)
        is_whole = end % PAGE_BYTES == 0 and page < end <= limit
        if lead == offset and size & 7 == _IS_MMAPPED and is_whole:
            return offset, end
    return None, page


@contextmanager
def kept_from_child(regions: list[Region]) -> Iterator[None]:
    """Fork inside this context: the child gets no page of ``regions``; call `fill_holes` first thing in it."""
    for region in regions:
        _madvise(region, _MADV_DONTFORK)
    try:
        yield
    finally:
        for region in regions:
            _madvise(region, _MADV_DOFORK)


def fill_holes(regions: list[Region]) -> None:
    """Map fresh zero pages where the parent's regions were. Runs in the child, before anything else."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for region in regions:
        size = region.end - region.start
        if libc.mmap(region.start, size, _PROT_READ_WRITE, _MAP_FLAGS, -1, 0) != region.start:
            raise OSError(ctypes.get_errno(), f"cannot map {size} bytes in the worker")


def _madvise(region: Region, advice: int) -> None:
    """Advise the kernel; a refusal is no error, the pages are then shared as in any fork."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise(
        ctypes.c_void_p(region.start), ctypes.c_size_t(region.end - region.start), ctypes.c_int(advice)
    )


def available_bytes() -> int | None:
    """Return the memory the machine can still give without swapping, or None where that is unknown."""
    try:
        with open("/proc/meminfo") as meminfo:
            for line in meminfo:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
