"""How long `flor-keras runs` takes on a store of many runs and entries, as a whole process.

python benchmarks/store_listing.py [--runs 2000] [--entries 1000000] [--page docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

from flor_keras.records import Entry, LoopRecord, Position, RunRecord, Status
from flor_keras.store.database import Store, process_identity

_NAMES = ("loss", "accuracy", "val_loss", "val_accuracy", "learning_rate")
_LIMIT_SECS = 1.0
_COMMANDS = {
    "runs": ["runs"],
    "runs --json": ["runs", "--json"],
    "show latest": ["show", "latest"],
    "logs loss": ["logs", "loss"],
}


def fill(folder: Path, num_runs: int, num_entries: int) -> None:
    """Write a store with runs of equal length, through the product's own store."""
    pid, host, started = process_identity()
    with Store.open(folder, create=True) as store:
        for number in range(num_runs):
            run = secrets.token_hex(5)
            store.begin_run(
                RunRecord(
                    id=run,
                    name=None,
                    script="/project/train.py",
                    argv=["--lr", "0.1"],
                    started_at=time.time() - num_runs + number,
                    pid=pid,
                    host=host,
                    process_started=started,
                    cwd="/project",
                    environment={"versions": {"keras": "3.15"}},
                )
            )
            num_epochs = num_entries // num_runs // len(_NAMES)
            store.begin_loop(
                LoopRecord(
                    run=run,
                    loop=0,
                    kind="fit",
                    name="sequential",
                    initial_epoch=0,
                    epochs=num_epochs,
                    steps=10,
                    started_at=time.time(),
                )
            )
            store.add_args(run, {"lr": (0.1, 0.01)})
            store.add_entries(
                run, [Entry(n, 1.0 / (e + 1), Position(0, e)) for e in range(num_epochs) for n in _NAMES]
            )
            store.finish_run(run, Status.FINISHED)


def secs_of(command: list[str], folder: Path, rounds: int) -> float:
    """Return the median time of a command as a process of its own."""
    words = [str(Path(sys.executable).with_name("flor-keras")), *command, "--store", str(folder)]
    measured = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        measured.append(time.perf_counter() - began)
    return statistics.median(measured[1:])


def imports_tensorflow(command: list[str], folder: Path) -> bool:
    """Whether a command imports TensorFlow or Keras."""
    program = (
        "import sys; from flor_keras.cli import main\n"
        f"try: main({[*command, '--store', str(folder)]!r})\n"
        "except SystemExit: pass\n"
        "print({'tensorflow', 'keras'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] != "set()"


def main() -> None:
    """Fill a store, time the commands, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--page", type=Path, help="put the table on this page too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / ".flor"
        fill(folder, asked.runs, asked.entries)
        secs = {name: secs_of(command, folder, asked.rounds) for name, command in _COMMANDS.items()}
        is_importing = imports_tensorflow(_COMMANDS["runs"], folder)
    bare = [sys.executable, "-c", "pass"]
    began = time.perf_counter()
    subprocess.run(bare, check=True)
    rows = [["an empty Python program", f"{time.perf_counter() - began:.2f} s"]]
    rows += [[f"flor-keras {name}", f"{value:.2f} s"] for name, value in secs.items()]
    targets = [
        ("`flor-keras runs` in under one second", secs["runs"] < _LIMIT_SECS, f"{secs['runs']:.2f} s"),
        ("TensorFlow not imported", not is_importing, "imported" if is_importing else "not imported"),
    ]
    size = f"{asked.runs} runs, {asked.entries} entries; medians of {asked.rounds} whole processes:"
    text = f"{report.machine()}\n\n{size}\n\n"
    text += f"{report.table(('', 'time'), rows)}\n\n{report.verdicts(targets)}"
    report.publish("store listing", "Reading a large store", text, asked.page)


if __name__ == "__main__":
    main()
