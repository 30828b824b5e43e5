"""A SavedModel of one checkpoint: the kept graph with the checkpoint's values beside it. Needs no user code."""

from __future__ import annotations

import shutil
from pathlib import Path

from flor_keras.checkpoint.mapped import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    Mapped,
    map_bundle,
    map_checkpoint,
    write_mapped,
)
from flor_keras.checkpoint.table import TableError
from flor_keras.export import graph, internals
from flor_keras.export.kept import Graph, damaged
from flor_keras.export.rebuilt import traced

_GRAPH = "saved_model.pb"
VARIABLES = "variables/variables"


def write(found: Graph, checkpoint: Path, out: Path) -> None:
    """Write the folder ``out``, which `tf.saved_model.load` and TensorFlow Serving read."""
    copy_graph(found, out)
    write_values(found, checkpoint, out / VARIABLES)
    internals.write_fingerprint(out)


def copy_graph(found: Graph, out: Path) -> None:
    """Copy what of a SavedModel is the same for every epoch."""
    found = traced(found)
    (out / "variables").mkdir(parents=True)
    shutil.copyfile(found.file(_GRAPH), out / _GRAPH)
    (out / "assets").mkdir()
    for name, path in found.files_below("assets").items():
        (out / "assets" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / "assets" / name)


def write_values(found: Graph, checkpoint: Path, prefix: Path, form: str = "saved_model") -> None:
    """Write a checkpoint's values under the keys of the graph, as a native TensorFlow bundle."""
    found = traced(found) if form == "saved_model" else found
    keys = found.keys(form)
    values = map_checkpoint(checkpoint, set(keys.values()).__contains__)
    rest = graph.REST if form == "saved_model" else graph.CHECKPOINT_REST
    prefix.parent.mkdir(parents=True, exist_ok=True)
    write_mapped(prefix, {key: values[name] for key, name in keys.items()} | _rest(found, rest))


def _rest(found: Graph, name: str) -> dict[str, Mapped]:
    for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
        found.file(f"{name}{suffix}")
    try:
        return map_bundle(found.folder / name)
    except TableError as error:
        raise damaged(found.folder, f"{name}: {error}") from error
