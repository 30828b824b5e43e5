"""The `tf.data` iterators a custom loop makes: which order each gives, and how many there were.

An iterator's state right after it was made decides its order, seeded or not. A pipeline that is seeded and shuffles anew
each time draws the order from the number of its iterators; those of epochs and loops that are skipped must be made all
the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flor_keras import keras_internals


class Drawn:
    """How many iterators the seeded parts of pipelines have had in the loops of this process.

    A part is known by its seeds, so that a program that runs again, and skips loops, finds it. Those made inside of a loop
    draw anew each time; they are left out.
    """

    def __init__(self) -> None:
        self._keys: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}
        self._owed: dict[str, int] = {}

    def counts(self) -> dict[str, int]:
        """Return the number of iterators of each part that is still there."""
        return {key: self._counts[key] for key in self._keys.values()}

    def owe(self, counts: Mapping[str, int]) -> None:
        """Note how many there were where the program is taken to; what is missing is made when a part is used next."""
        made = self.counts()
        self._owed = {key: count - made.get(key, 0) for key, count in counts.items()}

    def settle(self, parts: Iterable[Any]) -> None:
        """Make the iterators that are owed; one of a part is one of all parts before it in the pipeline, too."""
        for part in parts:
            key = self._key(part)
            for _ in range(self._owed.pop(key, 0)):
                keras_internals.make_iterator(part)
                inner = [self._key(one) for one in keras_internals.seeded_parts(part)]
                self._count(inner)
                for other in inner:
                    if other in self._owed:
                        self._owed[other] -= 1

    def made(self, parts: Iterable[Any]) -> None:
        """Count an iterator of a pipeline with these parts."""
        self._count(map(self._key, parts))

    def _count(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._counts[key] += 1

    def _key(self, part: Any) -> str:
        if part not in self._keys:
            seeds, others = keras_internals.seeds_of(part), set(self._keys.values())
            named = (f"{type(part).__name__} {seeds} {number}" for number in range(len(others) + 1))
            self._keys[part] = next(key for key in named if key not in others)
            self._counts[self._keys[part]] = 0
        return self._keys[part]


_drawn = Drawn()


class Iterators:
    """Watches the iterators made during each epoch of a loop, up to the end of its training."""

    def __init__(self) -> None:
        self._main: list[bytes | None] = []  # those the main loop itself goes through
        self._states: list[bytes | None] = []
        self._recorded: Sequence[bytes | None] = ()
        self._left: dict[int, list[bytes | None]] = {}  # of epochs since the last position
        self._since = 0
        self._is_watching = False

    def begin_loop(self, recorded: Sequence[bytes | None] = ()) -> None:
        """Watch what the main loop itself goes through, which may be a data set too; ``recorded`` as in `begin_epoch`."""
        self._states = self._main = []
        self._since = keras_internals.next_number()
        self._is_watching = False
        self._begin(recorded)

    def begin_epoch(self, recorded: Sequence[bytes | None] = ()) -> None:
        """Watch from here on; iterators get the ``recorded`` states, in the order they are made."""
        self._states = []
        self._begin(recorded)

    def end(self) -> None:
        """Watch no longer."""
        self._is_watching = False
        keras_internals.watch_iterators(None)

    def _begin(self, recorded: Sequence[bytes | None]) -> None:
        self._recorded = recorded
        if not self._is_watching:
            self._is_watching = True
            keras_internals.watch_iterators(self._make)

    def leave(self, epoch: int) -> None:
        """Keep the states of this epoch's iterators for the next position: no checkpoint is taken here."""
        if self._states:
            self._left[epoch] = list(self._states)

    def position(self) -> dict[str, Any]:
        """Return the states of this epoch's iterators, and how many all lasting pipelines have had."""
        left, self._left = self._left, {}
        return {
            "main": list(self._main),
            "states": list(self._states),
            "left": left,
            "drawn": _drawn.counts(),
        }

    def owe(self, position: Mapping[str, Any]) -> None:
        """Note the iterators there were in what is skipped; they are made when their pipeline is used next."""
        _drawn.owe(position["drawn"])

    def _make(self, dataset: Any, make: Callable[[], Any]) -> Any:
        parts = keras_internals.seeded_parts(dataset)
        lasting = [part for part in parts if keras_internals.number_of(part) < self._since]
        _drawn.settle(lasting)
        iterator = make()
        _drawn.made(lasting)
        number = len(self._states)
        if number < len(self._recorded):
            self._restore(iterator, self._recorded[number])
        self._states.append(_state(iterator))
        return iterator

    def _restore(self, iterator: Any, state: bytes | None) -> None:
        if state is not None and keras_internals.is_data_iterator(iterator):
            keras_internals.deserialize_iterator(iterator, state)


def _state(iterator: Any) -> bytes | None:
    try:
        return keras_internals.serialize_iterator(iterator)
    except Exception:  # noqa: BLE001 - a pipeline that cannot be serialized says so in many ways
        return None
