"""TensorFlow, Keras and h5py under the guard: one process runs every check, see `guarded_program`."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("guarded_program.py")
CHECKS = [check.__name__ for check in runpy.run_path(str(PROGRAM), run_name="guarded_program")["CHECKS"]]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home").resolve()
    with h5py.File(folder / "input.h5", "w") as file:
        file["x"] = [1]
    return folder


@pytest.fixture(scope="module")
def outcome(home, tmp_path_factory):
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    run = subprocess.run(
        [sys.executable, PROGRAM, home, tmp_path_factory.mktemp("scratch")],
        capture_output=True,
        text=True,
        env={**os.environ, **quiet, "PYTHONPATH": paths},
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_the_guard_does_not_import_tensorflow(outcome):
    assert not outcome["early"]


@pytest.mark.parametrize("check", CHECKS)
def test_the_program_works_without_a_guard(outcome, check):
    assert outcome["free"].get(check) is None, outcome["free"][check]


@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize("check", CHECKS)
def test_the_program_reads_back_what_it_wrote(outcome, which, check):
    failures = outcome[which]["failures"]
    assert failures.get(check) is None, failures[check]


@pytest.mark.parametrize("which", ["first", "second"])
def test_no_file_of_the_user_is_touched(outcome, which):
    assert outcome[which]["touched"] == []


@pytest.mark.parametrize("which", ["first", "second"])
def test_what_was_diverted_is_listed_and_nothing_was_refused(outcome, which, home):
    diverted = {os.path.relpath(path, home) for path in outcome[which]["diverted"]}
    assert diverted >= {
        "final.keras",
        "log.txt",
        "input.txt",
        "rows.csv",
        "renamed.csv",
        "history.csv",
        "a.h5",
    }
    assert diverted >= {"dump", "summaries", "op/d.txt", "part-0.tfrecord", "gfile_deletes.txt"}
    assert outcome[which]["refused"] == []
