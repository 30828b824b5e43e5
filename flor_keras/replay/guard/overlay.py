"""Where a path really lies: an overlay over the whole file system, kept in Python.

The upper layer is ``<scratch>/files/<absolute path>``, the lower layer is the file system as it is. Owns the
path logic: symbolic links, what is hidden, what was copied up. Leaves the calls of `os` to `files` and the
patching to `patches`. Calls only `posix`, which is never patched, so it is the same with and without a guard.
Runs in the replay worker and in what that forks.
"""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Sequence
from pathlib import Path

from flor_keras.replay.guard.journal import Journal

_KERNEL = ("/dev/", "/proc/", "/sys/")  # no files of the user's; their links are not ordinary links
_MAX_LINKS = 40  # as the kernel: include/linux/namei.h, MAXSYMLINKS
_CHUNK_BYTES = 1 << 24


def failure(code: int, path: str) -> OSError:
    """Return the OSError the kernel would raise for `path`."""
    return OSError(code, os.strerror(code), path)


class Overlay:
    """Map paths: what is written goes to `scratch`, what is read is looked up there first.

    Paths under `scratch`, under one of `allowed` and under /dev, /proc, /sys are free: they pass untouched.
    All paths given to the methods are text; relative ones start at the current folder.
    """

    def __init__(self, scratch: Path, allowed: Sequence[Path]) -> None:
        self.scratch = os.path.realpath(scratch)
        self.upper = self.scratch + "/files"
        self.temporary = self.scratch + "/tmp"
        for folder in (self.upper, self.temporary):
            os.makedirs(folder, exist_ok=True)
        free = {self.scratch, *(os.path.realpath(path) for path in allowed)}
        self._free = (*_KERNEL, *(folder + "/" for folder in sorted(free)))
        self.journal = Journal(self.scratch + "/journal")
        self._folders: dict[str, str] = {}
        self._folders_as_of = 0  # the journal's size when they were looked up

    @property
    def is_pristine(self) -> bool:
        """Whether nothing was diverted yet, so that every path is still its own."""
        return self.journal.is_empty

    def is_free(self, path: str) -> bool:
        """Say whether a resolved path passes untouched."""
        return (path + "/").startswith(self._free)

    def original(self, path: str) -> str:
        """Turn a path in the upper layer back into the path the program means."""
        if (path + "/").startswith(self.upper + "/"):
            return path[len(self.upper) :] or "/"
        return path

    def cwd(self) -> str:
        """Return the current folder as the program sees it."""
        return self.original(posix.getcwd())

    def absolute(self, path: str, dir_fd: int | None = None) -> str:
        """Return `path` as an absolute path of the program, links not yet followed."""
        if not path:
            raise failure(errno.ENOENT, path)
        if not path.startswith("/"):
            base = self.cwd() if dir_fd is None else self.original(posix.readlink(f"/proc/self/fd/{dir_fd}"))
            path = base + "/" + path
        return self.original(path)

    def resolve(self, path: str, follow: bool = True) -> str:
        """Return the absolute path without dots and links; the last part stays a link unless `follow`."""
        return self._walk(self.absolute(path), follow, _MAX_LINKS)

    def resolve_as_is(self, path: str, follow: bool) -> str:
        """Resolve an absolute path the way the kernel takes it: one in the upper layer stays there."""
        return self._walk(path, follow, _MAX_LINKS)

    def find(self, here: str) -> tuple[str, os.stat_result | None]:
        """Return where a resolved path lies and its status; None when the program must not see it."""
        if self.is_free(here):
            return here, _status(here)
        if not self.is_pristine:
            above = self.upper + here
            status = _status(above)
            if status is not None or self.is_hidden(here):
                return above, status
        return here, _status(here)

    def seen(self, path: str, follow: bool = True) -> str:
        """Return where to read `path` from; a path that does not exist when it is hidden."""
        if self.is_pristine:
            return path
        return self.find(self.resolve(path, follow))[0]

    def is_hidden(self, here: str) -> bool:
        """Say whether the original was deleted or moved away, itself or a folder above it."""
        hidden = self.journal.hidden
        while hidden and here != "/":
            if here in hidden:
                return True
            here = os.path.dirname(here)
        return False

    def is_original(self, here: str) -> bool:
        """Say whether the lower layer has this path and the program can still see it there."""
        return not self.is_free(here) and not self.is_hidden(here) and _status(here) is not None

    def hide(self, here: str) -> None:
        """Delete the original from the program's view."""
        if self.is_original(here):
            self.journal.note("diverted", here)
            self.journal.note("hidden", here)
        self.forget_links()

    def forget_links(self) -> None:
        """Tell all processes to look folders up again, because a link may have changed."""
        self.journal.note("changed", "")

    def for_write(self, path: str, *, keep: bool, follow: bool = True, parents: bool = False) -> str:
        """Return the path to write `path` at, its folder made ready.

        `keep` copies what is there up first; `parents` makes missing folders, as TensorFlow's writers do.
        Raises what the kernel would: no such folder, no permission.
        """
        here = self.resolve(path, follow)
        if self.is_free(here):
            return here
        status = self.find(here)[1]
        if status is None:
            self.check_folder(here, parents)
        above = self.make_folder_of(here)
        if status is not None and keep:
            self.copy_up(here)
        self.journal.note("diverted", here)
        return above

    def missing(self, here: str) -> OSError:
        """Return the error for a path that is not there; a file may stand where a folder should."""
        above, status = here, None
        while status is None:
            above = os.path.dirname(above)
            status = self.find(above)[1]
        return failure(errno.ENOENT if stat.S_ISDIR(status.st_mode) else errno.ENOTDIR, here)

    def make_folder_of(self, here: str) -> str:
        """Make the folders above `here` in the upper layer and return its path there."""
        above = self.upper + here
        folder = os.path.dirname(above)
        if _status(folder) is None:
            _make_folders(folder)
        return above

    def copy_up(self, here: str) -> None:
        """Copy one original, not what is below it, to the upper layer unless it is there."""
        above = self.make_folder_of(here)
        where, status = self.find(here)
        if where == above or status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            posix.mkdir(above, stat.S_IMODE(status.st_mode) | 0o700)
        elif stat.S_ISLNK(status.st_mode):
            posix.symlink(posix.readlink(where), above)
        elif stat.S_ISREG(status.st_mode):
            _copy_file(where, above, status)
        else:
            raise failure(errno.EPERM, here)
        self.journal.note("changed", "")

    def copy_up_tree(self, here: str) -> str:
        """Copy an original and all below it up; return its path in the upper layer."""
        if self.is_free(here):
            return here
        self.copy_up(here)
        status = self.find(here)[1]
        if status is not None and stat.S_ISDIR(status.st_mode):
            for name in self.names(here):
                self.copy_up_tree(f"{here}/{name}")
        return self.upper + here

    def names(self, here: str) -> list[str]:
        """Return the merged names in a resolved folder, the originals first."""
        names = {}
        if self.is_original(here):
            names = {name: None for name in posix.listdir(here) if not self.is_hidden(f"{here}/{name}")}
        if _status(self.upper + here) is not None:
            names |= dict.fromkeys(posix.listdir(self.upper + here))
        return list(names)

    def check_folder(self, here: str, parents: bool = False) -> None:
        """Raise what the kernel would if `here` could not be made or deleted in its folder."""
        folder = os.path.dirname(here)
        where, status = self.find(folder)
        if status is None:
            if not parents:
                raise self.missing(here)
            return self.check_folder(folder, parents)
        if not stat.S_ISDIR(status.st_mode):
            raise failure(errno.ENOTDIR, here)
        if where == folder and not posix.access(folder, posix.W_OK):
            raise failure(errno.EACCES, here)
        return None

    def _walk(self, path: str, follow: bool, links_left: int) -> str:
        head, _, tail = path.rstrip("/").rpartition("/")
        if not tail:
            return "/"
        folder = self._folder(head, links_left)
        if tail == ".":
            return folder
        if tail == "..":
            status = self.find(folder)[1]
            if status is None or not stat.S_ISDIR(status.st_mode):
                raise failure(errno.ENOTDIR if status else errno.ENOENT, path)
            return os.path.dirname(folder)
        here = f"{folder}/{tail}" if folder != "/" else f"/{tail}"
        if not follow or here.startswith(_KERNEL):
            return here
        where, status = self.find(here)
        if status is None or not stat.S_ISLNK(status.st_mode):
            return here
        if not links_left:
            raise failure(errno.ELOOP, path)
        target = posix.readlink(where)
        return self._walk(target if target.startswith("/") else f"{folder}/{target}", True, links_left - 1)

    def _folder(self, head: str, links_left: int) -> str:
        if self.journal.num_bytes != self._folders_as_of:
            self._folders.clear()
            self._folders_as_of = self.journal.num_bytes
        folder = self._folders.get(head)
        if folder is None:
            folder = self._walk(head, True, links_left)
            self._folders[head] = folder
        return folder


def _status(path: str) -> os.stat_result | None:
    try:
        return posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def _make_folders(path: str) -> None:
    above = os.path.dirname(path)
    if _status(above) is None:
        _make_folders(above)
    try:
        posix.mkdir(path, 0o777)
    except FileExistsError:
        return  # a forked process made it first


def _copy_file(source: str, target: str, status: os.stat_result) -> None:
    """Copy under a temporary name first, so that another process never reads half a file."""
    partial = f"{target}.{posix.getpid()}.partial"
    reader = posix.open(source, posix.O_RDONLY | posix.O_CLOEXEC)
    writer = posix.open(partial, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_CLOEXEC, 0o600)
    try:
        while posix.sendfile(writer, reader, None, _CHUNK_BYTES):
            pass
        posix.fchmod(writer, stat.S_IMODE(status.st_mode) | 0o600)
        posix.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        posix.close(reader)
        posix.close(writer)
    posix.rename(partial, target)
