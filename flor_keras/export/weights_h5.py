"""A `.weights.h5` file of one checkpoint, in the layout of Keras 3. Needs no user code: the layout was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.export import graph
from flor_keras.export.kept import Graph


def write(found: Graph, checkpoint: Path, out: Path) -> None:
    """Write a file that `model.load_weights` reads."""
    import h5py

    wanted = found.names("weights.h5")
    values = {
        n: keras_internals.memory_of(t) for n, t in bundle.load(checkpoint, wanted.__contains__).items()
    }
    with h5py.File(out, "w") as file:
        for group in found.groups:
            _write_group(file, group, values)


def _write_group(file: Any, group: dict[str, Any], values: dict[str, np.ndarray]) -> None:
    """Write one group as Keras's H5IOStore does: without a name, an empty one is not made."""
    if group["name"] is None and not group["values"]:
        return
    at = file.create_group(f"{group['path']}/vars" if group["path"] else "vars")
    if group["name"] is not None:
        at.attrs["name"] = group["name"]
    for key, place in group["values"].items():
        value = _value(place, values)
        dataset = at.create_dataset(key, data=value)
        if value.dtype.name == "bfloat16":
            dataset.attrs["dtype"] = "bfloat16"


def _value(place: Any, values: dict[str, np.ndarray]) -> np.ndarray:
    if isinstance(place, str):
        return values[place]
    kernel, lora_a, lora_b = (values[name] for name in place["lora"])
    merged: np.ndarray = graph.merged(kernel, lora_a, lora_b, place["scale"])
    return merged
