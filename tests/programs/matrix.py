"""What is done with each program of the zoo: recorded, an epoch of it redone, killed and resumed; and how it came out."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from project import Project
from zoo import Case

from flor_keras import reading
from flor_keras.replay.verify import is_identical

AUDIT = Path(__file__).with_name("audit.py")
EXACT = "exact"
EACH_EPOCH = "epoch"


@dataclass
class Result:
    """How one program came out with checkpoints ``every`` so often: ``exact``, or what is not."""

    name: str
    every: str
    replay: str = "not reached"
    resume: str = "not reached"
    causes: list[str] = field(default_factory=list)
    secs: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether everything is as it was."""
        return self.replay == self.resume == EXACT

    def __str__(self) -> str:
        because = f"  because {'; '.join(self.causes)}" if self.causes else ""
        return f"{self.name} (every {self.every}): replay {self.replay}, resume {self.resume} ({self.secs:.0f} s){because}"


class Trial:
    """One program in a folder of its own, with a store for the run that is left alone and one for the killed one.

    Args:
      project: the folder.
      case: the program.
      every: how often checkpoints are taken, as FLOR_CHECKPOINT_EVERY has it.
    """

    def __init__(self, project: Project, case: Case, every: str = EACH_EPOCH) -> None:
        self.case = case
        self.every = every
        self.project = project
        self.script = project.write("train.py", case.text)
        self.stores = {which: project.folder / f"{which}.flor" for which in ("whole", "killed")}
        shutil.copy(AUDIT, project.folder / "audit.py")

    def run(self) -> Result:
        """Do all that is done with a program."""
        began = time.monotonic()
        result = Result(self.case.name, self.every)
        self.record()
        with ThreadPoolExecutor(2) as pool:
            replayed = pool.submit(self.replayed, "whole", self.middle_epoch())
            resumed = pool.submit(self.resumed)
            result.replay, result.causes = replayed.result()
            result.resume, causes = resumed.result()
        result.causes += [cause for cause in causes if cause not in result.causes]
        result.causes = [cause.replace(f"{self.project.folder}/", "") for cause in result.causes]
        result.secs = time.monotonic() - began
        return result

    def record(self) -> None:
        """Record the run that nothing happens to."""
        self.project.succeed(self.script, env=self.variables("whole"))

    def variables(self, which: str, **more: str) -> dict[str, str]:
        """Return the environment of the run of a store."""
        folder = self.project.folder
        return {
            "FLOR_STORE": str(self.stores[which]),
            "FLOR_CHECKPOINT_EVERY": self.every,
            "DIGEST": str(folder / f"{which}.npz"),
            "UNORDERED": self.case.unordered,
            **more,
        }

    def recorded(self, which: str) -> reading.Run:
        """Return the run of a store."""
        return reading.run("latest", self.stores[which])

    # -- an epoch is done again --------------------------------------------------------------------------------

    def middle_epoch(self) -> int:
        """Return an epoch in the middle of the loop the case is about."""
        epochs = self.epochs("whole")
        return epochs[len(epochs) // 2]

    def epochs(self, which: str) -> list[int]:
        """Return the epochs of the loop the case is about."""
        return sorted({p.epoch for p in self.step_positions(which) if p.epoch is not None})

    def step_positions(self, which: str) -> list[Any]:
        """Return the positions of the loop the case is about at which steps were logged."""
        entries = self.recorded(which).entries("step_logs", recorded=True)
        return [entry.position for entry in entries if entry.position.loop == self.case.loop]

    def replayed(self, which: str, epoch: int) -> tuple[str, list[str]]:
        """Redo an epoch in a new process; return how that came out, and the causes the product gives."""
        words = "replay", "--json", self.script, "step_logs", "--epochs", epoch
        ended = self.project.flor(*words, env=self.variables(which))
        if ended.status not in (0, 3):
            return f"failed: {ended.stderr.strip()}", []
        report = json.loads(ended.stdout)
        if report["verified"] != EXACT:
            differing = f"{report['verified']}, {report['max_abs_diff']}, {report.get('differing', '')}"
            return differing, report["causes"]
        return self.steps_compared(which, epoch), report["causes"]

    def steps_compared(self, which: str, epoch: int) -> str:
        """Compare the steps logged in hindsight with those logged live."""
        run = self.recorded(which)
        live = {e.position: e.value for e in run.entries("step_logs", recorded=True)}
        again = {e.position: e.value for e in run.entries("step_logs", recorded=False)}
        expected = {position for position in live if position.epoch == epoch}
        if again.keys() != expected:
            return f"{len(again)} steps instead of {len(expected)}"
        wrong = [at for at, value in again.items() if not is_identical(value, live[at])]
        return f"{len(wrong)} steps differ" if wrong else EXACT

    # -- the run is killed and goes on ----------------------------------------------------------------------------

    def resumed(self) -> tuple[str, list[str]]:
        """Kill a run at a step drawn at random, and resume it; return how that came out, and why."""
        kill = self.a_step()
        ended = self.project.run(self.script, env=self.variables("killed", KILL=json.dumps(kill)))
        if ended.status != -signal.SIGKILL:
            return f"not killed at {kill}: {ended}", []
        ended = self.project.flor("resume", env=self.variables("killed"))
        if ended.status != 0:
            return f"failed: {ended.stdout}\n{ended.stderr}", []
        if self.case.is_repeatable:
            return self.runs_compared(), []
        outcome, causes = self.replayed("killed", kill[1])
        doubled = self.doubled_rows()
        return (doubled or outcome), causes

    def a_step(self) -> list[int]:
        """Return a (loop, epoch, step) to die at; not in the first epoch where there are more."""
        draw = random.Random(zlib.crc32(self.case.name.encode()))
        positions = [
            p for p in self.step_positions("whole") if p.epoch == self.epochs("whole")[-1] or p.epoch
        ]
        if not self.case.is_repeatable:  # another run may stop earlier
            positions = [p for p in positions if p.epoch == min(p.epoch for p in positions)]
        return list(draw.choice(positions))

    def runs_compared(self) -> str:
        """Compare the resumed run with the whole one: all that was logged, and all that it came to."""
        whole, resumed = (_rows(self.recorded(which)) for which in self.stores)
        wrong = [
            str(key) for key in whole if key not in resumed or not is_identical(whole[key], resumed[key])
        ]
        wrong += [f"{key} is new" for key in resumed if key not in whole]
        wrong += _differing(*(self.project.folder / f"{which}.npz" for which in self.stores))
        shown = "; ".join(wrong[:8]) + (f" and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        return f"differs in {shown}" if wrong else (self.doubled_rows() or EXACT)

    def doubled_rows(self) -> str:
        """Return which rows the resumed run has twice; nothing if none."""
        seen: set[Any] = set()
        twice = []
        for entry in self.recorded("killed").entries(recorded=True):
            key = entry.name, entry.position
            twice += [str(key)] if key in seen else []
            seen.add(key)
        return f"twice in the store: {', '.join(twice)}" if twice else ""


def _rows(run: reading.Run) -> dict[Any, Any]:
    return {(entry.name, *entry.position): entry.value for entry in run.entries(recorded=True)}


def _differing(left_path: Path, right_path: Path) -> list[str]:
    """Return what two programs came to differently."""
    with np.load(left_path) as left, np.load(right_path) as right:
        names = sorted({*left, *right})
        return [
            name
            for name in names
            if name not in left or name not in right or not is_identical(left[name], right[name])
        ]


def as_markdown(results: list[Result]) -> str:
    """Return the page that says how all programs came out."""
    whole = {r.name: r for r in results if r.every == EACH_EPOCH}
    sparse = {r.name: r for r in results if r.every != EACH_EPOCH}
    rows = []
    for name in whole | sparse:
        each, fewer = (found.get(name, Result(name, "not run", "-", "-")) for found in (whole, sparse))
        causes = "; ".join(dict.fromkeys([*each.causes, *fewer.causes]))
        less = EXACT if fewer.is_exact else f"{_cell(fewer.replay)}; {_cell(fewer.resume)}"
        rows.append(
            f"| {name} | {_cell(each.replay)} | {_cell(each.resume)} | {fewer.every}: {less} | {causes} |"
        )
    counts = {
        key: sum(r.is_exact for r in found.values()) for key, found in (("exact", whole), ("fewer", sparse))
    }
    return "\n".join([_PAGE.format(all=len(rows), **counts), *rows, ""])


_PAGE = """# What is exact

{exact} of {all} small programs are redone and resumed to the last bit, and {fewer} of {all} where most of their epochs have no
checkpoint. `make matrix` writes this page; `tests/programs/zoo.py` has the programs.

- *an epoch redone*: the run is recorded, one of its epochs is redone step by step in a new process, and every number
  logged in a step or after the epoch is compared, with a digest of each weight, slot, metric, seed, random state and
  attribute of a callback.
- *killed and resumed*: another run of the program is killed at a step drawn by chance and resumed, and all it logged
  and came to is compared with the run nothing happened to. Where a program sets no seed two runs differ by nature; there an
  epoch of the resumed run is redone instead.
- *with fewer checkpoints*: both once more, with a checkpoint after every second epoch (2), after every fifth step (steps=5), or as the
  schedule gives (auto: in runs as short as these only at the beginning and the end).
- *because*: the reason flor_keras itself gives where it is not exact.

| program | an epoch redone | killed and resumed | with fewer checkpoints | because |
|---|---|---|---|---|"""


def _cell(text: str) -> str:
    return text.splitlines()[0].partition(",")[0].partition(" in (")[0][:120].replace("|", "/")
