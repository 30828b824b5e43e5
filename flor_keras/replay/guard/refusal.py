"""What cannot be diverted is refused: other programs, signals, and writes that found a way past the patches.

Owns the audit hook, the net under all patches (PEP 578). A hook cannot be taken away, so there is one for the
life of the process; it does nothing while no guard is active.
"""

from __future__ import annotations

import os
import posix
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from flor_keras.replay.guard.files import is_writing
from flor_keras.replay.guard.overlay import Overlay

_READING_PROGRAMS = {"uname", "nvidia-smi", "lscpu", "hostname", "nproc", "whoami", "id", "which", "arch"}
_READING_GIT = {"rev-parse", "rev-list", "status", "log", "describe", "diff", "show", "ls-files", "cat-file"}
_READING_GIT_SETTINGS = {
    "config": ("--get", "--list", "-l"),
    "branch": ("--show-current",),
    "remote": ("-v", "get-url"),
}
_RESOURCE_TRACKER = "from multiprocessing.resource_tracker import main;main("


class WriteRefused(PermissionError):
    """The replayed program tried something that cannot be diverted to the scratch folder."""


class Refusals:
    """Decide about what cannot be diverted, and list what was refused."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._trusted = threading.local()

    @contextmanager
    def trusting(self) -> Iterator[None]:
        """Let this thread's opens pass: Python announces the asked path, though a diverted one is opened."""
        before = self.is_trusting
        self._trusted.on = True
        try:
            yield
        finally:
            self._trusted.on = before

    @property
    def is_trusting(self) -> bool:
        """Whether this thread is inside `trusting`."""
        return getattr(self._trusted, "on", False)

    def refuse(self, action: str) -> NoReturn:
        """List `action` and raise."""
        self._overlay.journal.note("refused", action)
        raise WriteRefused(
            f"refused to {action}. A replay protects your files, and this cannot be diverted to its scratch "
            "folder. Replay again with --allow-writes to let it through."
        )

    def check_path(self, action: str, path: Any, dir_fd: int = -1, follow: bool = False) -> None:
        """Refuse `action` unless the path, as the kernel would take it, is free."""
        if self.is_trusting:
            return
        text = _kernel_path(path, dir_fd)
        if text.startswith("/") and not self._overlay.is_free(self._overlay.resolve_as_is(text, follow)):
            self.refuse(f"{action} {text}")

    def check_command(self, arguments: Any) -> None:
        """Refuse to start a program, except those known to only read."""
        words = _words(arguments)
        if not only_reads(words):
            self.refuse("run " + shlex.join(words))

    def check_kill(self, pid: int, signal: int) -> None:
        """Refuse a signal to a process that this one did not start."""
        if signal and not _is_mine(pid):
            self.refuse(f"send signal {int(signal)} to process {pid}")

    def check_remote(self, path: str) -> None:
        """Refuse to write to a file system behind a URL; ``ram://`` lives and dies with the process."""
        if not path.startswith("ram://"):
            self.refuse(f"write {path}")


def only_reads(words: Sequence[str]) -> bool:
    """Say whether a command is known to change nothing."""
    if not words:
        return False
    name = os.path.basename(words[0])
    if name in ("sh", "bash") and len(words) == 3 and words[1] == "-c":
        return not re.search(r"[;&|<>`$()\n\\*?]", words[2]) and only_reads(shlex.split(words[2]))
    if name == "git":
        return _git_only_reads(list(words[1:]))
    if name == "ldconfig":
        return list(words[1:]) == ["-p"]
    if words[0] == sys.executable and words[-1].startswith(_RESOURCE_TRACKER):
        return True  # watches over shared memory; multiprocessing starts it
    if name == "hostname":
        return all(word.startswith("-") and "F" not in word for word in words[1:])
    return name in _READING_PROGRAMS


def _git_only_reads(words: list[str]) -> bool:
    while words and words[0].startswith("-") and words[0] != "--version":
        if words[0] == "-c" or words[0].startswith(("--config", "--exec-path=")):
            return False  # settings can name programs to run
        del words[: 2 if words[0] == "-C" else 1]
    if any(word.startswith(("--output", "--ext-diff", "--textconv")) for word in words):
        return False
    return bool(words) and (
        words[0] in _READING_GIT or words[0] in ("version", "--version") or _git_reads_settings(words)
    )


def _git_reads_settings(words: list[str]) -> bool:
    return len(words) > 1 and words[1].startswith(_READING_GIT_SETTINGS.get(words[0], ("\0",)))


def _words(arguments: Any) -> list[str]:
    if isinstance(arguments, (str, bytes)):
        return ["sh", "-c", os.fsdecode(arguments)]
    return [os.fsdecode(word) for word in arguments]


def _kernel_path(path: Any, dir_fd: int) -> str:
    """Return the path as the kernel takes it; text that is no absolute path for pipes and sockets."""
    if isinstance(path, int):
        return posix.readlink(f"/proc/self/fd/{path}")
    text = os.fsdecode(path)
    if text.startswith("/"):
        return text
    base = posix.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd >= 0 else posix.getcwd()
    return f"{base}/{text}"


def _is_mine(pid: int) -> bool:
    """Say whether a process is this one or descends from it."""
    while pid > 1:
        if pid == posix.getpid():
            return True
        try:
            with os.fdopen(posix.open(f"/proc/{pid}/stat", posix.O_RDONLY)) as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            return True  # gone already: the signal reaches nobody
    return False


def _check_open(refusals: Refusals, path: Any, mode: str | None, flags: int) -> None:
    if is_writing(flags) and not isinstance(path, int) and path is not None:
        refusals.check_path("write", path, follow=True)


def _check_sqlite(refusals: Refusals, database: Any) -> None:
    text = os.fsdecode(database)
    if text.startswith("file:"):
        url = urlsplit(text)
        if "mode=ro" in url.query or "mode=memory" in url.query or "immutable=1" in url.query:
            return
        text = unquote(url.path)
    if text not in ("", ":memory:"):
        refusals.check_path("write", text, follow=True)


def _check_bind(refusals: Refusals, _: object, address: Any) -> None:
    if isinstance(address, (str, bytes)) and not os.fsdecode(address).startswith("\0"):
        refusals.check_path("create the socket", address)


def _check_rename(refusals: Refusals, source: Any, target: Any, old_fd: int = -1, new_fd: int = -1) -> None:
    refusals.check_path("rename", source, old_fd)
    refusals.check_path("overwrite", target, new_fd)


_CHECKS: dict[str, Callable[..., None]] = {
    "open": _check_open,
    "sqlite3.connect": _check_sqlite,
    "socket.bind": _check_bind,
    "os.rename": _check_rename,
    "os.remove": lambda r, path, fd=-1: r.check_path("delete", path, fd),
    "os.rmdir": lambda r, path, fd=-1: r.check_path("delete", path, fd),
    "os.mkdir": lambda r, path, mode, fd=-1: r.check_path("create", path, fd),
    "os.link": lambda r, source, path, fd=-1, to=-1: r.check_path("create", path, to),
    "os.symlink": lambda r, source, path, fd=-1: r.check_path("create", path, fd),
    "os.truncate": lambda r, path, length: r.check_path("cut off", path, follow=True),
    "os.chmod": lambda r, path, mode, fd=-1: r.check_path("change the mode of", path, fd),
    "os.chown": lambda r, path, user, group, fd=-1: r.check_path("change the owner of", path, fd),
    "os.utime": lambda r, path, times, ns, fd=-1: r.check_path("change the time of", path, fd),
    "os.setxattr": lambda r, path, *_: r.check_path("change an attribute of", path),
    "os.removexattr": lambda r, path, *_: r.check_path("change an attribute of", path),
    "os.kill": lambda r, pid, signal: r.check_kill(pid, signal),
    "os.killpg": lambda r, group, signal: r.check_kill(group, signal),
    "os.system": lambda r, command: r.check_command(command),
    "os.exec": lambda r, path, arguments, env: r.check_command(arguments),
    "os.posix_spawn": lambda r, path, arguments, env: r.check_command(arguments),
    "subprocess.Popen": lambda r, path, arguments, cwd, env: r.check_command(arguments),
}

_active: list[Refusals] = []
_is_hooked = False


def watch(refusals: Refusals) -> None:
    """Make the audit hook ask `refusals`."""
    global _is_hooked
    if not _is_hooked:
        sys.addaudithook(_hook)
        _is_hooked = True
    _active.append(refusals)


def unwatch(refusals: Refusals) -> None:
    """Make the audit hook forget `refusals`."""
    _active.remove(refusals)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    check = _CHECKS.get(event)
    if check is not None and _active:
        check(_active[-1], *arguments)
