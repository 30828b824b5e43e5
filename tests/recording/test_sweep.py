"""A run that begins clears away what dead runs left, and nothing of the living or of other machines."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from flor_keras.recording.sweep import sweep
from flor_keras.records import CheckpointRecord, Kind, Position, Status
from flor_keras.store import layout
from flor_keras.store.database import Store


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / ".flor", create=True) as opened:
        yield opened


@pytest.fixture
def dead():
    """Return what tells of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return {"pid": process.pid, "process_started": "1"}


def leave(store, run, *names):
    """Make folders among the checkpoints of a run, and a row for those called 'entered'."""
    parent = layout.run_folder(store.path, run) / "checkpoints"
    for name in names:
        (parent / name).mkdir(parents=True)
        (parent / name / "bundle.index").write_bytes(b"content")
    at = layout.checkpoint_path(run, Position(0, 3, 0), Kind.EPOCH_END)
    if "0-3-end" in names:
        store.add_checkpoint(CheckpointRecord(run, 0, 3, 0, Kind.EPOCH_END, at, 1, 0.0, 0.0, time.time()))
    return parent


def test_a_dead_run_keeps_its_checkpoints_and_loses_the_rest(store, run_record, dead):
    store.begin_run(run_record("dead", **dead))
    parent = leave(store, "dead", "0-3-end", "0-4-end", f".tmp-0-5-end-{dead['pid']}", ".tmp-handshake")
    (parent / "worker.log").write_text("")
    assert {path.name for path in sweep(store)} == {
        "0-4-end",
        f".tmp-0-5-end-{dead['pid']}",
        ".tmp-handshake",
    }
    assert {path.name for path in parent.iterdir()} == {"0-3-end", "worker.log"}
    assert store.run("dead").status is Status.KILLED
    assert sweep(store) == []


def test_a_living_run_is_left_alone(store, run_record):
    store.begin_run(run_record("alive"))
    parent = leave(store, "alive", "0-4-end", ".tmp-0-5-end-1")
    assert sweep(store) == []
    assert len(list(parent.iterdir())) == 2
    assert store.run("alive").status is Status.RUNNING


def test_a_run_of_another_machine_is_left_alone(store, run_record, dead):
    store.begin_run(run_record("elsewhere", host="another-machine", **dead))
    leave(store, "elsewhere", "0-4-end")
    assert sweep(store) == []
    assert store.run("elsewhere").status is Status.RUNNING


def test_a_run_whose_worker_still_writes_is_left_for_later(store, run_record, dead):
    store.begin_run(run_record("dead", **dead))
    parent = leave(store, "dead", "0-4-end", f".tmp-0-5-end-{os.getpid()}")
    assert sweep(store) == []
    (parent / f".tmp-0-5-end-{os.getpid()}").rename(parent / "0-5-end")
    assert {path.name for path in sweep(store)} == {"0-4-end", "0-5-end"}


def test_a_run_that_ended_is_not_looked_at(store, run_record, dead):
    store.begin_run(run_record("done", **dead))
    store.finish_run("done", Status.FINISHED)
    leave(store, "done", "0-4-end")
    assert sweep(store) == []


def test_a_dead_run_without_a_folder_is_no_obstacle(store, run_record, dead):
    store.begin_run(run_record("dead", **dead))
    assert sweep(store) == []
    assert store.run("dead").status is Status.KILLED


def test_a_failed_checkpoint_is_not_mistaken_for_one_that_was_entered(store, run_record, dead):
    store.begin_run(run_record("dead", **dead))
    leave(store, "dead", "0-4-end")
    at = layout.checkpoint_path("dead", Position(0, 4, 0), Kind.EPOCH_END)
    store.add_checkpoint(
        CheckpointRecord("dead", 0, 4, 0, Kind.EPOCH_END, at, 0, 0.0, 0.0, time.time(), "no room")
    )
    assert {path.name for path in sweep(store)} == {"0-4-end"}
