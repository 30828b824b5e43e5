"""Tensors of bundles as they lie on disk: mapped into memory, and put under other keys into another bundle byte by byte.

Reading through TensorFlow copies every tensor into fresh memory and writing copies it again; for 100 MB that takes
several times as long as copying the file (``benchmarks/export_cost.py``). Here nothing is decoded: what a bundle says of a
tensor, its checksum among it, holds in the other bundle too. Every tensor is checked against its recorded hash before it
is used. Needs TensorFlow for its protocol buffers only.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.contents import STRING_DTYPE
from flor_keras.checkpoint.held import OWN
from flor_keras.checkpoint.table import TableError, read_table, write_table

INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data-00000-of-00001"
_HEADER_KEY = b""


class Mapped(NamedTuple):
    """One tensor of a bundle.

    Attributes:
      entry: what the bundle says of it (a `BundleEntryProto`).
      raw: its bytes as they lie there, shape (bytes,).
    """

    entry: Any
    raw: np.ndarray


def map_checkpoint(folder: Path, is_wanted: Callable[[str], bool]) -> dict[str, Mapped]:
    """Map a checkpoint's tensors by name, and check each against its recorded hash.

    Raises:
      CheckpointError: it is damaged.
    """
    described = {n: d for n, d in bundle.read_manifest(folder)["tensors"].items() if is_wanted(n)}
    found: dict[str, Mapped] = {}
    for place in {str(d.get("bundle", OWN)) for d in described.values()}:
        names = {name for name, d in described.items() if d.get("bundle", OWN) == place}
        try:
            mapped = map_bundle(folder.joinpath(place, bundle.BUNDLE))
        except (TableError, OSError) as error:
            raise bundle.damaged(folder, str(error)) from error
        if missing := sorted(names - mapped.keys()):
            raise bundle.damaged(folder, f"{missing[0]!r} is missing in its bundle")
        found |= {name: mapped[name] for name in names}
    _check(folder, found, described)
    return found


def _check(folder: Path, found: Mapping[str, Mapped], described: Mapping[str, Any]) -> None:
    import tensorflow as tf

    texts = {name for name, d in described.items() if d["dtype"] == STRING_DTYPE}
    bundle.load(folder, texts.__contains__)  # lies encoded on disk: TensorFlow decodes and checks it
    for name, (entry, raw) in found.items():
        expected = described[name]
        shape = [size.size for size in entry.shape.dim]
        is_same = [tf.as_dtype(entry.dtype).name, shape] == [expected["dtype"], expected["shape"]]
        is_whole = name in texts or xxhash.xxh3_64_hexdigest(raw.data) == expected["xxh3"]
        if not is_same or not is_whole:
            raise bundle.damaged(folder, f"the bytes of {name!r} are not those that were recorded")


def map_bundle(prefix: Path) -> dict[str, Mapped]:
    """Map the tensors of a bundle by key, unchecked.

    Raises:
      TableError: its index is damaged, or says what cannot be.
      OSError: a file cannot be read.
    """
    from tensorflow.core.protobuf import tensor_bundle_pb2

    table = read_table(Path(f"{prefix}{INDEX_SUFFIX}"))
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(table.pop(_HEADER_KEY, b""))
    num = header.num_shards
    shards = [_map(Path(f"{prefix}.data-{at:05d}-of-{num:05d}")) for at in range(num)]
    found = {}
    for key, value in table.items():
        entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
        end = entry.offset + entry.size
        if (
            entry.slices
            or entry.shard_id >= num
            or not 0 <= entry.offset <= end <= len(shards[entry.shard_id])
        ):
            raise TableError(f"the bundle {prefix} has {key.decode(errors='replace')} where nothing can be")
        found[key.decode()] = Mapped(entry, shards[entry.shard_id][entry.offset : end])
    return found


def _map(path: Path) -> np.ndarray:
    if path.stat().st_size == 0:  # cannot be mapped
        return np.empty(0, np.uint8)
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def array_of(tensor: Mapped) -> np.ndarray:
    """Return a tensor of numbers as an array, which shares its memory where the bytes lie aligned in the file."""
    import tensorflow as tf

    shape = [size.size for size in tensor.entry.shape.dim]
    array = tensor.raw.view(tf.as_dtype(tensor.entry.dtype).as_numpy_dtype).reshape(shape)
    return np.require(array, requirements="A")


def bytes_of(array: np.ndarray) -> memoryview:
    """Return the memory of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_mapped(prefix: Path, tensors: Mapping[str, Mapped]) -> None:
    """Write tensors under their keys as a native TensorFlow bundle."""
    from tensorflow.core.protobuf import tensor_bundle_pb2

    header = tensor_bundle_pb2.BundleHeaderProto(num_shards=1)
    header.version.producer = 1
    entries, offset = {_HEADER_KEY: header.SerializeToString()}, 0
    with Path(f"{prefix}{DATA_SUFFIX}").open("wb", buffering=0) as file:
        for key in sorted(tensors, key=str.encode):
            entry = tensor_bundle_pb2.BundleEntryProto()
            entry.CopyFrom(tensors[key].entry)
            entry.shard_id, entry.offset = 0, offset
            entries[key.encode()] = entry.SerializeToString()
            offset += write_all(file, tensors[key].raw.data)
    write_table(Path(f"{prefix}{INDEX_SUFFIX}"), entries)


def write_all(file: Any, content: memoryview) -> int:
    """Write bytes to an unbuffered file, which takes at most 2 GB at once; return how many there were."""
    at = 0
    while at < len(content):
        at += file.write(content[at:])
    return at
