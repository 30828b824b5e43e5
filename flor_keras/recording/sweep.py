"""Clearing up what killed runs left behind: checkpoints written and not entered yet, half written, or of no use.

Runs when another run begins, and when a run is resumed. Runs of living processes and of other machines are left alone, and so are those
whose worker is still busy with its last checkpoint.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.errors import CheckpointError
from flor_keras.records import CheckpointRecord, Kind, Position
from flor_keras.store import layout
from flor_keras.store.database import Store


def sweep(store: Store) -> list[Path]:
    """Settle the runs whose process is gone; return what was removed."""
    removed: list[Path] = []
    for run in store.gone_runs():
        settled = settle(store, run)
        if settled is not None:
            removed += settled
            store.mark_killed(run)
    return removed


def settle(store: Store, run: str) -> list[Path] | None:
    """Enter the checkpoints a dead run committed last, and remove what else is no checkpoint of it.

    Returns:
      what was removed; None where its worker is still writing, and nothing was done.
    """
    parent = layout.checkpoint_folder(store.path, run, Position(0, 0, 0), Kind.START).parent
    found = list(parent.iterdir()) if parent.is_dir() else []
    if any(_is_being_written(path) for path in found):
        return None
    _enter(store, run, found)
    entered = {store.path / row.path for row in store.checkpoints(run) if row.error is None}
    leftovers = [path for path in found if path.is_dir() and path not in entered]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return leftovers


def _enter(store: Store, run: str, found: list[Path]) -> None:
    """Enter the committed checkpoints that have no row, which follows the folder by up to a quarter of a second.

    Not where something logged before was lost in the same moment: it is logged again when that epoch is made again.
    """
    rows = {store.path / row.path for row in store.checkpoints(run)}
    without = [(path, _read(path)) for path in found if path.is_dir() and path not in rows]
    committed = [(path, manifest) for path, manifest in without if manifest.get("num_entries") is not None]
    if not committed:
        return
    loops = {loop.loop for loop in store.loops(run)}
    num_entries = sum(recorded for recorded, _ in store.name_counts(run).values())
    for path, manifest in committed:
        row = _row_of(run, path, manifest["position"])
        if manifest["num_entries"] <= num_entries and row.loop in loops and store.path / row.path == path:
            store.add_checkpoint(row)


def _read(folder: Path) -> dict[str, Any]:
    try:
        return bundle.read_manifest(folder)
    except CheckpointError:
        return {}


def _row_of(run: str, folder: Path, place: dict[str, Any]) -> CheckpointRecord:
    position, kind = Position(place["loop"], place["epoch"], place["step"]), Kind(place["kind"])
    return CheckpointRecord(
        run=run,
        loop=place["loop"],
        epoch=place["epoch"],
        step=place["step"],
        kind=kind,
        path=layout.checkpoint_path(run, position, kind),
        num_bytes=sum(file.stat().st_size for file in folder.iterdir()),
        stall_secs=0.0,
        worker_cpu_secs=0.0,
        created_at=folder.stat().st_mtime,
    )


def _is_being_written(path: Path) -> bool:
    """Whether the process a temporary folder names still lives; a worker outlives a killed trainer by one write."""
    pid = path.name.rpartition("-")[2]
    return path.name.startswith(bundle.TEMPORARY_PREFIX) and pid.isdigit() and os.path.exists(f"/proc/{pid}")
