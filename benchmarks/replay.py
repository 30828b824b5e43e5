"""What a replay costs, beside what it has to do: epochs looked at, steps made again, and what the plan foretold.

python benchmarks/replay.py [--parts epochs steps estimates] [--training-secs 330] [--page docs/benchmarks.md]

The programs are recorded in a scratch folder, each as a process of its own, and so are replays: what is measured is what a
person waits for.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import report

from flor_keras import reading
from flor_keras.records import Kind, Verdict
from flor_keras.replay.engine import carry_out
from flor_keras.replay.plan import Request, make_plan
from flor_keras.replay.prospect import foresee
from flor_keras.store.database import Store

HERE = Path(__file__).resolve().parent
PROGRAM = "replayed.py"
FLOOR = """
import json, sys, time
import replayed
from flor_keras import probes, reading
model, data, _ = replayed.prepare(int(sys.argv[2]))
print("ready", flush=True)
took = []
for checkpoint in reading.run(sys.argv[1]).checkpoints:
    if checkpoint.kind == "epoch_end":
        began = time.perf_counter()
        checkpoint.restore(model)
        probes.weight_norm(model)
        took.append(time.perf_counter() - began)
print(json.dumps(took))
"""
_LEAST_TRAINING_SECS = 300.0
_HEAD_EPOCHS = (
    *("run", "training", "epochs looked at", "start-up", "restore + probe"),
    *("together", "replay", "÷ together", "÷ training"),
)


class Project:
    """A scratch folder with the programs and a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / ".flor"
        for program in (HERE / PROGRAM, *(HERE.parent / "examples").glob("*.py")):
            shutil.copy(program, folder)
        self._environment = {
            **os.environ,
            "FLOR_STORE": str(self.store),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        os.environ.update(self._environment)  # `carry_out` starts workers from here

    def record(self, program: str, *words: Any) -> reading.Run:
        """Train, and return the run."""
        command = [sys.executable, program, *map(str, words)]
        subprocess.run(command, cwd=self.folder, env=self._environment, check=True, stdout=subprocess.DEVNULL)
        return reading.run("latest", self.store)

    def replay_secs(self, run: reading.Run, *words: str) -> float:
        """Return how long `flor-keras replay` takes, as a whole process."""
        command = [str(Path(sys.executable).with_name("flor-keras")), "replay", Path(str(run.script)).name]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, *words, "--run", run.id, "--json"],
            cwd=self.folder,
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(done.stdout)["verified"] == Verdict.EXACT
        return time.perf_counter() - began

    def floor_secs(self, run: reading.Run, passes: int) -> tuple[float, float]:
        """Return what no replay can do without: seconds to get the model up, and to restore an epoch and probe it."""
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", FLOOR, run.id, str(passes)],
            cwd=self.folder,
            env={**self._environment, "PYTHONPATH": os.pathsep.join([str(self.folder), *sys.path])},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            startup_secs = time.perf_counter() - began
            return startup_secs, statistics.median(json.loads(process.stdout.readline()))


def training_secs(run: reading.Run) -> float:
    """Return how long a run's loops took."""
    return sum((loop.finished_at or math.nan) - loop.started_at for loop in run.loops)


def secs_of_a_pass(project: Project, threads: int) -> float:
    """Return how long training takes to go over the images once."""
    run = project.record(PROGRAM, 4, 2, threads)
    ends = [c.created_at for c in _checkpoints(run) if c.kind is Kind.EPOCH_END]
    return (ends[-1] - ends[0]) / (2 * (len(ends) - 1))


def _checkpoints(run: reading.Run) -> list[Any]:
    with Store.open(run.store) as store:
        return store.checkpoints(run.id)


# -- epochs looked at -----------------------------------------------------------------------------------------


def measure_epochs(project: Project, asked: argparse.Namespace) -> str:
    """Look at the weights of all epochs of a long run, of some of them, and of a short run."""
    passes = max(2, math.ceil(asked.training_secs / asked.epochs / secs_of_a_pass(project, 0)))
    runs = {"long": (project.record(PROGRAM, asked.epochs, passes), passes)}
    runs["short"] = (project.record(PROGRAM, asked.epochs, 1), 1)
    whole = list(range(asked.epochs))
    cases = [("long", "all", whole), ("long", "every third", whole[::3]), ("short", "all", whole)]
    rows, targets = [], []
    for name, word, epochs in cases:
        run, passes = runs[name]
        words = ["--probe", "weight_norm", "--epochs", ",".join(map(str, epochs))]
        floors, walls = [], []
        for _ in range(asked.rounds):
            floors.append(project.floor_secs(run, passes))
            walls.append(project.replay_secs(run, *words))
        startup, visit = (statistics.median(part) for part in zip(*floors, strict=True))
        together, wall, training = startup + len(epochs) * visit, statistics.median(walls), training_secs(run)
        rows.append(
            [
                *(name, f"{training:.1f} s", f"{len(epochs)} of {asked.epochs}", f"{startup:.2f} s"),
                *(f"{visit * 1e3:.1f} ms", f"{together:.2f} s", f"{wall:.2f} s", f"{wall / together:.2f}"),
                f"1/{training / wall:.0f}" if training > wall else f"{wall / training:.1f}",
            ]
        )
        what = f"{name} run, {word} epochs: at most 1.3 × (start-up + E × (restore + probe))"
        targets.append((what, wall <= 1.3 * together, f"{wall / together:.2f}"))
        if (name, word) == ("long", "all"):
            is_long = training >= _LEAST_TRAINING_SECS
            what = "weight norm of all epochs in under 1/20 of at least 5 minutes of training"
            targets.append((what, wall < training / 20 if is_long else None, f"1/{training / wall:.0f}"))
    note = (
        "*start-up*: the same program up to its `fit`, not recorded. *restore + probe*: of one epoch, with "
        "`Checkpoint.restore` and `probes.weight_norm` in that process. *replay*: `flor-keras replay --probe "
        f"weight_norm` as a whole process. Medians of {asked.rounds} rounds, in turn."
    )
    return "\n\n".join([report.machine(), report.table(_HEAD_EPOCHS, rows), report.verdicts(targets), note])


# -- steps made again -----------------------------------------------------------------------------------------


@dataclass
class Replayed:
    """A replay, and what it took.

    Attributes:
      startup_secs: until the last worker came to the loop.
    """

    estimate_secs: float
    secs: float = 0.0
    startup_secs: float = 0.0
    verdict: Verdict = Verdict.UNCHECKED
    values: list[Any] = field(default_factory=list)

    @property
    def steps_secs(self) -> float:
        """What it took without its start."""
        return self.secs - self.startup_secs


def replayed(run: reading.Run, request: dict[str, Any], workers: str) -> Replayed:
    """Carry out a replay as the command does, and watch it."""
    with Store.open(run.store) as store:
        plan = make_plan(store, Request(script=Path(str(run.script)), run=run.id, **request))
        prospect = foresee(store, plan, workers)
    found = Replayed(prospect.expected_secs)
    began = time.perf_counter()

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "loop" and event["loop"] == 0:
            found.startup_secs = time.perf_counter() - began

    found.verdict = carry_out(prospect.plan, on_event, num_workers=prospect.num_workers).verdict
    found.secs = time.perf_counter() - began
    entries = reading.run(run.id, run.store).entries(*plan.names, recorded=False)
    found.values = [(entry.name, entry.position, repr(entry.value)) for entry in entries]
    return found


def measure_steps(project: Project, asked: argparse.Namespace) -> str:
    """Make all steps of a run again, with one worker and with two."""
    epochs = 8
    passes = max(1, math.ceil(asked.step_secs / epochs / secs_of_a_pass(project, 1)))
    run = project.record(PROGRAM, epochs, passes, 1)
    request = {"names": (), "probes": ("gradient_norm",)}
    rounds = [[replayed(run, request, workers) for workers in ("1", "2")] for _ in range(asked.rounds)]
    whole = statistics.median(two.secs / one.secs for one, two in rounds)
    apart = statistics.median(two.steps_secs / one.steps_secs for one, two in rounds)
    rows = [
        [str(number), workers, f"{r.startup_secs:.2f} s", f"{r.steps_secs:.2f} s", f"{r.secs:.2f} s"]
        for number, found in enumerate(rounds, 1)
        for workers, r in zip(("1", "2"), found, strict=True)
    ]
    one = rounds[0][0]
    is_equal = all(r.values == one.values and r.verdict is Verdict.EXACT for found in rounds for r in found)
    targets: list[tuple[str, bool | None, str]] = [
        ("2 workers take at most 57 % of the time of one", whole <= 0.57, f"{whole:.1%}"),
        ("start-up apart, at most 53 %", apart <= 0.53, f"{apart:.1%}"),
        ("equal bit for bit, to each other and to the record", is_equal, f"{len(one.values)} values"),
    ]
    head = ("round", "workers", "start-up", "steps", "replay")
    note = (
        f"All {epochs} epochs of a run that trained for {training_secs(run):.1f} s, TensorFlow on one thread, with "
        "`--probe gradient_norm`. *start-up*: until the last worker came to the loop. The verdicts are of the median round."
    )
    return "\n\n".join([report.machine(), report.table(head, rows), report.verdicts(targets), note])


# -- what the plan foretold -----------------------------------------------------------------------------------


def estimated(passes: int) -> list[tuple[str, list[Any], list[tuple[str, dict[str, Any]]]]]:
    """Return 20 replays of four runs: the program with its arguments, then names, probes and the rest."""
    fit: list[tuple[str, dict[str, Any]]] = [
        ("weight_norm", {"probes": ("weight_norm",)}),
        ("gradient_norm", {"probes": ("gradient_norm",)}),
        ("confusion_matrix", {"probes": ("confusion_matrix",)}),
        ("val_loss", {"names": ("val_loss",)}),
        ("update_ratio of 3 epochs", {"probes": ("update_ratio",), "epochs": "2:5"}),
        ("final_loss", {"names": ("final_loss",)}),
        ("weight_histogram", {"probes": ("weight_histogram",)}),
    ]
    digits: list[tuple[str, dict[str, Any]]] = [
        ("learning_rate", {"probes": ("learning_rate",)}),
        ("gradient_norm", {"probes": ("gradient_norm",)}),
        ("gradient_norm of 5 epochs", {"probes": ("gradient_norm",), "epochs": "0:5"}),
        ("sample_loss", {"probes": ("sample_loss",)}),
        ("dead_units", {"probes": ("dead_units",)}),
    ]
    custom: list[tuple[str, dict[str, Any]]] = [
        ("accuracy", {"names": ("accuracy",)}),
        ("gradient_norm", {"probes": ("gradient_norm",)}),
    ]
    return [
        (PROGRAM, [8, passes], fit),
        (PROGRAM, [20, 1], fit[:2] + fit[3:4] + fit[5:6]),
        ("digits_fit.py", [], digits),
        (
            "custom_loop.py",
            ["--arg", "epochs=30"],
            [*custom, ("accuracy of 10 epochs", {**custom[0][1], "epochs": "20:"}), custom[1]],
        ),
    ]


def measure_estimates(project: Project, asked: argparse.Namespace) -> str:
    """Hold the plan's estimate to what the replay then took."""
    rows, errors = [], []
    for program, words, replays in estimated(asked.passes):
        run = project.record(program, *words)
        for name, request in replays:
            found = replayed(run, {"names": (), **request}, "auto")
            errors.append(abs(found.estimate_secs / found.secs - 1))
            told = (
                f"{found.estimate_secs:.1f} s",
                f"{found.secs:.1f} s",
                f"{found.estimate_secs / found.secs:.2f}",
            )
            rows.append([name, " ".join([program, *map(str, words)]), *told])
    median = statistics.median(errors)
    what = f"{len(errors)} replays: median of |estimate ÷ actual − 1| at most 0.25"
    head = ("asked for", "program", "estimate", "actual", "ratio")
    note = "Replays of one run in this order; the first knows nothing but the record, later ones what those before them took."
    verdict = report.verdicts([(what, median <= 0.25, f"{median:.2f}")])
    return "\n\n".join([report.machine(), report.table(head, rows), verdict, note])


PARTS = {
    "epochs": ("Epochs looked at in hindsight", measure_epochs),
    "steps": ("Steps made again by two workers", measure_steps),
    "estimates": ("What the plan says a replay takes", measure_estimates),
}


def main() -> None:
    """Measure the parts asked for, print the tables, and put them on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--training-secs", type=float, default=330.0, help="how long the long run trains")
    parser.add_argument(
        "--step-secs", type=float, default=90.0, help="how long the run trains whose steps are redone"
    )
    parser.add_argument(
        "--passes", type=int, default=6, help="length of epochs where estimates are held to times"
    )
    parser.add_argument("--epochs", type=int, default=30, help="how many the long run has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="put the tables on this page too")
    asked = parser.parse_args()
    for part in asked.parts:
        title, measure = PARTS[part]
        with tempfile.TemporaryDirectory(prefix="flor-bench-") as folder:
            text = measure(Project(Path(folder)), asked)
        report.publish(f"replay {part}", title, text, asked.page)


if __name__ == "__main__":
    main()
