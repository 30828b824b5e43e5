"""Taking a snapshot: the bytes of every variable into the arena, the content of every table into the message.

Runs in the trainer. One memcpy per variable, straight from the tensor's buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flor_keras import keras_internals
from flor_keras.checkpoint.arena import Arena, Layout, lay_out
from flor_keras.checkpoint.contents import Content, content_of
from flor_keras.state.copying import SMALL_BYTES, copy_all
from flor_keras.state.tables import table_arrays
from flor_keras.state.variables import State

_MANY = 100  # variables; below, one look at all costs less than two


class Snapshot:
    """The layout of one state, and how its bytes get out. Reused while the same variables stand at the same names.

    Args:
      state: the variables.
      arrays: further arrays, by name; their shapes count, not their content.
    """

    def __init__(self, state: State, arrays: Mapping[str, np.ndarray]) -> None:
        self._state = state
        self._variables = dict(state.variables)
        self._arrays = _shapes(arrays)
        self._texts = {name: v for name, v in self._variables.items() if _is_string(v)}
        self._arena: Arena | None = None
        self._views: dict[str, np.ndarray] = {}
        numeric = {name: v for name, v in self._variables.items() if name not in self._texts}
        numeric = dict(sorted(numeric.items(), key=lambda item: -_num_bytes(item[1])))
        self._reads = [keras_internals.reader(part) for part in _large_and_small(list(numeric.values()))]
        self.layout: Layout = lay_out(
            [
                *((n, v.dtype.base_dtype.name, tuple(v.shape), _num_bytes(v)) for n, v in numeric.items()),
                *((name, array.dtype.name, array.shape, array.nbytes) for name, array in arrays.items()),
            ]
        )

    def is_of(self, state: State, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether ``state`` is made of the very same variables, and ``arrays`` are of the same shapes."""
        ours, theirs = self._variables, state.variables
        is_same = state is self._state or (
            len(ours) == len(theirs) and all(ours.get(name) is v for name, v in theirs.items())
        )
        return is_same and self._arrays == _shapes(arrays)

    def copy_into(self, arena: Arena, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy every variable's bytes into its slot."""
        if arena is not self._arena:
            self._arena, self._views = arena, {slot.name: arena.view(slot) for slot in self.layout.slots}
        copy_all(zip(self._views.values(), self._bytes(arrays), strict=True), self.layout.num_bytes)

    def contents(self, arrays: Mapping[str, np.ndarray]) -> list[Content]:
        """Return the tensors themselves, to be written before training goes on."""
        parts = zip(self.layout.slots, self._bytes(arrays), strict=True)
        return [Content(slot.name, slot.dtype, slot.shape, part) for slot, part in parts]

    def _bytes(self, arrays: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the bytes of each slot in their order."""
        for read in self._reads:
            for tensor in read():
                yield keras_internals.memory_of(tensor).reshape(-1).view(np.uint8)
        for name in self._arrays:
            yield _bytes_of_array(arrays[name])

    def strings(self) -> list[Content]:
        """Return the variables that hold text; they travel in the message, like tables."""
        return [content_of(name, variable.read_value()) for name, variable in self._texts.items()]


def num_bytes_of(state: State) -> int:
    """Return how large the variables of a state are together, text apart."""
    return sum(_num_bytes(v) for v in state.variables.values() if not _is_string(v))


def small_contents(state: State, snapshot: Snapshot) -> list[Content]:
    """Return what does not go through the arena: the content of tables, and text."""
    found = snapshot.strings()
    for name, table in state.tables.items():
        for part, array in table_arrays(table).items():
            found.append(_content_of_array(f"{name}/{part}", array))
    return found


def _content_of_array(name: str, array: np.ndarray) -> Content:
    if array.dtype == object:
        return Content(name, "string", tuple(array.shape), array.reshape(-1))
    return Content(name, array.dtype.name, tuple(array.shape), _bytes_of_array(array))


def bytes_of(variable: Any) -> np.ndarray:
    """Return a variable's bytes, shape (num_bytes,), in the variable's own memory where that lies on the CPU."""
    memory: np.ndarray = keras_internals.memory_of(keras_internals.reader([variable])()[0])
    return memory.reshape(-1).view(np.uint8)


def _bytes_of_array(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def _is_string(variable: Any) -> bool:
    return bool(variable.dtype.base_dtype.name == "string")


def _large_and_small(variables: list[Any]) -> list[list[Any]]:
    """Return variables, the largest first, in two parts: the large are copied while the many small are still read."""
    num_large = sum(_num_bytes(variable) > SMALL_BYTES for variable in variables)
    parts = variables[:num_large], variables[num_large:]
    return [part for part in parts if part] if len(variables) >= _MANY else [variables]


def _num_bytes(variable: Any) -> int:
    return int(variable.shape.num_elements()) * int(variable.dtype.base_dtype.size)
