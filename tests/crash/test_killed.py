"""Killed at random moments, a run leaves a store that opens and checkpoints that are whole."""

from __future__ import annotations

import random
import time

import pytest
from project import values

from flor_keras.checkpoint import bundle
from flor_keras.records import Kind, Status
from flor_keras.store.database import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NUM_KILLS = 50
MAX_SECS = 1.2

PROGRAM = """
import os, threading, time
import keras, numpy as np
from keras import callbacks, layers
import flor_keras as flor

x = np.random.rand(64, 8).astype("float32")
parts = layers.Dense(64), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(1)
model = keras.Sequential([keras.Input((8,)), *parts])
model.compile("adam", "mse")
heartbeat = os.open("heartbeat", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

class Beats(callbacks.Callback):
    number = 0
    def on_train_batch_end(self, batch, logs=None):
        flor.log("beat", self.number)
        os.write(heartbeat, f"{self.number} {time.time()}\\n".encode())
        self.number += 1

model.fit(x, x[:, :1], batch_size=8, epochs=100_000, verbose=0, callbacks=[Beats(), flor.FlorKeras()])
"""


def test_fifty_kills_leave_whole_checkpoints_and_all_rows_older_than_a_second(project):
    pytest.importorskip("tensorflow")
    script = project.write("train.py", PROGRAM)
    chance = random.Random(0)
    heartbeat = project.folder / "heartbeat"
    seen: set[str] = set()
    num_checkpoints = 0
    for _ in range(NUM_KILLS):
        heartbeat.write_text("")
        running = project.start(script)
        _wait_for(heartbeat)
        time.sleep(chance.uniform(0, MAX_SECS))
        running.signal(9)
        killed_at = time.time()
        assert running.wait().status == -9
        beats = [line.split() for line in heartbeat.read_text().splitlines()]
        with Store.open(project.store) as store:
            (run,) = [row for row in store.runs() if row.id not in seen]
            assert run.status is Status.KILLED
            logged = {entry.value for entry in store.entries(run.id, ["beat"])}
            rows = [row for row in store.checkpoints(run.id) if row.error is None]
        seen.add(run.id)
        due = {int(number) for number, at in beats if float(at) < killed_at - 1.0}
        assert due <= logged, f"rows lost: {sorted(due - logged)}"
        for row in rows:
            assert ".tmp-" not in row.path
            assert bundle.read_tensors(project.store / row.path)
        num_checkpoints += len(rows)
    assert num_checkpoints > NUM_KILLS

    until = time.monotonic() + 30  # workers of killed trainers finish the write they are at
    ended = project.succeed(project.write("last.py", PROGRAM.replace("100_000", "2")))
    assert time.monotonic() < until
    assert not ended.stderr
    with Store.open(project.store) as store:
        for run in store.runs():
            entered = {project.store / row.path for row in store.checkpoints(run.id) if row.error is None}
            folder = project.store / "runs" / run.id / "checkpoints"
            found = {path for path in folder.iterdir() if path.is_dir()} if folder.exists() else set()
            assert found == entered
            assert all(bundle.read_tensors(path) for path in found)


BUSY_PROGRAM = """
import os, time
import flor_keras as flor

heartbeat = os.open("heartbeat", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
number = 0
while True:  # gives the interpreter's lock away often, and too shortly for a waiting thread to wake and take it
    for _ in range(40):
        flor.log("beat", number)
        number += 1
    os.write(heartbeat, f"{number - 1} {time.time()}\\n".encode())
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass
"""


def test_a_busy_program_that_is_killed_leaves_all_entries_older_than_a_second_once(project):
    script = project.write("busy.py", BUSY_PROGRAM)
    running = project.start(script)
    _wait_for(project.folder / "heartbeat")
    time.sleep(4)
    running.signal(9)
    killed_at = time.time()
    running.wait()
    beats = [line.split() for line in (project.folder / "heartbeat").read_text().splitlines()]
    due = max(int(number) for number, at in beats if float(at) < killed_at - 1.0)
    logged = values(project.latest(), "beat")
    assert logged == list(range(len(logged)))
    assert due < len(logged)


def test_a_killed_run_can_be_restored_into_a_fresh_program(project):
    script = project.write("train.py", PROGRAM)
    running = project.start(script)
    _wait_for(project.folder / "heartbeat")
    until = time.monotonic() + 60
    while len(_epochs(project)) < 3:
        assert time.monotonic() < until
        time.sleep(0.1)
    running.signal(9)
    running.wait()
    ended = project.succeed(
        project.write(
            "restore.py",
            PROGRAM.partition("heartbeat")[0],
            """
        last = flor.run("latest").checkpoints[-1]
        last.restore(model)
        assert int(model.optimizer.iterations.value) == 8 * (last.epoch + 1), last
        print("restored")
    """.replace("        ", ""),
        )
    )
    assert ended.stdout == "restored\n"


def _epochs(project):
    try:
        return [c for c in project.latest().checkpoints if c.kind is Kind.EPOCH_END]
    except Exception:
        return []


def _wait_for(path):
    until = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < until, "the program did not begin"
        time.sleep(0.01)
