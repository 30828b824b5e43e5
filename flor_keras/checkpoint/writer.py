"""The trainer's side of checkpointing: capture into the arena, hand over to the worker, keep watch over it.

One `Writer` lives as long as the recording process. It owns the arena and the one forked worker, and promises that
no failure of either reaches training: a worker that misses a deadline or dies is killed and replaced, what it should
have written lies in the arena still and is written again; after `MAX_FAILURES` in a row, and where nothing can be
forked, checkpoints are written in line. What went wrong is told through ``on_event``, each kind once.

The worker is forked when it pays. A fork costs training `FORK_SECS` and more, part of it afterwards, for the pages that are copied;
writing a small state in line costs milliseconds. So the first checkpoints are written in line until they have cost as much
as a fork, which costs at most twice what knowing the run's length would (the ski rental problem), and a training that is
over within seconds goes without.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

import numpy as np

from flor_keras.checkpoint import bundle, memory, worker
from flor_keras.checkpoint.arena import Arena, Layout
from flor_keras.checkpoint.contents import Content
from flor_keras.checkpoint.held import Held
from flor_keras.checkpoint.worker import Done, Job
from flor_keras.errors import CheckpointError

# What a fork costs a program with TensorFlow: 0.05 to 0.09 s, and about as much by and by for 20,000 page faults.
FORK_SECS = 0.1
_IN_LINE_SECS, _IN_LINE_SECS_PER_BYTE = 0.005, 4e-9  # what writing in line takes until it was measured
HANDSHAKE_SECS = 20.0
MAX_FAILURES = 2
_DEADLINE_BASE_SECS = 30.0
_SLOWEST_BYTES_PER_SEC = 10e6
_MEMORY_SLACK_BYTES = 512 << 20  # what the machine keeps free beside the arena


def deadline_secs(num_bytes: int) -> float:
    """Return how long the worker may take for a checkpoint: a slow network disk is slow, a hang is forever."""
    scale = float(os.environ.get("FLOR_DEADLINE_SCALE", "1"))
    return scale * (_DEADLINE_BASE_SECS + num_bytes / _SLOWEST_BYTES_PER_SEC)


class Writer:
    """Writes snapshots in the background. Used by the trainer's main thread; `poll` by any one other thread.

    Args:
      folder: where the worker keeps its log and proves itself with a first small write.
      on_done: called with each job and its outcome, by the thread that learns of it.
      on_event: called with a sentence for the run's record when something goes wrong.
    """

    def __init__(
        self,
        folder: Path,
        on_done: Callable[[Job, Done], None],
        on_event: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._on_done = on_done
        self._on_event = on_event
        self._lock = threading.RLock()  # held by the main thread while it works; `poll` gives way to it
        self._arena: Arena | None = None
        self._pid: int | None = None
        self._connection: Connection | None = None
        self._known_layout: Layout | None = None  # the one the worker has
        self._is_proven = False  # it has shaken hands
        self._why_unproven = ""
        self._pending: Job | None = None
        self._held = Held()  # by what was written in line
        self._in_line_secs_left = FORK_SECS  # what writing in line may cost yet before there is a worker
        self._pending_until = 0.0
        self._failures = 0
        self._has_frozen = False
        self._why_in_line = None if hasattr(os, "fork") else "this system cannot fork a process"
        self.num_forks = 0

    @property
    def is_in_line(self) -> bool:
        """Whether all checkpoints are written by the trainer itself from now on."""
        return self._why_in_line is not None

    def prepare(self, layout: Layout) -> Arena | None:
        """Return the arena to capture into, idle and large enough; None where the machine has no room for one.

        Waits for the job in flight, at most until its deadline.
        """
        with self._lock:
            self.wait()
            if self._arena is not None and self._arena.fits(layout):
                return self._arena
            self._release_arena()
            if not self._has_room(layout):
                return None
            self._arena = Arena(layout.num_bytes)
            if self._connection is not None:
                try:
                    self._announce_arena()
                except OSError:
                    self._fail("The checkpoint worker died")
            return self._arena

    def submit(self, job: Job) -> None:
        """Have a captured snapshot written; returns at once unless writing in line."""
        with self._lock:
            self._pending = job
            if not self.is_in_line and self._is_worth_a_worker(job) and self._ensure_worker():
                self._send(job)
            else:
                self._write_in_line(worker.contents(job, self._arena))

    def write_now(self, job: Job, contents: list[Content]) -> None:
        """Write tensors that are not in an arena, here and now."""
        self._pending = job
        self._write_in_line(contents)

    def poll(self) -> None:
        """Take the worker's answer if it has come; never waits."""
        if self._lock.acquire(blocking=False):
            try:
                self._receive(0.0)
            finally:
                self._lock.release()

    @property
    def is_busy(self) -> bool:
        """Whether a job is in flight; never waits."""
        self.poll()
        return self._pending is not None

    def wait(self) -> None:
        """Wait until nothing is in flight; a hung or dead worker is replaced and its job done again."""
        with self._lock:
            while self._pending is not None:
                if not self._receive(max(0.0, self._pending_until - time.monotonic())):
                    self._recover()

    def close(self) -> None:
        """Finish what is in flight, end the worker and give the arena back."""
        with self._lock:
            self.wait()
            self._end()

    def _end(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._reap(HANDSHAKE_SECS)
        self._release_arena()

    # -- the worker's life -------------------------------------------------------------------------------------

    def _is_worth_a_worker(self, job: Job) -> bool:
        """Whether there was a worker before, or writing in line would have cost as much as one with this job."""
        assert job.layout is not None
        expected_secs = _IN_LINE_SECS + _IN_LINE_SECS_PER_BYTE * job.layout.num_bytes
        return expected_secs > self._in_line_secs_left

    def _ensure_worker(self) -> bool:
        if self._connection is None:
            self._in_line_secs_left = 0.0
            try:
                self._fork()
                self._ask_handshake()
            except OSError as error:
                self._fail(f"The checkpoint worker did not start ({error})")
                return self._connection is not None or (not self.is_in_line and self._ensure_worker())
        return True

    def _fork(self) -> None:
        ours, theirs = Pipe()
        regions = memory.tensor_regions()
        log_path = str(self._folder / "worker.log")
        self._freeze_objects()
        with warnings.catch_warnings(), memory.kept_from_child(regions):
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of every fork with threads
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                worker.run(theirs, regions, log_path, self._held)
        theirs.close()
        self.num_forks += 1
        self._pid, self._connection, self._known_layout = pid, ours, None
        self._is_proven, self._why_unproven = False, ""
        _limit_sending(ours, deadline_secs(0))
        if self._arena is not None:
            self._announce_arena()

    def _freeze_objects(self) -> None:
        """Keep the trainer's garbage collector off the objects of before the fork.

        A collection writes to the head of each, which would copy all their pages for the worker (measured: 36 MB of its
        own instead of 131 MB). What is garbage by then waits until the worker has ended.
        """
        if gc.get_freeze_count() == 0:  # else the program has frozen objects itself
            gc.freeze()
            self._has_frozen = True

    def _thaw_objects(self) -> None:
        if self._has_frozen:
            gc.unfreeze()
            self._has_frozen = False

    def _announce_arena(self) -> None:
        assert self._connection is not None and self._arena is not None and self._pid is not None
        self._connection.send(worker.NewArena())
        send_handle(self._connection, self._arena.descriptor, self._pid)

    def _ask_handshake(self) -> None:
        """Have the worker write a small bundle. Its first job follows at once; nobody waits for the answer."""
        assert self._connection is not None
        small: dict[str, Any] = {"handshake": ("string", (1,), np.array([b"flor_keras"], dtype=object))}
        self._connection.send(Job(-1, str(self._handshake_folder), None, small, {}, {}, HANDSHAKE_SECS))

    def _take_handshake(self, timeout_secs: float) -> bool:
        """Read back what the worker wrote for the handshake, before any of its checkpoints is trusted."""
        assert self._connection is not None
        if self._why_unproven or not self._connection.poll(timeout_secs):
            return False
        try:
            done = self._connection.recv()
            if done.error:
                raise OSError(done.error)
            if bundle.read_tensors(self._handshake_folder)["handshake"].tolist() != [b"flor_keras"]:
                raise ValueError("what it wrote could not be read back")
        except (OSError, EOFError, ValueError, CheckpointError) as error:
            self._why_unproven = str(error) or "it ended at once"
            self._pending_until = 0.0
        finally:
            shutil.rmtree(self._handshake_folder, ignore_errors=True)
        self._is_proven = not self._why_unproven
        return self._is_proven

    @property
    def _handshake_folder(self) -> Path:
        return self._folder / f"{bundle.TEMPORARY_PREFIX}handshake"

    def _recover(self) -> None:
        """Replace the worker that left a job undone, and have it done again."""
        job = self._pending
        assert job is not None
        has_left = self._pending_until == 0.0
        if not self._is_proven:
            why = self._why_unproven or "no answer to the handshake"
            self._fail(f"The checkpoint worker did not start ({why})")
        else:
            self._fail(
                "The checkpoint worker died" if has_left else "The checkpoint worker hung and was killed"
            )
        self.submit(job)

    def _fail(self, what: str) -> None:
        self._reap(0.0)
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._why_in_line = what
            self._on_event(
                f"{what}; checkpoints are now written by the training process itself, which is slower."
            )
        else:
            self._on_event(f"{what}; it is replaced.")

    def _reap(self, patience_secs: float) -> None:
        """End the worker, by force once patience is over, and wait for it."""
        until = time.monotonic() + patience_secs
        while self._pid is not None and not _has_ended(self._pid, os.WNOHANG):
            if time.monotonic() >= until:
                os.kill(self._pid, signal.SIGKILL)
                _has_ended(self._pid, 0)
                break
            time.sleep(0.002)
        self._pid = None
        self._thaw_objects()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- jobs --------------------------------------------------------------------------------------------------

    def _send(self, job: Job) -> None:
        assert self._connection is not None
        self._pending_until = time.monotonic() + job.deadline_secs
        try:
            if job.layout is not self._known_layout:  # long for many variables, and mostly the same each time
                self._connection.send(job.layout)
                self._known_layout = job.layout
            self._connection.send(job._replace(layout=None))
        except OSError as error:
            if not isinstance(error, BlockingIOError):  # that is a send out of time: it hangs
                self._pending_until = 0.0
            self._recover()

    def _receive(self, timeout_secs: float) -> bool:
        """Take an answer within the time given; False if there is none, or no worker to give one."""
        if self._connection is None or self._pending is None:
            return self._pending is None
        try:
            is_proven = self._is_proven or self._take_handshake(timeout_secs)
            if not is_proven or not self._connection.poll(timeout_secs):
                return False
            done = self._connection.recv()
        except (EOFError, OSError):
            self._pending_until = 0.0
            return False
        self._failures = 0
        self._finish(done)
        return True

    def _write_in_line(self, contents: list[Content]) -> None:
        job = self._pending
        assert job is not None
        try:
            done = worker.carry_out(job, contents, self._held)
        except BaseException:  # Ctrl-C: nobody is to wait for it
            self._pending = None
            raise
        self._in_line_secs_left -= done.wall_secs
        self._finish(done)

    def _finish(self, done: Done) -> None:
        job, self._pending = self._pending, None
        assert job is not None
        self._on_done(job, done)

    # -- memory ------------------------------------------------------------------------------------------------

    def _has_room(self, layout: Layout) -> bool:
        available = memory.available_bytes()
        if available is None or layout.num_bytes + _MEMORY_SLACK_BYTES <= available:
            return True
        if not self.is_in_line:
            self._why_in_line = "not enough memory"
            self._on_event(
                f"A copy of the training state needs {layout.num_bytes / 1e6:.0f} MB and the machine has "
                f"{available / 1e6:.0f} MB free; checkpoints are written in line, which is slower."
            )
        return False

    def _release_arena(self) -> None:
        if self._arena is not None:
            self._arena.close()
            self._arena = None


def _has_ended(pid: int, options: int) -> bool:
    """Ask for, or wait for, the end of a child; the program may have taken it already (``SIGCHLD`` ignored)."""
    try:
        return os.waitpid(pid, options)[0] != 0
    except ChildProcessError:
        return True


def _limit_sending(connection: Connection, secs: float) -> None:
    """Let a send to a process that does not read end in BlockingIOError; a pipe holds less than a vocabulary."""
    end = socket.socket(fileno=os.dup(connection.fileno()))
    with end:
        limit = struct.pack("ll", int(secs), int(secs % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def job_for(
    number: int,
    folder: Path,
    layout: Layout,
    small: Mapping[str, Any],
    manifest: dict[str, Any],
    files: dict[str, bytes],
) -> Job:
    """Describe one checkpoint for the worker."""
    return Job(number, str(folder), layout, dict(small), manifest, files, deadline_secs(layout.num_bytes))
