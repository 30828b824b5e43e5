"""When to checkpoint: what a person asks for, and the bound on what recording may cost. Pure; runs in the trainer.

The rule is the joint invariant of FLOR (Garcia et al., "Hindsight Logging for Model Training", VLDB 2021), which
materialises while ``(k + 1) * M < n * C * overhead`` for k checkpoints of cost M so far and n iterations of cost C. Three
things differ. Iterations are steps, so a checkpoint may fall inside an epoch. Where it only shortens what a replay of steps
makes again, all that was spent stays below a tenth of the bound for it; in the first epoch, where nothing else can be
resumed from, below a fifth; where ends of epochs had to go without, it takes the place of one. Costs are those that were
paid, not k * M: what training stood still, and the CPU the worker took, divided by the number of cores. And what will be
paid in any case (the checkpoints at the end of the loop) is set aside from the beginning, as what was paid at its start
is counted.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flor_keras.environment import CHECKPOINT_EVERY
from flor_keras.errors import UsageError

DEFAULT_OVERHEAD = 1 / 15
AUTO, EPOCHS, STEPS, SECONDS = "auto", "epochs", "steps", "seconds"

# What a checkpoint costs until one was measured: a small state takes milliseconds, a large one goes at about the pace
# of a memcpy in the trainer and of a write in the worker.
_FIRST_GUESS_SECS = 0.005
_FIRST_GUESS_SECS_PER_BYTE = 1e-9
_WEIGHT_OF_NEWEST = 0.5
WITHIN_EPOCHS, WITHIN_FIRST_EPOCH = 0.1, 0.2  # of the bound
_LOOK_AGAIN_SECS = 0.01  # while the worker is busy
_ROUNDING = 1e-9

SKIPPED_FOR_COST = "cost"
SKIPPED_FOR_WORKER = "busy"
SKIPPED_AS_ASKED = "asked"


@dataclass(frozen=True)
class Every:
    """How often checkpoints are taken: as often as the bound allows (``auto``), or each ``count`` of a unit."""

    unit: str = AUTO
    count: float = 1

    def __str__(self) -> str:
        if self.unit == AUTO or self == Every(EPOCHS):
            return AUTO if self.unit == AUTO else "epoch"
        return f"{self.count:g}" if self.unit == EPOCHS else f"{self.unit}={self.count:g}"


def parse_every(given: Any, where: str = "checkpoint_every") -> Every:
    """Read what a person wrote: ``"auto"``, ``"epoch"``, a number of epochs, ``{"steps": n}``, ``{"seconds": s}``.

    As text, where there is nothing but text, the last three are ``3``, ``steps=100`` and ``seconds=30``.

    Raises:
      UsageError: it is none of these. ``where`` says what was set to it.
    """
    words = _as_words(given)
    if words in ((AUTO, None), ("epoch", None)):
        return Every() if words[0] == AUTO else Every(EPOCHS)
    unit, count = words
    is_number = isinstance(count, int | float) and not isinstance(count, bool) and math.isfinite(count)
    is_whole = is_number and (unit == SECONDS or count == int(count))
    if unit not in (EPOCHS, STEPS, SECONDS) or not is_whole or count <= 0:
        raise UsageError(
            f'{where} is {given!r}; expected "auto", "epoch", a number of epochs such as 5, steps such as '
            '{"steps": 100} or seconds such as {"seconds": 30} (as text: steps=100, seconds=30).'
        )
    return Every(unit, count if unit == SECONDS else int(count))


def _as_words(given: Any) -> tuple[Any, Any]:
    """Return the unit and the count that something stands for, unchecked."""
    if isinstance(given, str):
        found = re.fullmatch(r"(?:(steps|seconds)=)?(\d+(?:\.\d+)?)", given.strip())
        return (found[1] or EPOCHS, float(found[2])) if found else (given.strip(), None)
    if isinstance(given, Mapping):
        return next(iter(given.items())) if len(given) == 1 else (None, None)
    return EPOCHS, given


def asked_every(given: Any = AUTO) -> Every:
    """Return how often to checkpoint: as the variable FLOR_CHECKPOINT_EVERY says, else as ``given``.

    Raises:
      UsageError: one of them cannot be read.
    """
    every = parse_every(given)
    words = os.environ.get(CHECKPOINT_EVERY)
    return parse_every(words, CHECKPOINT_EVERY) if words else every


def _guess_secs(num_bytes: int) -> float:
    return _FIRST_GUESS_SECS + _FIRST_GUESS_SECS_PER_BYTE * num_bytes


@dataclass
class Schedule:
    """Decides at each boundary of one loop whether to checkpoint. Times are seconds of one monotonic clock.

    Args:
      every: what was asked for.
      overhead: the share of training time that recording may cost.
      began_at: when the loop began; before the checkpoint of its start.

    Attributes:
      stall_secs: how long training stood still for recording.
      worker_secs: the worker's share of the machine: its CPU time by the number of cores.
      num_at_end: how many checkpoints the end of the loop takes in any case.
      set_aside_secs: what else will be paid in any case.
      look_at: before this time no end of an epoch can be due.
      look_within_at: before this time no step boundary can be due; for who asks at each step.
      taken: how many checkpoints were decided for here.
      skipped: how many boundaries were passed by for each reason: epoch ends, and those that were due while the worker
        was busy.
    """

    every: Every
    overhead: float
    began_at: float
    stall_secs: float = 0.0
    worker_secs: float = 0.0
    num_at_end: int = 2
    set_aside_secs: float = 0.0
    look_at: float = 0.0
    look_within_at: float = 0.0
    taken: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    _known_secs: float | None = None  # what a checkpoint costs, and of how many bytes
    _known_bytes: int = 0
    _num_bytes: int = 0  # of the state now
    _num_steps: int = 0  # in this loop, of all epochs
    _steps_at_last: int = 0
    _taken_within: int = 0
    _num_ends: int = 0  # of epochs
    _last_at: float | None = None

    # -- costs -------------------------------------------------------------------------------------------------

    @property
    def spent_secs(self) -> float:
        """What recording has cost so far."""
        return self.stall_secs + self.worker_secs

    def training_secs(self, now: float) -> float:
        """Return how long the loop has trained: without the time it stood still for recording."""
        return max(0.0, now - self.began_at - self.stall_secs)

    def room_secs(self, now: float) -> float:
        """Return what recording may cost now: what the bound allows so far, less what it has cost."""
        return self.overhead * self.training_secs(now) - self.spent_secs

    def pay(self, stall_secs: float = 0.0, worker_secs: float = 0.0) -> None:
        """Count what recording has cost."""
        self.stall_secs += stall_secs
        self.worker_secs += worker_secs
        self._plan_look()

    def learn(self, secs: float, num_bytes: int) -> None:
        """Take note of what one checkpoint of so many bytes cost altogether.

        A dearer one counts at once and a cheaper one by and by: what is expected is to hold when it is paid.
        """
        if self._known_secs is None:
            self._known_secs = secs
        else:
            known = self._scaled(num_bytes)
            self._known_secs = max(secs, known + _WEIGHT_OF_NEWEST * (secs - known))
        self._known_bytes = num_bytes
        self._plan_look()

    def grow_to(self, num_bytes: int) -> None:
        """The state has so many bytes now."""
        if num_bytes != self._num_bytes:
            self._num_bytes = num_bytes
            self._plan_look()

    def set_aside(self, secs: float) -> None:
        """So much else will be paid in any case."""
        if secs != self.set_aside_secs:
            self.set_aside_secs = secs
            self._plan_look()

    @property
    def expected_secs(self) -> float:
        """What the next checkpoint is expected to cost."""
        return self._scaled(self._num_bytes)

    def _scaled(self, num_bytes: int) -> float:
        """Return what is expected of so many bytes: the guess, corrected by how far it was off at the known size."""
        guess_secs = _guess_secs(num_bytes)
        if self._known_secs is None:
            return guess_secs
        return self._known_secs * max(1.0, guess_secs / _guess_secs(self._known_bytes))

    def _needed_secs(self, num_checkpoints: int = 1) -> float:
        """Return the room that checkpoints need, with what the end of the loop will take."""
        return (num_checkpoints + self.num_at_end) * self.expected_secs + self.set_aside_secs

    def _plan_look(self) -> None:
        if self.every.unit == AUTO:
            needed = self._needed_secs() + self.spent_secs
            began_at, secs = self.began_at + self.stall_secs, needed / self.overhead
            self.look_at, self.look_within_at = began_at + secs, began_at + secs / self._share_within

    @property
    def _share_within(self) -> float:
        """The share of the bound for places inside of epochs; all of it while they stand in for ends that went without."""
        if self.skipped[SKIPPED_FOR_COST] > self._taken_within:
            return 1.0
        return WITHIN_EPOCHS if self._num_ends else WITHIN_FIRST_EPOCH

    # -- decisions ---------------------------------------------------------------------------------------------

    @property
    def is_within_epochs(self) -> bool:
        """Whether checkpoints may fall inside an epoch."""
        return self.every.unit != EPOCHS

    @property
    def waits(self) -> bool:
        """Whether a checkpoint that was asked for at a place is worth waiting for the worker."""
        return self.every.unit in (EPOCHS, STEPS)

    def note_steps(self, count: int) -> None:
        """So many more steps are done."""
        self._num_steps += count

    def is_due_within(self, now: float, end_at: float | None, is_last: bool = False) -> bool:
        """Tell whether to checkpoint between two steps of an epoch.

        Under ``auto`` the end of the epoch comes first: only what leaves room for it is taken before.

        Args:
          now: the time.
          end_at: when the epoch is expected to end; None if nobody knows.
          is_last: the epoch is the last, whose end is set aside already.
        """
        if self.every.unit == STEPS:
            return self._num_steps // self.every.count > self._steps_at_last // self.every.count
        if now < self.look_within_at:
            return False
        if self.every.unit == SECONDS:
            return now - self._since() >= self.every.count
        allowed_secs = self._share_within * self.overhead * self.training_secs(now)
        if self.every.unit != AUTO or allowed_secs < self.spent_secs + self._needed_secs():
            return False
        if end_at is None or is_last:
            return True
        room_at_end = self.room_secs(now) + self.overhead * max(0.0, end_at - now)
        return room_at_end >= self._needed_secs(2) * (1 + _ROUNDING)

    def is_due_at_end(self, now: float, epoch: int, num_checkpoints: int = 1) -> bool:
        """Tell whether to checkpoint at the end of an epoch, which takes ``num_checkpoints``; count it if not."""
        self._num_ends += 1
        if self.every.unit == AUTO:
            is_due, why_not = self.room_secs(now) >= self._needed_secs(num_checkpoints), SKIPPED_FOR_COST
        elif self.every.unit == EPOCHS:
            is_due, why_not = (epoch + 1) % self.every.count == 0, SKIPPED_AS_ASKED
        else:
            is_due, why_not = self.is_due_within(now, None), SKIPPED_AS_ASKED
        if not is_due:
            self.skip(why_not)
        return is_due

    def skip(self, why: str) -> None:
        """An end of an epoch is passed by."""
        self.skipped[why] += 1
        self._plan_look()

    def pass_by(self, now: float) -> None:
        """A checkpoint was due and the worker is busy: do without."""
        self.skipped[SKIPPED_FOR_WORKER] += 1
        self.look_at = max(self.look_at, now + _LOOK_AGAIN_SECS)
        self.look_within_at = max(self.look_within_at, self.look_at)

    def take(self, now: float, is_within: bool = False) -> None:
        """A checkpoint is taken now; ``is_within`` an epoch."""
        self.taken += 1
        self._steps_at_last = self._num_steps
        self._taken_within += is_within
        self._last_at = now
        if self.every.unit == SECONDS:
            self.look_at = self.look_within_at = now + self.every.count

    def _since(self) -> float:
        return self.began_at if self._last_at is None else self._last_at

    def describe(self, now: float) -> dict[str, Any]:
        """Return what recording has cost so far and what came of it, as plain values."""
        return {
            "every": str(self.every),
            "overhead": self.overhead,
            "training_secs": self.training_secs(now),
            "stall_secs": self.stall_secs,
            "worker_secs": self.worker_secs,
            "taken": self.taken,
            "skipped": dict(self.skipped),
        }
