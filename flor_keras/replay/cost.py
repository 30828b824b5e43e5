"""What a replay costs, from what the record and earlier replays of the store say. TensorFlow is not imported."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flor_keras.instrument.levels import Level
from flor_keras.probes import BUILT_IN
from flor_keras.records import CheckpointRecord, Kind, LoopRecord
from flor_keras.replay.plan import Plan
from flor_keras.replay.segments import Place, places
from flor_keras.replay.ways import Ways
from flor_keras.store.database import Store
from flor_keras.store.replay_tables import ReplayRow

# Where nothing was measured yet.
_IMPORT_SECS = 6.0  # of TensorFlow and Keras, most of a start
_RESTORE_SECS = 0.03
_RESTORE_BYTES_PER_SEC = 400e6
_EVAL_SHARE = 0.3  # of an epoch's training
_BASE_BYTES = 900_000_000  # a process with TensorFlow, before it has a model
_STATES_IN_MEMORY = 4  # variables, gradients, what a restore reads, what the program keeps


@dataclass(frozen=True)
class Costs:
    """Seconds a replay takes, part by part.

    Attributes:
      startup_secs: from the start of a worker to its first loop: imports, data, model.
      first_secs: what the first visited epoch takes more than the others: tracing, building.
      visit_secs: of each place that is visited.
      on_way_secs: what making steps again takes for each place when the places before it are visited, too.
      alone_secs: the same when a worker begins with it, and has to come from the nearest checkpoint before.
      unkept: epochs that are trained again only because their end has no checkpoint, by loop.
      error: the median relative error of earlier estimates in this store; None without any.
    """

    startup_secs: float
    first_secs: float
    visit_secs: float
    on_way_secs: Mapping[Place, float]
    alone_secs: Mapping[Place, float]
    scale: float  # of redone epochs, compared with recorded ones
    worker_bytes: int
    error: float | None = None
    unkept: Mapping[str, list[int]] = field(default_factory=dict)

    def of_place(self, place: Place) -> float:
        """Return the seconds one place takes."""
        return self.visit_secs + self.scale * self.on_way_secs.get(place, 0.0)

    def of_lead_in(self, place: Place) -> float:
        """Return the seconds to get to a place from the nearest checkpoint before."""
        on_way_secs = self.on_way_secs.get(place, 0.0)
        return self.scale * max(0.0, self.alone_secs.get(place, 0.0) - on_way_secs)

    def work_secs(self, plan: Plan) -> float:
        """Return what the visits of a plan take together."""
        return sum(map(self.of_place, places(plan)))

    def expected_secs(self, segments: Iterable[Plan]) -> float:
        """Return what segments take side by side."""
        return max((self._segment_secs(segment) for segment in segments), default=0.0)

    def _segment_secs(self, segment: Plan) -> float:
        visited = places(segment)
        first = self.first_secs + self.of_lead_in(visited[0]) if visited else 0.0
        return self.startup_secs + first + sum(map(self.of_place, visited))


def costs_of(store: Store, plan: Plan) -> Costs:
    """Learn the costs of a plan."""
    loops, checkpoints = (
        store.loops(plan.run),
        [c for c in store.checkpoints(plan.run) if c.error is None],
    )
    epoch_secs = _epoch_secs(loops, checkpoints)
    usual = statistics.median(epoch_secs.values()) if epoch_secs else 0.0
    is_redone = Level.STEP.value in plan.levels.values()
    traced = {
        (loop.loop, loop.initial_epoch) for loop in loops
    }  # which every worker does in its own first epoch
    limits = {place: usual if place in traced else 2 * usual for place in epoch_secs}
    way = Ways(plan, loops, checkpoints, {p: min(secs, limits[p]) for p, secs in epoch_secs.items()})
    run = store.run(plan.run)
    known = _Known([row for row in store.replays(plan.run) if row.report and row.report.get("workers")], plan)
    setup_secs = max(0.0, loops[0].started_at - run.started_at) if loops else 0.0
    num_bytes = max((c.num_bytes for c in checkpoints), default=0)
    restore_secs = _RESTORE_SECS + num_bytes / _RESTORE_BYTES_PER_SEC
    is_over_data = _is_over_data(plan)
    visit_secs = restore_secs + (_EVAL_SHARE * usual if is_over_data else 0.0)
    scale = 1.0
    measured = known.median("visit_secs", same_names=True)
    if measured is None and (is_redone or not is_over_data):  # else it is the names that decide
        measured = known.median("visit_secs")
    if measured is not None and is_redone:
        visit_secs, scale = restore_secs, max(0.1, (measured - restore_secs) / usual) if usual else 1.0
    elif measured is not None:
        visit_secs = measured
    first = min(((place, secs) for place, secs in epoch_secs.items()), default=(None, usual))[1]
    guessed_first = max(0.0, first - usual) if is_redone else 0.5
    startup = known.median("startup_secs", any_level=True)
    first_secs = known.median("first_secs")
    return Costs(
        startup_secs=(run.environment.get("age_secs") or _IMPORT_SECS) + setup_secs
        if startup is None
        else startup,
        first_secs=guessed_first if first_secs is None else first_secs,
        visit_secs=visit_secs,
        on_way_secs=way.on_way_secs,
        alone_secs=way.alone_secs,
        unkept=way.unkept,
        scale=scale,
        worker_bytes=int(
            known.median("peak_bytes", any_level=True) or _BASE_BYTES + _STATES_IN_MEMORY * num_bytes
        ),
        error=known.error(),
    )


def _is_over_data(plan: Plan) -> bool:
    """Whether a visit goes over the validation data."""
    built_in = [probe["name"] for probe in plan.probes if probe["kind"] == "built_in"]
    return Level.EVAL.value in plan.levels.values() or any(BUILT_IN[name].needs_batches for name in built_in)


class _Known:
    """What earlier replays of a run measured."""

    def __init__(self, rows: list[ReplayRow], plan: Plan) -> None:
        self._rows = rows
        self._plan = plan

    def median(self, what: str, same_names: bool = False, any_level: bool = False) -> float | None:
        """Return the median of something measured by workers of replays like the plan, None without any."""
        found = [
            timings[what]
            for row in self._rows
            if any_level or row.level == self._plan.level
            if not same_names or sorted(row.names) == sorted(self._plan.names)
            for timings in (row.report or {})["workers"]
            if timings and timings.get(what) is not None
        ]
        return statistics.median(found) if found else None

    def error(self) -> float | None:
        """Return how far estimates of earlier replays were off: the median of abs(estimate / actual - 1)."""
        pairs = [
            (row.plan.get("expected_secs"), row.seconds) for row in self._rows if row.status == "finished"
        ]
        found = [abs(expected / actual - 1) for expected, actual in pairs if expected and actual]
        return statistics.median(found) if found else None


def _epoch_secs(loops: list[LoopRecord], checkpoints: list[CheckpointRecord]) -> dict[Place, float]:
    """Return how long each epoch took when it was recorded: from one checkpoint of an epoch's end to the next."""
    found: dict[Place, float] = {}
    for loop in loops:
        before, last = loop.started_at, loop.initial_epoch - 1
        ends = [c for c in checkpoints if c.loop == loop.loop and c.kind is Kind.EPOCH_END]
        for end in sorted(ends, key=lambda c: c.epoch):
            each = max(0.0, end.created_at - before) / max(1, end.epoch - last)
            found.update({(loop.loop, epoch): each for epoch in range(last + 1, end.epoch + 1)})
            before, last = end.created_at, end.epoch
    return found


def measured(
    events: Iterable[tuple[float, Mapping[str, Any]]], began: float, is_forked: bool
) -> dict[str, float | None]:
    """Return what a worker's events, each with its time, say of its costs; the start of a fork says nothing of others."""
    loop_at = next((at for at, event in events if event["event"] == "loop"), None)
    ends = [at for at, event in events if event["event"] == "epoch"]
    between = [after - before for before, after in itertools.pairwise(ends)]
    usual = statistics.mean(between) if between else None
    first = ends[0] - loop_at if ends and loop_at is not None else None
    return {
        "startup_secs": None if loop_at is None or is_forked else loop_at - began,
        "first_secs": None if first is None or usual is None else max(0.0, first - usual),
        "visit_secs": usual,
    }
