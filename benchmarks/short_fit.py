"""What recording costs a training that is over within seconds, in a process of its own each time.

    python benchmarks/short_fit.py [--seconds 2] [--rounds 10] [--page docs/benchmarks.md]

A small convnet learns scikit-learn's digits. Each round trains plainly, recorded and plainly again, in fresh processes: what is
timed is `fit`, tracing included, and with recording what follows until everything is on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

_LIMIT = 0.10
_HEAD = ("", "fit", "longer than plain", "stall", "worker CPU", "by accounting", "checkpoints")


def train(num_epochs: int, store: str) -> dict[str, float]:
    """Train, recorded if there is a store; return what it took."""
    import keras
    from sklearn.datasets import load_digits

    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    layers = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = []
    if store:
        import flor_keras

        callbacks = [flor_keras.FlorKeras(store=store)]
    began = time.perf_counter()
    model.fit(x.reshape(-1, 8, 8, 1) / 16, y, epochs=num_epochs, verbose=0, callbacks=callbacks)
    fitted = time.perf_counter()
    if store:
        flor_keras.session.current().close()
    closed = time.perf_counter()
    return {"secs": closed - began, **(_told_of_cost(store, closed - fitted) if store else {})}


def _told_of_cost(store: str, closing_secs: float) -> dict[str, float]:
    """Return what the run says of its cost."""
    from flor_keras.store.database import Store

    with Store.open(Path(store)) as opened:
        run = opened.run("latest").id
        recording = opened.loops(run)[0].recording or {}
        num_checkpoints = len(opened.checkpoints(run))
    return {
        "stall_secs": recording["stall_secs"] + closing_secs,
        "worker_secs": recording["worker_secs"],
        "num_checkpoints": num_checkpoints,
    }


def in_fresh_process(num_epochs: int, store: str = "") -> dict[str, float]:
    """Train in a process of its own; return what it took."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    words = [sys.executable, __file__, "--train", str(num_epochs), "--store", store]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def calibrated(secs: float) -> int:
    """Return how many epochs take so long."""
    two, ten = (in_fresh_process(num_epochs)["secs"] for num_epochs in (2, 10))
    epoch_secs = (ten - two) / 8
    return max(1, round((secs - two) / epoch_secs) + 2)


def main() -> None:
    """Measure, print the table, and put it on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long plain training takes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--page", type=Path, help="put the table on this page too")
    parser.add_argument("--train", type=int, metavar="EPOCHS", help="train once, and print what it took")
    parser.add_argument("--store", default="", help="with --train: where to record it")
    asked = parser.parse_args()
    if asked.train is not None:
        print(json.dumps(train(asked.train, asked.store)))
        return
    num_epochs = calibrated(asked.seconds)
    plain, recorded, longer = [], [], []
    with tempfile.TemporaryDirectory(prefix="flor-bench-") as folder:
        for number in range(asked.rounds):
            before = in_fresh_process(num_epochs)["secs"]
            recorded.append(in_fresh_process(num_epochs, str(Path(folder) / str(number))))
            after = in_fresh_process(num_epochs)["secs"]
            plain += [before, after]
            longer.append(recorded[-1]["secs"] / statistics.mean((before, after)) - 1)
            print(f"round {number + 1} of {asked.rounds}: {longer[-1]:+.1%}", file=sys.stderr, flush=True)

    def median(key: str) -> float:
        return statistics.median(found[key] for found in recorded)

    plain_secs, share = statistics.median(plain), statistics.median(longer)
    accounted = (median("stall_secs") + median("worker_secs")) / plain_secs
    costs = [f"{median(key) * 1e3:.0f} ms" for key in ("stall_secs", "worker_secs")]
    rows = [
        ["plain", f"{plain_secs:.2f} s", "", "", "", "", ""],
        [
            *("recorded", f"{median('secs'):.2f} s", f"{share:+.1%}", *costs, f"{accounted:.1%}"),
            f"{median('num_checkpoints'):.0f}",
        ],
    ]
    spread = (max(plain) - min(plain)) / plain_secs
    what = f"a fit of {plain_secs:.1f} s is slowed by less than {_LIMIT:.0%}"
    targets = [(what, share < _LIMIT, f"{share:+.1%}, plain ones differ by up to {spread:.0%}")]
    note = (
        f"{num_epochs} epochs, medians of {asked.rounds} rounds, every `fit` in a process of its own: tracing is part of it, and "
        "with recording what follows until everything is on the disk."
    )
    parts = [report.machine(), report.table(_HEAD, rows), report.verdicts(targets), note]
    report.publish("short fit", "What recording costs a very short training", "\n\n".join(parts), asked.page)


if __name__ == "__main__":
    main()
