"""Probes that look into training steps: they see each gradient as it reaches the optimizer.

The gradients are those given to ``optimizer.apply``: before clipping, and without the scale of a `LossScaleOptimizer`.
A step made of several calls (gradient accumulation, several optimizers) gives one value a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from flor_keras import session

Apply = Callable[[], Any]
_listeners: list[StepProbe] = []


class StepProbe(keras.callbacks.Callback, ABC):
    """Logs one value a training step, from inside of the step, traced or not.

    Args:
      name: the name to log under, in place of the probe's own.
    """

    name = ""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name or self.name
        self._is_everywhere = False

    @abstractmethod
    def around(self, apply: Apply, gradients: list[Any], variables: list[Any]) -> Any:
        """Let ``apply`` update the variables, and log something about it; return what it returns."""

    def listen(self) -> None:
        """Look into the steps of every optimizer of this process from here on, for loops of the program's own."""
        self._is_everywhere = True
        _begin(self)

    def hears(self, optimizer: Any) -> bool:
        """Whether steps of an optimizer are for this probe."""
        own = getattr(self.model, "optimizer", None) if self._model is not None else None
        return self._is_everywhere or own is None or optimizer in (own, getattr(own, "inner_optimizer", None))

    def set_model(self, model: Any) -> None:
        """Begin with the steps of a model; a step that was traced before is traced again."""
        super().set_model(model)
        if self not in _listeners:
            _begin(self)
            model.train_function = None

    def on_train_end(self, logs: Any = None) -> None:
        """Leave the model's steps alone again."""
        if self in _listeners and not self._is_everywhere:
            _listeners.remove(self)
            self.model.train_function = None


def _begin(probe: StepProbe) -> None:
    _hook_optimizers()
    if probe not in _listeners:
        _listeners.append(probe)


def _hook_optimizers() -> None:
    """Have `Optimizer.apply` tell the probes. Every path to an update goes through it, `apply_gradients` included."""
    original = keras.optimizers.Optimizer.apply
    if getattr(original, "_is_probed", False):
        return

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        def update() -> Any:
            return original(self, grads, trainable_variables)

        step = update
        for probe in _listeners:
            if probe.hears(self):
                step = _wrapped(probe, step, self, list(grads), trainable_variables)
        return step()

    apply._is_probed = True  # type: ignore[attr-defined]
    keras.optimizers.Optimizer.apply = apply


def _wrapped(probe: StepProbe, step: Apply, optimizer: Any, gradients: list[Any], variables: Any) -> Apply:
    def wrapped() -> Any:
        changed = list(variables) if variables is not None else list(optimizer._trainable_variables)
        return probe.around(step, gradients, changed)

    return wrapped


class GradientNorm(StepProbe):
    """The global norm of the gradients of each step: sqrt(sum over all gradients of g²), a scalar of their type.

    In the unit of the loss per unit of a weight. `tf.linalg.global_norm` computes it; weights without a gradient count 0.
    """

    name = "gradient_norm"

    def around(self, apply: Apply, gradients: list[Any], variables: list[Any]) -> Any:
        """Log the norm, then let the step be made."""
        session.log(self.name, tf.linalg.global_norm(gradients))
        return apply()


class GradientNormPerLayer(StepProbe):
    """The norm of the gradients of each layer in each step: float32, shape (layers,).

    Layers are in the order in which the optimizer has their weights, a layer being all weights under one path.
    """

    name = "gradient_norm_per_layer"

    def around(self, apply: Apply, gradients: list[Any], variables: list[Any]) -> Any:
        """Log the norms, then let the step be made."""
        layers: dict[str, list[Any]] = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            layers.setdefault(variable.path.rpartition("/")[0], []).append(gradient)
        norms = [
            tf.cast(tf.linalg.global_norm(g) if any(x is not None for x in g) else 0.0, tf.float32)
            for g in layers.values()
        ]
        session.log(self.name, tf.stack(norms))
        return apply()


class UpdateRatio(StepProbe):
    """How far each step moves the weights, compared with their size: ‖after − before‖ / ‖before‖, a scalar without unit.

    Both norms go over all weights of the step together. About 1e-3 is usual; much more is a learning rate that is too high.
    """

    name = "update_ratio"

    def around(self, apply: Apply, gradients: list[Any], variables: list[Any]) -> Any:
        """Let the step be made and log what it did."""
        before = [tf.identity(keras.ops.convert_to_tensor(variable)) for variable in variables]
        result = apply()
        moved = [keras.ops.convert_to_tensor(v) - was for v, was in zip(variables, before, strict=True)]
        session.log(
            self.name, tf.math.divide_no_nan(tf.linalg.global_norm(moved), tf.linalg.global_norm(before))
        )
        return result
