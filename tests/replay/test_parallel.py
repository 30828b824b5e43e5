"""Replay on several workers: the same values bit for bit, none twice, and what was done survives whatever ends a worker."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from flor_keras.store.database import Store

pytestmark = pytest.mark.slow

PROGRAM = """
    import os, signal, time
    import flor_keras as flor
    import keras
    import numpy as np

    keras.utils.set_random_seed(3)
    x = np.random.rand(96, 5).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            flor.log("begins", 1)
        def on_train_batch_end(self, batch, logs=None):
            BATCH
            flor.log("batch_norm", np.linalg.norm(self.model.layers[0].kernel))
        def on_epoch_end(self, epoch, logs=None):
            EPOCH
            flor.log("norm", np.linalg.norm(self.model.layers[0].kernel))

    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    flor.log("before", float(y[0, 0]))
    model.fit(x, y, epochs=8, verbose=0, callbacks=[LOOKflor.FlorKeras()])
    flor.log("after", float(np.linalg.norm(model.layers[0].kernel)))
"""
ONCE = """
            if {where} and not os.path.exists({flag!r}):
                os.open({flag!r}, os.O_CREAT | os.O_WRONLY)
                {what}
"""
# The last epoch of each of two workers, or the fourth of one, is not over until there is a file.
HELD = """
            while epoch % 4 == 3 and not os.path.exists({flag!r}):
                time.sleep(0.05)
"""


def program(look: bool = True, epoch: str = "pass", batch: str = "pass") -> str:
    filled = PROGRAM.replace("LOOK", "Look(), " if look else "")
    return filled.replace("EPOCH", epoch.strip()).replace("BATCH", batch.strip())


@pytest.fixture
def recorded(project):
    """A project with a recorded run of eight epochs; the program then has a callback that looks at it."""
    project.write("train.py", program(look=False))
    project.succeed("train.py")
    project.write("train.py", program())
    return project


def rows(project, *names: str) -> list[tuple]:
    """Return every stored value, in order of position, duplicates included."""
    with Store.open(project.store) as store:
        run = store.run("latest").id
        return [
            (e.name, e.position, getattr(e.value, "hex", lambda v=e.value: v)())
            for e in store.entries(run, names or None)
        ]


def test_serial_and_parallel_values_are_equal_bit_for_bit_and_none_is_there_twice(recorded):
    names = ("batch_norm", "norm", "begins", "before", "after")
    serial = recorded.replay("train.py", *names, "--workers", "1")
    first = rows(recorded, *names)
    parallel = recorded.replay("train.py", *names, "--workers", "3")
    assert (serial["workers"], parallel["workers"]) == (1, 3)
    assert rows(recorded, *names) == first
    assert len(first) == 8 * 3 + 8 + 3 + 2  # "before" and "after" were recorded, too
    told = (
        "verified",
        "unchecked",
        "max_abs_diff",
        "held_back",
        "epochs",
        "values",
        "diverted",
        "refused",
        "causes",
    )
    assert {key: parallel[key] for key in told} == {key: serial[key] for key in told}
    assert parallel["verified"] == "exact"


def test_a_worker_that_is_killed_is_replaced_once_and_said_to_have_died(recorded):
    flag = recorded.folder / "killed"
    killing = ONCE.format(where="epoch == 2", flag=str(flag), what="os.kill(os.getpid(), signal.SIGKILL)")
    recorded.write("train.py", program(epoch=killing))
    ended = recorded.flor("replay", "train.py", "norm", "--workers", "2", "--allow-writes")
    assert ended.status == 0, ended.stderr
    assert "ended by SIGKILL" in ended.stderr
    assert "tried once more" in ended.stderr
    assert [position.epoch for _, position, _ in rows(recorded, "norm")] == list(range(8))


def test_a_worker_that_dies_twice_loses_nothing_of_the_others(recorded):
    dying = "if epoch == 2: os.kill(os.getpid(), signal.SIGKILL)"
    recorded.write("train.py", program(epoch=dying))
    ended = recorded.flor("replay", "train.py", "norm", "--workers", "2", "--allow-writes")
    assert ended.status == 1
    assert "died 2 times" in ended.stderr
    assert [position.epoch for _, position, _ in rows(recorded, "norm")] == [0, 1, 4, 5, 6, 7]


def test_a_worker_that_hangs_is_ended_and_its_epochs_are_tried_again(recorded):
    flag = recorded.folder / "hung"
    hanging = ONCE.format(where="epoch == 5", flag=str(flag), what="time.sleep(1000)")
    recorded.write("train.py", program(epoch=hanging))
    words = ("--workers", "2", "--allow-writes", "--patience", "15")
    ended = recorded.flor("replay", "train.py", "norm", *words)
    assert ended.status == 0, ended.stderr
    assert "no sign for 15 s" in ended.stderr
    assert [position.epoch for _, position, _ in rows(recorded, "norm")] == list(range(8))


def start(project, *words: str) -> subprocess.Popen:
    """Start ``flor-keras replay`` in a session of its own, as a terminal would; its workers are forks."""
    return subprocess.Popen(
        [sys.executable, project.flor_path, "replay", "train.py", *words],
        cwd=project.folder,
        env={**project.environment(), "PYTHONFAULTHANDLER": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where a shell runs tests with &
    )


def end_of(replay: subprocess.Popen) -> str:
    """Return what a process that was stopped told on standard error; say what it is doing where it goes on."""
    try:
        return replay.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        with open(f"/proc/{replay.pid}/status") as file:
            signals = [line for line in file if line.startswith(("Sig", "Shd", "State", "Threads"))]
        replay.send_signal(signal.SIGABRT)  # faulthandler tells where it is
        told = replay.communicate(timeout=60)
        raise AssertionError(f"it went on\n{''.join(signals)}{told}") from None


def wait_for_rows(project, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(rows(project, "norm")) < count:
        assert time.monotonic() < deadline, "no value came"
        time.sleep(0.05)


def workers_alive(project) -> list[str]:
    """Return the processes that still work on the project's store, those that wait for a fork included."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ") as environ:
                if str(project.store) in environ.read():
                    found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGKILL"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stopped_replay_keeps_what_is_done_and_the_next_computes_the_rest(recorded, signal_name, workers):
    may_go = recorded.folder / "may-go"
    recorded.write("train.py", program(epoch=HELD.format(flag=str(may_go))))
    replay = start(recorded, "norm", "--workers", workers)
    wait_for_rows(recorded, 3)
    replay.send_signal(getattr(signal, signal_name))
    told = end_of(replay)
    may_go.touch()
    if signal_name == "SIGINT":
        assert replay.returncode == 130
        assert "the same command computes the rest" in told
    deadline = time.monotonic() + 20
    while workers_alive(recorded):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.1)
    before = rows(recorded, "norm")
    assert 3 <= len(before) < 8
    shown = recorded.flor("replay", "train.py", "norm", "--dry-run", "--json").stdout
    assert '"done": {"0": [' in shown
    report = recorded.replay("train.py", "norm", "--workers", workers)
    assert report["epochs"] == list(range(8))
    assert report["verified"] == "exact"
    everything = rows(recorded, "norm")
    assert [position.epoch for _, position, _ in everything] == list(range(8))
    assert set(before) <= set(everything)
    with sqlite3.connect(recorded.store / "flor.db") as database:
        counts = database.execute(
            "SELECT replay, count(*) FROM entries WHERE replay IS NOT NULL GROUP BY replay"
        )
        assert [count for _, count in counts] == [len(before), 8 - len(before)]


def test_a_program_that_changed_is_computed_anew_in_all_epochs(recorded):
    recorded.write("train.py", program(epoch="if epoch == 4: raise ValueError('broken')"))
    assert recorded.flor("replay", "train.py", "norm", "--force").status == 1
    assert len(rows(recorded, "norm")) == 4
    recorded.write("train.py", program())
    recorded.replay("train.py", "norm")
    with sqlite3.connect(recorded.store / "flor.db") as database:
        assert (
            len(database.execute("SELECT DISTINCT replay FROM entries WHERE replay IS NOT NULL").fetchall())
            == 1
        )


def test_a_line_that_carries_something_between_epochs_is_named_where_more_workers_are_asked_for(recorded):
    carried = "self.total = getattr(self, 'total', 0) + 1; print(self.total)"
    recorded.write("train.py", program(epoch=carried))
    shown = recorded.flor("replay", "train.py", "norm", "--dry-run", "--workers", "2")
    assert "warning: train.py:" in shown.stdout
    assert "carries something from one epoch to the next" in shown.stdout
    shown = recorded.flor("replay", "train.py", "norm", "--dry-run")
    assert "carries something" not in shown.stdout  # it takes seconds: there would be one worker anyway
