"""The file calls of `os`, done on an overlay. Owns what each call means there; patches nothing.

Paths are text, absolute or relative to the current folder; folder descriptors were taken in by the caller.
"""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Callable, Iterator
from typing import Any

from flor_keras.replay.guard.overlay import Overlay, failure

_WRITING = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND


def is_writing(flags: int) -> bool:
    """Say whether the flags of an open may change or create a file."""
    return bool(flags & _WRITING)


class Files:
    """File calls by name, as in `os`, that leave the originals alone."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def status(self, path: str, follow: bool = True) -> os.stat_result | None:
        """Return the status of what the program sees at `path`, None when there is nothing."""
        return self.overlay.find(self.overlay.resolve(path, follow))[1]

    def is_folder(self, path: str) -> bool:
        """Say whether the program sees a folder at `path`."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def place(self, path: str, mode: str) -> str:
        """Return where to open `path` in a mode of Python's `open`; raise what the kernel would."""
        if not set(mode) & set("wax+"):
            return self.overlay.seen(path)
        if "x" in mode:
            self._check_absent(path)
        status = self.status(path)
        if status is None and "r" in mode:
            raise self._missing(path)
        if status is not None:
            self._check_can_open(path, status)
        return self.overlay.for_write(path, keep="a" in mode or "r" in mode)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a descriptor; writing flags lead to the upper layer."""
        if not is_writing(flags):
            return posix.open(self.overlay.seen(path, not flags & posix.O_NOFOLLOW), flags, mode)
        if flags & posix.O_TMPFILE == posix.O_TMPFILE:
            return posix.open(self.overlay.for_write(path, keep=True), flags, mode)
        if flags & posix.O_EXCL and flags & posix.O_CREAT:
            self._check_absent(path)
        status = self.status(path)
        if status is None and not flags & posix.O_CREAT:
            raise self._missing(path)
        if status is not None:
            self._check_can_open(path, status)
        return posix.open(self.overlay.for_write(path, keep=not flags & posix.O_TRUNC), flags, mode)

    def change(self, real: Callable[..., Any], follow: bool = True) -> Callable[..., Any]:
        """Return a call that copies `path` up and then changes the copy: chmod, utime, truncate, setxattr."""

        def call(path: str, *args: Any, **options: Any) -> Any:
            is_followed = options.get("follow_symlinks", follow)
            if self.status(path, is_followed) is None:
                raise self._missing(path)
            return real(self.overlay.for_write(path, keep=True, follow=is_followed), *args, **options)

        return call

    def create(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that makes something new at `path`: mkdir, mkfifo, mknod."""

        def call(path: str, *args: Any, **options: Any) -> Any:
            self._check_absent(path)
            return real(self.overlay.for_write(path, keep=False, follow=False), *args, **options)

        return call

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link in the upper layer."""
        self._check_absent(path)
        posix.symlink(target, self.overlay.for_write(path, keep=False, follow=False))
        self.overlay.forget_links()

    def link(self, source: str, path: str, follow: bool = False) -> None:
        """Link to a copy of `source`: a hard link to the original would let later writes reach it."""
        self._check_absent(path)
        here, _ = self._existing(source, follow)
        if not self.overlay.is_free(here):
            self.overlay.copy_up(here)
        posix.link(self.overlay.find(here)[0], self.overlay.for_write(path, keep=False, follow=False))

    def remove(self, path: str) -> None:
        """Delete the copy and hide the original."""
        here, status = self._existing(path)
        if stat.S_ISDIR(status.st_mode):
            raise failure(errno.EISDIR, path)
        self._delete(here, posix.unlink)

    def rmdir(self, path: str) -> None:
        """Delete an empty folder; empty means as the program sees it."""
        here, status = self._existing(path)
        if not stat.S_ISDIR(status.st_mode):
            raise failure(errno.ENOTDIR, path)
        if not self.overlay.is_free(here) and self.overlay.names(here):
            raise failure(errno.ENOTEMPTY, path)
        self._delete(here, posix.rmdir)

    def remove_tree(self, path: str) -> None:
        """Delete a folder and all below it."""
        for name in self.listdir(path):
            child = f"{path}/{name}"
            status = self.status(child, follow=False)
            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
            (self.remove_tree if is_folder else self.remove)(child)
        self.rmdir(path)

    def make_tree(self, path: str) -> None:
        """Make a folder and the missing ones above it; an existing one is fine, and so is no name at all."""
        if not path or self.is_folder(path):
            return
        above = os.path.dirname(path.rstrip("/"))
        if above:
            self.make_tree(above)
        self.create(posix.mkdir)(path)

    def rename(self, source: str, target: str) -> None:
        """Move a copy of `source` to `target` and hide the originals at both."""
        old, status = self._existing(source)
        new = self.overlay.resolve(target, follow=False)
        if old == new:
            return
        self._check_can_replace(old, status, new)
        moved = self.overlay.copy_up_tree(old)
        place = self.overlay.for_write(new, keep=False, follow=False)
        if stat.S_ISDIR(status.st_mode) and place != new and os.path.lexists(place):
            posix.rmdir(place)
        posix.rename(moved, place)
        self.overlay.hide(new)
        self.overlay.hide(old)

    def listdir(self, path: str) -> list[str]:
        """Return the merged names in a folder."""
        here = self.overlay.resolve(path)
        where, status = self.overlay.find(here)
        if status is None or (where == here and not self._is_merged(here)):
            return posix.listdir(where)
        if not stat.S_ISDIR(status.st_mode):
            raise failure(errno.ENOTDIR, path)
        return self.overlay.names(here)

    def scandir(self, path: str | bytes) -> Any:
        """Return merged entries in the type of `path`; Python's own where nothing is diverted."""
        here = self.overlay.resolve(os.fsdecode(path))
        where, status = self.overlay.find(here)
        if status is None or (where == here and not self._is_merged(here)):
            return posix.scandir(path if where == here else where)
        if not stat.S_ISDIR(status.st_mode):
            raise failure(errno.ENOTDIR, os.fsdecode(path))
        return Entries([Entry(self, path, name) for name in self.overlay.names(here)])

    def chdir(self, path: str) -> None:
        """Change the folder: to the original where there is one, else to its copy."""
        here, status = self._existing(path, follow=True)
        if not stat.S_ISDIR(status.st_mode):
            raise failure(errno.ENOTDIR, path)
        posix.chdir(here if self.overlay.is_original(here) else self.overlay.find(here)[0])

    def _is_merged(self, here: str) -> bool:
        """Say whether the program's view of a folder that has no copy still differs from the original."""
        return any(os.path.dirname(hidden) == here for hidden in self.overlay.journal.hidden)

    def _existing(self, path: str, follow: bool = False) -> tuple[str, os.stat_result]:
        here = self.overlay.resolve(path, follow)
        status = self.overlay.find(here)[1]
        if status is None:
            raise self._missing(path)
        return here, status

    def _missing(self, path: str) -> OSError:
        return self.overlay.missing(self.overlay.resolve(path, follow=False))

    def _delete(self, here: str, real: Callable[[str], None]) -> None:
        where = self.overlay.find(here)[0]
        if where == here and not self.overlay.is_free(here):
            self.overlay.check_folder(here)
        else:
            real(where)
        self.overlay.hide(here)

    def _check_can_open(self, path: str, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise failure(errno.EISDIR, path)
        if not posix.access(self.overlay.seen(path), posix.W_OK):
            raise failure(errno.EACCES, path)

    def _check_absent(self, path: str) -> None:
        if self.status(path, follow=False) is not None:
            raise failure(errno.EEXIST, path)

    def _check_can_replace(self, old: str, status: os.stat_result, new: str) -> None:
        found = self.overlay.find(new)[1]
        if not self.overlay.is_free(new):
            self.overlay.check_folder(new)
        if new.startswith(old + "/"):
            raise failure(errno.EINVAL, old)  # a folder into itself
        if old.startswith(new + "/"):
            raise failure(errno.ENOTEMPTY, new)
        if found is None:
            return
        was_folder, is_folder = stat.S_ISDIR(found.st_mode), stat.S_ISDIR(status.st_mode)
        if was_folder != is_folder:
            raise failure(errno.EISDIR if was_folder else errno.ENOTDIR, new)
        if was_folder and not self.overlay.is_free(new) and self.overlay.names(new):
            raise failure(errno.ENOTEMPTY, new)


class Entry:
    """What `os.DirEntry` offers, for a name in a merged folder."""

    def __init__(self, files: Files, folder: str | bytes, name: str) -> None:
        self._files = files
        self._text = os.path.join(os.fsdecode(folder), name)
        self.name = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.fsencode(self._text) if isinstance(folder, bytes) else self._text

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of what the program sees there."""
        status = self._files.status(self._text, follow_symlinks)
        if status is None:
            raise failure(errno.ENOENT, self._text)
        return status

    def inode(self) -> int:
        """Return the inode of the file or its copy."""
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Say whether it is a folder."""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Say whether it is a regular file."""
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Say whether it is a symbolic link."""
        return self._is(stat.S_ISLNK, False)

    def _is(self, test: Callable[[int], bool], follow: bool) -> bool:
        status = self._files.status(self._text, follow)
        return status is not None and test(status.st_mode)

    def __fspath__(self) -> str | bytes:
        return self.path


class Entries:
    """The iterator of a merged `scandir`, usable in a ``with`` block."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the entries left."""
        self._entries = iter(())
