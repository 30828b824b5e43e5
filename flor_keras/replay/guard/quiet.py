"""A replayed program asks nobody and shows nothing: no input, no windows, no browser, no byte code."""

from __future__ import annotations

import io
import os
import sys
from types import ModuleType
from typing import Any

from flor_keras.replay.guard.patches import ImportHook


def quiet_program() -> None:
    """Close standard input and make plots and browsers silent, for the life of the process."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    os.environ["MPLBACKEND"] = "Agg"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    hook = ImportHook()
    hook.add("matplotlib", _keep_agg)
    hook.add("matplotlib.pyplot", _show_nothing)
    hook.add("webbrowser", _open_nothing)
    sys.meta_path.insert(0, hook)


def _keep_agg(module: ModuleType) -> None:
    real = module.use
    module.use = lambda *args, **options: real("Agg")  # type: ignore[attr-defined]


def _show_nothing(module: ModuleType) -> None:
    real = module.switch_backend

    def switch_backend(newbackend: str) -> None:
        real("Agg")

    module.switch_backend = switch_backend  # type: ignore[attr-defined]
    for name in ("show", "pause"):
        setattr(module, name, _do_nothing)


def _open_nothing(module: ModuleType) -> None:
    for name in ("open", "open_new", "open_new_tab"):
        setattr(module, name, _do_nothing)


def _do_nothing(*_: Any, **__: Any) -> bool:
    return False
