"""Probes that look at what the layers of a model give out. Functional and Sequential models only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flor_keras.errors import UsageError
from flor_keras.probes.predictions import Array, Batches
from flor_keras.probes.probe import DataProbe
from flor_keras.probes.weights import NUM_BINS, spread


def activation_histogram(model: Any, batches: Batches, num_bins: int = NUM_BINS) -> dict[str, Any]:
    """Return how each layer's outputs over all samples are spread: {layer: {"edges": num_bins + 1, "counts": num_bins}}.

    Raises:
      UsageError: the model is a subclass with a `call` of its own, whose layers' outputs cannot be asked for.
    """
    found: dict[str, list[Array]] = {}
    for outputs in _outputs(model, batches):
        for name, output in outputs.items():
            found.setdefault(name, []).append(output.astype(np.float64).ravel())
    return {name: spread(np.concatenate(parts), num_bins) for name, parts in found.items()}


def dead_units(model: Any, batches: Batches) -> dict[str, float]:
    """Return the share of each layer's units that give 0 for every sample: {layer: 0 … 1}.

    A unit is a place on the output's last axis. Meant for layers with relu; others have none but by accident.

    Raises:
      UsageError: as `activation_histogram`.
    """
    is_alive: dict[str, Array] = {}
    for outputs in _outputs(model, batches):
        for name, output in outputs.items():
            alive = (output != 0).reshape(-1, output.shape[-1]).any(axis=0)
            is_alive[name] = is_alive.get(name, np.zeros_like(alive)) | alive
    return {name: float(1 - alive.mean()) for name, alive in is_alive.items()}


def _outputs(model: Any, batches: Batches) -> Iterator[dict[str, Array]]:
    import keras

    if not isinstance(model, keras.Sequential | keras.src.models.functional.Functional) or not model.built:
        raise UsageError(
            f"{type(model).__name__} has a call of its own, so what its layers give out cannot be asked for. "
            "Log it in call: flor.log('hidden', hidden)."
        )
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    outer = keras.Model(model.inputs, {layer.name: layer.output for layer in layers})
    for x, _ in batches:
        yield {name: np.asarray(output) for name, output in outer(x, training=False).items()}


class ActivationHistogram(DataProbe):
    """`activation_histogram` at the end of each epoch."""

    name = "activation_histogram"

    def value(self, logs: dict[str, Any]) -> Any:
        """Return the histograms."""
        return activation_histogram(self.model, self.batches())


class DeadUnits(DataProbe):
    """`dead_units` at the end of each epoch."""

    name = "dead_units"

    def value(self, logs: dict[str, Any]) -> Any:
        """Return the shares."""
        return dead_units(self.model, self.batches())
