"""What the forked worker does: wait for a job, write it from the arena, answer. Runs in the worker only.

The worker never touches CUDA, SQLite, h5py, logging or the trainer's variables, and never runs TensorFlow compute:
thread pools do not survive a fork. It leaves by ``os._exit``, so that nothing the trainer registered runs twice.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.arena import Arena, Layout
from flor_keras.checkpoint.contents import Content
from flor_keras.checkpoint.held import Held
from flor_keras.checkpoint.memory import Region, fill_holes

NICENESS = 10


class Job(NamedTuple):
    """One checkpoint to write. The tensors of ``layout`` lie in the arena, small things and text travel in the message.

    On the way to the worker ``layout`` is None: it has the one that was sent last.
    """

    number: int
    folder: str
    layout: Layout | None
    small: dict[str, tuple[str, tuple[int, ...], np.ndarray]]  # name -> (dtype, shape, content), e.g. text
    manifest: dict[str, Any]
    files: dict[str, bytes]
    deadline_secs: float


class NewArena(NamedTuple):
    """Announces that a descriptor follows: the arena all later jobs lie in."""


class Done(NamedTuple):
    """The worker's answer to a job; ``error`` is None when the checkpoint is committed."""

    number: int
    written: bundle.Written
    cpu_secs: float
    is_by_trainer: bool  # by a thread of it, which takes all of that time from training
    error: str | None


def run(connection: Connection, regions: list[Region], log_path: str, held: Held) -> None:
    """Be the worker, which goes on from what is ``held`` already: never returns."""
    status = 1
    try:
        fill_holes(regions)
        gc.disable()  # a collection would touch, and so copy, every page of the trainer's objects
        _detach(connection, log_path)
        _serve(connection, held)
        status = 0
    except (EOFError, OSError):  # the trainer is gone
        status = 0
    finally:
        os._exit(status)


def _detach(connection: Connection, log_path: str) -> None:
    """Leave the trainer's terminal, files and signals alone; keep only the connection and a log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's; what is being written is finished
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    kept = connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    os.nice(NICENESS)
    if hasattr(os, "SCHED_BATCH"):  # else the worker takes the trainer's core the moment it is given a job
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _serve(connection: Connection, held: Held) -> None:
    arena: Arena | None = None
    layout = Layout((), 0)
    while True:
        message = connection.recv()
        if isinstance(message, NewArena):
            arena = Arena.attach(recv_handle(connection))
        elif isinstance(message, Layout):
            layout = message
        elif isinstance(message, Job):
            connection.send(_write(message._replace(layout=layout), arena, held))
        else:
            return


def _write(job: Job, arena: Arena | None, held: Held) -> Done:
    signal.alarm(max(1, int(job.deadline_secs)))  # should the trainer die, nobody else would end a hang
    done = carry_out(job, contents(job, arena), held)
    signal.alarm(0)
    return done


def carry_out(job: Job, contents: list[Content], held: Held, is_by_trainer: bool = False) -> Done:
    """Write one checkpoint; what goes wrong is in the answer. The trainer uses this too where it writes itself."""
    cpu_clock = time.thread_time if is_by_trainer else time.process_time
    began = cpu_clock()
    written, error = bundle.Written(0, 0), None
    try:
        written = bundle.write(Path(job.folder), contents, job.manifest, job.files, held)
    except Exception as reason:  # noqa: BLE001 - every failure is the trainer's to report
        error = f"{type(reason).__name__}: {reason}".splitlines()[0]
    return Done(job.number, written, cpu_clock() - began, is_by_trainer, error)


def contents(job: Job, arena: Arena | None) -> list[Content]:
    """Return what a job writes; the trainer uses this too where it writes itself."""
    found = []
    if arena is not None and job.layout is not None:
        found = [Content(s.name, s.dtype, s.shape, arena.view(s)) for s in job.layout.slots]
    return found + [Content(name, *content) for name, content in job.small.items()]
