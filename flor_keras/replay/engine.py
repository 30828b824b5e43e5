"""Carrying out a plan: start the worker, follow its events, keep the result in the store. Runs in the caller's process."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flor_keras.errors import ReplayError, UsageError
from flor_keras.records import Verdict
from flor_keras.replay.plan import Plan
from flor_keras.store.database import Store

PATIENCE_SECS = 3600.0  # without a word from the worker; a program may take long to load its data
_LOG_LINES_SHOWN = 15
_HASH_SEED = "PYTHONHASHSEED"


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
    diverted: list[str]
    refused: list[str]
    num_entries: int
    seconds: float
    log_path: Path


def carry_out(plan: Plan, on_event: Callable[[dict[str, Any]], None], patience_secs: float = PATIENCE_SECS) -> Outcome:
    """Replay a run according to ``plan``; the values are in the store when this returns.

    Raises:
      ReplayError: the program failed or hung. What had been computed by then is in the store.
      UsageError: the program never logged an asked name.
    """
    began = time.monotonic()
    with Store.open(Path(plan.store)) as store:
        replay = store.begin_replay(plan.run, plan.level, plan.names, _positions(plan), plan.to_json())
        folder = Path(plan.store) / "runs" / plan.run / "replays" / str(replay)
        folder.mkdir(parents=True, exist_ok=True)
        status = "failed"
        report: dict[str, Any] = {"error": "interrupted"}
        try:
            report = _run_worker(plan, replay, folder, on_event, patience_secs)
            status = "failed" if report["error"] else "finished"
        finally:
            verdict = Verdict(report.get("verified", Verdict.UNCHECKED))
            seconds = time.monotonic() - began
            store.finish_replay(replay, status, seconds, verdict, report.get("max_abs_diff"), report)
    _raise_on_failure(plan, report, folder / "output.log")
    return Outcome(
        plan=plan,
        replay=replay,
        verdict=verdict,
        max_abs_diff=report["max_abs_diff"],
        first_difference=report["first_difference"],
        differing=report["differing"],
        held_back=report["held_back"],
        causes=report["causes"],
        diverted=report.get("diverted", []),
        refused=report.get("refused", []),
        num_entries=report["num_entries"],
        seconds=seconds,
        log_path=folder / "output.log",
    )


def _positions(plan: Plan) -> list[list[int]]:
    return [[int(loop), epoch] for loop, epochs in plan.epochs.items() for epoch in epochs]


def _run_worker(
    plan: Plan, replay: int, folder: Path, on_event: Callable[[dict[str, Any]], None], patience_secs: float
) -> dict[str, Any]:
    plan_path = folder / "plan.json"
    plan_path.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    report: dict[str, Any] = {"error": "the worker died"}
    with _scratch_folder() as scratch, (folder / "output.log").open("wb") as log:
        reading, writing = os.pipe()
        words = [str(plan_path), str(replay), str(scratch), str(writing)]
        worker = subprocess.Popen(
            [sys.executable, "-m", "flor_keras.replay.worker", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writing],
            env=_environment(plan),
            start_new_session=True,
        )
        os.close(writing)
        try:
            for event in _events(reading, patience_secs):
                if event["event"] == "end":
                    report = event
                on_event(event)
        finally:
            os.close(reading)
            _end(worker)
    return report


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix="flor_keras-replay-"))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _environment(plan: Plan) -> dict[str, str]:
    """Return the worker's environment: what decides results is as it was when the run was recorded."""
    environment = {**os.environ, **plan.variables, "PYTHONUNBUFFERED": "1"}
    environment.setdefault(_HASH_SEED, "0")
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _events(descriptor: int, patience_secs: float) -> Iterator[dict[str, Any]]:
    """Yield the worker's events until it closes its end; ReplayError when it is silent for too long."""
    rest = b""
    while True:
        if not select.select([descriptor], [], [], patience_secs)[0]:
            raise ReplayError(
                f"The replayed program gave no sign for {patience_secs:.0f} s and was ended. Give it more time with "
                "--patience SECONDS, or look at what it does when it is run by itself."
            )
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Wait for the worker, which has said its last word; end it and what it started by force if it lingers."""
    try:
        worker.wait(5)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(5)


def _raise_on_failure(plan: Plan, report: dict[str, Any], log_path: Path) -> None:
    if report["error"]:
        lines = log_path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        shown = "\n".join(f"  | {line}" for line in lines)
        raise ReplayError(
            f"The replayed program failed: {report['error']}\n{shown}\nIts whole output is in {log_path}. "
            "What it computed before is in the store."
        )
    if not report["num_entries"]:
        raise UsageError(
            f"The program logged none of {', '.join(plan.names)} where it was replayed (level {plan.level}). "
            "Check that the line is reached, or give another --level."
        )
