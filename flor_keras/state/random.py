"""The random states outside of variables: Python's, NumPy's, and the one behind TensorFlow's eager ops."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from flor_keras import keras_internals


def capture_random() -> dict[str, Any]:
    """Return the random states of this process."""
    return {
        "python": _compact(random.getstate()),
        "numpy": np.random.get_state(),
        "tensorflow": _compact(keras_internals.eager_random_state()),
    }


def restore_random(states: Mapping[str, Any]) -> None:
    """Put back what `capture_random` returned."""
    python = _expanded(states["python"])
    assert python is not None
    random.setstate(python)
    np.random.set_state(states["numpy"])
    keras_internals.set_eager_random_state(_expanded(states["tensorflow"]))


def is_same_random(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether Python's and NumPy's states are the same in two of what `capture_random` returned."""
    numbers = [
        [*map(tuple, (states["python"][1], states["numpy"][1])), states["python"][2], *states["numpy"][2:]]
        for states in (left, right)
    ]
    return numbers[0] == numbers[1]


def _compact(state: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Return a state of `random.Random` with its 625 numbers as an array, which is much faster to pickle."""
    if state is None:
        return None
    numbers = np.frombuffer(struct.pack(f"{len(state[1])}I", *state[1]), np.uint32)
    return (state[0], numbers, *state[2:])


def _expanded(state: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return None if state is None else (state[0], tuple(state[1].tolist()), *state[2:])
