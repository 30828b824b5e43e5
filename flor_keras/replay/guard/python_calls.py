"""Python's own file calls under the guard: `open`, `io.FileIO`, `os`, `shutil`, `tempfile`, `sqlite3`.

Owns how each call takes its arguments (bytes, PathLike, descriptors, folder descriptors) and gives its
results back in the caller's type. What the calls do is in `files`. `posix` itself stays as it is, so that
imports stay fast; writes through it meet the audit hook.
"""

from __future__ import annotations

import functools
import io
import multiprocessing.util
import os
import posix
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from flor_keras.replay.guard.files import Files
from flor_keras.replay.guard.overlay import Overlay
from flor_keras.replay.guard.patches import ImportHook, Patches
from flor_keras.replay.guard.refusal import Refusals

_READING = ("stat", "access", "readlink", "getxattr", "listxattr", "statvfs", "pathconf")
_CHANGING = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr")
_CREATING = ("mkdir", "mkfifo", "mknod")


def patch_python(patches: Patches, hook: ImportHook, overlay: Overlay, refusals: Refusals) -> None:
    """Replace Python's file calls everywhere they are held."""
    files = Files(overlay)
    replacements = {io.open: _open(files, refusals), io.FileIO: _file_io(files, refusals)}
    replacements |= {getattr(os, name): call for name, call in _os_calls(files).items()}
    patches.set_everywhere(replacements)
    for name in ("supports_fd", "supports_follow_symlinks"):
        supported = getattr(os, name)
        patches.set(os, name, supported | {replacements[call] for call in supported if call in replacements})
    patches.set(shutil, "_use_fd_functions", False)  # rmtree by paths: a folder descriptor sees no overlay
    patches.set(tempfile, "tempdir", overlay.temporary)
    _patch_spawning(patches, hook, refusals)
    hook.add("numpy.lib._datasource", lambda module: _patch_numpy(patches, module))
    hook.add("_sqlite3", lambda module: _patch_sqlite(patches, module, files))


def _text(overlay: Overlay, path: Any, dir_fd: int | None = None) -> str:
    text = os.fsdecode(path)
    return text if dir_fd is None else overlay.absolute(text, dir_fd)


def _open(files: Files, refusals: Refusals) -> Callable[..., Any]:
    real = io.open

    @functools.wraps(real)
    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        rest = (buffering, encoding, errors, newline, closefd)
        if opener is None and not isinstance(file, int):
            text = os.fsdecode(file)
            place = files.place(text, mode)
            if place == text:
                return real(file, mode, *rest)
            opener = _opener_of(place, file)
        if opener is None:
            return real(file, mode, *rest)
        with refusals.trusting():
            return real(file, mode, *rest, opener)

    return open


def _opener_of(place: str, asked: Any) -> Callable[[Any, int], int]:
    """Open `place` while the file object and errors keep the name that was asked for."""

    def opener(_: Any, flags: int) -> int:
        with _naming(asked):
            return posix.open(place, flags, 0o666)

    return opener


@contextmanager
def _naming(asked: Any) -> Iterator[None]:
    """Let an error name the path the program asked for, not where it lies."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename2 is None:
            error.filename = asked
        raise


def _file_io(files: Files, refusals: Refusals) -> type:
    real = io.FileIO

    class InstanceOfReal(type(real)):  # type: ignore[misc]  # open() still makes the real class
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class FileIO(real, metaclass=InstanceOfReal):  # type: ignore[valid-type, misc]
        def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
            if opener is None and not isinstance(file, int):
                opener = _opener_of(files.place(os.fsdecode(file), mode), file)
            with refusals.trusting():
                super().__init__(file, mode, closefd, opener)

    return FileIO


def _os_calls(files: Files) -> dict[str, Callable[..., Any]]:
    """Return the new calls by their names in `os`."""
    overlay = files.overlay
    calls: dict[str, Callable[..., Any]] = {}
    plain: dict[str, Callable[..., Any]] = {
        "open": files.open,
        "remove": files.remove,
        "unlink": files.remove,
        "rmdir": files.rmdir,
        "chdir": files.chdir,
    }
    for name in _READING:
        calls[name] = _reading(overlay, getattr(posix, name))
    calls["lstat"] = _reading(overlay, posix.lstat, follow=False)
    calls["readlink"] = _reading(overlay, posix.readlink, follow=False)
    for name in _CHANGING:
        calls[name] = _taking_path(overlay, getattr(posix, name), files.change(getattr(posix, name)))
    calls["lchown"] = _taking_path(overlay, posix.lchown, files.change(posix.lchown, follow=False))
    for name in _CREATING:
        calls[name] = _taking_path(overlay, getattr(posix, name), files.create(getattr(posix, name)))
    for name, call in plain.items():
        calls[name] = _taking_path(overlay, getattr(posix, name), call)
    return calls | _listing_calls(files) | _two_path_calls(files)


def _reading(overlay: Overlay, real: Callable[..., Any], follow: bool = True) -> Callable[..., Any]:
    """Look the path up, then ask the real call; the error names the path that was asked for."""

    @functools.wraps(real)
    def call(path: Any = ".", *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
        at = {} if dir_fd is None else {"dir_fd": dir_fd}
        if isinstance(path, int) or overlay.is_pristine:
            return real(path, *args, **at, **options)
        text = _text(overlay, path, dir_fd)
        where = overlay.seen(text, options.get("follow_symlinks", follow)) if text else text
        with _naming(path):
            found = real(where, *args, **options)
        return os.fsencode(found) if isinstance(found, str) and isinstance(_plain(path), bytes) else found

    return call


def _plain(path: Any) -> Any:
    return path if isinstance(path, int) else os.fspath(path)


def _taking_path(overlay: Overlay, real: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    """Give `new` the path as text; a descriptor goes to the real call, which the audit hook watches."""

    @functools.wraps(real)
    def call(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
        if isinstance(path, int):
            return real(path, *args, **options)
        with _naming(path):
            return new(_text(overlay, path, dir_fd), *args, **options)

    return call


def _listing_calls(files: Files) -> dict[str, Callable[..., Any]]:
    overlay = files.overlay

    @functools.wraps(os.listdir)
    def listdir(path: Any = None) -> list[Any]:
        plain = "." if path is None else _plain(path)
        if isinstance(plain, int) or overlay.is_pristine:
            return posix.listdir(plain)
        names = files.listdir(os.fsdecode(plain))
        return [os.fsencode(name) for name in names] if isinstance(plain, bytes) else names

    @functools.wraps(os.scandir)
    def scandir(path: Any = None) -> Any:
        plain = "." if path is None else _plain(path)
        if isinstance(plain, int) or overlay.is_pristine:
            return posix.scandir(plain)
        return files.scandir(plain)

    def getcwd() -> str:
        return overlay.cwd()

    def getcwdb() -> bytes:
        return os.fsencode(overlay.cwd())

    return {"listdir": listdir, "scandir": scandir, "getcwd": getcwd, "getcwdb": getcwdb}


def _two_path_calls(files: Files) -> dict[str, Callable[..., Any]]:
    overlay = files.overlay

    @functools.wraps(os.rename)
    def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        files.rename(_text(overlay, src, src_dir_fd), _text(overlay, dst, dst_dir_fd))

    @functools.wraps(os.replace)
    def replace(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        files.rename(_text(overlay, src, src_dir_fd), _text(overlay, dst, dst_dir_fd))

    @functools.wraps(os.link)
    def link(
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        files.link(_text(overlay, src, src_dir_fd), _text(overlay, dst, dst_dir_fd), follow_symlinks)

    @functools.wraps(os.symlink)
    def symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        files.symlink(os.fsdecode(src), _text(overlay, dst, dir_fd))

    return {"rename": rename, "replace": replace, "link": link, "symlink": symlink}


def _patch_spawning(patches: Patches, hook: ImportHook, refusals: Refusals) -> None:
    """Refuse where no audit event tells of a new program, or only the child would hear the refusal."""

    def check_first(owner: Any, name: str, position: int) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(*args: Any, **options: Any) -> Any:
            refusals.check_command(args[position])
            return real(*args, **options)

        patches.set(owner, name, call)

    check_first(os, "_spawnvef", 2)
    check_first(multiprocessing.util, "spawnv_passfds", 1)


def _patch_numpy(patches: Patches, module: ModuleType) -> None:
    """Replace the `open` that numpy kept for `np.savetxt` when it was imported."""
    openers = module._FileOpeners()
    openers._file_openers[None] = io.open
    patches.set(module, "_file_openers", openers)


def _patch_sqlite(patches: Patches, module: ModuleType, files: Files) -> None:
    """Divert databases; a journal left beside one belongs to it and comes along."""
    real = module.connect

    @functools.wraps(real)
    def connect(database: Any, *args: Any, **options: Any) -> Any:
        is_url = options.get("uri", len(args) > 6 and args[6])
        return real(_place_database(files, os.fsdecode(database), is_url), *args, **options)

    patches.set_everywhere({real: connect})
    patches.set(module, "connect", connect)


def _place_database(files: Files, database: str, is_url: bool) -> str:
    url = urlsplit(database) if is_url and database.startswith("file:") else None
    path = unquote(url.path) if url else database
    if path in ("", ":memory:") or (url and "mode=memory" in url.query):
        return database
    if url and ("mode=ro" in url.query or "immutable=1" in url.query):
        place = files.overlay.seen(path)
    else:
        if files.status(path) is not None:
            for suffix in ("-wal", "-journal"):
                if files.status(path + suffix) is not None:
                    files.place(path + suffix, "r+")
        place = files.place(path, "a")
    return place if url is None else url._replace(path=quote(place)).geturl()
