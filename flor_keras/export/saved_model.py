"""A SavedModel of one checkpoint: the kept graph with the checkpoint's values beside it. Needs no user code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.errors import CheckpointError
from flor_keras.export import graph
from flor_keras.export.kept import Graph

_FILES = ("saved_model.pb", "fingerprint.pb")
VARIABLES = "variables/variables"


def write(found: Graph, checkpoint: Path, out: Path) -> None:
    """Write the folder ``out``, which `tf.saved_model.load` and TensorFlow Serving read."""
    copy_graph(found, out)
    write_values(found, checkpoint, out / VARIABLES)


def copy_graph(found: Graph, out: Path) -> None:
    """Copy what of a SavedModel is the same for every epoch."""
    (out / "variables").mkdir(parents=True)
    for name in _FILES:
        shutil.copyfile(found.file(name), out / name)
    (out / "assets").mkdir()
    for name, path in found.files_below("assets").items():
        (out / "assets" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / "assets" / name)


def write_values(found: Graph, checkpoint: Path, prefix: Path, form: str = "saved_model") -> None:
    """Write a checkpoint's values under the keys of the graph, as a native TensorFlow bundle."""
    keys = found.keys(form)
    wanted = set(keys.values())
    values = bundle.load(checkpoint, wanted.__contains__)
    rest = graph.REST if form == "saved_model" else graph.CHECKPOINT_REST
    tensors = {key: values[name] for key, name in keys.items()} | _rest(found, rest)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    graph.write_tensors(prefix, tensors)


def _rest(found: Graph, name: str) -> dict[str, Any]:
    import tensorflow as tf

    prefix = found.folder / name
    for suffix in (".index", ".data-00000-of-00001"):
        found.file(f"{name}{suffix}")
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        dtypes = reader.get_variable_to_dtype_map()
        tensors = tf.raw_ops.RestoreV2(
            prefix=str(prefix),
            tensor_names=list(dtypes),
            shape_and_slices=[""] * len(dtypes),
            dtypes=list(dtypes.values()),
        )
    except (tf.errors.OpError, ValueError) as error:
        raise CheckpointError(
            f"The model graph {prefix.parent} is damaged: {str(error).splitlines()[0]}"
        ) from error
    return dict(zip(dtypes, tensors, strict=True))
