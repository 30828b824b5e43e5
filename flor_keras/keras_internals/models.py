"""How a model is trained: its step, its optimizer, which of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def has_own_train_step(model: Any) -> bool:
    """Whether a model's training step is the program's own, which may give its optimizer a part of the weights."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    return type(model).train_step is not TensorFlowTrainer.train_step


def trainable_flags(model: Any) -> list[bool]:
    """Return which layers of a model, itself first, are trained; callbacks may freeze and unfreeze them."""
    return [bool(layer.trainable) for layer in _layers(model)]


def trained_layers(model: Any) -> dict[int, bool]:
    """Return by the layer's identity which layers of a model are trained; its first step may make further layers."""
    return {id(layer): bool(layer.trainable) for layer in _layers(model)}


def _layers(model: Any) -> list[Any]:
    """Return a model and all its layers but those of inputs, which `Sequential` adds when it is built."""
    import keras

    return [layer for layer in model._flatten_layers() if not isinstance(layer, keras.layers.InputLayer)]


def set_trainable_flags(model: Any, flags: list[bool]) -> None:
    """Freeze and unfreeze layers as recorded; where that changes any, a compiled training step is made anew."""
    if flags == trainable_flags(model):
        return
    for layer, flag in zip(_layers(model), flags, strict=False):
        layer.trainable = flag  # a layer's flag goes to those inside of it, whose own come later
    if model.train_function is not None:
        model.make_train_function(force=True)


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Create an optimizer's slots under the names they get in a training step; the public ``build`` gives others."""
    from keras.src import backend

    with backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)


def made_anew(optimizer: Any) -> Any:
    """Return an optimizer of the same configuration for the same variables, which has made no step.

    Nothing public tells which variables an optimizer was built for.
    """
    anew = type(optimizer).from_config(optimizer.get_config())
    anew.build(optimizer._trainable_variables)
    return anew


@contextmanager
def optimizer_left(model: Any) -> Iterator[None]:
    """Keep Keras from building a model's optimizer: a training step does it in another name scope, if for all weights."""
    optimizer: Any = getattr(model, "optimizer", None)
    is_left = optimizer is not None and not optimizer.built
    if is_left:
        optimizer.built = True
    try:
        yield
    finally:
        if is_left:
            optimizer.built = False
