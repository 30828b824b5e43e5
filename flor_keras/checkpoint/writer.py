"""The trainer's side of checkpointing: capture into the arena, hand over to who writes it, keep watch over that.

One `Writer` lives as long as the recording process. It owns the arena and the one forked worker, and promises that
no failure of either reaches training: a worker that misses a deadline or dies is killed and replaced, what it should
have written lies in the arena still and is written again; after `MAX_FAILURES` in a row, and where nothing can be
forked, a thread of the trainer writes. Training waits for none of them longer than a deadline. What went wrong is told
through ``on_event``, each kind once.

The worker is forked when it pays. A fork costs training `FORK_SECS`, part of it afterwards, for the pages that are copied;
a thread that writes a small state costs it milliseconds. So a thread writes the first checkpoints until they have cost as much
as a fork, which costs at most twice what knowing the run's length would (the ski rental problem), and a training that is
over within seconds goes without.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle, memory, worker
from flor_keras.checkpoint.arena import Arena, Layout
from flor_keras.checkpoint.contents import Content
from flor_keras.checkpoint.forked import ForkedWorker, WorkerLost
from flor_keras.checkpoint.threaded import ThreadedWriting
from flor_keras.checkpoint.worker import Done, Job

# What a fork costs a program with TensorFlow: 0.05 to 0.09 s, and about as much by and by for 20,000 page faults.
FORK_SECS = 0.1
_THREAD_SECS, _THREAD_SECS_PER_BYTE = 0.005, 4e-9  # what a thread is expected to cost for a checkpoint
MAX_FAILURES = 2
_DEADLINE_BASE_SECS = 30.0
_SLOWEST_BYTES_PER_SEC = 10e6
_MEMORY_SLACK_BYTES = 512 << 20  # what the machine keeps free beside the arena


def deadline_secs(num_bytes: int) -> float:
    """Return how long a checkpoint may take to be written: a slow network disk is slow, a hang is forever."""
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
        self._worker: ForkedWorker | None = None
        self._threaded = ThreadedWriting()
        self._pending: Job | None = None
        self._pending_at: ForkedWorker | ThreadedWriting = self._threaded  # who has it
        self._pending_until = 0.0
        self._late: Job | None = None  # left to a thread that hangs
        self._lost: WorkerLost | None = None  # noticed by `poll`, for the main thread to deal with
        self._thread_secs_left = FORK_SECS  # what threads may cost yet before there is a worker
        self._failures = 0
        self.is_alone = not hasattr(os, "fork")  # the trainer itself writes all checkpoints from now on
        self.num_forks = 0

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, where there is one."""
        return None if self._worker is None else self._worker.pid

    def prepare(self, layout: Layout) -> Arena | None:
        """Return the arena to capture into, idle and large enough; None where the machine has no room for one.

        Waits for the job in flight, at most until its deadline.
        """
        with self._lock:
            self.wait()
            is_idle = not self._threaded.is_under_way  # else the thread that hangs may still write from it
            if self._arena is not None and self._arena.fits(layout) and is_idle:
                return self._arena
            self._release_arena()
            if not self._has_room(layout):
                return None
            self._arena = Arena(layout.num_bytes)
            if self._worker is not None:
                self._worker.use(self._arena)
            return self._arena

    def submit(self, job: Job) -> None:
        """Have a captured snapshot written; returns at once."""
        with self._lock:
            if not self.is_alone and self._is_worth_a_worker(job) and self._ensure_worker():
                self._hand_to_worker(job)
            else:
                self._hand_to_thread(job, worker.contents(job, self._arena))

    def write_now(self, job: Job, contents: list[Content]) -> None:
        """Write tensors that are not in an arena; returns when that is done, or given up at its deadline."""
        with self._lock:
            self._hand_to_thread(job, contents)
            self.wait()

    def poll(self) -> None:
        """Take the answer if it has come; never waits."""
        if self._lock.acquire(blocking=False):
            try:
                self._receive_late()
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
            if self._worker is not None:
                self._worker.leave()
                self._worker = None
            self._receive_late()
            if (late := self._late) is not None:
                self._late = None
                self._on_done(late, _not_written(late, "the disk hung until the end of the run"))
            self._release_arena()

    # -- who writes --------------------------------------------------------------------------------------------

    def _is_worth_a_worker(self, job: Job) -> bool:
        """Whether there was a worker before, or threads would have cost as much as one with this job."""
        assert job.layout is not None
        expected_secs = _THREAD_SECS + _THREAD_SECS_PER_BYTE * job.layout.num_bytes
        return expected_secs > self._thread_secs_left

    def _ensure_worker(self) -> bool:
        while self._worker is None and not self.is_alone:
            self._thread_secs_left = 0.0
            try:
                self._worker = ForkedWorker(self._folder, self._threaded.held, deadline_secs(0))
            except OSError as error:
                self._fail(f"The checkpoint worker did not start ({error})")
                continue
            self.num_forks += 1
            if self._arena is not None:
                self._worker.use(self._arena)
        return self._worker is not None

    def _hand_to_worker(self, job: Job) -> None:
        assert self._worker is not None
        self._note_pending(self._worker, job)
        try:
            self._worker.begin(job)
        except WorkerLost as lost:
            self._lost = lost
            self._recover()

    def _hand_to_thread(self, job: Job, contents: list[Content]) -> None:
        self._receive_late()
        if self._late is not None or self._threaded.is_under_way:
            self._on_done(job, _not_written(job, "the disk still hangs at an earlier one"))
            return
        self._threaded.begin(job, contents)
        self._note_pending(
            self._threaded, job
        )  # not before: Ctrl-C may come first, and its last answer is another's

    def _note_pending(self, whom: ForkedWorker | ThreadedWriting, job: Job) -> None:
        self._pending_at, self._pending_until = whom, time.monotonic() + job.deadline_secs
        self._pending = job

    def _receive(self, timeout_secs: float) -> bool:
        """Take an answer within the time given; False if there is none, or nobody to give one."""
        if self._pending is None or self._lost is not None:
            return self._pending is None
        try:
            done = self._pending_at.receive(timeout_secs)
        except WorkerLost as lost:
            self._lost = lost
            return False
        if done is None:
            return False
        if self._pending_at is self._threaded:
            self._thread_secs_left -= done.cpu_secs
        else:
            self._failures = 0
        self._finish(done)
        return True

    def _recover(self) -> None:
        """Have the job done by another, where who had it is lost or did not answer until its deadline."""
        job, lost, self._lost = self._pending, self._lost, None
        assert job is not None
        if isinstance(self._pending_at, ForkedWorker):
            self._fail(str(lost or self._pending_at.hung()))
            self._pending = None
            self.submit(job)
        else:
            self._leave(job)

    def _leave(self, job: Job) -> None:
        """Go on without a thread that hangs. What it writes after all counts, where training has not changed it meanwhile."""
        why = f"the disk did not take it within {job.deadline_secs:.0f} s"
        self._thread_secs_left = 0.0
        self._threaded.give_up()
        if self._arena is None:
            self._finish(_not_written(job, why))
        else:
            self._late, self._pending = job, None
            self._on_event(f"A checkpoint is still being written: {why}; training goes on.")

    def _receive_late(self) -> None:
        if self._late is not None and not self._threaded.is_under_way:
            done, late, self._late = self._threaded.receive(0.0), self._late, None
            assert done is not None
            self._on_done(late, done)

    def _fail(self, what: str) -> None:
        """End a worker that failed."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self.is_alone = True
            self._on_event(
                f"{what}; checkpoints are now written by the training process itself, which is slower."
            )
        else:
            self._on_event(f"{what}; it is replaced.")

    def _finish(self, done: Done) -> None:
        job, self._pending = self._pending, None
        assert job is not None
        self._on_done(job, done)

    # -- memory ------------------------------------------------------------------------------------------------

    def _has_room(self, layout: Layout) -> bool:
        available = memory.available_bytes()
        if available is None or layout.num_bytes + _MEMORY_SLACK_BYTES <= available:
            return True
        if not self.is_alone:
            self.is_alone = True
            self._on_event(
                f"A copy of the training state needs {layout.num_bytes / 1e6:.0f} MB and the machine has "
                f"{available / 1e6:.0f} MB free; training waits until each checkpoint is written."
            )
        return False

    def _release_arena(self) -> None:
        if self._arena is not None:
            self._arena.close()
            self._arena = None


def _not_written(job: Job, why: str) -> Done:
    return Done(job.number, bundle.Written(0, 0), 0.0, True, why)


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
