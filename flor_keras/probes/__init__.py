"""Numbers people ask for after training, ready to use: in replay (`--probe NAME`), as callbacks, and as functions.

    flor-keras replay train.py --probe gradient_norm                  # hindsight: the program stays as it is
    model.fit(…, callbacks=[flor.FlorKeras(), probes.WeightNorm()])   # while training
    probes.weight_norm(model)                                         # by itself

Importing this package imports neither TensorFlow nor Keras.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BuiltIn:
    """A probe of this package, as far as a plan needs to know it."""

    name: str  # what it logs under
    home: str
    class_name: str
    level: str  # what a replay redoes for it
    is_in_graph: bool = False  # it looks into the training step
    needs_batches: bool = False  # it computes on data: in a replay the validation data of `fit`


BUILT_IN = {
    probe.name: probe
    for probe in (
        BuiltIn("gradient_norm", "steps", "GradientNorm", "step", is_in_graph=True),
        BuiltIn("gradient_norm_per_layer", "steps", "GradientNormPerLayer", "step", is_in_graph=True),
        BuiltIn("update_ratio", "steps", "UpdateRatio", "step", is_in_graph=True),
        BuiltIn("weight_norm", "weights", "WeightNorm", "epoch"),
        BuiltIn("weight_norm_per_layer", "weights", "WeightNormPerLayer", "epoch"),
        BuiltIn("weight_histogram", "weights", "WeightHistogram", "epoch"),
        BuiltIn("learning_rate", "weights", "LearningRate", "epoch"),
        BuiltIn("num_not_finite", "weights", "NotFinite", "epoch"),
        BuiltIn("confusion_matrix", "predictions", "ConfusionMatrix", "epoch", needs_batches=True),
        BuiltIn("class_accuracy", "predictions", "ClassAccuracy", "epoch", needs_batches=True),
        BuiltIn("sample_loss", "predictions", "SampleLoss", "epoch", needs_batches=True),
        BuiltIn("activation_histogram", "activations", "ActivationHistogram", "epoch", needs_batches=True),
        BuiltIn("dead_units", "activations", "DeadUnits", "epoch", needs_batches=True),
    )
}
_FUNCTIONS = {
    "weights": (
        "weight_norm",
        "weight_norm_per_layer",
        "weight_histogram",
        "learning_rate",
        "num_not_finite",
        "layer_names",
    ),
    "predictions": ("confusion_matrix", "class_accuracy", "sample_loss"),
    "activations": ("activation_histogram", "dead_units"),
}
_HOMES = {probe.class_name: probe.home for probe in BUILT_IN.values()}
_HOMES |= {name: home for home, names in _FUNCTIONS.items() for name in names}

__all__ = sorted([*_HOMES, "BUILT_IN", "BuiltIn"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
