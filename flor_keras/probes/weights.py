"""Probes that look at a model's weights: cheap, no data and no training step is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from flor_keras.probes.probe import Probe

NUM_BINS = 64


def layer_names(model: Any) -> list[str]:
    """Return the names of the layers with trainable weights, in the order of the vectors other probes give."""
    return [layer.name for layer in _layers(model)]


def weight_norm(model: Any) -> float:
    """Return the L2 norm of all trainable weights together: sqrt(sum over weights of w²), summed in float64."""
    return _norm(model.trainable_weights)


def weight_norm_per_layer(model: Any) -> np.ndarray[Any, Any]:
    """Return the L2 norm of each layer's trainable weights: float64, shape (layers,), see `layer_names`."""
    return np.array([_norm(layer.trainable_weights) for layer in _layers(model)])


def weight_histogram(model: Any, num_bins: int = NUM_BINS) -> dict[str, Any]:
    """Return how the trainable weights of each layer are spread: {layer: {"edges": num_bins + 1, "counts": num_bins}}.

    Bins are of equal width from the smallest to the largest finite weight of the layer.
    """
    return {
        layer.name: spread(np.concatenate([_flat(w) for w in layer.trainable_weights]), num_bins)
        for layer in _layers(model)
    }


def learning_rate(model: Any) -> float:
    """Return the learning rate the next step would use: the schedule's value at the optimizer's iteration count."""
    return float(np.asarray(model.optimizer.learning_rate))


def num_not_finite(model: Any) -> int:
    """Return how many of the model's weights, trainable or not, are NaN or infinite."""
    floats = [a for a in map(_flat, model.weights) if a.dtype.kind == "f"]
    return int(sum(np.count_nonzero(~np.isfinite(array)) for array in floats))


def spread(values: np.ndarray[Any, Any], num_bins: int) -> dict[str, Any]:
    """Return a histogram of the finite ones of ``values`` as plain lists."""
    counts, edges = np.histogram(values[np.isfinite(values)], bins=num_bins)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _layers(model: Any) -> list[Any]:
    """Return the innermost layers that own trainable weights, models in the model opened up."""
    found = [layer for layer in model._flatten_layers(include_self=False) if layer._trainable_variables]
    return found or [model]


def _flat(weight: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(weight)
    return array.astype(np.float64).ravel() if array.dtype.kind not in "iub" else array.ravel()


def _norm(weights: Any) -> float:
    return float(np.sqrt(sum(float(np.square(_flat(weight)).sum()) for weight in weights)))


class WeightNorm(Probe):
    """`weight_norm` at the end of each epoch."""

    name = "weight_norm"

    def value(self, logs: dict[str, Any]) -> float:
        """Return the norm."""
        return weight_norm(self.model)


class WeightNormPerLayer(Probe):
    """`weight_norm_per_layer` at the end of each epoch."""

    name = "weight_norm_per_layer"

    def value(self, logs: dict[str, Any]) -> Any:
        """Return the norms."""
        return weight_norm_per_layer(self.model)


class WeightHistogram(Probe):
    """`weight_histogram` at the end of each epoch."""

    name = "weight_histogram"

    def value(self, logs: dict[str, Any]) -> Any:
        """Return the histograms."""
        return weight_histogram(self.model)


class LearningRate(Probe):
    """`learning_rate` at the end of each epoch."""

    name = "learning_rate"

    def value(self, logs: dict[str, Any]) -> float:
        """Return the rate."""
        return learning_rate(self.model)


class NotFinite(Probe):
    """`num_not_finite` at the end of each epoch: the first epoch with one is where training broke."""

    name = "num_not_finite"

    def value(self, logs: dict[str, Any]) -> int:
        """Return the number."""
        return num_not_finite(self.model)
