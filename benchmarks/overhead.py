"""What recording costs whole training programs, beside plain training and other ways to save.

    python benchmarks/overhead.py [--seconds 30] [--rounds 2] [--workloads …] [--ways …] [--page docs/benchmarks.md]

Each workload has a process of its own, in which plain training and every way to save take turns with the same compiled model.
With ``--kept FILE`` what was measured is kept there and not measured again, so that the whole can be done in pieces.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path
from typing import Any

import report

PLAIN, FLOR = "plain", "FlorKeras"
_PACKAGES = {"OrbaxCheckpoint": "orbax", "MLflow": "mlflow"}
OTHERS = [way for way in ("BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint", "MLflow")
          if util.find_spec(_PACKAGES.get(way, "keras"))]  # fmt: skip
NAMES = (
    "fine-tuning, frozen backbone",
    "fine-tuning, free backbone",
    "small convnet",
    "residual net",
    "transformer",
    "recurrent net",
    "one epoch of large data",
    "tiny model, very short epochs",
)
FROZEN = NAMES[0]
_MEAN_LIMIT, _LIMIT = 0.015, 1 / 15
_FLOR_RESTORE_SCALE = 1.38  # c of FLOR's rule: restoring costs so many times what saving does
_FROZEN_LIMIT = 15
_FLOR_HEAD = (
    "",
    "epochs",
    "trains for",
    "stall",
    "worker CPU",
    "overhead",
    "paired wall",
    "paired CPU",
    "checkpoints",
    "FLOR's rule",
)

_LEGEND = (
    "*overhead*: (stall + writing) ÷ time of plain training: writing is the worker's CPU ÷ cores and all of the CPU of the "
    "trainer's own thread, which writes the first checkpoints; *worker CPU* is that of both. The stall is all time inside of the hooks, "
    "and what follows `fit` until everything is on the disk. *paired wall*: how much longer the same `fit` took than "
    "the plain ones before and after, ± how far those lie apart; *paired CPU*: how much more CPU all threads and the "
    "worker took. *checkpoints*: those at ends of epochs and inside of them, without the first and the last state. "
    "*FLOR's rule*: how many FLOR's invariant gives, at ends of epochs, for the measured cost of a checkpoint. "
    "*of full checkpoints*: the size of FlorKeras's checkpoints beside that of as many whole states. "
    "The others save every epoch, a single epoch ten times; BackupAndRestore keeps the last alone."
)

Turn = dict[str, Any]


def measure(workload: str, ways: list[str], secs: float, rounds: int) -> list[Turn]:
    """Train a workload in all ways, in a process of its own; return the turns."""
    program = str(Path(__file__).with_name("overhead_trainer.py"))
    with tempfile.TemporaryDirectory(prefix="flor-bench-") as folder:
        words = [sys.executable, program, workload, str(secs), str(rounds), folder, *ways]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{workload} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        lines = (Path(folder) / "turns.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


class Series:
    """The turns of one workload, by way."""

    def __init__(self, turns: list[Turn]) -> None:
        self._by_way: dict[str, list[Turn]] = {}
        for turn in turns:
            self._by_way.setdefault(turn["way"], []).append(turn)
        self.num_epochs: int = turns[0]["num_epochs"]
        self.state_bytes: int = turns[0]["state_bytes"]

    def has(self, way: str) -> bool:
        """Whether a way was measured."""
        return way in self._by_way

    def median(self, way: str, key: str) -> float:
        """Return a median over the rounds."""
        return statistics.median(turn[key] for turn in self._by_way[way])

    @property
    def plain_secs(self) -> float:
        """How long plain training takes."""
        return self.median(PLAIN, "wall_secs")

    def paired(self, way: str, key: str) -> float:
        """Return how much more than plain training of the same round a way took, as a share."""
        return statistics.median(
            (turn[key] + _elsewhere(turn, key)) / self._plain(turn["round"], key) - 1
            for turn in self._by_way[way]
        )

    def _plain(self, number: int, key: str) -> float:
        return statistics.mean(turn[key] for turn in self._by_way[PLAIN] if turn["round"] == number)

    @property
    def noise(self) -> float:
        """How far plain turns lie apart, as a share of their median."""
        secs = [turn["wall_secs"] for turn in self._by_way[PLAIN]]
        return (max(secs) - min(secs)) / statistics.median(secs)

    @property
    def flor_secs(self) -> float:
        """What recording took by accounting: the stall, and what writing took of training, as the run itself counts it."""
        return self.median(FLOR, "stall_secs") + self.median(FLOR, "worker_secs")

    @property
    def overhead(self) -> float:
        """What recording took as a share of plain training."""
        return self.flor_secs / self.plain_secs

    @property
    def num_spread(self) -> int:
        """How many checkpoints were committed at ends of epochs and inside of them."""
        return round(self.median(FLOR, "num_spread"))

    @property
    def full_bytes(self) -> float:
        """What as many whole states as there are checkpoints would take."""
        return self.median(FLOR, "num_checkpoints") * self.state_bytes

    @property
    def num_by_flor(self) -> int:
        """How many FLOR's rule would have taken: one at the end of an epoch where M < n/(k+1) · C · min(1/(1+c), ε)."""
        save_secs, epoch_secs = self.median(FLOR, "save_secs"), self.plain_secs / self.num_epochs
        share = min(1 / (1 + _FLOR_RESTORE_SCALE), _LIMIT)
        taken = 0
        for epoch in range(1, self.num_epochs + 1):
            taken += save_secs < epoch / (taken + 1) * epoch_secs * share
        return taken


def _elsewhere(turn: Turn, key: str) -> float:
    """Return the CPU of the worker, which the trainer's own does not have in it; a tenth of a second at most it does."""
    return float(turn.get("worker_cpu_secs", 0.0)) if key == "cpu_secs" else 0.0


def flor_row(name: str, series: Series) -> list[str]:
    """Return a row of the table of recording."""
    return [
        name,
        str(series.num_epochs),
        f"{series.plain_secs:.1f} s",
        f"{series.median(FLOR, 'stall_secs'):.2f} s",
        f"{series.median(FLOR, 'worker_cpu_secs'):.2f} s",
        f"{series.overhead:.2%}",
        f"{series.paired(FLOR, 'wall_secs'):+.1%} ± {series.noise:.1%}",
        f"{series.paired(FLOR, 'cpu_secs'):+.1%}",
        str(series.num_spread),
        str(series.num_by_flor),
    ]


def cost_row(name: str, series: Series, ways: list[str]) -> list[str]:
    """Return stall, paired wall time and paired CPU of every way, as shares of plain training."""
    cells = [
        f"{series.median(way, 'stall_secs') / series.plain_secs:.1%} / "
        f"{series.paired(way, 'wall_secs'):+.0%} / {series.paired(way, 'cpu_secs'):+.0%}"
        if series.has(way)
        else "–"
        for way in ways
    ]
    return [name, *cells]


def bytes_row(name: str, series: Series, ways: list[str]) -> list[str]:
    """Return what every way left on the disk."""
    cells = [_megabytes(series.median(way, "num_bytes")) if series.has(way) else "–" for way in ways]
    share = series.full_bytes / series.median(FLOR, "checkpoint_bytes")
    return [name, _megabytes(series.state_bytes), *cells, f"1/{share:.1f}"]


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def targets(found: dict[str, Series]) -> list[tuple[str, bool | None, str]]:
    """Return what must hold, whether it does, and the figures."""
    shares = {name: series.overhead for name, series in found.items()}
    mean, worst = statistics.mean(shares.values()), max(shares, key=lambda name: shares[name])
    fewer = [name for name, series in found.items() if series.num_spread < series.num_by_flor]
    held: list[tuple[str, bool | None, str]] = [
        (
            f"mean overhead at most {_MEAN_LIMIT:.1%}",
            mean <= _MEAN_LIMIT,
            f"{mean:.2%} over {len(found)} workloads",
        ),
        ("no workload above 1/15", shares[worst] <= _LIMIT, f"most: {shares[worst]:.2%}, {worst}"),
        ("at least as many checkpoints as FLOR's rule", not fewer, f"fewer: {', '.join(fewer) or 'nowhere'}"),
    ]
    if FROZEN in found:
        series = found[FROZEN]
        full, stored = series.full_bytes, series.median(FLOR, "checkpoint_bytes")
        figures = f"1/{full / stored:.1f}: {_megabytes(stored)} of {_megabytes(full)}"
        what = f"{FROZEN}: stores at most 1/{_FROZEN_LIMIT} of as many full checkpoints"
        held.append((what, stored <= full / _FROZEN_LIMIT, figures))
    return held


def page(found: dict[str, Series], ways: list[str], rounds: int) -> str:
    """Return the section: three tables and what must hold."""
    others = ways[1:]
    parts = [
        report.machine(),
        f"Recording beside plain training, medians of {rounds} round(s):",
        report.table(_FLOR_HEAD, [flor_row(*item) for item in found.items()]),
    ]
    if others:
        parts += [
            "Every way to save: time inside of its hooks / paired wall time / paired CPU, as shares of plain training:",
            report.table(("", FLOR, *others), [cost_row(*item, [FLOR, *others]) for item in found.items()]),
        ]
    parts += [
        "What is on the disk afterwards:",
        report.table(
            ("", "state", FLOR, *others, "of full checkpoints"),
            [bytes_row(*item, [FLOR, *others]) for item in found.items()],
        ),
        report.verdicts(targets(found)),
        _LEGEND,
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Measure each workload, print the tables, and put them on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="how long plain training takes")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--ways", nargs="*", choices=OTHERS, default=OTHERS, metavar="WAY")
    parser.add_argument("--kept", type=Path, help="a file of what was measured before")
    parser.add_argument("--page", type=Path, help="put the tables on this page too")
    asked = parser.parse_args()
    kept: dict[str, list[Turn]] = {}
    if asked.kept is not None and asked.kept.exists():
        kept = json.loads(asked.kept.read_text(encoding="utf-8"))
    ways = [FLOR, *asked.ways]
    for name in asked.workloads:
        if name not in kept:
            kept[name] = measure(name, ways, asked.seconds, asked.rounds)
            print(f"{name}: measured", file=sys.stderr, flush=True)
        if asked.kept is not None:
            asked.kept.write_text(json.dumps(kept), encoding="utf-8")
    found = {name: Series(kept[name]) for name in NAMES if name in kept}
    report.publish(
        "overhead", "What recording costs whole programs", page(found, ways, asked.rounds), asked.page
    )


if __name__ == "__main__":
    main()
