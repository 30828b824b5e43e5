"""Probes that hold a model's predictions against what is true. The model is called with ``training=False``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from flor_keras.probes.probe import DataProbe

Array = np.ndarray[Any, Any]
Batches = Iterable[tuple[Any, Any]]


def confusion_matrix(model: Any, batches: Batches) -> Array:
    """Return how many samples of each true class were taken for which: int64, [true, predicted].

    ``y`` holds class numbers or one-hot rows. The model's output has one column per class, or a single one, of which more
    than one half (probabilities) or zero (logits, where an output is below 0 or above 1) means class 1.
    """
    pairs = [(_classes(y), np.asarray(model(x, training=False))) for x, y in batches]
    outputs = [output.reshape(-1, output.shape[-1]) for _, output in pairs]
    is_logit = any(output.min() < 0 or output.max() > 1 for output in outputs if output.size)
    predicted = [_predicted(output, is_logit) for output in outputs]
    num_classes = max(
        2, *(output.shape[-1] for output in outputs), *(int(true.max()) + 1 for true, _ in pairs if true.size)
    )
    found = np.zeros((num_classes, num_classes), np.int64)
    for (true, _), given in zip(pairs, predicted, strict=True):
        np.add.at(found, (true, given), 1)
    return found


def class_accuracy(model: Any, batches: Batches) -> Array:
    """Return the share of each true class that was recognised: float64, shape (classes,); NaN for a class without samples."""
    matrix = confusion_matrix(model, batches)
    totals = matrix.sum(axis=1)
    return np.asarray(np.where(totals > 0, np.diag(matrix) / np.maximum(totals, 1), np.nan))


def sample_loss(model: Any, batches: Batches) -> Array:
    """Return the compiled loss of each sample by itself: float32, shape (samples,), in the order of the data.

    Penalties of regularizers are not in it. The model has one output and one loss.
    """
    import keras

    given = model.loss
    loss = keras.losses.get(given)
    call = loss.call if isinstance(loss, keras.losses.Loss) else loss
    found = []
    for x, y in batches:
        output = model(x, training=False)
        true = keras.ops.convert_to_tensor(y)
        if len(true.shape) == len(output.shape) - 1:
            true = keras.ops.expand_dims(true, -1)  # as Keras does, for labels without a last axis
        each = np.asarray(call(true, output))
        found.append(each.reshape(len(each), -1).mean(axis=1))
    return np.concatenate(found) if found else np.empty(0, np.float32)


def _classes(y: Any) -> Array:
    true = np.asarray(y)
    if true.ndim > 1 and true.shape[-1] > 1:
        return np.asarray(true.reshape(-1, true.shape[-1]).argmax(axis=-1))
    return true.reshape(-1).astype(np.int64)


def _predicted(output: Array, is_logit: bool) -> Array:
    if output.shape[-1] > 1:
        return np.asarray(output.argmax(axis=-1))
    return (output[:, 0] > (0.0 if is_logit else 0.5)).astype(np.int64)


class ConfusionMatrix(DataProbe):
    """`confusion_matrix` at the end of each epoch."""

    name = "confusion_matrix"

    def value(self, logs: dict[str, Any]) -> Array:
        """Return the matrix."""
        return confusion_matrix(self.model, self.batches())


class ClassAccuracy(DataProbe):
    """`class_accuracy` at the end of each epoch."""

    name = "class_accuracy"

    def value(self, logs: dict[str, Any]) -> Array:
        """Return the shares."""
        return class_accuracy(self.model, self.batches())


class SampleLoss(DataProbe):
    """`sample_loss` at the end of each epoch."""

    name = "sample_loss"

    def value(self, logs: dict[str, Any]) -> Array:
        """Return the losses."""
        return sample_loss(self.model, self.batches())


class MetricProbe(DataProbe):
    """A Keras metric over data at the end of each epoch, as `evaluate` of a model compiled with it would give.

    Args:
      metric: makes the metric.
      name: the name to log under.
    """

    def __init__(self, metric: Any, name: str, data: Any = None, batch_size: int = 32) -> None:
        super().__init__(data, name, batch_size)
        self.metric = metric

    def value(self, logs: dict[str, Any]) -> float:
        """Return the metric's result."""
        metric = self.metric()
        for x, y in self.batches():
            metric.update_state(y, self.model(x, training=False))
        return float(np.asarray(metric.result()))
