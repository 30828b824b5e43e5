"""Hindsight logging for Keras 3 and TensorFlow: log a number after the training run is over.

The public names are loaded when they are first used (PEP 562), so importing flor_keras does nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flor_keras import origin as _origin  # noqa: F401 - reads the random states, which are a program's own from here on

if TYPE_CHECKING:
    from flor_keras.callback import FlorKeras
    from flor_keras.custom import checkpointing, loop
    from flor_keras.errors import (
        CheckpointError,
        FlorError,
        ReplayError,
        StateError,
        StoreError,
        UsageError,
    )
    from flor_keras.reading import Checkpoint, Run, dataframe, run, runs
    from flor_keras.recorded import record
    from flor_keras.replay.in_process import replay, replaying
    from flor_keras.seeding import seed
    from flor_keras.session import arg, log

__version__ = "0.1.0"

_HOMES = {
    "flor_keras.callback": ("FlorKeras",),
    "flor_keras.custom": ("checkpointing", "loop"),
    "flor_keras.errors": (
        *("CheckpointError", "FlorError", "ReplayError", "StateError", "StoreError", "UsageError"),
    ),
    "flor_keras.reading": ("Checkpoint", "Run", "dataframe", "run", "runs"),
    "flor_keras.recorded": ("record",),
    "flor_keras.replay": ("replay",),  # the package itself, which can be called
    "flor_keras.replay.in_process": ("replaying",),
    "flor_keras.seeding": ("seed",),
    "flor_keras.session": ("arg", "log"),
}
_HOME_BY_NAME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "FlorError",
    "FlorKeras",
    "ReplayError",
    "Run",
    "StateError",
    "StoreError",
    "UsageError",
    "__version__",
    "arg",
    "checkpointing",
    "dataframe",
    "log",
    "loop",
    "record",
    "replay",
    "replaying",
    "run",
    "runs",
    "seed",
]


def __getattr__(name: str) -> Any:
    home = _HOME_BY_NAME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
