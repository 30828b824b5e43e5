"""How long it takes to make again what leads to the epochs of a plan, by what each epoch took when it was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flor_keras.instrument.levels import Level
from flor_keras.records import CheckpointRecord, Kind, LoopRecord
from flor_keras.replay.plan import Plan
from flor_keras.replay.route import Leg, Steps, legs_to
from flor_keras.replay.segments import Place


class Ways:
    """The seconds of redone steps of each place of a plan.

    Args:
      plan: the plan.
      loops: the loops of its run.
      checkpoints: those that are whole.
      epoch_secs: what each epoch took.

    Attributes:
      on_way_secs: with what is redone between a place and the one before it in the plan.
      alone_secs: with what is redone from the nearest checkpoint before.
      unkept: the epochs whose steps are redone only because their end has no checkpoint, by loop.
    """

    def __init__(
        self,
        plan: Plan,
        loops: Iterable[LoopRecord],
        checkpoints: Sequence[CheckpointRecord],
        epoch_secs: Mapping[Place, float],
    ) -> None:
        self._epoch_secs = epoch_secs
        self._is_step = Level.STEP.value in plan.levels.values()
        self._steps = plan.steps
        self.on_way_secs: dict[Place, float] = {}
        self.alone_secs: dict[Place, float] = {}
        self.unkept: dict[str, list[int]] = {}
        for loop in loops:
            asked = plan.epochs.get(str(loop.loop), [])
            whole = [c for c in checkpoints if c.loop == loop.loop]
            needed = self._needed(asked, whole)
            self._lengths = {c.epoch: c.step for c in whole if c.kind is Kind.EPOCH_END}
            self._usual = loop.steps or max(self._lengths.values(), default=0)
            if not self._is_step and needed:
                self.unkept[str(loop.loop)] = sorted(needed)
            self._add(loop, needed, whole)

    def _needed(self, asked: Iterable[int], whole: Iterable[CheckpointRecord]) -> dict[int, Steps]:
        ends = {c.epoch for c in whole if c.kind is Kind.EPOCH_END}
        if self._is_step:
            window = (self._steps[0], self._steps[-1]) if self._steps else (0, None)
            return dict.fromkeys(asked, window)
        return dict.fromkeys((epoch for epoch in asked if epoch not in ends), (0, None))

    def _add(self, loop: LoopRecord, needed: Mapping[int, Steps], whole: Sequence[CheckpointRecord]) -> None:
        secs = 0.0
        for leg in legs_to(needed, whole) or []:
            secs += self._secs(loop, leg)
            if leg.epoch in needed:
                self.on_way_secs[loop.loop, leg.epoch] = secs
                secs = 0.0
        for epoch, steps in needed.items():
            alone = legs_to({epoch: steps}, whole) or []
            self.alone_secs[loop.loop, epoch] = sum(self._secs(loop, leg) for leg in alone)

    def _secs(self, loop: LoopRecord, leg: Leg) -> float:
        length = self._lengths.get(leg.epoch) or self._usual
        last = length - 1 if leg.last is None else leg.last
        share = min(1.0, (last - leg.first + 1) / length) if length else 1.0
        return share * self._epoch_secs.get((loop.loop, leg.epoch), 0.0)
