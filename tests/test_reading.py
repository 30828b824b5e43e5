import dataclasses
import pickle
from datetime import UTC

import numpy as np
import pandas as pd
import pytest

import flor_keras as flor
from flor_keras.records import CheckpointRecord, Entry, Kind, LoopRecord, Position, Status
from flor_keras.store.database import Store


@pytest.fixture
def recorded(tmp_path, run_record):
    """Return the folder of a store with one run: two epochs of two steps, and a value outside the loop."""
    with Store.open(tmp_path / ".flor", create=True) as store:
        store.begin_run(run_record(name="first"))
        store.add_args("run-1", {"lr": (0.1, 0.2)})
        store.begin_loop(LoopRecord("run-1", 0, "fit", None, 0, 2, 2, 1.0))
        store.add_entries("run-1", [Entry("rows", 60000, Position())])
        for epoch in range(2):
            steps = [Entry("loss", epoch + step / 10, Position(0, epoch, step)) for step in range(2)]
            store.add_entries("run-1", [*steps, Entry("val_loss", float(epoch), Position(0, epoch))])
        store.finish_run("run-1", Status.FINISHED)
    return tmp_path


def add(folder, *entries, replay=False, run="run-1"):
    with Store.open(folder / ".flor") as store:
        number = store.begin_replay(run, "epoch", [], [], {}) if replay else None
        store.add_entries(run, list(entries), replay=number)


def test_a_run_tells_what_it_is(recorded):
    run = flor.run(store=recorded)
    assert (run.id, run.name, run.status, run.script) == (
        "run-1",
        "first",
        Status.FINISHED,
        "/project/train.py",
    )
    assert run.args == {"lr": 0.1}
    assert run.started_at.tzinfo is UTC
    assert run.names == ["rows", "loss", "val_loss"]
    assert [loop.epochs for loop in run.loops] == [2]
    assert repr(run) == "Run('run-1', name='first', status='finished')"


def test_the_store_is_found_from_the_current_folder(recorded, monkeypatch):
    monkeypatch.delenv("FLOR_STORE", raising=False)
    (recorded / "sub").mkdir()
    monkeypatch.chdir(recorded / "sub")
    assert [run.id for run in flor.runs()] == ["run-1"]
    assert flor.run("first").id == flor.run("run").id == "run-1"


def test_a_data_frame_has_a_row_per_position_and_a_column_per_name(recorded):
    frame = flor.run(store=recorded).dataframe()
    assert list(frame.columns) == ["run", "loop", "epoch", "step", "rows", "loss", "val_loss"]
    assert [str(frame[level].dtype) for level in ("loop", "epoch", "step")] == ["Int64"] * 3
    expected = [
        (None, None, None, 60000, np.nan, np.nan),
        (0, 0, 0, None, 0.0, np.nan),
        (0, 0, 1, None, 0.1, np.nan),
        (0, 0, None, None, np.nan, 0.0),
        (0, 1, 0, None, 1.0, np.nan),
        (0, 1, 1, None, 1.1, np.nan),
        (0, 1, None, None, np.nan, 1.0),
    ]
    assert frame["rows"].dtype == "Int64"
    pd.testing.assert_frame_equal(
        frame.iloc[:, 1:].astype("Float64"),
        pd.DataFrame(expected, columns=frame.columns[1:], dtype="Float64"),
    )


def test_only_the_asked_names_and_their_positions_are_there(recorded):
    frame = flor.run(store=recorded).dataframe("val_loss")
    assert frame["val_loss"].tolist() == [0.0, 1.0]
    assert frame["step"].isna().all()
    assert list(flor.run(store=recorded).dataframe("val_loss", "loss").columns[4:]) == ["val_loss", "loss"]


def test_the_last_recorded_value_counts_and_hindsight_fills_gaps(recorded):
    at, gap = Position(0, 0, 0), Position(0, 5, 0)
    add(recorded, Entry("loss", 7.0, at))
    add(recorded, Entry("loss", 8.0, at), Entry("loss", 9.0, gap), Entry("norm", 3, gap), replay=True)
    run = flor.run(store=recorded)
    frame = run.dataframe("loss", "norm").set_index(["loop", "epoch", "step"])
    assert frame.loc[(0, 0, 0), "loss"] == 7.0
    assert frame.loc[(0, 5, 0), "loss"] == 9.0
    assert frame.loc[(0, 5, 0), "norm"] == 3
    assert [entry.value for entry in run.entries("loss", recorded=False)] == [8.0, 9.0]
    assert [entry.value for entry in run.entries("norm")] == [3]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], "int64", [1, 2]),
        ([1, 2.5], "float64", [1.0, 2.5]),
        ([2**53 + 1, 0.5], "object", [2**53 + 1, 0.5]),
        ([2**70, 1], "object", [2**70, 1]),
        (["a", "b"], "str", ["a", "b"]),
        ([True, False], "bool", [True, False]),
        ([{"a": 1}, [2]], "object", [{"a": 1}, [2]]),
        ([float("inf"), -0.0], "float64", [float("inf"), -0.0]),
    ],
)
def test_columns_have_the_type_that_loses_nothing(recorded, values, dtype, expected):
    add(recorded, *(Entry("x", value, Position(0, at)) for at, value in enumerate(values)))
    column = flor.run(store=recorded).dataframe("x")["x"]
    assert str(column.dtype) == dtype
    assert column.tolist() == expected


def test_arrays_stand_in_the_cells(recorded):
    array = np.arange(6).reshape(2, 3)
    add(recorded, Entry("weights", array, Position(0, 0)))
    (cell,) = flor.run(store=recorded).dataframe("weights")["weights"]
    np.testing.assert_array_equal(cell, array)


def test_a_name_like_a_position_column_gets_a_column_of_its_own(recorded):
    add(recorded, Entry("epoch", 41, Position(0, 0)))
    frame = flor.run(store=recorded).dataframe("epoch")
    assert (frame["epoch"].tolist(), frame["epoch_logged"].tolist()) == ([0], [41])


def test_an_unknown_name_is_an_error_with_the_near_ones(recorded):
    for read in (flor.run(store=recorded).dataframe, flor.run(store=recorded).entries):
        with pytest.raises(
            flor.UsageError, match=r"'vall_loss' in run run-1\. Did you mean val_loss, loss\?"
        ):
            read("vall_loss")
    with pytest.raises(flor.UsageError, match="replay SCRIPT norm"):
        flor.dataframe("norm", store=recorded)


def test_all_runs_come_in_one_frame_newest_first(recorded, run_record):
    with Store.open(recorded / ".flor") as store:
        store.begin_run(run_record("run-2"))
        store.begin_run(run_record("empty"))
    add(recorded, Entry("loss", 2**60, Position(0, 0, 0)), Entry("norm", 1, Position()), run="run-2")
    frame = flor.dataframe("loss", store=recorded)
    assert frame["run"].tolist() == ["run-2", *["run-1"] * 4]
    assert frame["loss"].tolist() == [2**60, 0.0, 0.1, 1.0, 1.1]
    assert "norm" in flor.dataframe(store=recorded).columns


def test_a_run_without_logs_gives_an_empty_frame(tmp_path, run_record):
    with Store.open(tmp_path, create=True) as store:
        empty = flor.dataframe(store=tmp_path)
        store.begin_run(run_record())
    for frame in (empty, flor.run(store=tmp_path).dataframe()):
        assert list(frame.columns) == ["run", "loop", "epoch", "step"]
        assert len(frame) == 0


def test_only_committed_checkpoints_are_offered(recorded):
    whole = CheckpointRecord(
        "run-1", 0, 0, 2, Kind.EPOCH_END, "runs/run-1/checkpoints/0-0-end", 9, 0.1, 0.1, 1.0
    )
    failed = dataclasses.replace(whole, epoch=1, path="runs/run-1/checkpoints/0-1-end", error="disk full")
    with Store.open(recorded / ".flor") as store:
        store.add_checkpoint(whole)
        store.add_checkpoint(failed)
    (checkpoint,) = flor.run(store=recorded).checkpoints
    assert (checkpoint.epoch, checkpoint.step, checkpoint.kind, checkpoint.num_bytes) == (
        0,
        2,
        Kind.EPOCH_END,
        9,
    )
    assert checkpoint.path == recorded / ".flor" / whole.path


def test_a_run_can_be_pickled(recorded):
    run = pickle.loads(pickle.dumps(flor.run(store=recorded)))
    assert len(run.dataframe("loss")) == 4
