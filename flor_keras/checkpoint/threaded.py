"""Writing checkpoints in a thread of the trainer: before there is a worker, and where there can be none.

TensorFlow and the disk do their part without Python's lock, so training goes on meanwhile, at the cost of the rest: what
describes a checkpoint takes the lock for a millisecond or two. A thread cannot be ended: one that hangs, as the disk under it
does, is left alone with what it was given, and no other is begun until it has come back.

A process that the program forks meanwhile has none of its threads, but their locks as they stood: one of TensorFlow's that is
held then is held there for ever. So forking waits for the thread.
"""

from __future__ import annotations

import os
import threading
import weakref

from flor_keras.checkpoint import worker
from flor_keras.checkpoint.contents import Content
from flor_keras.checkpoint.held import Held
from flor_keras.checkpoint.worker import Done, Job

_FORK_PATIENCE_SECS = 1.0  # where the disk hangs, the lock it may hold is the smaller evil


class ThreadedWriting:
    """Writes one checkpoint after the other, each in a thread of its own."""

    def __init__(self) -> None:
        _all.add(self)
        self.held = Held()  # by what was written here
        self._answer = _Answer()
        self._answer.is_there.set()

    @property
    def is_under_way(self) -> bool:
        """Whether a thread still writes, also one that was given up."""
        return not self._answer.is_there.is_set()

    def begin(self, job: Job, contents: list[Content]) -> None:
        """Have a job done; nothing else may be under way."""
        assert not self.is_under_way
        self._answer = answer = _Answer()
        arguments = (job, contents, self.held, answer)
        thread = threading.Thread(target=_write, args=arguments, name="flor_keras checkpoint", daemon=True)
        try:
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or the system has no thread to give
                _write(*arguments)
        except BaseException:  # Ctrl-C: nobody is to wait for it
            answer.is_there.set()
            raise

    def give_up(self) -> None:
        """Nobody waits any longer for what is under way, and nothing refers to what it may write yet."""
        self._answer.is_given_up = True
        self.held = Held()

    def receive(self, timeout_secs: float) -> Done | None:
        """Return the answer to the job; None where there is none within the time."""
        return self._answer.done if self._answer.is_there.wait(timeout_secs) else None

    def let_finish(self) -> None:
        """Wait a moment for what is under way, unless that was given up."""
        if not self._answer.is_given_up:
            self._answer.is_there.wait(_FORK_PATIENCE_SECS)


class _Answer:
    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.done: Done | None = None
        self.is_given_up = False


def _write(job: Job, contents: list[Content], held: Held, answer: _Answer) -> None:
    answer.done = worker.carry_out(job, contents, held, is_by_trainer=True)
    answer.is_there.set()


_all: weakref.WeakSet[ThreadedWriting] = weakref.WeakSet()


def _let_finish() -> None:
    for writing in list(_all):
        writing.let_finish()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_let_finish)
