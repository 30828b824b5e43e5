"""The objects that code of the program reaches: by the names it reads, and by those that functions it calls read.

Each is known by a key that does not depend on how it was reached: ``name`` in the loop's own scope, ``module:name`` at the
top of a module, ``function(name)`` in the closure of a function.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

from flor_keras import keras_internals
from flor_keras.instrument.index import Index
from flor_keras.instrument.main_loops import MainLoop, MainLoops
from flor_keras.state.objects import holds_variables
from flor_keras.state.variables import is_of_the_program

_MISSING = object()
_CONSTANT = (bool, int, float, complex, str, bytes, type(None))


class Reach:
    """What is reached from a frame of the program."""

    def __init__(self, frame: FrameType, index: Index) -> None:
        self._frame = frame
        self._index = index

    def value(self, name: str) -> Any:
        """Return what a name stands for in the frame; `_MISSING` where it is not bound."""
        for place in (self._frame.f_locals, self._frame.f_globals):
            if name in place:
                return place[name]
        return _MISSING

    def changed(self, main: MainLoop) -> dict[str, Any]:
        """Return the objects a loop changes in place, by key."""
        found = {name: self.value(name) for name in main.changed}
        for path, name in main.elsewhere:
            module = self._module(path)
            if module is not None and name in module:
                found[f"{module['__name__']}:{name}"] = module[name]
        return {key: value for key, value in found.items() if value is not _MISSING and not _is_code(value)}

    def can_change(self, name: str) -> bool:
        """Whether what a name stands for before the loop is something that code can change in place, and we keep."""
        value = self.value(name)
        if value is _MISSING:
            return not hasattr(builtins, name)
        return not _is_code(value) and not isinstance(value, _CONSTANT)

    def others(self, main: MainLoop) -> dict[str, Any]:
        """Return the objects a loop, or the code after it, reads in its own scope."""
        found = {name: self.value(name) for name in main.read_around}
        return {key: value for key, value in found.items() if value is not _MISSING and not _is_code(value)}

    def everything(self, main: MainLoop) -> dict[str, Any]:
        """Return all objects with variables that a loop and the functions it calls read, by key."""
        found = {name: self.value(name) for name in main.read}
        found = {name: value for name, value in found.items() if value is not _MISSING}
        for value in list(found.values()):
            for key, reached in _reached(value, set()):
                found.setdefault(key, reached)
        return {
            key: value for key, value in found.items() if not _is_code(value) and holds_variables(key, value)
        }

    def refusal(self, main: MainLoop, loops: MainLoops) -> str | None:
        """Say why the changes of a loop cannot be estimated, None where they can."""
        for unknown in main.unknown:
            called = _MISSING if unknown.name is None else self.value(unknown.name)
            if called is _MISSING or not self._is_known(called, loops):
                return f"{unknown.path}:{unknown.line}: {unknown.text} may change anything"
        return None

    def _is_known(self, called: Any, loops: MainLoops) -> bool:
        """Whether all that calling something changes is among what the loop reaches."""
        function = _function_of(called)
        if function is None:
            return keras_internals.is_traced_function(called) or holds_variables("called", called)
        if called is not function and keras_internals.is_traced_function(called):
            return True
        return loops.is_known(function.__code__.co_firstlineno, function.__qualname__)

    def _module(self, path: str) -> dict[str, Any] | None:
        if Path(self._frame.f_code.co_filename).as_posix().endswith(path):
            return self._frame.f_globals
        for module in list(sys.modules.values()):
            if (getattr(module, "__file__", None) or "").endswith(f"/{path}"):
                return vars(module)
        return None


def _reached(value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield what the functions behind a value read: globals and closures, through the functions those are in turn."""
    for function in _functions_of(value):
        if id(function.__code__) in seen or not _is_of_program(function):
            continue
        seen.add(id(function.__code__))
        for key, read in _read_by(function):
            yield key, read
            yield from _reached(read, seen)


def _read_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in _names_of(function.__code__):
        if name in function.__globals__:
            yield f"{function.__module__}:{name}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{function.__qualname__}({name})", cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _names_of(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names_of(constant)


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield the Python functions behind a callable, and the methods of an object of the program's own class."""
    function = _function_of(value)
    if function is not None:
        yield function
    elif not isinstance(value, type) and is_of_the_program(type(value)):
        for cls in type(value).__mro__:
            if is_of_the_program(cls):
                yield from (f for f in map(_function_of, vars(cls).values()) if f is not None)


def _function_of(value: Any) -> FunctionType | None:
    while True:
        if isinstance(value, FunctionType):
            wrapped = getattr(value, "__wrapped__", None)
            return wrapped if isinstance(wrapped, FunctionType) else value
        if isinstance(value, MethodType | staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, functools.partial):
            value = value.func
        elif keras_internals.is_traced_function(value):
            value = value.python_function
        else:
            return None


def _is_of_program(function: FunctionType) -> bool:
    path = function.__code__.co_filename
    return (
        "site-packages" not in path
        and "dist-packages" not in path
        and not path.startswith("<frozen")
        and (not function.__module__.startswith("flor_keras"))
    )


def _is_code(value: Any) -> bool:
    return isinstance(value, type) or type(value).__name__ in (
        *("function", "method", "builtin_function_or_method", "module"),
    )
