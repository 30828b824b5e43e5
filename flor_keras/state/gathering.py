"""Gathering the same program's state at every checkpoint. Runs in the trainer.

A walk over the objects costs milliseconds, and what it finds hardly ever changes. It depends on nothing but
what the objects it visited hold, which is remembered and compared object by object: an attribute, an item, a
slot or a layer that is not the very same as before leads to a new walk. Comparing costs a tenth of walking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any

import numpy as np

from flor_keras import keras_internals
from flor_keras.state.variables import (
    State,
    Walk,
    attributes_of,
    generators,
    is_plain,
    is_walked,
    reported,
    slots_of,
)

Contents = tuple[list[Any], list[Any]]  # keys and what they lead to, side by side


class Gatherer:
    """Gathers like `variables.gather`, and walks only where something has changed since the last time."""

    def __init__(self) -> None:
        self._roots: Mapping[str, Any] = {}
        self._walk: Walk | None = None
        self._readings: list[_Reading] = []

    def gather(self, roots: Mapping[str, Any]) -> State:
        """Return the state reached from ``roots``; the same object as last time while nothing has changed."""
        if self._walk is None or not self._stands(roots):
            self._roots = dict(roots)
            self._walk = Walk(roots)
            self._readings = [_Reading(value, contents) for value, contents in self._read(self._walk)]
        return self._walk.state

    def latest(self, roots: Mapping[str, Any]) -> State:
        """Return what was gathered last, if that was from ``roots``; otherwise gather."""
        return self._walk.state if self._walk is not None and self._is_from(roots) else self.gather(roots)

    def _read(self, walk: Walk) -> Iterable[tuple[Any, Callable[[Any], Contents]]]:
        yield self._roots, _of_roots
        for value in walk.visited:
            if (contents := _contents_of(value)) is not None:
                yield value, contents

    def _stands(self, roots: Mapping[str, Any]) -> bool:
        return self._is_from(roots) and all(reading.stands() for reading in self._readings)

    def _is_from(self, roots: Mapping[str, Any]) -> bool:
        return len(roots) == len(self._roots) and all(self._roots.get(name) is v for name, v in roots.items())


class _Reading:
    """What an object held when it was walked. Holds it: an id could be another object's by now."""

    __slots__ = ("_contents", "_held", "_keys", "_value")

    def __init__(self, value: Any, contents: Callable[[Any], Contents]) -> None:
        self._value = value
        self._contents = contents
        self._keys, self._held = contents(value)

    def stands(self) -> bool:
        """Whether a walk would find the same here; numbers may differ."""
        keys, held = self._contents(self._value)
        if len(held) != len(self._held) or keys != self._keys:
            return False
        if not all(map(is_, held, self._held)):
            if not all(map(_is_alike, held, self._held)):
                return False
            self._held = held
        return True


def _is_alike(new: Any, old: Any) -> bool:
    """Whether two things are the same to a walk: neither leads to a variable or is part of a name."""
    if new is old:
        return True
    if isinstance(new, str) or isinstance(old, str):
        return type(new) is type(old) and bool(new == old)
    return _is_inert(new) and _is_inert(old)


def _is_inert(value: Any) -> bool:
    return is_plain(value) or isinstance(value, np.ndarray)


def _contents_of(value: Any) -> Callable[[Any], Contents] | None:
    """Return how to read what a walk goes on to from ``value``; None where that never changes."""
    import keras

    if isinstance(value, keras.Variable):
        return _of_variable
    if isinstance(value, Mapping):
        return _of_mapping
    if isinstance(value, list | deque | set | frozenset):
        return _of_collection
    if isinstance(value, tuple) or not is_walked(value):
        return None
    has_slots = any(hasattr(value, slot) for slot in slots_of(type(value)))
    return _of_slotted if has_slots or not hasattr(value, "__dict__") else _of_object


def _of_object(value: Any) -> Contents:
    attributes = value.__dict__
    return list(attributes), list(attributes.values())


def _of_slotted(value: Any) -> Contents:
    attributes = attributes_of(value)
    return list(attributes), list(attributes.values())


def _of_mapping(value: Mapping[Any, Any]) -> Contents:
    return list(value.keys()), list(value.values())


def _of_collection(value: Iterable[Any]) -> Contents:
    return [], list(value)


def _of_variable(value: Any) -> Contents:
    return [], [keras_internals.native_variable(value)]


def _of_roots(roots: Mapping[str, Any]) -> Contents:
    """Return what a walk learns from Keras's own lists, which a program can override, and global state."""
    return [], [*generators().values(), *(v for root in roots.values() for v in reported(root))]
