"""What probes have in common: a callback that computes one value and logs it under one name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from flor_keras import session
from flor_keras.errors import UsageError


class Probe(keras.callbacks.Callback, ABC):
    """Logs one value at the end of each epoch. Nothing of the training is changed.

    Args:
      name: the name to log under, in place of the probe's own.
    """

    name = ""
    is_of_steps = False  # a replay that makes steps again asks after each of them instead

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name or self.name

    @abstractmethod
    def value(self, logs: dict[str, Any]) -> Any:
        """Return the value for the state the model is in, given the epoch's logs."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the value."""
        if not self.is_of_steps:
            session.log(self.name, self.value(logs or {}))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Log the value, where steps are looked at."""
        if self.is_of_steps:
            session.log(self.name, self.value(logs or {}))


class DataProbe(Probe):
    """A probe that computes on batches.

    Args:
      data: arrays ``(x, y)``, a `tf.data.Dataset` of batches ``(x, y)`` or any iterable of them that can be iterated
        again. In a replay it is the validation data of `fit`.
      name: the name to log under, in place of the probe's own.
      batch_size: of arrays.
    """

    def __init__(self, data: Any = None, name: str | None = None, batch_size: int = 32) -> None:
        super().__init__(name)
        self.batches_of = data
        self.batch_size = batch_size

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield batches (x, y).

        Raises:
          UsageError: there are no data.
        """
        if self.batches_of is None:
            raise UsageError(
                f"The probe {self.name} computes on data, and fit was given no validation_data. Pass some to fit, or use the "
                f"probe as a callback: probes.{type(self).__name__}(data=(x, y))."
            )
        yield from batched(self.batches_of, self.batch_size)


def batched(data: Any, batch_size: int = 32) -> Iterator[tuple[Any, Any]]:
    """Yield batches (x, y) of arrays (x, y), or those an iterable of batches has; weights of samples are left out."""
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        x, y = data[:2]
        num_samples = len(keras.tree.flatten(y)[0])
        for begin in range(0, num_samples, batch_size):
            part = slice(begin, begin + batch_size)
            yield tuple(
                keras.tree.map_structure(lambda array, part=part: array[part], whole) for whole in (x, y)
            )
        return
    batches: Iterable[Any] = data
    if isinstance(data, keras.utils.PyDataset):
        batches = (data[at] for at in range(len(data)))
    for batch in batches:
        yield batch[0], batch[1]
