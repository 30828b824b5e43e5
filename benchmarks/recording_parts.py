"""What a checkpoint costs beside the variables: random states, data position, callbacks, pickling.

    python benchmarks/recording_parts.py [--megabytes 100] [--epochs 12] [--page docs/benchmarks.md]

The parts are timed inside a real `fit`, epoch by epoch; the table shows medians. An iterator of a `tf.data`
pipeline is made by FlorKeras a moment before Keras would make it, which moves time and adds none, so it has a
column of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import report
import tensorflow as tf
from competitors import build
from snapshot import WIDTHS

import flor_keras
from flor_keras import keras_internals, session
from flor_keras.recording import checkpoints, fit
from flor_keras.state.data_position import DataSource

_PARTS = ("random", "position", "iterator", "callbacks", "pickling")
_HEAD = (
    "",
    "random",
    "data position",
    "callbacks",
    "pickling",
    "together",
    "variables",
    "iterator made early",
)
_ARRAYS_LIMIT_SECS = 5e-3
_SHARE_LIMIT = 0.05
_BATCH, _STEPS = 64, 6


class Stopwatch(keras.callbacks.Callback):
    """Times FlorKeras's hook and the parts of it, once the worker has nothing to do."""

    def __init__(self, flor: flor_keras.FlorKeras) -> None:
        super().__init__()
        self.epochs: list[dict[str, float]] = []
        self._hook = flor.on_epoch_end
        flor.on_epoch_end = self._timed

    def _timed(self, epoch: int, logs: Any = None) -> None:
        session.current().checkpoints.finish()
        spent.clear()
        began = time.perf_counter()
        self._hook(epoch, logs)
        self.epochs.append({"stall": time.perf_counter() - began, **{part: spent[part] for part in _PARTS}})

    def median(self, key: str) -> float:
        """Return a median in seconds; the first two epochs set things up, the last makes no iterator."""
        return statistics.median(epoch[key] for epoch in self.epochs[2:-1])


spent: Counter[str] = Counter()


def watch(owner: Any, name: str, part: str) -> None:
    """Have the time inside a function counted for ``part``."""
    original: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - began

    setattr(owner, name, timed)


def cases() -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the data to train on, by name, as arguments of `fit`."""
    random = np.random.default_rng(0)
    x, y = random.random((_BATCH * _STEPS, 256), np.float32), random.integers(0, 10, _BATCH * _STEPS)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    yield "arrays", {"x": x, "y": y, "batch_size": _BATCH}
    yield "tf.data", {"x": dataset.batch(_BATCH)}
    yield "tf.data, shuffle(256)", {"x": dataset.shuffle(256).batch(_BATCH).prefetch(2)}
    repeated = dataset.shuffle(256).repeat().batch(_BATCH)
    yield "tf.data, shuffle(256) and repeat()", {"x": repeated, "steps_per_epoch": _STEPS}


def measure(arguments: dict[str, Any], width: int, num_epochs: int, store: Path) -> Stopwatch:
    """Record a `fit` call with common callbacks."""
    flor = flor_keras.FlorKeras(store=store, checkpoint_every="epoch")
    stopwatch = Stopwatch(flor)
    patient = {"monitor": "loss", "patience": 10_000}
    usual = [keras.callbacks.EarlyStopping(**patient), keras.callbacks.ReduceLROnPlateau(**patient)]
    build(width).fit(**arguments, epochs=num_epochs, verbose=0, callbacks=[*usual, stopwatch, flor])
    return stopwatch


def added_secs(watched: Stopwatch) -> float:
    """Return what the parts add per epoch."""
    return sum(watched.median(part) for part in _PARTS) - 2 * watched.median("iterator")


def row(name: str, watched: Stopwatch) -> list[str]:
    """Return a row of the table."""
    secs = {part: watched.median(part) for part in _PARTS}
    variables = watched.median("stall") - added_secs(watched) - secs["iterator"]
    shown = (
        secs["random"],
        secs["position"] - secs["iterator"],
        secs["callbacks"],
        secs["pickling"],
        added_secs(watched),
        variables,
        secs["iterator"],
    )
    return [name, *(f"{value * 1e3:.2f} ms" for value in shown)]


def targets(found: dict[str, Stopwatch]) -> list[tuple[str, bool | None, str]]:
    """Return what must hold, whether it does, and the figures."""
    checked = []
    for name, watched in found.items():
        added = added_secs(watched)
        if name == "arrays":
            what, holds = f"{name}: less than 5 ms per epoch", added < _ARRAYS_LIMIT_SECS
            checked.append((what, holds, f"{added * 1e3:.2f} ms"))
        else:
            share = added / (watched.median("stall") - added - watched.median("iterator"))
            checked.append(
                (f"{name}: less than 5 % of the variables' stall", share < _SHARE_LIMIT, f"{share:.1%}")
            )
    return checked


def main() -> None:
    """Record each case, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, choices=WIDTHS, default=100)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--page", type=Path, help="put the table on this page too")
    asked = parser.parse_args()
    text = report.machine()
    watch(fit, "capture_random", "random")
    watch(fit, "capture_callbacks", "callbacks")
    watch(DataSource, "position", "position")
    watch(keras_internals.TrainingSteps, "make_iterator", "iterator")
    watch(checkpoints, "pack", "pickling")
    watch(checkpoints, "signature", "pickling")
    with tempfile.TemporaryDirectory() as scratch:
        found = {
            name: measure(arguments, WIDTHS[asked.megabytes], asked.epochs, Path(scratch) / "store")
            for name, arguments in cases()
        }
        session.current().close()
        session.begin(None)
    text += f"\n\nPer epoch, {asked.megabytes} MB of state:\n\n"
    text += report.table(_HEAD, [row(name, watched) for name, watched in found.items()])
    report.publish(
        "recording parts",
        "What a checkpoint holds beside the variables",
        f"{text}\n\n{report.verdicts(targets(found))}",
        asked.page,
    )


if __name__ == "__main__":
    main()
