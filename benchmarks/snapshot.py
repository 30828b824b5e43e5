"""What a checkpoint costs training: FlorKeras beside the other ways to save, all in one run.

    python benchmarks/snapshot.py [--sizes 2 100 1000] [--rounds 7] [--folder FOLDER] [--page PAGE]

Each way has a process of its own that trains the same model. They take turns: at any time one of them works
and the others wait, and a round gives each one turn with saving and one without. The table shows medians over
the rounds; what comes after the save (the next two steps, page faults, CPU) is the difference between the two
kinds of turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path
from typing import Any

import report

FLOR, IN_LINE, MEMCPY = "FlorKeras", "tf.train.Checkpoint.write", "one memcpy"
_ORBAX = ["OrbaxCheckpoint"] if util.find_spec("orbax") else []
METHODS = [FLOR, IN_LINE, "fork per checkpoint", "BackupAndRestore", "ModelCheckpoint", *_ORBAX, MEMCPY]
WIDTHS = {2: 300, 100: 2800, 1000: 9000}  # MB of state -> width of the model
_COPIES = 4.5  # memory of one process at its most, in copies of the state
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LEGEND = (
    "*stall*: time inside the hook. *÷ in line*: beside an in-line write of the same minutes. *next 2 steps* and "
    "*faults*: how much longer the next two training steps take, and the minor page faults they have more, than "
    "without a save. *CPU behind*: CPU seconds outside of the hook. *private MB*: memory of the writer that it "
    "shares with no other."
)
_HEAD = ("", "stall", "÷ in line", "next 2 steps", "faults", "CPU behind", "private MB")


class Trainer:
    """A process that trains and saves in one of the ways, when told to."""

    def __init__(self, method: str, width: int, folder: Path) -> None:
        self.method = method
        self._folder = folder / method.replace(" ", "-")
        self._folder.mkdir(parents=True)
        self._log = (self._folder / "log").open("w")
        program = str(Path(__file__).with_name("competitors.py"))
        self._process = subprocess.Popen(
            [sys.executable, program, method, str(width), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"},
        )
        self.state_bytes = int(self._answer()["state_bytes"])

    def turn(self, word: str) -> dict[str, float]:
        """Have it train to the end of the epoch, ``save`` or ``rest``, and two steps more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.flush()
            log = (self._folder / "log").read_text()[-2000:]
            raise SystemExit(f"{self.method} ended with status {self._process.wait()}:\n{log}")
        return dict(json.loads(line))

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Series:
    """What the turns of one method gave."""

    def __init__(self) -> None:
        self.saved: list[dict[str, float]] = []
        self.rested: list[dict[str, float]] = []

    def median(self, key: str) -> float:
        """Return the median over the turns with a save."""
        return statistics.median(turn[key] for turn in self.saved)

    def extra(self, key: str) -> float:
        """Return how much more turns with a save took than turns without."""
        return self.median(key) - statistics.median(turn[key] for turn in self.rested)

    def spread(self, key: str) -> float:
        """Return how far turns without a save lie apart: half of their range."""
        values = [turn[key] for turn in self.rested]
        return (max(values) - min(values)) / 2

    @property
    def behind_cpu_secs(self) -> float:
        """CPU a save takes outside of the hook: in the worker, or in threads of the trainer."""
        if "worker_cpu_secs" in self.saved[0]:
            return self.median("worker_cpu_secs")
        return max(0.0, self.extra("cpu_secs") - self.median("stall_cpu_secs"))

    @property
    def private_bytes(self) -> float | None:
        """Memory of the worker alone; None where there is no other process."""
        return (
            max(t["worker_private_bytes"] for t in self.saved)
            if "worker_private_bytes" in self.saved[0]
            else None
        )


def measure(methods: list[str], width: int, rounds: int, folder: Path) -> tuple[dict[str, Series], int]:
    """Have all methods take turns; return their series and the bytes of the state."""
    trainers: list[Trainer] = []
    found = {method: Series() for method in methods}
    try:
        for method in methods:
            trainers.append(Trainer(method, width, folder))
        for number in range(rounds + 1):
            for trainer in trainers:
                rested, saved = trainer.turn("rest"), trainer.turn("save")
                if number > 0:  # the first save of each sets things up
                    found[trainer.method].rested.append(rested)
                    found[trainer.method].saved.append(saved)
            print(f"round {number} of {rounds} done", file=sys.stderr, flush=True)
        return found, trainers[0].state_bytes
    finally:
        for trainer in trainers:
            trainer.close()


def rows(found: dict[str, Series]) -> list[list[str]]:
    """Return the table's rows."""
    in_line = found[IN_LINE].median("stall_secs")
    made = []
    for method, series in found.items():
        stall, private = series.median("stall_secs"), series.private_bytes
        is_copy = method == MEMCPY
        made.append(
            [
                method,
                f"{stall * 1e3:.1f} ms",
                f"1/{in_line / stall:.1f}" if stall < in_line else f"{stall / in_line:.1f}",
                "–" if is_copy else f"{series.extra('steps_secs') * 1e3:+.0f} ms",
                "–" if is_copy else f"{series.extra('steps_faults'):+.0f}",
                "–" if is_copy else f"{series.behind_cpu_secs:.2f} s",
                "–" if private is None else f"{private / 1e6:.0f}",
            ]
        )
    return made


def targets(megabytes: int, found: dict[str, Series], state_bytes: int) -> list[tuple[str, bool | None, str]]:
    """Return what must hold at this size, whether it does, and the figures."""
    flor, in_line = found[FLOR], found[IN_LINE].median("stall_secs")
    stall = flor.median("stall_secs")
    if megabytes == 2:
        return [_at_most("2 MB: stall at most 1/5 of the in-line write", stall, in_line / 5)]
    if megabytes != 1000:
        return []
    fault_secs = max(0.0, flor.extra("steps_system_secs"))
    total = stall + fault_secs + flor.behind_cpu_secs / len(os.sched_getaffinity(0))
    noise = max(3 * flor.spread("steps_faults"), 0.01 * state_bytes / _PAGE_BYTES)
    faults, private = flor.extra("steps_faults"), flor.private_bytes or 0.0
    return [
        _at_most("1 GB: stall at most 1/15 of the in-line write", stall, in_line / 15),
        _at_most(
            "1 GB: stall at most 1.5 memcpys of the state", stall, 1.5 * found[MEMCPY].median("stall_secs")
        ),
        _at_most(
            "1 GB: stall + fault time + worker CPU / cores at most 1/3 of the in-line write",
            total,
            in_line / 3,
        ),
        (
            "1 GB: no copy-on-write faults in the next two steps",
            faults <= noise,
            f"{faults:+.0f} of {state_bytes // _PAGE_BYTES} pages of state, noise {noise:.0f}",
        ),
        ("1 GB: the worker's private memory under 150 MB", private < 150e6, f"{private / 1e6:.0f} MB"),
    ]


def _at_most(what: str, secs: float, limit_secs: float) -> tuple[str, bool, str]:
    return what, secs <= limit_secs, f"{secs * 1e3:.1f} ms, limit {limit_secs * 1e3:.1f} ms"


def groups(methods: list[str], width: int) -> list[list[str]]:
    """Return the ways that are measured together: all, or as many as fit into memory, each group with the yardstick."""
    with open("/proc/meminfo") as meminfo:
        available = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:"))
    size = int(available / (_COPIES * 12 * width**2 + 400e6))
    if size >= len(methods):
        return [methods]
    first = [method for method in methods if method in (FLOR, IN_LINE, MEMCPY)]
    others = [method for method in methods if method not in first]
    each = max(1, size - 1)
    return [first, *([IN_LINE, *others[at : at + each]] for at in range(0, len(others), each))]


def measure_all(
    methods: list[str], width: int, rounds: int, folder: Path
) -> tuple[list[list[str]], dict[str, Series], int]:
    """Measure in groups; return the table's rows, the series of the first group, and the bytes of the state."""
    found, num_bytes = {}, 0
    lines: list[list[str]] = []
    for number, group in enumerate(groups(methods, width)):
        series, num_bytes = measure(group, width, rounds, folder / str(number))
        lines += rows(series) if number == 0 else [row for row in rows(series) if row[0] != IN_LINE]
        found = found or series
    return lines, found, num_bytes


def main() -> None:
    """Measure each size asked for, print the tables, and put them on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", choices=WIDTHS, default=list(WIDTHS), metavar="MB")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="WAY")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--page", type=Path, help="put the tables on this page too")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flor-bench-", dir=asked.folder))
    parts, held = [report.machine()], []
    try:
        for megabytes in asked.sizes:
            lines, found, num_bytes = measure_all(
                asked.methods, WIDTHS[megabytes], asked.rounds, folder / str(megabytes)
            )
            parts.append(f"State of {num_bytes / 1e6:.0f} MB, medians of {asked.rounds} rounds:")
            parts.append(report.table(_HEAD, lines))
            held += targets(megabytes, found, num_bytes)
            text = "\n\n".join([*parts, report.verdicts(held), _LEGEND])
            report.publish("snapshot", "What a checkpoint costs", text, asked.page)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
