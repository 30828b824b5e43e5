"""The Python objects a custom loop changes: found before the loop, their content kept and put back in place.

"In place" means into the very object the program holds, since the program may hold it under other names too. Objects
are known by the path by which a walk from named roots first reached them *before the loop* (``tracker/seen``). What the
loop itself made is kept with what refers to it; objects of TensorFlow and Keras are referred to, never copied.
"""

from __future__ import annotations

import array
import inspect
import io
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from flor_keras import keras_internals
from flor_keras.state.pickles import pack, unpack
from flor_keras.state.variables import attributes_of, gather, is_of_the_program, is_walked

_ATOMS = (str, bytes, int, float, complex, type(None), np.generic, np.dtype, range, slice)
_LONG = 10_000  # items of a container that is not walked unless the loop changes it
_SHORT = 1000  # items of a container that is kept although the loop is not seen to change it
_CONTAINERS = (list, dict, set, deque)
_CODE = (FunctionType, MethodType, ModuleType, type)
_OUTPUTS = (
    io.IOBase,
    logging.Logger,
    logging.Handler,
)  # what a program writes to is no state of its training
_OF_KERAS = frozenset(
    {"built", "compiled", "stop_training"}
)  # attributes that only mirror what variables there are


@dataclass
class Kept:
    """What was kept of the objects at one moment, ready to be pickled.

    Attributes:
      lost: what cannot be pickled: paths of objects, and names of values.
    """

    pickled: bytes
    arrays: list[np.ndarray]
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Way:
    """How the content of a kind of object is read and put back, and what it leads to."""

    read: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    children: Callable[[Any], Iterator[tuple[str, Any]]] = lambda value: iter(())


class Objects:
    """The objects reached before the loop.

    Args:
      roots: the objects the loop changes, by name.
      others: objects it does not change itself, which what it changes may come to hold.
    """

    def __init__(self, roots: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> None:
        self._live: dict[str, Any] = {}
        self._ways: dict[str, _Way] = {}
        self._seen: dict[int, Any] = {}
        self._walk(deque(roots.items()), is_long_walked=True)
        self._changed = dict.fromkeys(
            self._ways
        )  # paths, in order; those once held by what the loop changes join them
        self._walk(deque((others or {}).items()), is_long_walked=False)
        self._changed |= {path: None for path in self._ways if _is_small(self._live[path])}
        self._paths = {id(self._live[path]): path for path in self._ways}

    def _walk(self, queue: deque[tuple[str, Any]], is_long_walked: bool) -> None:
        while queue:
            path, value = queue.popleft()
            if _is_atom(value) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            way = _way_of(value)
            children = way.children if way is not None else _items if isinstance(value, tuple) else None
            if not isinstance(value, tuple):
                self._live[path] = value
            if way is not None:
                self._ways[path] = way
            is_short = is_long_walked or not isinstance(value, _CONTAINERS) or len(value) <= _LONG
            if children is not None and is_short:
                queue.extend((f"{path}/{key}", child) for key, child in children(value))

    def unkept(self) -> list[tuple[str, str]]:
        """Return path and type of the objects whose state cannot be kept: generators, connections, threads."""
        return [
            (path, type(value).__name__)
            for path, value in self._live.items()
            if path not in self._ways
            and not isinstance(value, (*_CODE, *_OUTPUTS))
            and not _is_of_tensorflow(value)
            and (inspect.isgenerator(value) or hasattr(value, "__next__"))
        ]

    def keep(self, values: Mapping[str, Any]) -> Kept:
        """Return the content of the objects, and ``values`` (locals of the program) with what they share with it."""
        contents = self._contents(values)
        try:
            return Kept(*pack((contents, dict(values)), self._live))
        except Exception:  # noqa: BLE001 - pickling runs code of the value's own class
            lost = [path for path, content in contents.items() if not self._is_packable(content)]
            lost += [name for name, value in values.items() if not self._is_packable(value)]
            contents = {path: content for path, content in contents.items() if path not in lost}
            rest = {name: value for name, value in values.items() if name not in lost}
            return Kept(*pack((contents, rest), self._live), lost)

    def _contents(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of the objects the loop changes, and of the others those and ``values`` hold by now."""
        contents = {path: self._ways[path].read(self._live[path]) for path in self._changed}
        if len(self._changed) == len(self._ways):
            return contents
        todo = [*(self._live[path] for path in self._changed), *values.values()]
        seen = set()
        while todo:
            value = todo.pop()
            if _is_atom(value) or id(value) in seen:
                continue
            seen.add(id(value))
            path = self._paths.get(id(value))
            way = _way_of(value)
            if path is not None and path not in contents:
                contents[path] = self._ways[path].read(value)
                self._changed[path] = None
            children = way.children if way is not None else _items if isinstance(value, tuple) else None
            todo += [child for _, child in children(value)] if children is not None else []
        return contents

    def put_back(self, kept: Kept) -> dict[str, Any]:
        """Give the objects the content they had; return the values."""
        contents, values = unpack(kept.pickled, kept.arrays, self._live)
        for path, content in contents.items():
            if path in self._ways:
                self._ways[path].put(self._live[path], content)
        return dict(values)

    def _is_packable(self, value: Any) -> bool:
        try:
            pack(value, self._live)
        except Exception:  # noqa: BLE001 - as above
            return False
        return True


def _is_atom(value: Any) -> bool:
    """Whether a value cannot change, and leads to nothing that can."""
    return isinstance(value, _ATOMS) or keras_internals.is_eager_tensor(value)


def _is_small(value: Any) -> bool:
    """Whether an object is cheap enough to be kept although the loop is not seen to change it."""
    if isinstance(value, _CONTAINERS):
        return len(value) <= _SHORT
    return is_of_the_program(type(value))


def holds_variables(name: str, value: Any) -> bool:
    """Whether an object has variables or may come to have some, so that it belongs into the bundle."""
    if isinstance(value, (*_ATOMS, np.ndarray, random.Random)):
        return False
    if is_walked(value):
        return True
    state = gather({name: value})
    return any(known.split("/")[0] == name for known in (*state.variables, *state.tables))


def _is_of_tensorflow(value: Any) -> bool:
    return keras_internals.is_opaque(value) or (is_walked(value) and not is_of_the_program(type(value)))


def _way_of(value: Any) -> _Way | None:
    """Return how to keep an object's content; None for what has none, or is kept otherwise."""
    if keras_internals.is_data_iterator(value):
        return _ITERATOR
    if isinstance(value, (*_CODE, *_OUTPUTS)) or _is_of_tensorflow(value) or hasattr(value, "__next__"):
        return None
    for kind, way in _WAYS:
        if isinstance(value, kind):
            return way
    if keras_internals.is_training_class(type(value)):  # type: ignore[arg-type]
        return _TRAINED
    if is_of_the_program(type(value)):
        return _OBJECT
    return _OTHER if hasattr(value, "__dict__") or hasattr(value, "__setstate__") else None


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((str(index), item) for index, item in enumerate(value))


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((str(key), item) for key, item in value.items())


def _put_items(target: Any, content: Any) -> None:
    target.clear()
    (target.update if isinstance(target, set) else target.extend)(content)


def _put_entries(target: Any, content: Any) -> None:
    target.clear()
    for key, value in content:
        target[key] = value


def _put_array(target: Any, content: Any) -> None:
    if target.shape == content.shape and target.flags.writeable:
        np.copyto(target, content)
    elif target.flags.owndata:
        target.resize(content.shape, refcheck=False)
        np.copyto(target, content)


def _put_buffer(target: Any, content: Any) -> None:
    target[:] = content


def _put_attributes(target: Any, content: Mapping[str, Any]) -> None:
    for name in attributes_of(target).keys() - content.keys():
        object.__delattr__(target, name)
    for name, value in content.items():
        object.__setattr__(target, name, value)


def _scalars(value: Any) -> dict[str, Any]:
    """Return the plain attributes of a Keras object of the program's own class; Keras's own ones stay as they are."""
    return {
        name: held
        for name, held in vars(value).items()
        if isinstance(held, int | float | str | None) and not name.startswith("_") and name not in _OF_KERAS
    }


def _put_scalars(target: Any, content: Mapping[str, Any]) -> None:
    for name, value in content.items():
        if getattr(target, name, None) is not value:
            setattr(target, name, value)


def _own_state(value: Any) -> Any:
    return value.__getstate__() if not hasattr(value, "__dict__") else dict(vars(value))


def _put_own_state(target: Any, content: Any) -> None:
    if not hasattr(target, "__dict__"):
        target.__setstate__(content)
    else:
        vars(target).clear()
        vars(target).update(content)


def _put_generator(target: Any, content: Any) -> None:
    target.bit_generator.state = content


_ITERATOR = _Way(keras_internals.serialize_iterator, keras_internals.deserialize_iterator)
_TRAINED = _Way(_scalars, _put_scalars)
_OBJECT = _Way(attributes_of, _put_attributes, lambda value: iter(attributes_of(value).items()))
_OTHER = _Way(_own_state, _put_own_state)
_WAYS: tuple[tuple[Any, _Way], ...] = (
    (np.random.Generator, _Way(lambda value: value.bit_generator.state, _put_generator)),
    (
        np.random.RandomState,
        _Way(lambda value: value.get_state(), lambda target, state: target.set_state(state)),
    ),
    (random.Random, _Way(lambda value: value.getstate(), lambda target, state: target.setstate(state))),
    (np.ndarray, _Way(lambda value: value.view(), _put_array)),
    (list, _Way(list, _put_items, _items)),
    (deque, _Way(list, _put_items, _items)),
    (dict, _Way(lambda value: list(value.items()), _put_entries, _entries)),
    (set, _Way(lambda value: sorted(value, key=repr), _put_items)),
    (bytearray | array.array, _Way(lambda value: value[:], _put_buffer)),
)
