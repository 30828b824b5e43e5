"""The pace of a loop: what looking costs does not keep it from ever taking a checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow")

from flor_keras.checkpoint.schedule import Every
from flor_keras.recording import checkpoints
from flor_keras.recording import pace as pacing

pytestmark = pytest.mark.slow
STEP_SECS, LOOK_SECS, COST_SECS = 0.001, 0.0005, 0.01


class Clock:
    """A time that passes when it is told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Checkpoints(checkpoints.Checkpoints):
    """Those of a run without a store, whose state takes a while to look at, and longer to checkpoint."""

    is_busy = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gatherer = self

    def gather(self, roots) -> None:
        self._clock.now += LOOK_SECS

    def latest_state(self, roots) -> None:
        return None

    def _size_of(self, state) -> int:
        return 1000

    def write(self) -> None:
        self._clock.now += COST_SECS
        self._schedule.pay(stall_secs=COST_SECS)
        self._schedule.learn(COST_SECS, 1000)


def test_short_steps_have_checkpoints_between_them_though_looking_costs_something(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    monkeypatch.setattr(checkpoints, "time", clock)
    kept = Checkpoints(clock)
    recorder = SimpleNamespace(
        run="0" * 10,
        checkpoints=kept,
        models=SimpleNamespace(owed_secs=lambda *about: 0.0),
        journal=SimpleNamespace(post=lambda write: None),
    )
    pace = pacing.Pace(recorder, 0, Every(), 1 / 15)
    taken = 0
    for _ in range(40_000):
        clock.now += STEP_SECS
        if clock.now >= pace.schedule.look_within_at:
            with pace.counted():
                if pace.is_due_within(clock.now, None, True, {}):
                    kept.write()
                    pace.took(is_within=True)
                    taken += 1
    spent = taken * COST_SECS
    assert taken >= 10
    assert spent <= pace.schedule.spent_secs <= 1.2 * spent, "what looking costs is counted, and little"
