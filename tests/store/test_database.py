import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

from flor_keras.errors import StoreError, UsageError
from flor_keras.records import CheckpointRecord, Entry, Kind, LoopRecord, Position, Status, Verdict
from flor_keras.store import schema
from flor_keras.store.database import Store
from flor_keras.store.process import age_secs

BEGIN_A_RUN = """
import sys, time
from flor_keras.records import Entry, Position, RunRecord
from flor_keras.store.database import Store, process_identity
path, run, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(path, create=True) as store:
    pid, host, started = process_identity()
    store.begin_run(RunRecord(run, None, None, [], time.time(), pid, host, started, "/"))
    for step in range(count):
        store.add_entries(run, [Entry("loss", float(step), Position(0, 0, step))] * 3)
    print("ready", flush=True)
    if not count:
        time.sleep(60)
"""


def test_a_new_store_is_ignored_by_git_and_writes_ahead(store):
    assert (store.path / ".gitignore").read_text() == "*\n"
    with sqlite3.connect(store.path / "flor.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_opening_what_is_missing_says_so(tmp_path):
    with pytest.raises(StoreError, match=r"no store at .*flor\.db is missing"):
        Store.open(tmp_path / ".flor")


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path):
    connection = sqlite3.connect(tmp_path / "flor.db")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = (tmp_path / "flor.db").read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(tmp_path, create=True)
    assert (tmp_path / "flor.db").read_bytes() == before


def test_a_newer_schema_asks_for_an_upgrade(store):
    store._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"schema 99.*pip install --upgrade"):
        Store.open(store.path)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be looked at" * 10, b"SQLite format 3\0" + b"\xff" * 500]
)
def test_a_damaged_database_is_a_clear_error(tmp_path, content):
    (tmp_path / "flor.db").write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        Store.open(tmp_path)


def test_a_store_where_a_file_is_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Cannot create the store"):
        Store.open(tmp_path / "file", create=True)


def test_a_read_only_folder_can_be_read_and_not_written(store, run_record, monkeypatch):
    store.begin_run(run_record())
    store.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Store.open(store.path) as reader:
        assert [run.id for run in reader.runs()] == ["run-1"]
        with pytest.raises(StoreError, match="Cannot write"):
            reader.finish_run("run-1", Status.FINISHED)
    with pytest.raises(StoreError, match="not writable"):
        Store.open(store.path, create=True)


def test_an_empty_file_left_by_a_kill_becomes_a_store(tmp_path):
    (tmp_path / "flor.db").touch()
    with Store.open(tmp_path) as store:
        assert store.runs() == []


def test_a_locked_store_is_a_clear_error(store, run_record, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_SECS", 0.05)
    with Store.open(store.path) as other:
        store._connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            other.begin_run(run_record())
        store._connection.execute("ROLLBACK")


def test_a_run_is_read_as_it_was_begun_and_ended(store, run_record):
    record = run_record(name="first")
    store.begin_run(record)
    row = store.run("run-1")
    assert row.status is Status.RUNNING
    assert all(getattr(row, field) == getattr(record, field) for field in record.__dataclass_fields__)
    store.finish_run("run-1", Status.FAILED, "it broke")
    row = store.run("run-1")
    assert (row.status, row.error) == (Status.FAILED, "it broke")
    assert row.finished_at > row.started_at
    store.reopen_run("run-1", run_record(argv=["again"]))
    row = store.run("run-1")
    assert (row.status, row.error, row.finished_at, row.argv) == (Status.RUNNING, None, None, ["again"])
    assert row.started_at == record.started_at


def test_a_run_is_found_by_id_prefix_name_and_age(store, run_record):
    for run, name in (("aa1", "big"), ("aa2", None), ("ab3", "big")):
        store.begin_run(run_record(run, name))
    found = {ref: store.run(ref).id for ref in ("aa1", "ab", "big", "latest", "latest~0", "latest~2")}
    assert found == {
        "aa1": "aa1",
        "ab": "ab3",
        "big": "ab3",
        "latest": "ab3",
        "latest~0": "ab3",
        "latest~2": "aa1",
    }
    assert [run.id for run in store.runs()] == ["ab3", "aa2", "aa1"]
    assert [run.id for run in store.runs(limit=1)] == ["ab3"]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("aa", "any of 2 runs: aa1, aa2"),
        ("bigg", r"No run 'bigg'.*Did you mean big\?"),
        ("latest~7", "No run 'latest~7'"),
        ("", "No run ''"),
        ("%", "No run '%'"),
    ],
)
def test_a_run_that_cannot_be_told_is_an_error_with_a_hint(store, run_record, ref, message):
    for run, name in (("aa1", "big"), ("aa2", None)):
        store.begin_run(run_record(run, name))
    with pytest.raises(UsageError, match=message):
        store.run(ref)


def test_an_empty_store_says_that_it_is_empty(store):
    with pytest.raises(UsageError, match="holds no runs yet"):
        store.run("latest")


def test_a_killed_run_reads_as_killed(store):
    command = [sys.executable, "-c", BEGIN_A_RUN, str(store.path), "victim", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert store.run("victim").status is Status.RUNNING
        process.send_signal(signal.SIGKILL)
    assert store.run("victim").status is Status.KILLED


def test_a_reused_pid_and_another_host_are_told_apart(store, run_record):
    store.begin_run(run_record("reused", process_started="1"))
    store.begin_run(run_record("elsewhere", process_started="1", host="another-host"))
    assert store.run("reused").status is Status.KILLED
    assert store.run("elsewhere").status is Status.RUNNING


def test_several_programs_record_into_one_store_at_once(tmp_path):
    path = tmp_path / ".flor"
    commands = [[sys.executable, "-c", BEGIN_A_RUN, str(path), f"run-{at}", "100"] for at in range(3)]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    with Store.open(path) as store:
        assert {run.id: len(store.entries(run.id)) for run in store.runs()} == {
            f"run-{at}": 300 for at in range(3)
        }


def test_a_store_belongs_to_the_thread_that_opened_it(store):
    errors = []

    def use() -> None:
        try:
            store.runs()
        except StoreError as error:
            errors.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "same thread" in errors[0]


def test_loops_args_sources_and_events_come_back(store, run_record):
    for run in ("run-1", "run-2"):
        store.begin_run(run_record(run))
        store.add_sources(run, {"train.py": "print(1)\n", "lib/x.py": ""})
    loop = LoopRecord("run-1", 0, "fit", None, 0, 3, None, 1.5)
    store.begin_loop(loop)
    assert store.loops("run-1") == [loop]
    history = {"epoch": [0, 1], "history": {"loss": [0.1, np.float32(0.5)]}, "params": {}}
    store.finish_loop("run-1", 0, history, 2.5)
    (read,) = store.loops("run-1")
    assert (read.finished_at, read.history["history"]) == (2.5, {"loss": [0.1, 0.5]})
    store.add_args("run-1", {"lr": (0.1, 0.2), "layers": ([1, 2], None)})
    store.add_args("run-1", {"lr": (0.3, 0.2)})
    assert store.args("run-1") == {"lr": 0.3, "layers": [1, 2]}
    assert store.args_by_run() == {"run-1": store.args("run-1")}
    assert store.sources("run-2") == {"lib/x.py": "", "train.py": "print(1)\n"}
    store.add_event("run-1", "warning", "slow disk")
    assert [(event.level, event.message) for event in store.events("run-1")] == [("warning", "slow disk")]


def test_entries_come_by_position_then_insertion(store, run_record):
    store.begin_run(run_record())
    places = [
        Position(0, 0),
        Position(0, 0, 1),
        Position(),
        Position(0, 0, 0),
        Position(1),
        Position(0, 0, 1),
    ]
    store.add_entries("run-1", [Entry("a", at, place) for at, place in enumerate(places)])
    assert [entry.value for entry in store.entries("run-1")] == [2, 3, 1, 5, 0, 4]
    assert store.entries("run-1", ["b"]) == []
    assert store.entries("run-1", []) == []


def test_an_entry_that_cannot_be_stored_leaves_none_of_its_batch(store, run_record):
    store.begin_run(run_record())
    with pytest.raises(UsageError, match="Cannot log"):
        store.add_entries("run-1", [Entry("a", 1, Position()), Entry("b", object(), Position())])
    assert store.names("run-1") == []


def test_batches_of_every_size_come_back_whole_and_in_order(store, run_record):
    store.begin_run(run_record())
    expected = []
    for size in (1, 7, 8, 9, 63, 64, 65, 1023, 1024, 1025, 2500):
        batch = [
            Entry(f"name {at % 3}", (at, at / 3, -(2**63), 2**63, f"{at}")[at % 5], Position(0, size, at))
            for at in range(size)
        ]
        store.add_entries("run-1", batch)
        expected += batch
    assert store.entries("run-1") == expected
    numbers = store._connection.execute("SELECT number FROM entries ORDER BY number").fetchall()
    assert numbers == [(number,) for number in range(len(expected))]


def test_a_name_that_was_rolled_back_is_numbered_anew(store, run_record):
    store.begin_run(run_record())
    with pytest.raises(UnicodeEncodeError):
        store.add_entries("run-1", [Entry("new", 1, Position()), Entry("newer \ud800", 2, Position())])
    store.add_entries("run-1", [Entry("other", 3, Position()), Entry("new", 4, Position())])
    assert [(e.name, e.value) for e in store.entries("run-1")] == [("other", 3), ("new", 4)]


def test_a_replay_replaces_earlier_hindsight_and_never_the_record(store, run_record):
    store.begin_run(run_record())
    at, other = Position(0, 1, None), Position(0, 2, None)
    store.add_entries("run-1", [Entry("a", "recorded", at)])
    first = store.begin_replay("run-1", "epoch", ["a"], [1, 2], {"cost": 1})
    store.add_entries("run-1", [Entry("a", "old", at), Entry("a", "kept", other)], replay=first)
    second = store.begin_replay("run-1", "epoch", ["a"], [1], {})
    for value in ("new", "newer"):
        store.add_entries("run-1", [Entry("a", value, at)], replay=second, verdict=Verdict.EXACT)
    assert [e.value for e in store.entries("run-1", recorded=True)] == ["recorded"]
    assert [e.value for e in store.entries("run-1", recorded=False)] == ["new", "newer", "kept"]
    assert store.name_counts("run-1") == {"a": (1, 3)}


def test_a_replay_is_read_as_it_went(store, run_record):
    store.begin_run(run_record())
    number = store.begin_replay("run-1", "step", ["a"], [0, 1], {"cost": 2.5})
    assert [(row.status, row.verdict, row.report) for row in store.replays("run-1")] == [
        ("running", None, None)
    ]
    store.finish_replay(number, "finished", 1.5, Verdict.APPROXIMATE, 1e-7, {"first": [0, 1]})
    (row,) = store.replays("run-1")
    assert (row.id, row.level, row.names, row.epochs, row.plan) == (
        number,
        "step",
        ["a"],
        [0, 1],
        {"cost": 2.5},
    )
    assert (row.status, row.seconds, row.verdict, row.max_abs_diff) == (
        "finished",
        1.5,
        Verdict.APPROXIMATE,
        1e-7,
    )
    assert row.report == {"first": [0, 1]}


def test_checkpoints_come_in_the_order_of_training_and_replace_their_like(store, run_record):
    store.begin_run(run_record())

    def add(epoch, step, kind, error=None):
        last = {Kind.EPOCH_END: "end", Kind.AFTER: "after"}.get(kind, step)
        path = f"runs/run-1/checkpoints/0-{epoch}-{last}"
        store.add_checkpoint(CheckpointRecord("run-1", 0, epoch, step, kind, path, 9, 0.1, 0.2, 1.0, error))

    add(1, 0, Kind.AFTER)
    add(0, 4, Kind.EPOCH_END)
    add(1, 2, Kind.STEP, error="disk full")
    add(0, 0, Kind.START)
    add(1, 2, Kind.STEP)
    add(1, 4, Kind.EPOCH_END, error="too late")
    found = [(at.epoch, at.kind, at.error) for at in store.checkpoints("run-1")]
    assert found == [
        (0, Kind.START, None),
        (0, Kind.EPOCH_END, None),
        (1, Kind.STEP, None),
        (1, Kind.EPOCH_END, "too late"),
        (1, Kind.AFTER, None),
    ]
    assert len(store.checkpoints("run-1", loop=0)) == 5
    assert store.checkpoints("run-1", loop=1) == []


def test_an_unknown_run_is_named(store):
    with pytest.raises(UsageError, match="No run 'nope'"):
        store.add_entries("nope", [Entry("a", 1, Position())])


def test_an_environment_is_kept_as_json_whatever_it_holds(store, run_record):
    store.begin_run(run_record(environment={"odd": object, "number": np.float32(2)}))
    assert json.dumps(store.run("latest").environment)


def test_a_process_knows_how_long_it_has_been_there():
    before = age_secs()
    program = "import time; time.sleep(0.2); from flor_keras.store.process import age_secs; print(age_secs())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.2 <= float(done.stdout) <= age_secs() - before + 0.02  # the system counts hundredths of a second
