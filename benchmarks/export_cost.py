"""What exporting one epoch costs, beside a plain copy of the bytes that the export writes.

    python benchmarks/export_cost.py [--megabytes 100] [--rounds 9] [--page docs/benchmarks.md]

A model with Adam is trained for an epoch and recorded. Then each round exports that epoch and copies what was exported, one
right after the other, in this process: starting Python and TensorFlow is not part of it, checking every byte against
its recorded hash is.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import report

import flor_keras
from flor_keras import session
from flor_keras.export import FORMATS
from flor_keras.export.formats import suffix
from flor_keras.reading import Checkpoint
from flor_keras.records import Kind

_HEAD = ("", "written", "export", "plain copy", "ratio", "CPU of the export")
_LIMIT = 2.0
_WIDTH = 256  # of the input and the output


class Round(NamedTuple):
    """What one export and one copy took."""

    export_secs: float
    copy_secs: float
    cpu_secs: float


def record(megabytes: int, store: Path) -> Checkpoint:
    """Train a model of so many megabytes for an epoch; return the checkpoint of its end."""
    width = round((megabytes * 1e6 / 4 / 3) ** 0.5)
    wide = [keras.layers.Dense(width, "relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((_WIDTH,)), *wide, keras.layers.Dense(_WIDTH)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).random((8, _WIDTH), np.float32)
    model.fit(x, x, verbose=0, callbacks=[flor_keras.FlorKeras(store=store)])
    session.current().close()
    session.begin(None)
    return next(at for at in flor_keras.run("latest", store).checkpoints if at.kind is Kind.EPOCH_END)


def measure(checkpoint: Checkpoint, form: str, rounds: int, folder: Path) -> tuple[list[Round], int]:
    """Export and copy in turn; return what each round took, and how many bytes an export writes."""
    out, copy = folder / f"out{suffix(form)}", folder / f"copy{suffix(form)}"
    found, num_bytes = [], 0
    for number in range(rounds + 1):
        cpu = time.process_time()
        export_secs = timed(lambda: checkpoint.export(out, form))
        cpu = time.process_time() - cpu
        copy_secs = timed(lambda: shutil.copytree(out, copy) if out.is_dir() else shutil.copyfile(out, copy))
        num_bytes = sum(at.stat().st_size for at in [out, *out.rglob("*")] if at.is_file())
        for path in (out, copy):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if number > 0:  # the first export imports what it needs
            found.append(Round(export_secs, copy_secs, cpu))
        print(f"{form}: round {number} of {rounds} done", file=sys.stderr, flush=True)
    return found, num_bytes


def timed(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def medians(rounds: list[Round]) -> Round:
    """Return the median of each figure."""
    return Round(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def main() -> None:
    """Measure every format, print the table, and put it on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--megabytes", type=int, default=100, help="of the model; its optimizer has twice as much"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--page", type=Path, help="put the table on this page too")
    asked = parser.parse_args()
    machine, rows, targets = report.machine(), [], []
    with tempfile.TemporaryDirectory(prefix="flor-bench-", dir=asked.folder) as scratch:
        checkpoint = record(asked.megabytes, Path(scratch) / "store")
        for form in FORMATS:
            rounds, num_bytes = measure(checkpoint, form, asked.rounds, Path(scratch))
            found = medians(rounds)
            ratio = found.export_secs / found.copy_secs
            times = (f"{secs * 1e3:.0f} ms" for secs in (found.export_secs, found.copy_secs))
            rows.append(
                [form, f"{num_bytes / 1e6:.0f} MB", *times, f"{ratio:.2f}", f"{found.cpu_secs * 1e3:.0f} ms"]
            )
            targets.append(
                (f"{form}: at most twice a plain copy of its bytes", ratio <= _LIMIT, f"{ratio:.2f}")
            )
    text = f"{machine}\n\nA model of {asked.megabytes} MB, medians of {asked.rounds} rounds:\n\n{report.table(_HEAD, rows)}"
    report.publish(
        "export", "What exporting an epoch costs", f"{text}\n\n{report.verdicts(targets)}", asked.page
    )


if __name__ == "__main__":
    main()
