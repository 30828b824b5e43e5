"""Running the SavedModel of one checkpoint after another in this process, as a Keras model that can be evaluated."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flor_keras.export import saved_model
from flor_keras.export.kept import Graph, Which, check_signature, graph_for


class Server:
    """Serves checkpoints of one run. The graph is loaded once; only values change from checkpoint to checkpoint.

    Args:
      model_folder: where the graphs of the run lie.
      sign: the keyed hash of the current user: a graph is run only for who recorded it.
      model: the name of the model; None where a loop has one only.
    """

    def __init__(self, model_folder: Path, sign: Callable[[bytes], str], model: str | None = None) -> None:
        self._model_folder = model_folder
        self._sign = sign
        self._model = model
        self._folder = tempfile.TemporaryDirectory(prefix="flor_keras-serving-")
        self._loaded: Any = None
        self.graph: Graph | None = None

    def load(self, checkpoint: Path, loop: int) -> bool:
        """Make ``model_outputs`` that of a checkpoint; return whether its graph is another than before.

        Raises:
          UsageError: the model has no SavedModel; the message says why.
          CheckpointError: the checkpoint or graph is damaged, or was recorded by somebody else.
        """
        import tensorflow as tf

        found = graph_for(Which(self._model_folder, loop, self._model), checkpoint, "saved_model")
        is_new = self.graph is None or found.folder != self.graph.folder
        folder = Path(self._folder.name)
        if is_new:
            check_signature(found, self._sign)
            at = folder / str(len(list(folder.iterdir())))
            saved_model.write(found, checkpoint, at)
            self._loaded, self.graph = tf.saved_model.load(str(at)), found
        else:
            prefix = folder / "values" / "values"
            saved_model.write_values(found, checkpoint, prefix)
            tf.train.Checkpoint(root=self._loaded).read(str(prefix)).assert_existing_objects_matched()
        return is_new

    def keras_model(self) -> Any:
        """Return the loaded graph as a Keras model; it follows later loads of the same graph."""
        import keras

        serve = self._loaded.serve
        (specs, _) = serve.concrete_functions[0].structured_input_signature

        class Served(keras.Model):
            def call(self, inputs: Any, training: bool = False) -> Any:
                given = inputs if len(specs) > 1 and isinstance(inputs, list | tuple) else (inputs,)
                fitting = [
                    keras.tree.map_structure(_fitting, spec, value)
                    for spec, value in zip(specs, given, strict=True)
                ]
                return serve(*fitting)

        return Served()

    @property
    def inputs(self) -> str:
        """What the loaded model takes, in words: name, type and shape of each input."""
        import keras

        (specs, _) = self._loaded.serve.concrete_functions[0].structured_input_signature
        named = {getattr(spec, "name", None) or "x": spec for spec in keras.tree.flatten(specs)}
        return ", ".join(
            f"{name} ({spec.dtype.name}, shape {tuple(spec.shape)})" for name, spec in named.items()
        )

    def close(self) -> None:
        """Remove what was written to load from."""
        self._folder.cleanup()


def _fitting(spec: Any, value: Any) -> Any:
    """Return an input as a Keras model takes it: cast to its type, and a missing last dimension of one added."""
    import tensorflow as tf

    value = tf.cast(value, spec.dtype) if value.dtype != spec.dtype and spec.dtype != tf.string else value
    is_flat = value.shape.rank is not None and value.shape.rank + 1 == spec.shape.rank and spec.shape[-1] == 1
    return tf.expand_dims(value, -1) if is_flat else value
