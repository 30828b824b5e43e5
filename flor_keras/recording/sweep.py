"""Clearing away what killed runs left behind: checkpoints half written, or written and never entered.

Runs when another run begins. Runs of living processes and of other machines are left alone, and so are those whose
worker is still busy with its last checkpoint.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flor_keras.checkpoint.bundle import TEMPORARY_PREFIX
from flor_keras.records import Kind, Position
from flor_keras.store import layout
from flor_keras.store.database import Store


def sweep(store: Store) -> list[Path]:
    """Remove what is no checkpoint from the folders of runs whose process is gone; return what was removed."""
    removed: list[Path] = []
    for run in store.gone_runs():
        folder = layout.checkpoint_folder(store.path, run, Position(0, 0, 0), Kind.START).parent
        found = list(folder.iterdir()) if folder.is_dir() else []
        if any(_is_being_written(path) for path in found):
            continue
        entered = {store.path / row.path for row in store.checkpoints(run) if row.error is None}
        leftovers = [path for path in found if path.is_dir() and path not in entered]
        for path in leftovers:
            shutil.rmtree(path, ignore_errors=True)
        removed += leftovers
        store.mark_killed(run)
    return removed


def _is_being_written(path: Path) -> bool:
    """Whether the process a temporary folder names still lives; a worker outlives a killed trainer by one write."""
    pid = path.name.rpartition("-")[2]
    return path.name.startswith(TEMPORARY_PREFIX) and pid.isdigit() and os.path.exists(f"/proc/{pid}")
