"""Taking the checkpoints of a run: snapshot, hand over to the writer, add the row once it is committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flor_keras.checkpoint.schedule import Schedule
from flor_keras.checkpoint.worker import Done, Job
from flor_keras.checkpoint.writer import Writer, job_for
from flor_keras.environment import num_cpus
from flor_keras.records import CheckpointRecord, Kind, Position
from flor_keras.state import pickles
from flor_keras.state.capture import Snapshot, num_bytes_of, small_contents
from flor_keras.state.gathering import Gatherer
from flor_keras.state.pickles import pack, signature
from flor_keras.state.restore import ARRAYS
from flor_keras.state.variables import State
from flor_keras.store import layout

_NUM_CPUS = num_cpus()


@dataclass
class _Taken:
    """A checkpoint that is on its way to the disk."""

    position: Position
    kind: Kind
    state_bytes: int
    began: float
    stall_secs: float | None = None  # None until training goes on
    is_written: bool = False  # before training went on
    is_usual: bool = True  # not the first, nor the one the worker was forked for, which stall for longer


class Checkpoints:
    """Takes the checkpoints of one run.

    Args:
      store: the store's folder.
      run: the run's id.
      num_entries: returns how many entries the run has; a checkpoint whose row was lost counts only where they were not.
      on_row: called with the row of each checkpoint, committed or failed, by the thread that learns of it.
      on_event: called with a sentence when something goes wrong.
    """

    def __init__(
        self,
        store: Path,
        run: str,
        num_entries: Callable[[], int],
        on_row: Callable[[CheckpointRecord], None],
        on_event: Callable[[str], None],
    ) -> None:
        self._store = store
        self._run = run
        self._num_entries = num_entries
        self._on_row = on_row
        self._gatherer = Gatherer()
        self._snapshot: Snapshot | None = None
        self._measured: tuple[State | None, int] = None, 0
        self._number = 0
        self._taken: dict[int, _Taken] = {}
        self._taking: tuple[int, int] | None = None  # number and thread, while training stands still for it
        self._schedule: Schedule | None = None
        self.worker_cpu_secs = 0.0  # what all checkpoints so far took of the worker
        folder = layout.checkpoint_folder(store, run, Position(0, 0, 0), Kind.START).parent
        folder.mkdir(parents=True, exist_ok=True)
        self._is_signing = _can_sign(on_event)
        self._writer = Writer(folder, self._on_done, on_event)

    def follow(self, schedule: Schedule) -> None:
        """Tell a schedule, until the next is followed, what checkpoints cost and how large the state is."""
        self._schedule = schedule

    def take(
        self,
        position: Position,
        kind: Kind,
        roots: Mapping[str, Any],
        python: Any,
        manifest: dict[str, Any],
    ) -> None:
        """Checkpoint the state reached from ``roots``; returns when it is copied, not when it is written.

        Args:
          position: where in the run the state stands.
          kind: what moment of its loop it is.
          roots: the objects that hold the variables.
          python: further state, pickled.
          manifest: plain data to keep with the checkpoint, readable without unpickling.
        """
        began = time.perf_counter()
        state = self._gatherer.gather(roots)
        pickled, packed = pack(python)
        arrays = {f"{ARRAYS}/{number}": array for number, array in enumerate(packed)}
        snapshot = self._snapshot_of(state, arrays)
        small = {c.name: (c.dtype, c.shape, c.raw) for c in small_contents(state, snapshot)}
        described = {
            **manifest,
            **_description(state, position, kind),
            "num_entries": self._num_entries(),
            "signature": signature(pickled) if self._is_signing else None,
        }
        folder = self._folder(position, kind)
        job = job_for(self._number, folder, snapshot.layout, small, described, {pickles.FILE: pickled})
        taken = self._taken[self._number] = _Taken(position, kind, self._size_of(state), began)
        self._taking = self._number, threading.get_ident()
        num_forks = self._writer.num_forks
        arena = self._writer.prepare(snapshot.layout)
        if arena is None:
            self._writer.write_now(job, snapshot.contents(arrays))
        else:
            snapshot.copy_into(arena, arrays)
            self._writer.submit(job)
        taken.is_usual = self._number > 0 and self._writer.num_forks == num_forks
        self._number, self._taking = self._number + 1, None
        self._note_stall(taken, time.perf_counter() - began)

    @property
    def is_busy(self) -> bool:
        """Whether the last checkpoint is still being written; never waits."""
        return self._writer.is_busy

    def measure(self, roots: Mapping[str, Any]) -> None:
        """Tell the schedule how large the state is now."""
        assert self._schedule is not None
        self._schedule.grow_to(self._size_of(self._gatherer.gather(roots)))

    def state(self, roots: Mapping[str, Any]) -> State:
        """Return the variables and tables reached from ``roots`` now."""
        return self._gatherer.gather(roots)

    def latest_state(self, roots: Mapping[str, Any]) -> State:
        """Return the variables and tables reached from ``roots`` when they were gathered last, at no cost."""
        return self._gatherer.latest(roots)

    def poll(self) -> None:
        """Take note of what the worker has committed; never waits."""
        self._writer.poll()

    def finish(self) -> None:
        """Wait until every checkpoint is committed or given up."""
        self._writer.wait()

    def close(self) -> None:
        """Finish, and end the worker."""
        self._writer.close()

    def _snapshot_of(self, state: State, arrays: Mapping[str, Any]) -> Snapshot:
        if self._snapshot is None or not self._snapshot.is_of(state, arrays):
            self._snapshot = Snapshot(state, arrays)
        return self._snapshot

    def _folder(self, position: Position, kind: Kind) -> Path:
        return layout.checkpoint_folder(self._store, self._run, position, kind)

    def _size_of(self, state: State) -> int:
        if state is not self._measured[0]:
            self._measured = state, num_bytes_of(state)
        return self._measured[1]

    def _note_stall(self, taken: _Taken, secs: float) -> None:
        taken.stall_secs = secs
        if self._schedule is None:
            return
        self._schedule.grow_to(taken.state_bytes)
        self._schedule.pay(stall_secs=secs)
        if taken.is_written:
            self._learn(self._schedule, taken, secs, 0.0)

    def _learn(
        self, schedule: Schedule, taken: _Taken, stall_secs: float | None, writing_secs: float
    ) -> None:
        """Tell what the next checkpoint is going to cost: the stall, and writing it in the worker."""
        if not taken.is_usual or stall_secs is None:
            stall_secs = schedule.expected_secs
        schedule.learn(stall_secs + writing_secs, taken.state_bytes)

    def _on_done(self, job: Job, done: Done) -> None:
        taken = self._taken.pop(job.number)
        if self._taking == (job.number, threading.get_ident()):
            taken.is_written, stall_secs, worker_cpu_secs = True, time.perf_counter() - taken.began, 0.0
        else:
            stall_secs, worker_cpu_secs = taken.stall_secs or 0.0, done.cpu_secs
            self.worker_cpu_secs += done.cpu_secs
            if self._schedule is not None:
                writing_secs = done.cpu_secs / (1 if done.is_by_trainer else _NUM_CPUS)
                self._schedule.pay(worker_secs=writing_secs)
                self._learn(self._schedule, taken, taken.stall_secs, writing_secs)
        position, kind = taken.position, taken.kind
        assert position.loop is not None and position.epoch is not None and position.step is not None
        self._on_row(
            CheckpointRecord(
                run=self._run,
                loop=position.loop,
                epoch=position.epoch,
                step=position.step,
                kind=kind,
                path=layout.checkpoint_path(self._run, position, kind),
                num_bytes=done.written.num_bytes,
                shared_bytes=done.written.shared_bytes,
                stall_secs=stall_secs,
                worker_cpu_secs=worker_cpu_secs,
                created_at=time.time(),
                error=done.error,
            )
        )


def _description(state: State, position: Position, kind: Kind) -> dict[str, Any]:
    return {
        "position": {
            "loop": position.loop,
            "epoch": position.epoch,
            "step": position.step,
            "kind": kind.value,
        },
        "metrics": sorted(state.metric_names),
        "optimizers": list(state.optimizers),
        "tables": sorted(state.tables),
    }


def _can_sign(on_event: Callable[[str], None]) -> bool:
    """Whether this user's key is there, or can be made; a home that cannot be written must not cost the checkpoints."""
    try:
        signature(b"")
    except OSError as error:
        on_event(
            f"Python state is kept unsigned: {error}. Replaying steps and resuming will refuse it; set "
            "XDG_CONFIG_HOME to a folder that can be written."
        )
        return False
    return True
