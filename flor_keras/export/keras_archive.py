"""A `.keras` archive of one checkpoint: configuration, weights, optimizer, vocabularies. Needs no user code to write."""

from __future__ import annotations

import json
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from flor_keras.export import graph, weights_h5
from flor_keras.export.kept import Graph

_WEIGHTS = "model.weights.h5"


def write(found: Graph, checkpoint: Path, out: Path) -> None:
    """Write a file that `keras.models.load_model` reads."""
    metadata = {
        "keras_version": found.described["versions"]["keras"],
        "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S"),
    }
    with (
        zipfile.ZipFile(out, "w") as archive,
        tempfile.NamedTemporaryFile(dir=out.parent, suffix=".h5") as weights,
    ):
        archive.writestr("metadata.json", json.dumps(metadata))
        archive.writestr("config.json", found.file(graph.CONFIG).read_bytes())
        weights_h5.write(found, checkpoint, Path(weights.name))
        archive.write(weights.name, _WEIGHTS)
        for name, path in found.files_below(graph.KERAS_ASSETS).items():
            archive.write(path, f"assets/{name}")


def needed_to_load(found: Graph) -> str | None:
    """Return what `keras.models.load_model` must be given for this model; None where nothing."""
    config = json.loads((found.folder / graph.CONFIG).read_text(encoding="utf-8"))
    classes, has_lambda = set(), False
    todo: list[Any] = [config]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            has_lambda = has_lambda or at.get("class_name") == "__lambda__"
            if is_foreign(at):
                classes.add(str(at["class_name"]))
            todo += at.values()
        elif isinstance(at, list):
            todo += at
    needs = []
    if classes:
        needs.append(
            f"custom_objects= with {', '.join(sorted(classes))} (or their classes imported and registered)"
        )
    if has_lambda:
        needs.append("safe_mode=False, because it holds a Python lambda, which can run anything")
    return "keras.models.load_model needs " + " and ".join(needs) if needs else None


def is_foreign(described: dict[str, Any]) -> bool:
    """Whether a serialized object is of a class or function outside of Keras."""
    if (
        "class_name" not in described
        or "config" not in described
        or described["class_name"] in ("__lambda__", "__tuple__")
    ):
        return False
    module = described.get("module")
    if module is None:
        return described.get("registered_name") is not None
    return str(module).partition(".")[0] not in ("keras", "builtins")
