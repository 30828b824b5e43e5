"""What a step of a custom loop costs more under `flor.record` and hands-free: trivial steps, side by side.

    python benchmarks/loop_overhead.py [--steps 10000] [--rounds 7] [--repeats 3] [--page docs/benchmarks.md]

Each kind runs in a process of its own, turn by turn: forks of this one, which has imported TensorFlow and not started it.
"""

from __future__ import annotations

import argparse
import os
import runpy
import statistics
import sys
import tempfile
from pathlib import Path

import report
import tensorflow  # noqa: F401 - for the forks

from flor_keras import hands_free

_LIMIT = 5.0  # microseconds a step
_KINDS = ("plain", "decorator", "hands-free")
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


print("epochs-of-steps", sorted(nested())[rounds // 2] / steps * 1e6)
print("steps-alone", sorted(flat())[rounds // 2] / steps * 1e6)
print("while-loops", sorted(with_while())[rounds // 2] / steps * 1e6)
"""


def measure(kind: str, folder: Path, steps: int, rounds: int) -> dict[str, float]:
    """Return the microseconds a step takes, by loop, in a fork."""
    script, output = folder / f"{kind.replace('-', '_')}.py", folder / "output"
    is_decorated = kind == "decorator"
    text = PROGRAM.replace("IMPORT", "import flor_keras as flor" if is_decorated else "")
    script.write_text(text.replace("DECORATOR", "@flor.record" if is_decorated else ""), encoding="utf-8")
    pid = os.fork()
    if pid == 0:
        try:
            with output.open("w") as sys.stdout:
                _run(kind, script, [str(steps), str(rounds)])
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return {name: float(value) for name, value in map(str.split, output.read_text().splitlines())}


def _run(kind: str, script: Path, arguments: list[str]) -> None:
    os.environ["FLOR_STORE"] = str(script.parent / ".flor")
    if kind == "hands-free":
        hands_free.main(["", "", "-f", str(script), *arguments])
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def main() -> None:
    """Measure, alternating, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--page", type=Path, help="put the table on this page too")
    asked = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in _KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(asked.repeats):
            for kind in _KINDS:
                found[kind].append(measure(kind, Path(folder), asked.steps, asked.rounds))
    rows, targets = [], []
    for loop in found["plain"][0]:
        plain, *others = (statistics.median(run[loop] for run in found[kind]) for kind in _KINDS)
        more = [other - plain for other in others]
        rows.append([loop, *(f"{value:.2f} µs" for value in (plain, *more))])
        figures = ", ".join(f"{value:.2f} µs" for value in more)
        targets.append((f"{loop}: under {_LIMIT:.0f} µs a step more", max(more) < _LIMIT, figures))
    size = (
        f"Loops of {asked.steps} steps that do next to nothing; medians of {asked.repeats} processes, a step:"
    )
    head = ("loop", "plain", "decorator, more", "hands-free, more")
    text = f"{report.machine()}\n\n{size}\n\n{report.table(head, rows)}\n\n{report.verdicts(targets)}"
    report.publish("loop overhead", "Loops of your own", text, asked.page)


if __name__ == "__main__":
    main()
