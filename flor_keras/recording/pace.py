"""When one loop is checkpointed: the schedule, with the worker's state and the size of what is recorded. Runs in the trainer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flor_keras.checkpoint.schedule import AUTO, SKIPPED_AS_ASKED, SKIPPED_FOR_COST, Every, Schedule
from flor_keras.recording.recorder import Recorder


class Pace:
    """Decides when to checkpoint a loop, and keeps what recording it costs.

    Args:
      recorder: the run.
      loop: the number of the loop.
      every: how often.
      overhead: the share of training time that recording may cost.
      began_at: when the loop began, if not now.
    """

    def __init__(
        self, recorder: Recorder, loop: int, every: Every, overhead: float, began_at: float | None = None
    ) -> None:
        self._recorder = recorder
        self._loop = loop
        self.schedule = Schedule(every, overhead, time.perf_counter() if began_at is None else began_at)
        self._checkpoints = recorder.checkpoints
        self._checkpoints.follow(self.schedule)

    def is_too_early(self) -> bool:
        """Whether the end of this epoch need not be considered: the quick look for epochs that take microseconds."""
        is_too_early = time.perf_counter() < self.schedule.look_at
        if is_too_early:
            self.schedule.skip(SKIPPED_FOR_COST if self.schedule.every.unit == AUTO else SKIPPED_AS_ASKED)
        return is_too_early

    def is_due_at_end(self, epoch: int, roots: Mapping[str, Any], num_checkpoints: int = 1) -> bool:
        """Tell whether the end of an epoch is checkpointed, which takes ``num_checkpoints``."""
        schedule, now = self.schedule, time.perf_counter()
        if schedule.every.unit == AUTO and now >= schedule.look_at:
            self._measure(roots)
        return schedule.is_due_at_end(now, epoch, num_checkpoints) and self._is_worth_it(now)

    def is_due_within(
        self, now: float, end_at: float | None, is_last: bool, roots: Mapping[str, Any]
    ) -> bool:
        """Tell whether to checkpoint between two steps; see `Schedule.is_due_within`."""
        schedule = self.schedule
        if not schedule.is_due_within(now, end_at, is_last) or not self._is_worth_it(now):
            return False
        self._measure(roots)
        return schedule.is_due_within(now, end_at, is_last)

    def _measure(self, roots: Mapping[str, Any]) -> None:
        """Look at how large the state is now, and at what is still to be paid for the graph of the model.

        What the look costs is paid after the decision, as part of what `counted` counts: paid before, it would take the
        room that had just been enough, and between short steps no checkpoint would ever be due.
        """
        self._checkpoints.measure(roots)
        owed_secs = self._recorder.models.owed_secs(self._loop, roots, self._checkpoints.latest_state(roots))
        self.schedule.set_aside(owed_secs)

    def _is_worth_it(self, now: float) -> bool:
        """Whether the worker is free, or what was asked for is worth waiting for it."""
        is_worth_it = self.schedule.waits or not self._checkpoints.is_busy
        if not is_worth_it:
            self.schedule.pass_by(now)
        return is_worth_it

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time inside, as far as nothing else counts it: training stands still for it."""
        schedule, began = self.schedule, time.perf_counter()
        before = schedule.stall_secs
        try:
            yield
        finally:
            schedule.pay(stall_secs=max(0.0, time.perf_counter() - began - (schedule.stall_secs - before)))

    def took(self, is_within: bool = False) -> None:
        """A checkpoint was taken; ``is_within`` an epoch."""
        self.schedule.take(time.perf_counter(), is_within)
        self._keep()

    def keep_model(self, roots: Mapping[str, Any], is_needed: bool) -> None:
        """Keep the graph of the model, for export, if it ``is_needed`` or recording may cost that now."""
        schedule, models, checkpoints = self.schedule, self._recorder.models, self._checkpoints
        room_secs = float("inf")
        if not is_needed:
            at_end_secs = schedule.num_at_end * schedule.expected_secs
            room_secs = schedule.room_secs(time.perf_counter()) - at_end_secs
        latest = checkpoints.latest_state(roots)
        secs = models.keep(self._loop, roots, latest, lambda: checkpoints.state(roots), room_secs)
        schedule.set_aside(models.owed_secs(self._loop, roots, checkpoints.latest_state(roots)))
        schedule.pay(stall_secs=secs)

    def finish(self) -> None:
        """The loop is over and everything is written: keep what it cost, and say so if that is more than it may."""
        described = self._keep()
        secs = described["stall_secs"] + described["worker_secs"]
        share = secs / max(described["training_secs"], 1e-9)
        if share > self.schedule.overhead:
            self._recorder.note(
                f"Recording loop {self._loop} took {share:.1%} of its {described['training_secs']:.1f} s of training, "
                f"more than overhead={self.schedule.overhead:.1%}."
            )

    def _keep(self) -> dict[str, Any]:
        described = self.schedule.describe(time.perf_counter())
        run, loop = self._recorder.run, self._loop
        self._recorder.journal.post(lambda store: store.note_recording(run, loop, described))
        return described
