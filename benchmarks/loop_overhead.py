"""What a step of a custom loop costs more under `flor.record` and hands-free: 10,000 trivial steps, side by side.

python benchmarks/loop_overhead.py
python benchmarks/loop_overhead.py --steps 2000 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import sys, time
IMPORT
import tensorflow as tf

steps, rounds = int(sys.argv[1]), int(sys.argv[2])
w = tf.Variable(0.0)


def step(total, number):
    return total + number


def never():
    with tf.GradientTape():
        pass


DECORATOR
def nested():
    total, took = 0.0, []
    for epoch in range(rounds):
        began = time.perf_counter()
        for number in range(steps):
            total = step(total, number)
            if number < 0:
                never()
        took.append(time.perf_counter() - began)
    return took


DECORATOR
def flat():
    total, took = 0.0, []
    began = time.perf_counter()
    for number in range(steps * rounds):
        total = step(total, number)
        if number < 0:
            never()
        if number % steps == steps - 1:
            now = time.perf_counter()
            took.append(now - began)
            began = now
    return took


DECORATOR
def with_while():
    total, took = 0.0, []
    for epoch in range(rounds):
        number = 0
        began = time.perf_counter()
        while number < steps:
            total = step(total, number)
            number += 1
            if number < 0:
                never()
        took.append(time.perf_counter() - began)
    return took


print("nested", sorted(nested())[rounds // 2] / steps * 1e6)
print("flat", sorted(flat())[rounds // 2] / steps * 1e6)
print("while", sorted(with_while())[rounds // 2] / steps * 1e6)
"""


def measure(kind: str, folder: Path, steps: int, rounds: int) -> dict[str, float]:
    """Return the microseconds a step takes, by loop, in a process of its own."""
    script = folder / f"{kind.replace('-', '_')}.py"
    flor = "import flor_keras as flor" if kind == "decorator" else ""
    decorator = "@flor.record" if kind == "decorator" else ""
    script.write_text(PROGRAM.replace("IMPORT", flor).replace("DECORATOR", decorator), encoding="utf-8")
    words = [sys.executable, str(script)]
    if kind == "hands-free":
        words = [sys.executable, "-m", "flor_keras.hands_free", "", "", "-f", str(script)]
    environment = {**os.environ, "FLOR_STORE": str(folder / ".flor"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [*words, str(steps), str(rounds)], capture_output=True, text=True, check=True, env=environment
    )
    return {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}


def main() -> None:
    """Measure, alternating, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    kinds = ("plain", "decorator", "hands-free")
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(asked.repeats):
            for kind in kinds:
                found[kind].append(measure(kind, Path(folder), asked.steps, asked.rounds))
    print(f"microseconds a step, {asked.steps} steps, median of {asked.repeats} processes")
    print(
        f"{'loop':<12}"
        + "".join(f"{kind:>14}" for kind in kinds)
        + f"{'decorator +':>14}{'hands-free +':>14}"
    )
    for loop in found["plain"][0]:
        medians = [statistics.median(run[loop] for run in found[kind]) for kind in kinds]
        more = [medians[1] - medians[0], medians[2] - medians[0]]
        print(f"{loop:<12}" + "".join(f"{value:>14.3f}" for value in (*medians, *more)))


if __name__ == "__main__":
    main()
