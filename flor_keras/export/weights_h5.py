"""A `.weights.h5` file of one checkpoint, in the layout of Keras 3. Needs no user code: the layout was kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flor_keras.checkpoint.mapped import array_of, bytes_of, map_checkpoint, write_all
from flor_keras.export import graph
from flor_keras.export.kept import Graph
from flor_keras.export.scattered import Scattered


class Placed(NamedTuple):
    """A value, and where its bytes begin in the file."""

    offset: int
    value: np.ndarray


def write(found: Graph, checkpoint: Path, out: Path) -> None:
    """Write a file that `model.load_weights` reads."""
    with out.open("wb", buffering=0) as file:
        for piece in pieces(found, checkpoint):
            write_all(file, piece)


def pieces(found: Graph, checkpoint: Path) -> Iterator[memoryview]:
    """Yield the bytes of such a file in order.

    HDF5 lays the file out in memory and is not given the values, so it neither copies them nor decides where they go from:
    they come straight from the checkpoint.
    """
    import h5py

    wanted = found.names("weights.h5")
    values = {name: array_of(at) for name, at in map_checkpoint(checkpoint, wanted.__contains__).items()}
    around = Scattered()
    with h5py.File(around, "w") as file:
        placed = [at for group in found.groups for at in _lay_out_group(file, group, values)]
    around.seek(0)
    for offset, value in sorted(placed, key=lambda at: at.offset):
        yield memoryview(around.read(offset - around.tell()))
        yield bytes_of(value)
        around.seek(offset + value.nbytes)
    yield memoryview(around.read(around.num_bytes - around.tell()))


def _lay_out_group(file: Any, group: dict[str, Any], values: dict[str, np.ndarray]) -> Iterator[Placed]:
    """Make one group as Keras's H5IOStore does: without a name, an empty one is not made."""
    from h5py import h5d, h5p

    if group["name"] is None and not group["values"]:
        return
    at = file.create_group(f"{group['path']}/vars" if group["path"] else "vars")
    if group["name"] is not None:
        at.attrs["name"] = group["name"]
    empty = h5p.create(h5p.DATASET_CREATE)
    empty.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    empty.set_fill_time(h5d.FILL_TIME_NEVER)
    for key, place in group["values"].items():
        value = _value(place, values)
        dataset = at.create_dataset(key, value.shape, value.dtype, dcpl=empty)
        if value.dtype.name == "bfloat16":
            dataset.attrs["dtype"] = "bfloat16"
        offset = dataset.id.get_offset()
        if offset is None:  # h5py gives single numbers no place before it writes them
            dataset[...] = value
        else:
            yield Placed(offset, value)


def _value(place: Any, values: dict[str, np.ndarray]) -> np.ndarray:
    if isinstance(place, str):
        return values[place]
    kernel, lora_a, lora_b = (values[name] for name in place["lora"])
    merged: np.ndarray = graph.merged(kernel, lora_a, lora_b, place["scale"])
    return merged
