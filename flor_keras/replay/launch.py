"""Starting replay workers: one in a process of its own, or several as forks of one that has imported TensorFlow.

Runs in the caller's process. A started worker is a descriptor to read events from and a process group to end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flor_keras.errors import ReplayError
from flor_keras.replay.plan import Plan

_HASH_SEED = "PYTHONHASHSEED"
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
END_SECS = 5.0  # a worker that has closed its events has so long to leave
_START_SECS = 300.0  # importing TensorFlow from a slow disk


class Worker(Protocol):
    """A worker under way. ``events`` is readable, and at its end when the worker is over."""

    events: int

    def end(self) -> int:
        """Close the events, end the worker by force if it lingers; return its exit status, negative for a signal."""

    def kill(self) -> None:
        """End the worker and what it started by force."""


class Launcher(Protocol):
    """Starts workers."""

    def start(self, words: Sequence[str], log: Path, changes: dict[str, str]) -> Worker:
        """Start a worker: its arguments before the events' descriptor, its output, changes to its environment."""


def environment(plan: Plan) -> dict[str, str]:
    """Return the environment of workers: what decides results is as it was when the run was recorded."""
    variables = {**os.environ, **plan.variables, "PYTHONUNBUFFERED": "1"}
    variables.setdefault(_HASH_SEED, "0")
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**variables, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def deal_devices(num_workers: int, visible: str | None, num_present: int) -> list[dict[str, str]]:
    """Return what to change in each worker's environment so that each has GPUs of its own.

    Args:
      visible: the variable CUDA_VISIBLE_DEVICES as it is, None where it is not set.
      num_present: how many GPUs the machine has.
    """
    words = visible.split(",") if visible is not None else map(str, range(num_present))
    devices = [word.strip() for word in words if word.strip() and not word.strip().startswith("-")]
    if not devices or not num_present:
        return [{} for _ in range(num_workers)]
    shares = [devices[at::num_workers] or [devices[at % len(devices)]] for at in range(num_workers)]
    shared = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if num_workers > len(devices) else {}
    return [{_VISIBLE_DEVICES: ",".join(share), **shared} for share in shares]


class _Process:
    """A worker that is our own child."""

    def __init__(self, process: subprocess.Popen[bytes], events: int) -> None:
        self.events = events
        self._process = process

    def end(self) -> int:
        os.close(self.events)
        try:
            return self._process.wait(END_SECS)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait(END_SECS)
        except KeyboardInterrupt:  # not of the worker's, but of the replay's
            self.kill()
            raise

    def kill(self) -> None:
        _kill_group(self._process.pid)


class Interpreters:
    """Starts each worker in an interpreter of its own."""

    def __init__(self, plan: Plan) -> None:
        self._environment = environment(plan)

    def start(self, words: Sequence[str], log: Path, changes: dict[str, str]) -> Worker:
        """Start a worker."""
        reading, writing = os.pipe()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "flor_keras.replay.worker", *words, str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
                env={**self._environment, **changes},
                start_new_session=True,
            )
        os.close(writing)
        return _Process(process, reading)


class _Fork:
    """A worker that is a child of the zygote, which keeps its exit status until asked."""

    def __init__(self, forks: Forks, pid: int, events: int) -> None:
        self.events = events
        self._forks = forks
        self._pid = pid

    def end(self) -> int:
        os.close(self.events)
        return self._forks.wait(self._pid)

    def kill(self) -> None:
        _kill_group(self._pid)


class Forks:
    """Starts workers as forks of one process, `flor_keras.replay.zygote`, that has imported TensorFlow and Keras."""

    def __init__(self, plan: Plan, log: Path) -> None:
        ours, theirs = socket.socketpair()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flor_keras.replay.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env=environment(plan),
                start_new_session=True,
            )
        theirs.close()
        ours.settimeout(_START_SECS)
        self._socket = ours
        self._lines = ours.makefile("r")

    def start(self, words: Sequence[str], log: Path, changes: dict[str, str]) -> Worker:
        """Start a worker; the first one waits for the import of TensorFlow."""
        reading, writing = os.pipe()
        with log.open("ab") as output:
            request = {"start": list(words), "changes": changes}
            pid = self._ask(request, [writing, output.fileno()])
        os.close(writing)
        return _Fork(self, pid, reading)

    def wait(self, pid: int) -> int:
        """Return a worker's exit status once it has left."""
        return self._ask({"wait": pid})

    def close(self) -> None:
        """End all workers, and the process they are forks of."""
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(END_SECS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            _kill_group(self._process.pid)
            self._process.wait(END_SECS)

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
            return int(self._lines.readline())
        except (OSError, ValueError) as error:
            raise ReplayError(
                "The process that starts the replay's workers is gone or did not import TensorFlow in time. "
                "Try again with --workers 1."
            ) from error


@contextmanager
def launcher(plan: Plan, num_workers: int, log: Path) -> Iterator[Launcher]:
    """Give what starts ``num_workers`` at the least cost; everything started is over at the end of the context."""
    if num_workers == 1:
        yield Interpreters(plan)
        return
    forks = Forks(plan, log)
    try:
        yield forks
    finally:
        forks.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
