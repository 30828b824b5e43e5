"""The `tf.data` iterators a custom loop makes: which order each gives, and how many there were.

An iterator's state right after it was made decides its order, seeded or not. A pipeline that is seeded and shuffles anew
each time draws the order from the number of its iterators; those of epochs that are skipped must be made all the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flor_keras import keras_internals


class Iterators:
    """Watches the iterators made during each epoch of a loop, up to the end of its training."""

    def __init__(self) -> None:
        self._main: list[bytes | None] = []  # those the main loop itself goes through
        self._states: list[bytes | None] = []
        self._recorded: Sequence[bytes | None] = ()
        self._counts: list[
            tuple[Any, int]
        ] = []  # data sets (weakly) and their iterators, in order of first use
        self._owed: list[int] = []
        self._is_watching = False

    def begin_loop(self, recorded: Sequence[bytes | None] = ()) -> None:
        """Watch what the main loop itself goes through, which may be a data set too; ``recorded`` as in `begin_epoch`."""
        self._states = self._main = []
        self._recorded = recorded
        self._watch()

    def begin_epoch(self, recorded: Sequence[bytes | None] = ()) -> None:
        """Watch from here on; iterators get the ``recorded`` states, in the order they are made."""
        self._states, self._recorded = [], recorded
        if not self._is_watching:
            self._watch()

    def end(self) -> None:
        """Watch no longer."""
        self._is_watching = False
        keras_internals.watch_iterators(None)

    def _watch(self) -> None:
        self._is_watching = True
        keras_internals.watch_iterators(self._make)

    def position(self) -> dict[str, Any]:
        """Return the states of this epoch's iterators, and how many each lasting data set has had."""
        self._counts = [(reference, count) for reference, count in self._counts if reference() is not None]
        return {
            "main": list(self._main),
            "states": list(self._states),
            "counts": [count for _, count in self._counts],
        }

    def owe(self, position: Mapping[str, Any]) -> None:
        """Note the iterators there were in epochs that are skipped; they are made when their data set is used next."""
        made = [count for reference, count in self._counts if reference() is not None]
        made += [0] * (len(position["counts"]) - len(made))
        self._owed = [max(0, count - own) for count, own in zip(position["counts"], made, strict=False)]

    def _make(self, dataset: Any, make: Callable[[], Any]) -> Any:
        index = self._index(dataset)
        if index < len(self._owed):
            for _ in range(self._owed[index]):
                make()
            self._counts[index] = (self._counts[index][0], self._counts[index][1] + self._owed[index])
            self._owed[index] = 0
        iterator = make()
        self._counts[index] = (self._counts[index][0], self._counts[index][1] + 1)
        number = len(self._states)
        if number < len(self._recorded):
            self._restore(iterator, self._recorded[number])
        self._states.append(_state(iterator))
        return iterator

    def _restore(self, iterator: Any, state: bytes | None) -> None:
        if state is not None and keras_internals.is_data_iterator(iterator):
            keras_internals.deserialize_iterator(iterator, state)

    def _index(self, dataset: Any) -> int:
        for index, (reference, _) in enumerate(self._counts):
            if reference() is dataset:
                return index
        self._counts.append((weakref.ref(dataset), 0))
        return len(self._counts) - 1


def _state(iterator: Any) -> bytes | None:
    try:
        return keras_internals.serialize_iterator(iterator)
    except Exception:  # noqa: BLE001 - a pipeline that cannot be serialized says so in many ways
        return None
