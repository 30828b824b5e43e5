"""What a store takes on disk, run by run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flor_keras.store import layout
from flor_keras.store.database import Store


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run takes, in bytes on disk.

    ``logical_bytes`` is what its checkpoints would take if none had values in the bundle of an older one.
    """

    run: str
    name: str | None
    num_checkpoints: int
    checkpoint_bytes: int
    logical_bytes: int
    model_bytes: int
    other_bytes: int

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return self.checkpoint_bytes + self.model_bytes + self.other_bytes


def usage(store: Path, refs: list[str] | None = None) -> list[Usage]:
    """Return what each run takes, the largest first."""
    with Store.open(store) as opened:
        runs = opened.runs() if refs is None else [opened.run(ref) for ref in refs]
        rows = {run.id: [row for row in opened.checkpoints(run.id) if row.error is None] for run in runs}
    found = []
    for run in runs:
        folder = layout.run_folder(store, run.id)
        whole, checkpoints, model = (
            disk_bytes(at) for at in (folder, folder / "checkpoints", folder / "model")
        )
        logical = checkpoints + sum(row.shared_bytes for row in rows[run.id])
        sizes = (checkpoints, logical, model, whole - checkpoints - model)
        found.append(Usage(run.id, run.name, len(rows[run.id]), *sizes))
    return sorted(found, key=lambda at: -at.num_bytes)


def database_bytes(store: Path) -> int:
    """Return what the database takes, its write-ahead log included."""
    path = layout.database_path(store)
    return sum(at.stat().st_size for at in path.parent.glob(f"{path.name}*") if at.is_file())


def disk_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    todo = [folder] if folder.is_dir() else []
    while todo:
        for entry in os.scandir(todo.pop()):
            if entry.is_dir(follow_symlinks=False):
                todo.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                seen[status.st_dev, status.st_ino] = status.st_size
    return sum(seen.values())
