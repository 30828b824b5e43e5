"""The Python state of callbacks: patience counters, best values and weights, schedules of the program's own.

Captured are a callback's attributes, less what leads back to the model. A callback is known again by its class and
by its place among those of the class, so one added in hindsight does not shift the others. What an attribute refers to
in the model, and other callbacks, are pickled as references; containers and arrays are restored in place, since the
program may hold them under another name too.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from flor_keras.state.pickles import is_packable, pack, unpack

_LEFT_OUT = ("model", "_model", "params", "_params", "validation_data")
# What a callback writes its file with. It opens that itself where training begins or goes on.
_FILES = {keras.callbacks.CSVLogger: ("csv_file", "writer", "append", "append_header")}
_STATELESS = (keras.callbacks.ProgbarLogger,)
_OUTSIDE = "outside"
_MOST_ITEMS = 10_000
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Captured:
    """The attributes of callbacks, pickled."""

    pickled: bytes
    arrays: list[np.ndarray]


@dataclass(frozen=True)
class _Values:
    """Stands for a metric, seed generator or variable that is a callback's own: what its variables hold."""

    arrays: list[np.ndarray]


def capture_callbacks(callbacks: Sequence[Any], model: Any) -> tuple[Captured, list[str]]:
    """Return the attributes of the callbacks of a model, and the names of those that cannot be captured."""
    attributes = {
        key: _attributes(callback)
        for key, callback in keyed(callbacks)
        if not isinstance(callback, _STATELESS)
    }
    attributes[_OUTSIDE] = _outside(callbacks)
    if not attributes[_OUTSIDE] and not any(
        _is_of_model(v) for own in attributes.values() for v in own.values()
    ):
        with contextlib.suppress(
            Exception
        ):  # most callbacks hold numbers: the model's parts need not be listed
            return Captured(*pack(attributes, _own_objects(callbacks, model))), []
    return _captured_with_parts(attributes, _live_objects(callbacks, model))


def _captured_with_parts(
    attributes: dict[str, dict[str, Any]], live: Mapping[str, Any]
) -> tuple[Captured, list[str]]:
    """Capture attributes that may refer to parts of the model, or that cannot be pickled."""
    known = {id(value) for value in live.values()}
    outside = {name: v for name, v in attributes.pop(_OUTSIDE).items() if _is_small(v, live)}
    attributes = {
        key: {name: v if id(v) in known else _captured(v) for name, v in own.items()}
        for key, own in attributes.items()
    } | {_OUTSIDE: outside}
    bad = [(key, name) for key, own in attributes.items() for name in own if not is_packable(own[name], live)]
    for key, name in bad:
        del attributes[key][name]
    lost = [f"{key.partition('#')[0].rpartition('.')[2]}.{name}" for key, name in bad]
    return Captured(*pack(attributes, live)), lost


def restore_callbacks(callbacks: Sequence[Any], model: Any, captured: Captured) -> None:
    """Put captured attributes back into the callbacks they were taken from."""
    attributes = unpack(captured.pickled, captured.arrays, _live_objects(callbacks, model))
    for key, callback in keyed(callbacks):
        left_out = _left_out(callback)  # older versions kept more
        for name, value in attributes.get(key, {}).items():
            if name not in left_out and not _is_restored_in_place(getattr(callback, name, None), value):
                setattr(callback, name, value)
    outside = _outside(callbacks)
    for name, value in attributes.get(_OUTSIDE, {}).items():
        if name in outside:
            _is_restored_in_place(outside[name], value)


def _attributes(callback: Any) -> dict[str, Any]:
    """Return the attributes of a callback that are state of its own."""
    left_out = _left_out(callback)
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in left_out and not _is_code(value) and not _is_model(value)
    }


def _left_out(callback: Any) -> tuple[str, ...]:
    files = [names for cls, names in _FILES.items() if isinstance(callback, cls)]
    return (*_LEFT_OUT, *(name for names in files for name in names))


def _own_objects(callbacks: Sequence[Any], model: Any) -> dict[str, Any]:
    """Return what attributes may refer to, less the parts of the model."""
    live = {f"callback/{key}": callback for key, callback in keyed(callbacks)}
    optimizer = getattr(model, "optimizer", None)
    return live | {"model": model, **({} if optimizer is None else {"optimizer": optimizer})}


def _live_objects(callbacks: Sequence[Any], model: Any) -> dict[str, Any]:
    """Return the objects that attributes may refer to, by a name that is stable from run to run."""
    live = _own_objects(callbacks, model)
    optimizer = live.get("optimizer")
    for kind, objects in (
        ("layer", model._flatten_layers(include_self=False)),
        ("metric", model.metrics),
        ("variable", model.variables),
        ("slot", getattr(optimizer, "variables", ())),
    ):
        live |= {f"{kind}/{at}": value for at, value in enumerate(objects)}
    return live


def _outside(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return the containers that callbacks' functions fill outside of the callbacks: ``losses.append(logs["loss"])``.

    That is how the functions of a LambdaCallback keep anything at all. Those are containers by global name or in a closure.
    """
    found: dict[str, Any] = {}
    for key, callback in keyed(callbacks):
        for function in _functions_of(callback):
            with contextlib.suppress(ValueError):  # a closure over what has no value yet
                scope = inspect.getclosurevars(function)
                named = {f"{function.__module__}.{name}": value for name, value in scope.globals.items()}
                inner = f"{key}.{function.__qualname__}"
                named |= {f"{inner}.{name}": value for name, value in scope.nonlocals.items()}
                found |= {name: value for name, value in named.items() if _is_container(value)}
    return found


def _is_container(value: Any) -> bool:
    return type(value) in (list, dict, set, deque) and len(value) <= _MOST_ITEMS


def _functions_of(callback: Any) -> list[FunctionType]:
    """Return the program's own functions among a callback's methods and attributes."""
    classes = [
        cls for cls in type(callback).__mro__ if cls.__module__.partition(".")[0] not in ("keras", "builtins")
    ]
    members = [member for scope in (vars(callback), *map(vars, classes)) for member in scope.values()]
    functions = [member for member in members if isinstance(member, FunctionType)]
    return [function for function in functions if not (function.__module__ or "").startswith("keras.")]


def _is_small(value: Any, live: Mapping[str, Any]) -> bool:
    """Whether a container can be kept with every checkpoint; data sets that callbacks look into cannot."""
    try:
        pickled, arrays = pack(value, live)
    except Exception:  # noqa: BLE001 - pickling runs code of the value's own class
        return False
    return len(pickled) <= _MOST_BYTES and not arrays


def _is_of_model(value: Any) -> bool:
    """Whether a value may be part of the model, and is not pickled as it is."""
    return isinstance(value, tf.Variable | keras.Variable | keras.metrics.Metric | keras.random.SeedGenerator)


def _captured(value: Any) -> Any:
    """Return what stands for an attribute's value in the pickle."""
    if isinstance(value, tf.Variable):
        return _Values([value.numpy()])
    if _is_of_model(value):
        return _Values([keras.ops.convert_to_numpy(variable) for variable in _variables(value)])
    return value


def _variables(value: Any) -> list[Any]:
    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    return list(value.variables) if isinstance(value, keras.metrics.Metric) else [value]


def _is_restored_in_place(present: Any, value: Any) -> bool:
    """Give an object of the program the recorded content; False where another object has to take its place."""
    if isinstance(value, _Values):
        for variable, array in zip(_variables(present), value.arrays, strict=True):
            variable.assign(array)
        return True
    if type(present) is not type(value):
        return False
    if isinstance(present, np.ndarray):
        if present.shape != value.shape or present.dtype != value.dtype or not present.flags.writeable:
            return False
        np.copyto(present, value)
        return True
    if type(present) is list:
        present[:] = value
    elif type(present) in (dict, set, deque):
        present.clear()
        (present.extend if type(present) is deque else present.update)(value)
    else:
        return False
    return True


def keyed(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield callbacks with a key that is stable from run to run."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = f"{type(callback).__module__}.{type(callback).__qualname__}"
        yield f"{name}#{seen[name]}", callback
        seen[name] += 1


def _is_code(value: Any) -> bool:
    """Whether a value is the program's code, not its state; pickled, it would bring copies of all it refers to.

    A library's function under its own name can be state: ReduceLROnPlateau chooses one when it begins.
    """
    if isinstance(value, FunctionType | BuiltinFunctionType):
        home = sys.modules.get(getattr(value, "__module__", None) or "")
        return getattr(home, value.__qualname__, None) is not value
    return isinstance(value, MethodType | functools.partial)


def _is_model(value: Any) -> bool:
    return isinstance(value, keras.Model | keras.layers.Layer | keras.optimizers.Optimizer)
