"""Models that are traced when a SavedModel of them is wanted.

Tracing a model takes about 6 ms a variable, describing it a fiftieth of that. So of a model that Keras alone can make again the trainer keeps
the configuration, and whoever wants a SavedModel makes the model again and traces that, once in a process.
"""

from __future__ import annotations

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flor_keras import keras_internals
from flor_keras.errors import CheckpointError
from flor_keras.export import graph, internals, stock
from flor_keras.export.kept import Graph, damaged

_traced: dict[str, Graph] = {}  # what was traced in this process, by what it was made of


def traced(found: Graph) -> Graph:
    """Return a graph with its SavedModel, which is traced now where only the configuration was kept.

    Raises:
      CheckpointError: the configuration is damaged, or the Keras at hand makes another model of it.
    """
    if found.rebuilt is None:
        return found
    of = f"{found.folder} {found.described['files']}"
    if of not in _traced:
        folder = Path(tempfile.mkdtemp(prefix="flor_keras-graph-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _traced[of] = _trace(found, found.rebuilt, folder)
    return _traced[of]


def _trace(found: Graph, variable_names: list[str], folder: Path) -> Graph:
    with _unnoticed():
        model = _made_again(found)
        variables = list(map(keras_internals.native_variable, model.variables))
        shapes = [[variable.dtype.base_dtype.name, list(variable.shape)] for variable in variables]
        if shapes != [found.variables[name] for name in variable_names]:
            raise damaged(found.folder, f"{_versions(found)} makes a model with other variables of it")
        names = graph.Names(dict(zip(variable_names, variables, strict=True)), {})
        keys = graph.write_saved_model(model, names, folder)
    return Graph(folder, {**found.described, **keys, "files": graph.hashes_below(folder)})


def _made_again(found: Graph) -> Any:
    """Return the model of a configuration, which is to name nothing but what Keras brings."""
    import keras

    try:
        config = json.loads(found.file(graph.CONFIG).read_text(encoding="utf-8"))
        del config["compile_config"]
        if not stock.names_only_keras(config):
            raise ValueError("it names what is not of Keras")
        model = keras.saving.deserialize_keras_object(config, safe_mode=True)
        internals.rename_parts(model, found.described["named"])
        return model
    except CheckpointError:
        raise
    except Exception as error:
        raise damaged(found.folder, f"{_versions(found)} makes no model of it: {error}") from error


def _versions(found: Graph) -> str:
    import keras

    recorded = found.described["versions"]["keras"]
    return f"Keras {keras.__version__} (recorded with {recorded})"


@contextmanager
def _unnoticed() -> Iterator[None]:
    """Leave nothing behind in the process: making layers draws seeds and counts names."""
    python, tensorflow = random.getstate(), keras_internals.eager_random_state()
    with internals.names_put_back():
        try:
            yield
        finally:
            random.setstate(python)
            keras_internals.set_eager_random_state(tensorflow)
