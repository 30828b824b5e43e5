"""The random states of the program at the moment it first imports flor_keras: read, never changed.

Most training programs set no seed, and many draw data, splits and weights from Python's or NumPy's global random
state. A replay puts these states back at the same point. TensorFlow is not imported for this.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

FILE = "origin.json"
_COMMANDS = ("flor-keras", "__main__.py")


def _read() -> dict[str, Any]:
    if os.path.basename(sys.argv[0] if sys.argv else "") in _COMMANDS:
        return {}  # our own command line has no program to replay, and no need of NumPy
    import numpy as np

    state = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": {**state, "state": {**state["state"], "key": state["state"]["key"].tolist()}},
    }


STATES = _read()


def write(folder: Path) -> None:
    """Keep the states with a run."""
    if STATES:
        (folder / FILE).write_text(json.dumps(STATES), encoding="utf-8")


def restore_on_import(folder: Path) -> None:
    """Put a run's states back when the program that is about to run imports flor_keras, as they were then."""
    path = folder / FILE
    if not path.is_file():
        return
    states = json.loads(path.read_text(encoding="utf-8"))
    original = builtins.__import__

    def import_module(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
        module = original(name, globals, *rest, **named)
        importer = (globals or {}).get("__name__", "")
        if name.partition(".")[0] == "flor_keras" and not importer.startswith("flor_keras"):
            builtins.__import__ = original
            _restore(states)
        return module

    builtins.__import__ = import_module


def _restore(states: dict[str, Any]) -> None:
    import numpy as np

    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(states["numpy"])
