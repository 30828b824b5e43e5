"""Where things lie in a store, and where the store lies. Paths only: nothing here is created or opened."""

from __future__ import annotations

import os
import re
from pathlib import Path

from flor_keras.errors import StoreError, UsageError
from flor_keras.records import Kind, Position

STORE_NAME = ".flor"
DATABASE_NAME = "flor.db"
STORE_VARIABLE = "FLOR_STORE"

# `Path("gs://bucket")` has already lost a slash, so one is enough; two letters tell a scheme from a drive.
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)


def store_path(location: str | Path) -> Path:
    """Return `location` as an absolute path; StoreError if it is a URL."""
    text = os.fspath(location)
    scheme = _SCHEME.match(text)
    if scheme:
        raise StoreError(
            f"The store {text!r} is a {scheme[1]}:// address, and a store lies in a folder of this machine. "
            f"Give a path, such as --store ./{STORE_NAME} or {STORE_VARIABLE}=/data/{STORE_NAME}."
        )
    if not text:
        raise StoreError(f"The store is an empty path. Give a folder, such as ./{STORE_NAME}.")
    return Path(os.path.abspath(os.path.expanduser(text)))


def default_store(script: Path | None) -> Path:
    """Return where runs of `script` are recorded: `FLOR_STORE`, else its git work tree, else beside it.

    Without a script (an interactive session) the current folder takes the place of the script's.
    """
    chosen = os.environ.get(STORE_VARIABLE)
    if chosen:
        return store_path(chosen)
    folder = Path.cwd() if script is None else script.resolve().parent
    # `.git` is a file in a linked work tree and in a submodule.
    top = next((at for at in (folder, *folder.parents) if (at / ".git").exists()), folder)
    return top / STORE_NAME


def find_store(start: Path) -> Path:
    """Return the store to read from: `FLOR_STORE`, else the nearest `.flor` upwards of `start`."""
    chosen = os.environ.get(STORE_VARIABLE)
    if chosen:
        return given_store(chosen)
    start = start.resolve()
    for folder in (start, *start.parents):
        if database_path(folder / STORE_NAME).is_file():
            return folder / STORE_NAME
    raise UsageError(
        f"No store in {start} or above it: nothing has been recorded there. Go to the folder of the program, "
        f"name the store with --store PATH or {STORE_VARIABLE}, or record a run: flor-keras record SCRIPT."
    )


def given_store(location: str | Path) -> Path:
    """Return the store a reader named: the store itself, or the project folder that holds one."""
    path = store_path(location)
    for candidate in (path, path / STORE_NAME):
        if database_path(candidate).is_file():
            return candidate
    raise UsageError(
        f"No store at {path}: there is no {DATABASE_NAME} in it. "
        f"Name the {STORE_NAME} folder of a project, or record a run: flor-keras record SCRIPT."
    )


def database_path(store: Path) -> Path:
    """Return the SQLite file of a store."""
    return store / DATABASE_NAME


def run_folder(store: Path, run: str) -> Path:
    """Return the folder of everything of a run that is not in the database."""
    return store / "runs" / run


def arrays_folder(store: Path, run: str) -> Path:
    """Return the folder of a run's logged arrays, one .npy file per content."""
    return run_folder(store, run) / "arrays"


def check_inside(path: str) -> str:
    """Return a path relative to the store, as a row or a manifest has it; StoreError if it leads anywhere else.

    A store may have come from somebody else, and what is read and removed goes by what its rows say.
    """
    parts = path.replace("\\", "/").split("/")
    if not path or path.startswith("/") or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise StoreError(
            f"The store refers to {path!r}, which is not inside of it. flor_keras writes no such path: do not use this "
            "store, or restore its database from a copy."
        )
    return path


def model_folder(store: Path, run: str) -> Path:
    """Return the folder of the graphs of a run's models, one folder per graph."""
    return run_folder(store, run) / "model"


def checkpoint_path(run: str, position: Position, kind: Kind) -> str:
    """Return a checkpoint's folder relative to its store, as `CheckpointRecord.path` holds it."""
    last = {Kind.EPOCH_HOOKS: "hooks", Kind.EPOCH_END: "end", Kind.AFTER: "after"}.get(
        kind, str(position.step)
    )
    return f"runs/{run}/checkpoints/{position.loop}-{position.epoch}-{last}"


def checkpoint_folder(store: Path, run: str, position: Position, kind: Kind) -> Path:
    """Return a checkpoint's folder."""
    return store / checkpoint_path(run, position, kind)
