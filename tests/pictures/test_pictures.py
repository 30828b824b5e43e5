"""Plots, event files and tables of what was logged."""

from __future__ import annotations

import csv
import io
import json
import sys
import time

import numpy as np
import pytest

from flor_keras import cli, reading
from flor_keras.errors import UsageError
from flor_keras.pictures.plot import _lines, plot
from flor_keras.pictures.timeline import Timeline
from flor_keras.records import Entry, LoopRecord, Position, Verdict
from flor_keras.store.database import Store


@pytest.fixture
def run(tmp_path, run_record, monkeypatch):
    """A run of two loops of 3 and 2 epochs of 4 steps, with recorded and hindsight values of all kinds."""
    monkeypatch.setenv("FLOR_STORE", str(tmp_path))
    with Store.open(tmp_path, create=True) as store:
        store.begin_run(run_record("run-1"))
        for loop, epochs in enumerate((3, 2)):
            store.begin_loop(LoopRecord("run-1", loop, "fit", None, 0, epochs, 4, time.time()))
        ends = [Position(loop, epoch) for loop, epochs in enumerate((3, 2)) for epoch in range(epochs)]
        steps = [Position(*end[:2], step) for end in ends for step in range(4)]
        store.add_entries("run-1", [Entry("loss", 1 / (1 + at), end) for at, end in enumerate(ends)])
        store.add_entries("run-1", [Entry("note", "text", Position())])
        replay = store.begin_replay("run-1", "step", ["norm"], [], {})
        found = [Entry("norm", float(at) if at != 7 else float("nan"), step) for at, step in enumerate(steps)]
        found += [Entry("weights", np.arange(5.0), end) for end in ends]
        found += [Entry("image", np.zeros((8, 8, 1), "uint8"), end) for end in ends]
        store.add_entries("run-1", found, replay=replay, verdict=Verdict.EXACT)
    return reading.run("run-1", tmp_path)


def test_steps_count_through_all_loops_and_never_go_back(run):
    timeline = Timeline(run, run.entries())
    steps = [timeline.step(entry.position) for entry in run.entries("norm")]
    assert steps == list(range(1, 21))
    assert [timeline.step(entry.position) for entry in run.entries("loss")] == [4, 8, 12, 16, 20]
    assert timeline.step(Position()) == 0
    assert timeline.epoch(Position(1, 1)) == 4
    assert timeline.epoch(Position(0, 1, 3)) == 1
    assert timeline.borders == [2.5]


def test_recorded_and_hindsight_values_are_two_lines(run, tmp_path):
    recorded, hindsight = _lines(run, "loss")
    assert recorded[0] == [0, 1, 2, 3, 4]
    assert hindsight is None
    assert _lines(run, "norm")[0] is None
    plot([run], ["loss", "norm"], tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_name_without_numbers_is_refused_and_so_is_a_file_that_is_no_picture(run, tmp_path):
    with pytest.raises(UsageError, match="Nothing logged under 'weights' is a number"):
        plot([run], ["weights"], tmp_path / "out.png")
    with pytest.raises(UsageError, match="Give a file such as out.png"):
        plot([run], ["loss"], tmp_path / "out.doc")


def test_logs_come_as_csv_json_and_parquet(run, tmp_path, capsys):
    assert cli.main(["logs", "loss", "weights", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == {
        **{"run": "run-1", "loop": "0", "epoch": "0", "step": "", "loss": "1.0"},
        "weights": "[0.0, 1.0, 2.0, 3.0, 4.0]",
    }
    assert cli.main(["logs", "loss", "--format", "json"]) == 0
    as_json = capsys.readouterr().out
    assert cli.main(["logs", "loss", "--json"]) == 0
    assert as_json == capsys.readouterr().out
    assert len(json.loads(as_json)) == 5
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert cli.main(["logs", "--format", "parquet", "-o", str(tmp_path / "out.parquet")]) == 0
    frame = pandas.read_parquet(tmp_path / "out.parquet")
    assert list(frame["loss"].dropna()) == list(run.dataframe("loss")["loss"])
    assert list(frame["weights"].dropna().iloc[0]) == [0, 1, 2, 3, 4]


def test_parquet_without_pyarrow_says_what_to_install(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["logs", "--format", "parquet", "-o", str(tmp_path / "out")]) == 2
    assert "pip install pyarrow" in capsys.readouterr().err


def test_plots_without_matplotlib_say_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        plot([run], ["loss"], tmp_path / "out.png")


@pytest.mark.slow
def test_event_files_have_scalars_histograms_and_images_at_steps_of_the_whole_run(project, run):
    pytest.importorskip("tensorboard")
    project.write(
        "events.py",
        f"""
        import collections, glob, sys
        import tensorflow as tf
        from flor_keras.cli import main
        assert main(["tensorboard", "run-1", "--logdir", "logs", "--store", {str(run.store)!r}]) == 0
        assert main(["tensorboard", "run-1", "--logdir", "logs", "--store", {str(run.store)!r}]) == 2
        found = collections.defaultdict(list)
        for path in glob.glob("logs/*/*"):
            for event in tf.compat.v1.train.summary_iterator(path):
                for value in event.summary.value:
                    found[value.tag, value.metadata.plugin_data.plugin_name].append(event.step)
        for key in sorted(found): print(*key, *found[key])
        """,
    )
    shown = project.succeed("events.py").stdout
    assert "loss scalars 4 8 12 16 20\n" in shown
    assert f"norm scalars {' '.join(map(str, range(1, 21)))}\n" in shown
    assert "weights histograms 4 8 12 16 20\n" in shown
    assert "image images 4 8 12 16 20\n" in shown
    assert "note text 0\n" in shown
