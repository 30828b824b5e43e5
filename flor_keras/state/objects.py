"""The objects a custom loop names: those with variables go to the bundle, the rest is pickled and put back in place.

"In place" means into the very object the program holds: a list gets its items back, a dict its entries, an array its
elements, any other object its attributes. What cannot change (a number, a text, a tuple) has nothing to put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flor_keras.state.pickles import is_packable
from flor_keras.state.variables import gather

_UNCHANGING = (str, bytes, int, float, complex, bool, tuple, frozenset, type(None))


def split(objects: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the objects that hold variables or tables, and the others."""
    native = {name: value for name, value in objects.items() if _has_variables(name, value)}
    return native, {name: value for name, value in objects.items() if name not in native}


def _has_variables(name: str, value: Any) -> bool:
    state = gather({name: value})
    own = [known for known in (*state.variables, *state.tables) if known.split("/")[0] == name]
    return bool(own) or _is_unbuilt(value)


def _is_unbuilt(value: Any) -> bool:
    """Keras objects are native even while they have no variables yet."""
    import keras

    return isinstance(value, keras.layers.Layer | keras.optimizers.Optimizer | keras.metrics.Metric)


def capture_objects(objects: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the objects to pickle by name, and the names of those that cannot be."""
    lost = [name for name, value in objects.items() if not is_packable(value)]
    return {name: value for name, value in objects.items() if name not in lost}, lost


def restore_objects_in_place(objects: Mapping[str, Any], captured: Mapping[str, Any]) -> None:
    """Put captured content back into the program's own objects."""
    for name, value in captured.items():
        if name in objects:
            put_back(objects[name], value)


def put_back(target: Any, content: Any) -> None:
    """Make ``target`` equal to ``content`` without making it another object."""
    if isinstance(target, np.ndarray) and target.ndim and target.shape == content.shape:
        np.copyto(target, content)
    elif isinstance(target, list):
        target[:] = content
    elif isinstance(target, dict | set):
        target.clear()
        target.update(content)
    elif not isinstance(target, _UNCHANGING) and hasattr(target, "__dict__"):
        vars(target).clear()
        vars(target).update(vars(content))
    elif hasattr(target, "__setstate__") and hasattr(content, "__getstate__"):
        target.__setstate__(content.__getstate__())
