"""The random states outside of variables: Python's, NumPy's, and the one behind TensorFlow's eager ops."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from flor_keras import keras_internals


def capture_random() -> dict[str, Any]:
    """Return the random states of this process."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "tensorflow": keras_internals.eager_random_state(),
    }


def restore_random(states: dict[str, Any]) -> None:
    """Put back what `capture_random` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    keras_internals.set_eager_random_state(states["tensorflow"])
