"""Skipping a `fit` call that is over: its final state, its random states and its History, without its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.state.callbacks import restore_callbacks
from flor_keras.state.random import restore_random
from flor_keras.state.restore import build_model, read_python, restore_objects


def skip_fit(call: keras_internals.FitCall, folder: Path, callbacks: Sequence[Any]) -> Any:
    """Leave everything as a `fit` call left it, given the checkpoint taken after it; return its History."""
    manifest = bundle.read_manifest(folder)
    builder = _Builder(manifest)
    call.arguments["callbacks"] = [builder]
    call.arguments["initial_epoch"] = call.arguments["epochs"] = 0
    call.arguments["verbose"] = 0
    with keras_internals.training_steps(builder) as builder.training:
        history = call.make()
    restore_objects(folder, builder.roots)
    python = read_python(folder)
    for callback in callbacks:
        keras.callbacks.Callback.set_model(callback, call.model)
    keras_internals.set_trainable_flags(call.model, python["trainable"])
    restore_callbacks(callbacks, call.model, python["callbacks"])
    restore_random(python["random"])
    return give_history(history, manifest)


def give_history(history: Any, manifest: dict[str, Any]) -> Any:
    """Make a History the one recorded with a checkpoint."""
    recorded = manifest.get("history")
    if recorded is not None:
        history.history, history.epoch = recorded["history"], recorded["epoch"]
        history.params = recorded["params"]
    return history


class _Builder(keras.callbacks.Callback):
    """Creates the model's variables where training would begin; draws nothing."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__()
        self._manifest = manifest
        self.training: keras_internals.TrainingSteps | None = None
        self.roots: dict[str, Any] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        assert self.training is not None
        self.roots = build_model(self.training, self.model, self._manifest)

    def create(self, make: Any) -> Any:
        return make()

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        return steps
