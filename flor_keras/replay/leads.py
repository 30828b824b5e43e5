"""Which of a program's callbacks lead to a log line that was asked for, and which write files."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from flor_keras.replay.plan import Plan

_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
)
_TRACKERS = ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "dvclive", "aim", "orbax", "swanlab")
_HOOK_PREFIX = "on_"


def leads(callback: Any, root: Path, reaching: Sequence[Sequence[Any]]) -> bool:
    """Whether one of a callback's functions is among ``reaching``: pairs of path below ``root`` and first line."""
    places = {(str((root / path).resolve()), line) for path, line in reaching}
    return any((_real(code.co_filename), code.co_firstlineno) in places for code in _codes(callback))


def is_needed(callback: Any, plan: Plan) -> bool:
    """Whether a replay was asked for something that a callback logs or computes."""
    return is_probe(callback) or leads(callback, Path(plan.root), plan.reaching)


def is_probe(callback: Any) -> bool:
    """Whether a replay was asked for what a callback computes (see `flor_keras.probes`)."""
    return bool(getattr(callback, "is_asked", False))


def writes_files(callback: Any) -> bool:
    """Whether a callback is there to write files or to send data away; a replay never calls those for that."""
    is_orbax = any(base.__name__ == "OrbaxCheckpoint" for base in type(callback).__mro__)
    modules = {base.__module__.partition(".")[0] for base in type(callback).__mro__}
    return isinstance(callback, _WRITERS) or is_orbax or bool(modules & set(_TRACKERS))


def overrides(callback: Any, hook: str) -> bool:
    """Whether a callback does something of its own in ``hook``."""
    own = getattr(callback, hook, None)
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return callback.__dict__.get(hook) is not None and not _is_placeholder(own)
    return getattr(own, "__func__", own) is not getattr(keras.callbacks.Callback, hook, None)


def name_of(callback: Any) -> str:
    """Return how a callback is called in plans and reports."""
    return type(callback).__name__


def _is_placeholder(function: Any) -> bool:
    """LambdaCallback fills hooks it was not given with a lambda of its own."""
    return getattr(function, "__module__", "").startswith("keras.")


def _codes(callback: Any) -> Iterator[Any]:
    """Yield the code of every function a callback is made of: methods of its class, functions it was given."""
    members = [value for base in type(callback).__mro__ for value in base.__dict__.values()]
    for value in (*members, *vars(callback).values()):
        function = _plain_function(value)
        if function is not None:
            yield function.__code__


def _plain_function(value: Any) -> Any:
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, property):
        value = value.fget
    value = (
        inspect.unwrap(getattr(value, "__func__", value))
        if callable(value) or hasattr(value, "__func__")
        else value
    )
    return value if inspect.isfunction(value) else None


@functools.cache
def _real(path: str) -> str:
    return str(Path(path).resolve())
