"""Writing a file or folder so that it is there whole or not at all, and never over what was there before."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flor_keras.errors import UsageError

TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def written_beside(path: Path, is_replacing: bool = False) -> Iterator[Path]:
    """Yield a name beside ``path`` to write under; it becomes ``path`` at the end, and is removed on an error.

    Raises:
      UsageError: ``path`` exists and ``is_replacing`` is false.
    """
    check_free(path, is_replacing)
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{mark}")
    try:
        yield temporary
        if os.path.lexists(path):
            check_free(path, is_replacing)  # it may have come meanwhile
            replaced = path.with_name(f"{TEMPORARY_PREFIX}old-{path.name}-{mark}")
            os.rename(path, replaced)
            os.rename(temporary, path)
            remove(replaced)
        else:
            os.rename(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def check_free(path: Path, is_replacing: bool) -> None:
    """Make sure that nothing is at ``path`` unless it may be replaced."""
    if os.path.lexists(path) and not is_replacing:
        raise UsageError(f"{path} exists already. Give another name, or --overwrite to replace it.")


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
