"""Carrying out a plan: start workers, follow their events, keep the result in the store. Runs in the caller's process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flor_keras.environment import num_gpus
from flor_keras.errors import ReplayError, UsageError
from flor_keras.records import Verdict
from flor_keras.replay.cost import costs_of
from flor_keras.replay.launch import Launcher, Worker, deal_devices, launcher
from flor_keras.replay.merge import less_unchecked, merge_reports, merge_verdicts
from flor_keras.replay.plan import Plan
from flor_keras.replay.pool import Pool
from flor_keras.replay.scratch import scratch_folder
from flor_keras.replay.segments import divide, places
from flor_keras.store.database import Store

PATIENCE_SECS = 3600.0  # without a word from the worker; a program may take long to load its data
_LOG_LINES_SHOWN = 15

OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome:
    """What a replay did and found."""

    plan: Plan
    replay: int
    verdict: Verdict
    max_abs_diff: float | None
    first_difference: dict[str, Any] | None
    differing: list[str]
    held_back: list[str]
    causes: list[str]
    unchecked: list[str]
    diverted: list[str]
    refused: list[str]
    num_entries: int  # those of unfinished replays it went on from included
    num_workers: int
    seconds: float
    log_path: Path


def carry_out(
    plan: Plan, on_event: OnEvent, patience_secs: float = PATIENCE_SECS, num_workers: int = 1
) -> Outcome:
    """Replay a run according to ``plan``; the values are in the store when this returns.

    Values join the store epoch by epoch. A replay that was ended before its time leaves what it had computed, and the
    next plan like it leaves those epochs out.

    Raises:
      ReplayError: the program failed or hung. What had been computed by then is in the store.
      UsageError: the program never logged an asked name.
    """
    began = time.monotonic()
    with Store.open(Path(plan.store)) as store:
        segments = _segments(store, plan, num_workers)
        replay = store.begin_replay(plan.run, plan.level, plan.names, _positions(plan), plan.to_json())
        carried_out = _Replay(plan, replay, store)
        status = "interrupted"
        report: dict[str, Any] = {"error": "interrupted"}
        try:
            report = carried_out.run(segments, on_event, patience_secs)
            status = "failed" if report["error"] else "finished"
        except Exception:
            status = "failed"
            raise
        finally:
            verdict = Verdict(report.get("verified", Verdict.UNCHECKED))
            seconds = time.monotonic() - began
            store.finish_replay(replay, status, seconds, verdict, report.get("max_abs_diff"), report)
    _raise_on_failure(plan, report)
    return Outcome(
        plan=plan,
        replay=replay,
        verdict=verdict,
        max_abs_diff=report["max_abs_diff"],
        first_difference=report["first_difference"],
        differing=report["differing"],
        held_back=report["held_back"],
        causes=report["causes"],
        unchecked=report["unchecked"],
        diverted=report["diverted"],
        refused=report["refused"],
        num_entries=report["num_entries"],
        num_workers=len(segments),
        seconds=seconds,
        log_path=Path(report["log"]),
    )


def _segments(store: Store, plan: Plan, num_workers: int) -> list[Plan]:
    if not places(plan) and plan.done and _is_of_epochs_alone(plan):
        return []  # an unfinished replay had computed everything
    costs = costs_of(store, plan)
    return divide(plan, num_workers, costs.of_place, costs.of_lead_in)


def _is_of_epochs_alone(plan: Plan) -> bool:
    return not {"setup", "after"} & set(plan.levels.values()) and not plan.is_in_every_loop


def _positions(plan: Plan) -> list[list[int]]:
    return [list(place) for place in places(plan)]


class _Replay:
    """One replay under way."""

    def __init__(self, plan: Plan, replay: int, store: Store) -> None:
        self._plan = plan
        self._replay = replay
        self._store = store
        self._folder = Path(plan.store) / "runs" / plan.run / "replays" / str(replay)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._starts = 0

    def run(self, segments: Sequence[Plan], on_event: OnEvent, patience_secs: float) -> dict[str, Any]:
        """Carry out the segments and return the report of the whole."""
        if not segments:
            return self._merged([])
        devices = deal_devices(len(segments), os.environ.get("CUDA_VISIBLE_DEVICES"), num_gpus())
        if len(segments) == 1:
            devices = [{}]
        with (
            scratch_folder() as scratch,
            launcher(self._plan, len(segments), self._folder / "output.log") as starter,
        ):

            def start(number: int, segment: Plan) -> Worker:
                return self._start(starter, scratch, number, segment, devices[number], len(segments))

            reports = Pool(start, on_event, self._forget, patience_secs).run(segments)
        return self._merged(reports)

    def _start(
        self,
        starter: Launcher,
        scratch: Path,
        number: int,
        segment: Plan,
        changes: dict[str, str],
        count: int,
    ) -> Worker:
        self._starts += 1
        own = scratch / str(self._starts)
        own.mkdir()
        plan_path = self._folder / ("plan.json" if count == 1 else f"plan-{number}.json")
        plan_path.write_text(json.dumps(segment.to_json()), encoding="utf-8")
        return starter.start(
            [str(plan_path), str(self._replay), str(own)], self._log_path(number, count), changes
        )

    def _log_path(self, number: int, count: int) -> Path:
        return self._folder / ("output.log" if count == 1 else f"output-{number}.log")

    def _forget(self, segment: Plan) -> None:
        """Drop what a dead worker left of what is computed again; else it would be there twice."""
        self._store.drop_hindsight(self._plan.run, self._replay, places(segment), segment.is_outside_kept)

    def _merged(self, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the report of the whole, with what workers that died and earlier replays had computed."""
        report = merge_reports(reports)
        plan, replays = self._plan, [self._replay, *self._plan.continues]
        counts = self._store.hindsight_verdicts(plan.run, plan.names, replays)
        verdict = merge_verdicts([Verdict(report["verified"]), *counts])
        report["verified"] = less_unchecked(verdict, report["unchecked"]).value
        report["num_entries"] = sum(counts.values())
        failed = next((at for at, one in enumerate(reports) if one["error"]), 0)
        report["log"] = str(self._log_path(failed, max(1, len(reports))))
        report["workers"] = [one.get("timings") for one in reports]
        return report


def _raise_on_failure(plan: Plan, report: dict[str, Any]) -> None:
    log_path = Path(report["log"])
    if report["error"]:
        lines = (
            log_path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            if log_path.is_file()
            else []
        )
        shown = "\n".join(f"  | {line}" for line in lines)
        raise ReplayError(
            f"The replayed program failed: {report['error']}\n{shown}\nIts whole output is in {log_path}. "
            "What it computed before is in the store; the same command computes the rest."
        )
    if not report["num_entries"]:
        raise UsageError(
            f"The program logged none of {', '.join(plan.names)} where it was replayed (level {plan.level}). "
            + (" ".join(report["told"]) or "Check that the line is reached, or give another --level.")
        )
