"""What capturing many small variables costs, beside one copy of as many bytes.

    python benchmarks/many_variables.py [--variables 1000] [--megabytes 100] [--rounds 15] [--page docs/benchmarks.md]

Capturing is what a checkpoint does with the variables while training waits: look for them again, read them, copy
them into the arena. Both are timed in turns, in one process, between training steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import report

from flor_keras.checkpoint.arena import Arena
from flor_keras.state.capture import Snapshot
from flor_keras.state.gathering import Gatherer

_HEAD = ("variables", "bytes", "one memcpy", "capture", "÷ memcpy", "of it: looking", "of it: copying")
_PARTS = ("memcpy", "looking", "copying")
_LIMIT = 2.0


def transformer(num_variables: int, megabytes: int) -> keras.Model:
    """Return a built and compiled model of about as many variables and bytes, with the slots of Adam."""
    num_blocks = max(1, num_variables // 3 // 16)
    width = 16 * max(1, round((megabytes * 1e6 / 4 / 3 / (8 * num_blocks)) ** 0.5 / 16))
    inputs = hidden = keras.Input((4, width))
    for _ in range(num_blocks):
        attended = keras.layers.MultiHeadAttention(4, width // 4)(hidden, hidden)
        hidden = keras.layers.LayerNormalization()(keras.layers.Add()([hidden, attended]))
        wide = keras.layers.Dense(2 * width, activation="gelu")(hidden)
        hidden = keras.layers.LayerNormalization()(
            keras.layers.Add()([hidden, keras.layers.Dense(width)(wide)])
        )
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    return model


def measure(model: keras.Model, num_rounds: int) -> tuple[int, int, dict[str, float]]:
    """Return the number of variables, their bytes, and the median seconds of each part."""
    x = np.random.default_rng(0).random((1, *model.input_shape[1:]), np.float32)
    y = np.zeros((1, *model.output_shape[1:]), np.float32)
    model.train_on_batch(x, y)
    gatherer, roots = Gatherer(), {"model": model}
    snapshot = Snapshot(gatherer.gather(roots), {})
    arena = Arena(snapshot.layout.num_bytes)
    source, target = (np.ones(snapshot.layout.num_bytes, np.uint8) for _ in range(2))
    secs: dict[str, list[float]] = {part: [] for part in _PARTS}
    for _ in range(num_rounds):
        model.train_on_batch(x, y)
        began = time.perf_counter()
        np.copyto(target, source)
        copied = time.perf_counter()
        model.train_on_batch(x, y)
        resumed = time.perf_counter()
        state = gatherer.gather(roots)
        assert snapshot.is_of(state, {})
        looked = time.perf_counter()
        snapshot.copy_into(arena, {})
        for part, took in zip(
            _PARTS, (copied - began, looked - resumed, time.perf_counter() - looked), strict=True
        ):
            secs[part].append(took)
    medians = {part: statistics.median(times) for part, times in secs.items()}
    return len(snapshot.layout.slots), snapshot.layout.num_bytes, medians


def row(num_variables: int, num_bytes: int, secs: dict[str, float]) -> list[str]:
    """Return the table's row."""
    capture = secs["looking"] + secs["copying"]
    shown = [secs["memcpy"], capture, secs["looking"], secs["copying"]]
    memcpy, whole, looking, copying = (f"{value * 1e3:.1f} ms" for value in shown)
    ratio = f"{capture / secs['memcpy']:.2f}"
    return [str(num_variables), f"{num_bytes / 1e6:.0f} MB", memcpy, whole, ratio, looking, copying]


def target(num_variables: int, num_bytes: int, secs: dict[str, float]) -> tuple[str, bool | None, str]:
    """Return what must hold, whether it does, and the figures."""
    ratio = (secs["looking"] + secs["copying"]) / secs["memcpy"]
    what = f"{num_variables} variables of {num_bytes / 1e6:.0f} MB: capture at most {_LIMIT:.0f} memcpys"
    return what, ratio <= _LIMIT, f"{ratio:.2f}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variables", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--page", type=Path, help="put the table on this page too")
    asked = parser.parse_args()
    found: Any = measure(transformer(asked.variables, asked.megabytes), asked.rounds)
    parts = [report.machine(), report.table(_HEAD, [row(*found)]), report.verdicts([target(*found)])]
    report.publish("many-variables", "Many small variables", "\n\n".join(parts), asked.page)


if __name__ == "__main__":
    main()
