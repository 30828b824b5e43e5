"""Taking a snapshot: the bytes of every variable into the arena, the content of every table into the message.

Runs in the trainer. One memcpy per variable, straight from the tensor's buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flor_keras import keras_internals as internals
from flor_keras.checkpoint.arena import Arena, Layout, lay_out
from flor_keras.checkpoint.bundle import Content, content_of
from flor_keras.state.tables import table_arrays
from flor_keras.state.variables import State


class Snapshot:
    """The layout of one state, and how its bytes get out. Reused while the same variables stand at the same names."""

    def __init__(self, state: State) -> None:
        self._variables = dict(state.variables)
        self.layout: Layout = lay_out(
            (name, variable.dtype.base_dtype.name, tuple(variable.shape), _num_bytes(variable))
            for name, variable in self._variables.items()
            if not _is_string(variable)
        )

    def is_of(self, state: State) -> bool:
        """Whether ``state`` is made of the very same variables."""
        ours, theirs = self._variables, state.variables
        return len(ours) == len(theirs) and all(ours.get(name) is v for name, v in theirs.items())

    def copy_into(self, arena: Arena) -> None:
        """Copy every variable's bytes into its slot."""
        for slot in self.layout.slots:
            np.copyto(arena.view(slot), _bytes_of(self._variables[slot.name]))

    def contents(self) -> list[Content]:
        """Return the tensors themselves, to be written before training goes on."""
        return [content_of(slot.name, self._variables[slot.name].read_value()) for slot in self.layout.slots]

    def strings(self) -> list[Content]:
        """Return the variables that hold text; they travel in the message, like tables."""
        return [content_of(n, v.read_value()) for n, v in self._variables.items() if _is_string(v)]


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
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Content(name, array.dtype.name, tuple(array.shape), raw)


def _bytes_of(variable: Any) -> np.ndarray:
    array = np.asarray(internals.memory_of(variable.read_value()))
    return array.reshape(-1).view(np.uint8)


def _is_string(variable: Any) -> bool:
    return bool(variable.dtype.base_dtype.name == "string")


def _num_bytes(variable: Any) -> int:
    return int(variable.shape.num_elements()) * int(variable.dtype.base_dtype.size)
