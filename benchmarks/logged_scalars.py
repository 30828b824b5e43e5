"""What one logged scalar costs, in flor_keras and elsewhere, and how long a million take to become a DataFrame.

    python benchmarks/logged_scalars.py [--entries 1000000] [--rounds 3] [--page docs/benchmarks.md]

Each way logs in processes of its own, which take turns: one line in a loop of steps in a loop of epochs, written as its
own users write loops. What the same loops take without the line is subtracted. The calls are made one after another as fast as they
go, which is the worst case for flor_keras: its thread writes at the same time and both want Python's lock.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

import report

FLOR = "flor_keras flor.log"
_REFERENCE_SECS = 20e-9  # an iteration of `pure_loop_secs` on the machine the limits were set for
_CALL_LIMIT_SECS, _ALL_LIMIT_SECS = 1.5e-6, 4e-6
_TIMES_CHEAPER = 50
_FRAME_LIMIT = 1.5
_NUM_NAMES = 5
_NUM_STEPS = 1000  # of an epoch
_HEAD = ("", "a call", "its thread's CPU", "with the write", "÷ flor_keras")
_SQL = (
    "SELECT loop, epoch, step, names.name AS name, value FROM entries "
    "JOIN names ON names.number = entries.name WHERE run = 1"
)

Loop = Callable[[str, range], Iterable[int]]  # how a loop is written, given its name


class Usage(NamedTuple):
    """How one package is used: its loops, a line that logs a scalar at a step, and what to wait for in the end."""

    loop: Loop
    log: Callable[[int], Any]
    finish: Callable[[], Any]


def _plain_loop(name: str, numbers: range) -> range:
    return numbers


def flor_keras_log(folder: Path) -> Usage:
    """Return the product's way."""
    os.environ["FLOR_STORE"] = str(folder / ".flor")
    import tensorflow  # noqa: F401 - a training program has imported it, and flor.log asks it something

    import flor_keras as flor
    from flor_keras import session

    return Usage(flor.loop, lambda step: flor.log("loss", 0.5), lambda: session.current().close())


def summary_scalar(folder: Path) -> Usage:
    """Return TensorBoard's way."""
    import tensorflow as tf

    writer = tf.summary.create_file_writer(str(folder))
    writer.set_as_default()
    return Usage(_plain_loop, lambda step: tf.summary.scalar("loss", 0.5, step=step), writer.close)


def csv_logger(folder: Path) -> Usage:
    """Return the way of Keras's CSVLogger, which writes one row per epoch."""
    import keras

    logger = keras.callbacks.CSVLogger(str(folder / "log.csv"))
    logger.set_model(keras.Sequential())
    logger.on_train_begin()
    return Usage(_plain_loop, lambda step: logger.on_epoch_end(step, {"loss": 0.5}), logger.on_train_end)


def mlflow_metric(folder: Path) -> Usage:
    """Return MLflow's way, with its store of files."""
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    import mlflow

    mlflow.set_tracking_uri((folder / "mlruns").as_uri())
    mlflow.start_run()
    return Usage(_plain_loop, lambda step: mlflow.log_metric("loss", 0.5, step=step), mlflow.end_run)


def flordb_log(folder: Path) -> Usage:
    """Return the way of Berkeley's FLOR; it wants a repository of git, and prints what it logs."""
    os.chdir(folder)
    for words in (
        ["init", "-q"],
        ["config", "user.name", "bench"],
        ["config", "user.email", "bench@localhost"],
    ):
        subprocess.run(["git", *words], check=True)
    import flordb

    return Usage(flordb.loop, lambda step: flordb.log("loss", 0.5), flordb.commit)


class Way:
    """A way to log: how, how many calls are timed at most, and the package it needs."""

    def __init__(self, begin: Callable[[Path], Usage], limit: int, package: str) -> None:
        self.begin = begin
        self.limit = limit
        self.is_there = util.find_spec(package) is not None


WAYS = {
    FLOR: Way(flor_keras_log, 1_000_000, "flor_keras"),
    "tf.summary.scalar": Way(summary_scalar, 20_000, "tensorboard"),
    "Keras CSVLogger": Way(csv_logger, 100_000, "keras"),
    "mlflow.log_metric": Way(mlflow_metric, 2_000, "mlflow"),
    "flordb flor.log": Way(flordb_log, 20_000, "flordb"),
}


def time_calls(way: str, num_calls: int, folder: Path) -> dict[str, float]:
    """Log in this process; return the seconds of one call, without those of the loops around it."""
    loop, log, finish = WAYS[way].begin(folder)
    train(loop, log, 1)
    empty = Clocks()
    train(loop, lambda step: None, num_calls)
    empty_secs = empty.read()
    logging = Clocks()
    train(loop, log, num_calls)
    call, thread, process = logging.read()
    rest = Clocks()
    finish()
    process += rest.read()[2]
    taken = zip((call, thread, process), empty_secs, strict=True)
    return dict(zip(("call", "thread", "all"), ((t - e) / num_calls for t, e in taken), strict=True))


class Clocks:
    """Wall time, this thread's CPU and the process's since it was made."""

    def __init__(self) -> None:
        self._clocks = (time.perf_counter, time.thread_time, time.process_time)
        self._began = [clock() for clock in self._clocks]

    def read(self) -> list[float]:
        """Return the seconds."""
        return [clock() - began for clock, began in zip(self._clocks, self._began, strict=True)]


def train(loop: Loop, log: Callable[[int], Any], num_calls: int) -> None:
    """Go through epochs of steps and do nothing but log."""
    for epoch in loop("epoch", range(-(-num_calls // _NUM_STEPS))):
        first = epoch * _NUM_STEPS
        for step in loop("step", range(first, min(first + _NUM_STEPS, num_calls))):
            log(step)


def pure_loop_secs(num_iterations: int = 3_000_000) -> float:
    """Return what an iteration of a loop in plain Python takes: the measure of the machine."""
    total, began = 0, time.perf_counter()
    for number in range(num_iterations):
        total += number
    return (time.perf_counter() - began) / num_iterations


def in_own_process(way: str, num_calls: int) -> dict[str, float]:
    """Return what `time_calls` finds in a new process."""
    with tempfile.TemporaryDirectory(prefix="flor-bench-") as folder:
        words = [sys.executable, __file__, "--way", way, "--entries", str(num_calls), "--folder", folder]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{way} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        return dict(json.loads((Path(folder) / "measured.json").read_text(encoding="utf-8")))


def measure(ways: list[str], num_entries: int, rounds: int) -> dict[str, dict[str, float]]:
    """Have the ways take turns; return medians."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(in_own_process(way, min(num_entries, WAYS[way].limit)))
    return {
        way: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for way, turns in found.items()
    }


def logging_rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return the rows of the table of calls."""
    return [
        [
            way,
            *(f"{secs[key] * 1e6:.2f} µs" for key in ("call", "thread", "all")),
            f"{secs['all'] / found[FLOR]['all']:.1f}",
        ]
        for way, secs in found.items()
    ]


def logging_targets(
    found: dict[str, dict[str, float]], loop_secs: float
) -> list[tuple[str, bool | None, str]]:
    """Return what must hold of logging, scaled to the machine the limits were set for."""
    scale = _REFERENCE_SECS / loop_secs
    flor = found[FLOR]
    held: list[tuple[str, bool | None, str]] = []
    for what, secs, limit in (
        ("a scalar takes at most 1.5 µs of the program's thread", flor["call"], _CALL_LIMIT_SECS),
        ("a scalar takes at most 4 µs of CPU with the write", flor["all"], _ALL_LIMIT_SECS),
    ):
        figures = f"{secs * 1e6:.2f} µs, {secs * scale * 1e6:.2f} µs when a pure-Python loop takes 20 ns"
        held.append((what, secs * scale <= limit, figures))
    for way in ("tf.summary.scalar", "mlflow.log_metric", "flordb flor.log"):
        what = f"at least {_TIMES_CHEAPER} times cheaper than {way}"
        if way not in found:
            held.append((what, None, "not installed"))
            continue
        times, with_write = found[way]["call"] / flor["call"], found[way]["all"] / flor["all"]
        figures = f"{times:.0f} times in the program's thread, {with_write:.0f} times with the write"
        held.append((what, min(times, with_write) >= _TIMES_CHEAPER, figures))
    return held


def fill(folder: Path, num_entries: int) -> str:
    """Write a store with one run of several names; return the run's id."""
    from flor_keras.records import Position, RunRecord
    from flor_keras.store.database import Store, process_identity

    pid, host, started = process_identity()
    run = RunRecord("0" * 10, None, None, [], time.time(), pid, host, started, "/")
    with Store.open(folder, create=True) as store:
        store.begin_run(run)
        for first in range(0, num_entries // _NUM_NAMES, 10_000):
            last = min(first + 10_000, num_entries // _NUM_NAMES)
            places = [(at, Position(0, at // 1000, at % 1000)) for at in range(first, last)]
            names = range(_NUM_NAMES)
            store.add_entries(
                run.id, [(f"metric_{n}", at / (n + 3), place) for at, place in places for n in names]
            )
    return run.id


def frame_secs(folder: Path, run: str, rounds: int) -> dict[str, float]:
    """Return the median time of a DataFrame by way of making it."""
    import pandas as pd

    import flor_keras as flor

    def queried() -> Any:
        with sqlite3.connect(folder / "flor.db") as connection:
            return pd.read_sql(_SQL, connection)

    def pivoted() -> Any:
        return queried().pivot(index=["loop", "epoch", "step"], columns="name", values="value")

    ours = lambda: flor.run(run, folder).dataframe()  # noqa: E731
    assert (
        ours().drop(columns=["run", "loop", "epoch", "step"]).to_numpy().tolist()
        == pivoted().to_numpy().tolist()
    )
    ways = {"Run.dataframe()": ours, "pandas.read_sql + pivot": pivoted, "pandas.read_sql alone": queried}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(secs) for name, secs in taken.items()}


def frames(num_entries: int, rounds: int) -> tuple[str, list[tuple[str, bool | None, str]]]:
    """Return the table of DataFrames and what must hold of it."""
    with tempfile.TemporaryDirectory(prefix="flor-bench-") as scratch:
        folder = Path(scratch) / ".flor"
        secs = frame_secs(folder, fill(folder, num_entries), rounds)
    ratio = secs["Run.dataframe()"] / secs["pandas.read_sql + pivot"]
    table = report.table(("", "time"), [[name, f"{taken:.2f} s"] for name, taken in secs.items()])
    what = f"a DataFrame in at most {_FRAME_LIMIT} times read_sql + pivot"
    return table, [(what, ratio <= _FRAME_LIMIT, f"{ratio:.2f} times")]


def main() -> None:
    """Measure all ways, print the tables, and put them on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--page", type=Path, help="put the tables on this page too")
    asked = parser.parse_args()
    if asked.way:
        measured = time_calls(asked.way, asked.entries, asked.folder)
        (asked.folder / "measured.json").write_text(json.dumps(measured), encoding="utf-8")
        return
    missing = [way for way in asked.ways if not WAYS[way].is_there]
    text = f"{report.machine()}\n\n"
    before = pure_loop_secs()
    found = measure([way for way in asked.ways if way not in missing], asked.entries, asked.rounds)
    loop_secs = statistics.mean([before, pure_loop_secs()])
    text += f"One scalar, medians of {asked.rounds} processes of up to {asked.entries} calls; "
    text += f"an iteration of a pure-Python loop took {loop_secs * 1e9:.1f} ns:\n\n"
    text += report.table(_HEAD, logging_rows(found))
    text += "".join(f"\n\nNot measured, since it is not installed: {way}." for way in missing)
    table, held = frames(asked.entries, asked.rounds)
    text += f"\n\n{asked.entries} entries of {_NUM_NAMES} names, medians of {asked.rounds}:\n\n{table}\n\n"
    text += report.verdicts([*logging_targets(found, loop_secs), *held])
    text += (
        "\n\n*a call*: time the program waits for it. *with the write*: CPU of all threads until every scalar is "
        "written, for one of them. CSVLogger writes a row per epoch, here of one column. MLflow writes files "
        "(mlflow-skinny; the whole of MLflow does not live beside pandas 3). flordb prints each value too. Each logs in a "
        "loop of steps in a loop of epochs, `flor.loop` where the package has that; what these take alone is subtracted."
    )
    report.publish("logged scalars", "What a logged scalar costs", text, asked.page)


if __name__ == "__main__":
    main()
