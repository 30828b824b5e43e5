"""The scratch folder of a replay, and clearing away those of replays that were killed. Runs in the caller's process.

Who works in a folder holds a lock on it, which the kernel takes back from a process however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "flor_keras-replay-"
_FRESH_SECS = 60.0  # a folder so young may have been made by a process that is about to lock it


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder that is deleted at the end; delete what killed replays of this user left first."""
    _sweep(Path(tempfile.gettempdir()))
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = os.open(scratch, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield scratch
    finally:
        os.close(descriptor)
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, or swept by another replay at this moment
            if not path.is_symlink() and time.time() - path.stat().st_mtime > _FRESH_SECS and _is_left(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path) -> bool:
    """Whether a folder is this user's and no process works in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
