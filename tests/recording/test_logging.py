"""What `flor.log` is given is in the store, once and unchanged: from any thread, of any kind, whatever happens to its neighbours."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from flor_keras import session
from flor_keras.errors import StoreError
from flor_keras.recording import journal
from flor_keras.recording.recorder import Recorder
from flor_keras.records import Entry, Position
from flor_keras.store.database import Store


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path / ".flor", None, None)
    session.begin(recorder)
    yield recorder
    session.begin(None)
    recorder.close()


def stored(recorder):
    """Close the run and return its entries by insertion, with what it told."""
    recorder.close()
    with Store.open(recorder.store) as store:
        entries = store.entries(recorder.run) if store.names(recorder.run) else []
        return entries, [event.message for event in store.events(recorder.run)]


def test_values_of_every_kind_are_kept_as_they_were_when_logged(recorder):
    array, listed, view = np.arange(3.0), [1, {"a": [2]}], np.arange(6).reshape(2, 3)
    given = {
        "float": 0.1,
        "int": 2**70,
        "flag": True,
        "text": "é\ud800",
        "none": None,
        "bytes": b"\0",
        "nan": float("nan"),
    }
    given |= {
        "single": np.float32(0.1),
        "double": np.float64(0.1),
        "array": array,
        "listed": listed,
        "view": view[:, 1],
    }
    expected = {**given, "array": array.copy(), "view": view[:, 1].copy(), "listed": [1, {"a": [2]}]}
    expected["single"] = float(np.float32(0.1))
    for name, value in given.items():
        session.log(name, value)
    array += 1
    view += 1
    listed[1]["a"].append(3)
    entries, told = stored(recorder)
    assert [entry.name for entry in entries] == list(given)
    for entry in entries:
        np.testing.assert_array_equal(entry.value, expected[entry.name])
        assert type(entry.value) is type(expected[entry.name]) or entry.name == "double"
    assert told == []


def test_threads_log_side_by_side_and_nothing_is_lost_doubled_or_reordered(recorder, monkeypatch):
    monkeypatch.setattr(journal, "_BATCH_ENTRIES", 700)  # many batches, their ends at no round number

    def log(thread):
        for number in range(3000):
            session.log(f"thread {thread}", number if number % 100 else str(number))

    threads = [threading.Thread(target=log, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries, _ = stored(recorder)
    for thread in range(6):
        found = [int(entry.value) for entry in entries if entry.name == f"thread {thread}"]
        assert found == list(range(3000))


def test_the_position_is_the_one_at_the_call_also_when_it_is_written_much_later(recorder):
    at = [Position(), Position(0), *(Position(0, epoch, step) for epoch in range(2) for step in range(3))]
    for number, position in enumerate(at):
        recorder.move(position)
        session.log("number", number)
        recorder.log("offset", number, step_offset=2)
    entries, _ = stored(recorder)
    assert {e.value: e.position for e in entries if e.name == "number"} == dict(enumerate(at))
    moved = [p if p.step is None else p._replace(step=p.step + 2) for p in at]
    assert {e.value: e.position for e in entries if e.name == "offset"} == dict(enumerate(moved))


def test_what_cannot_be_kept_is_told_and_keeps_no_other_from_the_store(recorder, capsys):
    for number in range(500):
        session.log("good", number)
        if number == 250:
            session.log("bad \ud800", 1.0)  # no UTF-8: the database refuses it
            session.log(7, 1.0)
            session.log("object", object())
    entries, told = stored(recorder)
    assert [(entry.name, entry.value) for entry in entries] == [("good", number) for number in range(500)]
    assert sorted(message.partition(":")[0] for message in told) == [
        "flor.log('bad \\ud800') was not recorded",
        "flor.log('object') was not recorded",
        "flor.log(7) was not recorded",
    ]
    assert "expected text" in capsys.readouterr().err


def test_a_store_that_fails_for_a_while_gets_every_entry_once(recorder, monkeypatch, capsys):
    add, num_calls = Store.add_flat_entries, 0

    def failing(store, *args):
        nonlocal num_calls
        num_calls += 1
        if num_calls in (1, 2, 4):
            raise StoreError("No room left on the disk.")
        add(store, *args)

    monkeypatch.setattr(Store, "add_flat_entries", failing)
    monkeypatch.setattr(journal, "_BATCH_ENTRIES", 100)
    for number in range(1000):
        session.log("number", number)
    until = time.monotonic() + 30
    while recorder.journal.entries:  # closing at once would give up what failed last
        assert time.monotonic() < until
        time.sleep(0.01)
    entries, _ = stored(recorder)
    assert entries == [Entry("number", number, Position()) for number in range(1000)]
    assert "kept in memory: No room left" in capsys.readouterr().err


def test_scalars_that_wait_to_be_written_are_nothing_the_garbage_collector_follows(recorder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_flat_entries", _refuse)
        for step in range(1000):
            recorder.move(Position(0, 0, step))
            session.log("loss", 0.5)
            recorder.log("text", "a", step_offset=1)
        for _ in range(2):  # a tuple is let go of when what it holds has been
            gc.collect()
        waiting = [*recorder.journal._batch, *recorder.journal.entries]
    assert len(waiting) == 2000
    assert not any(gc.is_tracked(entry) for entry in waiting)


def test_a_full_queue_says_that_the_oldest_entries_are_dropped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(journal, "_KEPT_ENTRIES", 10)
    monkeypatch.setattr(Store, "add_flat_entries", _refuse)
    recorder = Recorder(tmp_path / ".flor", None, None)
    until = time.monotonic() + 30
    while "oldest are dropped" not in capsys.readouterr().err:
        assert time.monotonic() < until
        for number in range(20):
            recorder.log("number", number)
        time.sleep(0.05)
    assert len(recorder.journal.entries) == 10
    monkeypatch.undo()
    entries, _ = stored(recorder)
    assert entries[-1] == Entry("number", 19, Position())


def _refuse(*_):
    raise StoreError("No room left on the disk.")
