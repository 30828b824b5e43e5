import json
import subprocess
import sys
from datetime import datetime, timedelta

import numpy as np
import pytest

from flor_keras import cli
from flor_keras.cli import text
from flor_keras.records import (
    OWN_SEED,
    SEED_ARGUMENT,
    CheckpointRecord,
    Entry,
    Kind,
    LoopRecord,
    Position,
    Status,
    Verdict,
)
from flor_keras.store.database import Store


@pytest.fixture
def project(tmp_path, run_record, monkeypatch):
    """Go to a folder with a store of two runs."""
    monkeypatch.delenv("FLOR_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    with Store.open(".flor", create=True) as store:
        store.begin_run(run_record("aaa", script=None, argv=[]))
        store.begin_run(run_record("bbb", "second"))
        store.add_args("bbb", {"lr": (0.1, 0.2)})
        store.begin_loop(LoopRecord("bbb", 0, "fit", None, 0, 5, 2, 1.0))
        store.finish_loop("bbb", 0, {"epoch": [0, 1, 2]}, 2.0)
        losses = [
            Entry("loss", value, Position(0, 0, step)) for step, value in enumerate((0.5, float("nan")))
        ]
        store.add_entries("bbb", [*losses, Entry("note", "[bold]", Position())])
        path = "runs/bbb/checkpoints/0-0-"
        store.add_checkpoint(
            CheckpointRecord("bbb", 0, 0, 2, Kind.EPOCH_END, path + "end", 2000, 0.5, 0.25, 1.0)
        )
        store.add_checkpoint(
            CheckpointRecord("bbb", 0, 0, 1, Kind.STEP, path + "1", 0, 0.5, 0, 1.0, "disk full")
        )
        replay = store.begin_replay("bbb", "step", ["norm"], [0], {})
        store.add_entries("bbb", [Entry("norm", np.eye(2), Position(0, 0))], replay=replay)
        store.finish_replay(replay, "finished", 1.5, Verdict.EXACT, None, {})
        store.add_event("bbb", "warning", "slow disk")
        store.finish_run("bbb", Status.FINISHED)
    return tmp_path


@pytest.fixture
def flor(capsys):
    """Return a function that runs a command and gives its status, output and errors."""

    def run(*argv):
        status = cli.main(list(argv))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_runs_lists_the_newest_first(project, flor):
    status, out, _ = flor("runs")
    assert status == 0
    heading, first, second = out.splitlines()
    assert heading.split() == ["RUN", "NAME", "STATUS", "STARTED", "SCRIPT", "ARGS"]
    assert first.split()[:3] == ["bbb", "second", "finished"]
    assert "train.py" in first
    assert "lr=0.1" in first
    assert second.split()[:3] == ["aaa", "-", "running"]
    _, out, _ = flor("runs", "--limit", "1")
    assert "aaa" not in out
    assert "older ones" in out


def test_runs_as_json_keeps_its_contract(project, flor):
    _, out, _ = flor("runs", "--json")
    first, second = json.loads(out)
    assert list(first) == ["id", "name", "status", "script", "started_at", "args"]
    assert (first["id"], first["args"], second["script"], second["args"]) == ("bbb", {"lr": 0.1}, None, {})
    assert datetime.fromisoformat(first["started_at"]).utcoffset() == timedelta(0)
    assert len(json.loads(flor("runs", "--json", "--limit", "1")[1])) == 1


def test_an_empty_store_lists_nothing(tmp_path, flor):
    Store.open(tmp_path, create=True).close()
    assert json.loads(flor("runs", "--json", "--store", str(tmp_path))[1]) == []
    assert json.loads(flor("logs", "--all-runs", "--json", "--store", str(tmp_path))[1]) == []


def test_logs_as_json_are_strict_and_in_order_of_position(project, flor):
    _, out, _ = flor("logs", "note", "loss", "norm", "--json")
    rows = json.loads(out, parse_constant=pytest.fail)
    at = {"run": "bbb", "loop": 0, "epoch": 0}
    assert rows == [
        {
            "run": "bbb",
            "loop": None,
            "epoch": None,
            "step": None,
            "note": "[bold]",
            "loss": None,
            "norm": None,
        },
        {**at, "step": 0, "note": None, "loss": 0.5, "norm": None},
        {**at, "step": 1, "note": None, "loss": "NaN", "norm": None},
        {**at, "step": None, "note": None, "loss": None, "norm": [[1.0, 0.0], [0.0, 1.0]]},
    ]


def test_logs_for_people_leave_out_what_says_nothing(project, flor):
    _, out, _ = flor("logs", "loss")
    assert out.splitlines() == ["run bbb", "epoch  step  loss", "0      0     0.5", "0      1     nan"]
    _, out, _ = flor("logs")
    assert "[bold]" in out
    assert "<float64 array of shape (2, 2)>" in out


def test_logs_reads_the_runs_it_is_told(project, flor):
    with Store.open(".flor") as store:
        store.add_entries("aaa", [Entry("loss", 9.0, Position(0, 0, 0))])
    rows = json.loads(flor("logs", "loss", "--run", "aaa", "--run", "second", "--json")[1])
    assert [row["run"] for row in rows] == ["aaa", "bbb", "bbb"]
    rows = json.loads(flor("logs", "loss", "--all-runs", "--json")[1])
    assert [row["run"] for row in rows] == ["bbb", "bbb", "aaa"]


@pytest.mark.parametrize(
    ("ends", "is_finished", "line"),
    [
        ([(1, 8, Kind.EPOCH_END), (1, 8, Kind.AFTER)], True, "1: custom train.py:9, 2 epochs"),
        ([(4, 0, Kind.AFTER)], True, "1: custom train.py:9, 5 epochs"),
        ([(0, 8, Kind.AFTER)], True, "1: custom train.py:9, 1 epoch"),
        ([(0, 0, Kind.AFTER)], True, "1: custom train.py:9, ? epochs"),  # none, or one without steps
        ([(1, 8, Kind.EPOCH_END)], False, "1: custom train.py:9, ? epochs, not finished"),
    ],
)
def test_show_tells_how_many_epochs_a_loop_of_the_programs_own_did(project, flor, ends, is_finished, line):
    with Store.open(".flor") as store:
        store.begin_loop(LoopRecord("bbb", 1, "custom", "train.py:9", 0, None, None, 1.0))
        for epoch, step, kind in ends:
            path = f"runs/bbb/checkpoints/1-{epoch}-{kind}"
            store.add_checkpoint(CheckpointRecord("bbb", 1, epoch, step, kind, path, 0, 0, 0, 1.0))
        if is_finished:
            store.finish_loop("bbb", 1, None, 2.0)
    assert line in [shown.strip() for shown in flor("show", "second")[1].splitlines()]


def test_show_leaves_a_seed_out_that_gave_way_to_the_programs_own(project, flor):
    with Store.open(".flor") as store:
        store.add_args("bbb", {SEED_ARGUMENT: (77, None)})
        assert "args        lr=0.1 flor.seed=77\n" in flor("show", "second")[1]
        store.add_event("bbb", "info", OWN_SEED)
    assert "args        lr=0.1\n" in flor("show", "second")[1]
    assert json.loads(flor("show", "second", "--json")[1])["args"] == {"lr": 0.1, "flor.seed": 77}


def test_show_tells_all_that_is_known(project, flor):
    _, out, _ = flor("show", "second")
    for line in (
        "run         bbb (second)",
        "status      finished",
        "script      /project/train.py --lr 0.1",
        "args        lr=0.1",
        "versions    keras 3.15",
        "loops       0: fit, 3 of 5 epochs of 2 steps",
        "loss: 2 recorded",
        "norm: 1 in hindsight",
        "checkpoints 1, 2 kB; training stood still 1 s, worker took 250 ms of CPU",
        "failed at loop 0, epoch 0, step 1: disk full",
        "events      warning: slow disk",
        "replays     1: norm at level step, finished in 1.5 s, exact",
    ):
        assert line in out
    described = json.loads(flor("show", "--json")[1])
    assert described["names"]["norm"] == {"recorded": 0, "hindsight": 1}
    assert described["checkpoints"]["failed"][0]["error"] == "disk full"
    assert flor("show", "aaa")[0] == 0


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["logs", "los"], 2, "Did you mean loss"),
        (["show", "zzz"], 2, "No run 'zzz'"),
        (["runs", "--store", "nowhere"], 2, "No store at"),
        (["runs", "--store", "gs://bucket"], 1, "folder of this machine"),
        (["runs", "--limit", "0"], 2, "--limit"),
        (["logs", "--run", "a", "--all-runs"], 2, "not both"),
        (["nonsense"], 2, "No such command"),
        (["runs", "--", "--lr", "1"], 2, "takes no arguments after --: --lr 1"),
    ],
)
def test_errors_are_one_message_and_a_status(project, flor, argv, status, message):
    found, out, err = flor(*argv)
    assert (found, out) == (status, "")
    assert message in err
    assert "Error: " in err
    assert "Traceback" not in err


def test_what_follows_two_dashes_is_the_script_s():
    assert cli.split_argv(["replay", "x.py", "--", "-a", "--", "b"]) == (
        ["replay", "x.py"],
        ("-a", "--", "b"),
    )
    assert cli.split_argv(["runs"]) == (["runs"], ())


def test_an_interrupt_ends_with_130(project, flor, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("flor_keras.reading.newest_runs", interrupt)
    assert flor("runs")[0] == 130


def test_a_reader_that_leaves_early_is_no_error(project):
    with Store.open(".flor") as store:
        store.add_entries("bbb", [Entry("x", "y" * 100, Position(0, at)) for at in range(5000)])
    command = "import sys; from flor_keras.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", command, "logs", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("passed", "words"),
    [(5, "just now"), (200, "3 min ago"), (7300, "2 h ago"), (90000, "1 day ago"), (2e5, "2 days ago")],
)
def test_moments_are_told_as_a_person_does(passed, words):
    assert text.ago(0, now=lambda: passed) == words


def test_sizes_and_durations_have_units():
    assert [text.size(at) for at in (12, 1500, 2_000_000, 3 * 10**12)] == ["12 B", "1.5 kB", "2 MB", "3 TB"]
    assert [text.duration(at) for at in (0.0123, 2.5, 75, 7260)] == [
        "12.3 ms",
        "2.5 s",
        "1 min 15 s",
        "2 h 1 min",
    ]
