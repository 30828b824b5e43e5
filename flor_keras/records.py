"""The nouns of flor_keras as plain values. No behaviour beyond what the words themselves mean, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

SEED_ARGUMENT = "flor.seed"  # the argument a recorded seed is kept as
OWN_SEED = "The program sets a seed of its own; flor.seed is that of what it leaves unseeded."  # an event


class Position(NamedTuple):
    """Where in a run something happened; ``None`` where a level does not apply (code outside any loop)."""

    loop: int | None = None
    epoch: int | None = None
    step: int | None = None


class Status(StrEnum):
    """How a run stands. ``killed`` is derived on reading: the run says running, its process is gone."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    KILLED = "killed"


class Kind(StrEnum):
    """What moment of its loop a checkpoint holds."""

    START = "start"  # before the first step of the loop
    STEP = "step"  # between two steps of an epoch: `step` steps of it are done
    EPOCH_HOOKS = (
        "epoch_hooks"  # before the epoch's callbacks, taken only where one of them may change the model
    )
    EPOCH_END = "epoch_end"  # after the epoch's callbacks; the state the next epoch begins with
    AFTER = "after"  # after `fit` returned


class Verdict(StrEnum):
    """What comparing a replay with the record gave."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    UNCHECKED = "unchecked"


class Entry(NamedTuple):
    """One logged value. ``value`` is a Python scalar, text, JSON-able value or NumPy array."""

    name: str
    value: Any
    position: Position


class Execution(NamedTuple):
    """How `fit` executes training steps."""

    steps_at_once: int = 1  # steps_per_execution
    is_compiled: bool = False  # by XLA


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known when a run begins."""

    id: str
    name: str | None
    script: str | None  # absolute path; None in an interactive session
    argv: list[str]  # the arguments after the script
    started_at: float  # seconds since the epoch
    pid: int
    host: str
    process_started: str  # tells a reused pid from the recording process
    cwd: str
    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """One ``fit`` call or main loop, numbered in the order they start."""

    run: str
    loop: int
    kind: str  # "fit" or "custom"
    name: str | None
    initial_epoch: int
    epochs: int | None  # as asked for; None when unknown
    steps: int | None  # per epoch; None when unknown
    started_at: float
    finished_at: float | None = None
    history: dict[str, Any] | None = None  # {"epoch": [...], "history": {name: [...]}, "params": {...}}
    recording: dict[str, Any] | None = None  # what recording it cost: see `Schedule.describe`


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint, committed or failed. ``path`` is relative to the store."""

    run: str
    loop: int
    epoch: int
    step: int  # steps done in this epoch
    kind: Kind
    path: str
    num_bytes: int  # on disk
    stall_secs: float  # how long training stood still
    worker_cpu_secs: float
    created_at: float
    error: str | None = None  # why it failed; None when committed
    shared_bytes: int = 0  # unchanged since older checkpoints, and only there

    @property
    def position(self) -> Position:
        """Where in the run this state stands."""
        return Position(self.loop, self.epoch, self.step)
