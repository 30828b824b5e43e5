"""Running programs in forks of one process that has imported TensorFlow: each costs a second and not ten.

The server is a process of its own with a Unix socket. It has imported TensorFlow and Keras and executed no
operation (forking is safe until then). Who connects sends one request with its standard streams and gets the
pid, then the exit status; who hangs up before takes the program and all it started with it.

    python forked.py serve SOCKET            the server; ends when its standard input closes
    python forked.py launch SOCKET WORDS…    runs ``python WORDS…`` in a fork, as the interpreter would

A program runs as under its own interpreter: it is `__main__`, `sys.excepthook`, `atexit` and exit statuses
work, it leads a process group. Different are: one hash seed for all, and what TensorFlow reads from the
environment while it is imported.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

_MAX_DESCRIPTORS = 16
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


class Ended(NamedTuple):
    """How a program ended: exit status (negative: the signal), and what it printed."""

    status: int
    stdout: str
    stderr: str


class Running:
    """A program under way. ``pid`` leads the process group of all that it starts."""

    def __init__(self, connection: socket.socket, outputs: tuple[Path, Path]) -> None:
        self._connection = connection
        self._lines = connection.makefile("r")
        self._outputs = outputs
        self.pid = int(self._lines.readline())

    def wait(self, timeout_secs: float = 120.0) -> Ended:
        """Wait for the end; after the timeout the program must say where it hangs, and is killed."""
        self._connection.settimeout(timeout_secs)
        try:
            status = int(self._lines.readline())
        except TimeoutError:
            self.signal(signal.SIGABRT)  # faulthandler prints where each thread is
            time.sleep(1)
            self.kill()
            stdout, stderr = (path.read_text(errors="replace") for path in self._outputs)
            raise AssertionError(f"no end after {timeout_secs:.0f} s\n{stdout}\n{stderr}") from None
        finally:
            self._lines.close()
            self._connection.close()
        return Ended(status, *(path.read_text(errors="replace") for path in self._outputs))

    def signal(self, number: int) -> None:
        """Send a signal to the program alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the program and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class ForkServer:
    """The server, from the side of who uses it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="flor_keras-forked-")
        self.socket_path = Path(self._folder.name) / "socket"
        self.launcher_path = Path(self._folder.name) / "python"
        self.launcher_path.write_text(
            f'#!/bin/sh\nexec {sys.executable} -ISE {__file__} launch {self.socket_path} "$@"\n'
        )
        self.launcher_path.chmod(0o755)
        self.flor_path = Path(self._folder.name) / "flor-keras"
        self.flor_path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.executable = {str(self.launcher_path)!r}\n"
            "from flor_keras.cli import main\nsys.exit(main())\n"
        )
        self.flor_path.chmod(0o755)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0", "PYTHONWARNINGS": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", str(self.socket_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the fork server did not start")

    def start(
        self, words: list[str], cwd: Path, environment: dict[str, str], outputs: tuple[Path, Path]
    ) -> Running:
        """Start ``python WORDS…`` in a fork, its output going to two files."""
        connection = _connect(self.socket_path)
        stdin = os.open(os.devnull, os.O_RDONLY)
        streams = [stdin, *(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for path in outputs)]
        try:
            _send_request(connection, words, str(cwd), environment, dict(enumerate(streams)))
        finally:
            for stream in streams:
                os.close(stream)
        return Running(connection, outputs)

    def close(self) -> None:
        """End the server and every program still under way."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._folder.cleanup()


def _connect(path: Path | str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    return connection


def _send_request(
    connection: socket.socket,
    words: list[str],
    cwd: str,
    environment: dict[str, str],
    descriptors: dict[int, int],
) -> None:
    """Send one request; ``descriptors`` says under which number the program gets which of ours."""
    request = {"words": words, "cwd": cwd, "environment": environment, "numbers": list(descriptors)}
    text = json.dumps(request).encode()
    rights = array.array("i", descriptors.values())
    connection.sendmsg([len(text).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    connection.sendall(text)


def _receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size = array.array("i").itemsize * _MAX_DESCRIPTORS
    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(size))
    if len(head) < 4:
        raise EOFError
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    left, text = int.from_bytes(head, "big"), b""
    while left > len(text):
        text += connection.recv(left - len(text))
    return json.loads(text), list(descriptors)


# -- the server ---------------------------------------------------------------------------------------------


def serve(path: str) -> None:
    """Be the server until standard input closes."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    wakeup, woken = socket.socketpair()
    woken.setblocking(False)
    wakeup.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is the test session's, which ends us by closing stdin
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page of what is imported
    _Server(listener, wakeup).run()


class _Server:
    def __init__(self, listener: socket.socket, wakeup: socket.socket) -> None:
        self._listener = listener
        self._wakeup = wakeup
        self._pids: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(wakeup, selectors.EVENT_READ, self._reap)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._end)

    def run(self) -> None:
        print("ready", flush=True)
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            request, descriptors = _receive_request(connection)
        except (EOFError, OSError):
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self._become(request, descriptors, connection)
        for descriptor in descriptors:
            os.close(descriptor)
        self._pids[connection] = pid
        self._selector.register(connection, selectors.EVENT_READ, self._hung_up)
        self._tell(connection, pid)

    def _become(self, request: dict[str, Any], descriptors: list[int], connection: socket.socket) -> None:
        """Turn this fork into the program; never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            for other in (self._listener, self._wakeup, self._selector, connection, *self._pids):
                other.close()
            _place(descriptors, request["numbers"])
            run_program(request["words"], request["cwd"], request["environment"])
        finally:
            os._exit(70)

    def _reap(self, wakeup: socket.socket) -> None:
        wakeup.recv(4096)
        for connection, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._forget(connection)
                self._tell(connection, os.waitstatus_to_exitcode(status))
                connection.close()

    def _hung_up(self, connection: socket.socket) -> None:
        """Nobody waits for this program any more."""
        pid = self._pids[connection]
        _kill_group(pid)
        os.waitpid(pid, 0)
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        del self._pids[connection]
        self._selector.unregister(connection)

    def _tell(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(f"{number}\n".encode())

    def _end(self, stdin: Any) -> None:
        for pid in self._pids.values():
            _kill_group(pid)
            os.waitpid(pid, 0)
        os._exit(0)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _place(descriptors: list[int], numbers: list[int]) -> None:
    """Give the descriptors the numbers they are to have; those numbers may be taken by one another."""
    import fcntl

    free = max([*numbers, *descriptors]) + 1
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, free) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(aside, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


# -- the program --------------------------------------------------------------------------------------------


def run_program(words: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Run ``python WORDS…`` in this process, which it ends."""
    import faulthandler
    import random

    import numpy as np

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()  # a fork inherits the state; a program of its own would have fresh ones
    np.random.seed()
    faulthandler.enable()
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    status = 0
    try:
        _run_main(words, environment)
    except SystemExit as leaving:
        status = _exit_status(leaving.code)
    except BaseException as error:
        status = 1
        sys.excepthook(type(error), error, _own_frames(error))
        if isinstance(error, KeyboardInterrupt):
            status = 130
    _join_threads()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _run_main(words: list[str], environment: dict[str, str]) -> None:
    if words[0] == "-m":
        sys.argv = [words[1], *words[2:]]
        if not environment.get("PYTHONSAFEPATH"):
            sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    # Not runpy.run_path, which takes `__main__` away again before exit handlers run.
    script = words[0]
    sys.argv = words
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = main
    source = Path(script).read_bytes()
    exec(compile(source, script, "exec"), main.__dict__)


def _own_frames(error: BaseException) -> Any:
    """Return the traceback from the program's first line on, as its own interpreter would show it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _exit_status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _join_threads() -> None:
    import threading

    threading._shutdown()


# -- the launcher -------------------------------------------------------------------------------------------


def launch(path: str, words: list[str]) -> None:
    """Run ``python WORDS…`` in a fork where it can be, else with the interpreter itself."""
    is_module = words[0] == "-m" and words[1].startswith("flor_keras")
    is_ours = is_module or Path(words[0]).parent == BENCHMARKS
    if not is_ours:
        os.execv(sys.executable, [sys.executable, *words])
    connection = _connect(path)
    open_now = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    inherited = [n for n in open_now if n <= 2 or (n != connection.fileno() and _is_inheritable(n))]
    _send_request(connection, words, os.getcwd(), dict(os.environ), {n: n for n in inherited})
    for number in inherited:
        os.close(number)  # who waits for the other end waits for the program, not for us
    lines = connection.makefile("r")
    lines.readline()
    status = int(lines.readline() or 1)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # what listed the folder is closed again
        return False


if __name__ == "__main__":
    {"serve": lambda words: serve(*words), "launch": lambda words: launch(words[0], words[1:])}[sys.argv[1]](
        sys.argv[2:]
    )
