"""The trainer's end of a forked worker: its start, the jobs it is given, its answers, its end.

A worker is trusted once it has shaken hands: the first thing it writes is a small bundle, which is read back here. What it
answers, and that it is lost, is learned from `ForkedWorker.receive` alone; how long to wait for it is the caller's to say.
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
import time
import warnings
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

import numpy as np

from flor_keras.checkpoint import bundle, memory, worker
from flor_keras.checkpoint.arena import Arena, Layout
from flor_keras.checkpoint.held import Held
from flor_keras.checkpoint.worker import Done, Job
from flor_keras.errors import CheckpointError

HANDSHAKE_SECS = 20.0


class WorkerLost(Exception):
    """A worker is of no use any more. The message says what happened, without a full stop."""


class ForkedWorker:
    """A process forked from this one that writes what lies in the arena.

    Args:
      folder: where the worker keeps its log and proves itself with a first small write.
      held: what older checkpoints of the run hold already.
      sending_secs: how long a message may wait for a worker that does not read.

    Raises:
      OSError: the system cannot fork now.
    """

    def __init__(self, folder: Path, held: Held, sending_secs: float) -> None:
        self._handshake_folder = folder / f"{bundle.TEMPORARY_PREFIX}handshake"
        self._known_layout: Layout | None = None  # the one the worker has
        self._is_proven = False  # it has shaken hands
        self._has_frozen = False
        self._pid, self._connection = self._fork(str(folder / "worker.log"), held)
        self._has_ended = False
        try:
            _limit_sending(self._connection, sending_secs)
        except OSError:
            self.end()
            raise
        self._ask_handshake()

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._pid

    def use(self, arena: Arena) -> None:
        """Have all later jobs written from this arena; a worker that is lost is noticed by the next `begin`."""
        with contextlib.suppress(OSError):
            self._connection.send(worker.NewArena())
            send_handle(self._connection, arena.descriptor, self._pid)

    def begin(self, job: Job) -> None:
        """Have a job done; `WorkerLost` where it cannot even be told."""
        try:
            if job.layout is not self._known_layout:  # long for many variables, and mostly the same each time
                self._connection.send(job.layout)
                self._known_layout = job.layout
            self._connection.send(job._replace(layout=None))
        except BlockingIOError as error:
            raise self.hung() from error
        except OSError as error:
            raise self._died() from error

    def receive(self, timeout_secs: float) -> Done | None:
        """Return its answer to the job, None where there is none within the time; `WorkerLost` where none will come."""
        try:
            if not self._is_proven and not self._take_handshake(timeout_secs):
                return None
            return self._connection.recv() if self._connection.poll(timeout_secs) else None
        except (EOFError, OSError) as error:
            raise self._died() from error

    def hung(self) -> WorkerLost:
        """Return what to say when it did not answer until its deadline."""
        if not self._is_proven:
            return _not_started("no answer to the handshake")
        return WorkerLost("The checkpoint worker hung and was killed")

    def _died(self) -> WorkerLost:
        return (
            WorkerLost("The checkpoint worker died") if self._is_proven else _not_started("it ended at once")
        )

    def leave(self) -> None:
        """Tell it to end, and see to it that it does."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self.end(HANDSHAKE_SECS)

    def end(self, patience_secs: float = 0.0) -> None:
        """End it, by force once patience is over, and wait for that."""
        until = time.monotonic() + patience_secs
        while not self._has_ended and not _is_over(self._pid, os.WNOHANG):
            if time.monotonic() >= until:
                os.kill(self._pid, signal.SIGKILL)
                _is_over(self._pid, 0)
                break
            time.sleep(0.002)
        self._has_ended = True
        self._thaw_objects()
        self._connection.close()

    # -- its start ---------------------------------------------------------------------------------------------

    def _fork(self, log_path: str, held: Held) -> tuple[int, Any]:
        ours, theirs = Pipe()
        regions = memory.tensor_regions()
        self._freeze_objects()
        try:
            with warnings.catch_warnings(), memory.kept_from_child(regions):
                warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of every fork with threads
                sys.stdout.flush()
                sys.stderr.flush()
                pid = os.fork()
                if pid == 0:
                    worker.run(theirs, regions, log_path, held)
        except OSError:
            self._thaw_objects()
            ours.close()
            raise
        finally:
            theirs.close()
        return pid, ours

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

    def _ask_handshake(self) -> None:
        """Have the worker write a small bundle. Its first job follows at once; nobody waits for the answer."""
        small: dict[str, Any] = {"handshake": ("string", (1,), np.array([b"flor_keras"], dtype=object))}
        job = Job(-1, str(self._handshake_folder), None, small, {}, {}, HANDSHAKE_SECS)
        with contextlib.suppress(OSError):  # it is lost, which its first job will notice
            self._connection.send(job)

    def _take_handshake(self, timeout_secs: float) -> bool:
        """Read back what the worker wrote for the handshake, before any of its checkpoints is trusted."""
        if not self._connection.poll(timeout_secs):
            return False
        done = self._connection.recv()
        try:
            if done.error:
                raise _not_started(done.error)
            if bundle.read_tensors(self._handshake_folder)["handshake"].tolist() != [b"flor_keras"]:
                raise _not_started("what it wrote could not be read back")
        except (OSError, ValueError, KeyError, CheckpointError) as error:
            raise _not_started(str(error)) from error
        finally:
            shutil.rmtree(self._handshake_folder, ignore_errors=True)
        self._is_proven = True
        return True


def _not_started(why: str) -> WorkerLost:
    return WorkerLost(f"The checkpoint worker did not start ({why})")


def _is_over(pid: int, options: int) -> bool:
    """Ask for, or wait for, the end of a child; the program may have taken it already (``SIGCHLD`` ignored)."""
    try:
        return os.waitpid(pid, options)[0] != 0
    except ChildProcessError:
        return True


def _limit_sending(connection: Any, secs: float) -> None:
    """Let a send to a process that does not read end in BlockingIOError; a pipe holds less than a vocabulary."""
    end = socket.socket(fileno=os.dup(connection.fileno()))
    with end:
        limit = struct.pack("ll", int(secs), int(secs % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
