"""`flor-keras doctor` from the command line: of scripts, of runs, as JSON, and without TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flor_keras import cli, environment
from flor_keras.checkpoint.bundle import FORMAT, MANIFEST
from flor_keras.checkpoint.sealed import seal
from flor_keras.environment import differences, read_environment
from flor_keras.records import CheckpointRecord, Kind, LoopRecord, Position
from flor_keras.store.database import Store
from flor_keras.store.layout import checkpoint_folder, checkpoint_path

PROGRAM = """\
import keras
import flor_keras as flor
import tensorflow as tf
from layers import Noise
model.add(Noise())
model.fit(x, y, callbacks=[flor.FlorKeras()])
"""
LAYERS = """\
import keras
import tensorflow as tf
class Noise(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.normal((4,))
"""
PARTS = [
    *("weights and slots", "metrics", "seeds", "data order", "random states before the loop"),
    *("callbacks", "random ops", "environment"),
]


@pytest.fixture
def flor(capsys):
    """Return a function that runs a command and gives its status and output."""

    def run(*argv):
        status = cli.main(list(argv))
        return status, capsys.readouterr()

    return run


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A program with one finding, in a module of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOR_STORE", raising=False)
    monkeypatch.setattr(environment, "num_gpus", lambda: 0)
    (tmp_path / "layers.py").write_text(LAYERS)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def record(tmp_path, run_record, missing=(), inexact=(), changes=None, sources=None, fingerprint="abc"):
    """Record a run of three epochs without training; return its store."""
    known = read_environment() | {"root": str(tmp_path), "module": None}
    with Store.open(tmp_path / ".flor", create=True) as store:
        store.begin_run(
            run_record("aaa", script=str(tmp_path / "train.py"), environment=known | (changes or {}))
        )
        store.add_sources(
            "aaa", sources or {"train.py": PROGRAM.replace("tf.random", "keras.random"), "layers.py": ""}
        )
        store.begin_loop(LoopRecord("aaa", 0, "fit", None, 0, 3, 2, 1.0))
        store.finish_loop("aaa", 0, {"epoch": [0, 1, 2], "history": {}, "params": {}}, 2.0)
        for kind, epoch in (
            (Kind.START, 0),
            *((Kind.EPOCH_END, epoch) for epoch in range(3)),
            (Kind.AFTER, 2),
        ):
            position = Position(0, epoch, 0 if kind is Kind.START else 2)
            error = "disk full" if (kind, epoch) in missing else None
            row = CheckpointRecord(
                "aaa",
                0,
                epoch,
                position.step,
                kind,
                checkpoint_path("aaa", position, kind),
                0,
                0,
                0,
                1.0,
                error,
            )
            store.add_checkpoint(row)
            if error is None:
                folder = checkpoint_folder(store.path, "aaa", position, kind)
                folder.mkdir(parents=True)
                manifest = {
                    "format": FORMAT,
                    "tensors": {},
                    "inexact": list(inexact),
                    "fingerprint": fingerprint,
                }
                (folder / MANIFEST).write_text(seal(manifest))
    return tmp_path / ".flor"


def test_a_script_is_told_part_by_part_with_what_to_change(script, flor):
    status, captured = flor("doctor", "train.py")
    assert status == 3
    assert "random ops                     exact if flor.seed() is called  layers.py:5" in captured.out
    assert "change: call flor.seed() at the top of the program" in captured.out
    assert captured.out.endswith("train.py: 1 exact under a condition; the rest can be replayed exactly\n")


def test_a_script_that_does_what_it_is_told_is_exact(script, flor):
    script.write_text(PROGRAM + "flor.seed()\n")
    status, captured = flor("doctor", "train.py")
    assert status == 0
    assert captured.out.endswith("train.py: all parts can be replayed exactly\n")


def test_json_keeps_its_contract(script, flor):
    status, captured = flor("doctor", "train.py", "--json")
    described = json.loads(captured.out)
    assert (status, list(described), described["subject"]) == (3, ["subject", "parts"], "train.py")
    assert all(list(line) == ["part", "verdict", "where", "why", "change"] for line in described["parts"])
    assert [line["part"] for line in described["parts"]] == PARTS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.py"], "There is no file gone.py"),
        (["zzz"], "No store in"),
        ([], "Missing argument"),
        (["bad.py"], "bad.py:1"),
    ],
)
def test_wrong_use_ends_with_2(script, flor, words, message):
    script.with_name("bad.py").write_text("= 1")
    status, captured = flor("doctor", *words)
    assert (status, captured.out) == (2, "")
    assert message in captured.err


def test_modules_are_found_in_packages_and_beside_each_other(script, flor):
    package = script.parent / "nets"
    package.mkdir()
    (package / "__init__.py").write_text("from .noise import Noise\n")
    (package / "noise.py").write_text(LAYERS)
    script.write_text(PROGRAM.replace("from layers", "from nets"))
    _, captured = flor("doctor", "train.py")
    assert "nets/noise.py:5" in captured.out


def test_a_run_that_lacks_nothing_is_exact(script, flor, tmp_path, run_record):
    record(tmp_path, run_record)
    status, captured = flor("doctor", "latest")
    assert status == 0, captured.out
    assert "fingerprint is recorded" in captured.out


OWN_LOOP = """\
import tensorflow as tf
for epoch in range(3):
    with tf.GradientTape() as tape:
        loss = step(x)
    optimizer.apply(tape.gradient(loss, weights))
"""


@pytest.mark.parametrize("text", [OWN_LOOP, "import steps\nsteps.train()\n"])
def test_of_a_run_the_recorded_loops_count_whichever_way_they_were_found(
    script, flor, tmp_path, run_record, text
):
    record(tmp_path, run_record, sources={"train.py": text})
    status, captured = flor("doctor", "latest")
    assert status == 0, captured.out
    assert "flor-keras record" not in captured.out


def test_a_run_without_fingerprint_says_that_other_data_would_not_be_noticed(
    script, flor, tmp_path, run_record
):
    record(tmp_path, run_record, fingerprint=None)
    status, captured = flor("doctor", "aaa")
    assert status == 0
    assert "have no fingerprint" in captured.out


def test_the_recorded_source_is_judged_and_not_that_of_now(script, flor, tmp_path, run_record):
    record(tmp_path, run_record, sources={"train.py": PROGRAM, "layers.py": LAYERS})
    script.with_name("layers.py").write_text("")
    status, captured = flor("doctor", "latest")
    assert status == 3
    assert "layers.py:5" in captured.out


def test_a_failed_checkpoint_names_the_epoch_that_cannot_be_redone(script, flor, tmp_path, run_record):
    record(tmp_path, run_record, missing=[(Kind.EPOCH_END, 0), (Kind.EPOCH_END, 2)])
    status, captured = flor("doctor", "latest", "--json")
    weights = [line for line in json.loads(captured.out)["parts"] if line["part"] == "weights and slots"]
    assert status == 3
    assert [(line["verdict"], line["where"]) for line in weights] == [("not exact", "loop 0, epoch 1")]
    assert "disk full" in weights[0]["why"]


def test_a_damaged_checkpoint_counts_as_missing(script, flor, tmp_path, run_record):
    store = record(tmp_path, run_record)
    (checkpoint_folder(store, "aaa", Position(0, 1, 2), Kind.EPOCH_END) / MANIFEST).write_text("{")
    _, captured = flor("doctor", "latest")
    assert "loop 0, epoch 2" in captured.out
    assert "is damaged" in captured.out


def test_what_checkpoints_say_of_themselves_is_told_with_the_epochs_it_concerns(
    script, flor, tmp_path, run_record
):
    record(tmp_path, run_record, inexact=["Look.file was not kept", "the shuffle buffer is too large"])
    _, captured = flor("doctor", "latest", "--json")
    lines = {line["part"]: line for line in json.loads(captured.out)["parts"]}
    assert lines["callbacks"]["why"] == "recorded: Look.file was not kept"
    assert lines["data order"]["verdict"] == "not exact"
    assert lines["data order"]["where"] == "loop 0, epochs 0-2"


def test_what_differs_on_this_machine_is_told(script, flor, tmp_path, run_record, monkeypatch):
    now = read_environment()
    machine = now["machine"] | {"num_cpus": now["machine"]["num_cpus"] + 1}
    versions = now["versions"] | {"keras": "3.14.0"}
    record(tmp_path, run_record, changes={"machine": machine, "versions": versions, "variables": {}})
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    status, captured = flor("doctor", "latest")
    assert status == 3
    assert "recorded with keras 3.14.0" in captured.out
    assert "pip install keras==3.14.0" in captured.out
    assert "unset TF_ENABLE_ONEDNN_OPTS" in captured.out
    assert "divides its sums by threads" in captured.out


def test_environments_that_agree_have_no_differences():
    now = read_environment()
    assert differences(now, now) == []
    assert differences({}, now) == []
    assert differences(now | {"variables": now["variables"] | {"TF_CPP_MIN_LOG_LEVEL": "3"}}, now) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "vax"}, "recorded on vax"),
        ({"cpu_features": ["avx9000"]}, "without avx9000"),
        ({"num_gpus": 7}, "recorded with 7 GPUs"),
    ],
)
def test_a_difference_between_machines_is_a_sentence(change, words):
    now = read_environment()
    told = [
        difference.sentence for difference in differences(now | {"machine": now["machine"] | change}, now)
    ]
    assert len(told) == 1
    assert words in told[0]


def test_the_doctor_never_imports_tensorflow(script, tmp_path, run_record):
    record(tmp_path, run_record)
    code = (
        "import sys\nfrom flor_keras.cli import main\n"
        "main(['doctor', 'train.py']); main(['doctor', 'latest'])\n"
        "print('loaded:', {'tensorflow', 'keras', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded: set()"
