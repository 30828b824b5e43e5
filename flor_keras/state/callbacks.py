"""The Python state of callbacks: patience counters, best values and weights, schedules of the program's own.

Captured are a callback's attributes, less what leads back to the model. A callback is known again by its class and
by its place among those of the class, so one added in hindsight does not shift the others.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import keras

from flor_keras.state.pickles import is_packable

_LEFT_OUT = ("model", "_model", "params", "validation_data")
_STATELESS = (keras.callbacks.ProgbarLogger,)


def capture_callbacks(callbacks: Sequence[Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the attributes of each callback by its key, and the attributes that cannot be captured."""
    captured = {
        key: {name: v for name, v in vars(callback).items() if name not in _LEFT_OUT and not _is_code(v) and not _is_model(v)}
        for key, callback in keyed(callbacks)
        if not isinstance(callback, _STATELESS)
    }
    if is_packable(captured):
        return captured, []
    bad = [
        (key, name)
        for key, attributes in captured.items()
        for name, value in attributes.items()
        if not is_packable(value)
    ]
    for key, name in bad:
        del captured[key][name]
    return captured, [f"{key.partition('#')[0].rpartition('.')[2]}.{name}" for key, name in bad]


def restore_callbacks(callbacks: Sequence[Any], captured: Mapping[str, Mapping[str, Any]]) -> None:
    """Put captured attributes back into the callbacks they were taken from."""
    for key, callback in keyed(callbacks):
        for name, value in captured.get(key, {}).items():
            setattr(callback, name, value)


def keyed(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield callbacks with a key that is stable from run to run."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = f"{type(callback).__module__}.{type(callback).__qualname__}"
        yield f"{name}#{seen[name]}", callback
        seen[name] += 1


def _is_code(value: Any) -> bool:
    """Functions are the program's, not its state; a pickled one would bring copies of all it refers to."""
    return isinstance(value, FunctionType | BuiltinFunctionType | MethodType | functools.partial)


def _is_model(value: Any) -> bool:
    return isinstance(value, keras.Model | keras.layers.Layer | keras.optimizers.Optimizer)
