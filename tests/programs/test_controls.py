"""The matrix would notice: whatever piece of state is lost from a checkpoint, the replay that starts from it is not exact."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from matrix import EXACT, Trial
from zoo import Case

pytestmark = pytest.mark.slow

TAMPER = Path(__file__).with_name("tamper.py")
PIECES = [
    "seeds",
    "slots",
    "statistics",
    "weights",
    "steps",
    "learning rate",
    "callbacks",
    "data order",
    "random states",
]
EPOCH = 2


@pytest.fixture(scope="module")
def trial(shared_project):
    case = Case("arrays", "sublayers in containers", "adam", ("plateau", "counter", "weights"), seed="numpy")
    trial = Trial(shared_project, case)
    trial.record()
    return trial


@pytest.fixture
def checkpoint(trial):
    """The folder of the checkpoint an epoch is redone from; as it was again after the test."""
    folder = next(
        c.path
        for c in trial.recorded("whole").checkpoints
        if (c.epoch, c.kind.value) == (EPOCH - 1, "epoch_end")
    )
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


def test_nothing_lost_is_exact(trial, checkpoint):
    trial.project.succeed(TAMPER, checkpoint, "nothing", env=trial.variables("whole"))
    assert trial.replayed("whole", EPOCH) == (EXACT, [])


@pytest.mark.parametrize("piece", PIECES)
def test_a_lost_piece_of_state_is_noticed(trial, checkpoint, piece):
    trial.project.succeed(TAMPER, checkpoint, piece, env=trial.variables("whole"))
    outcome, _ = trial.replayed("whole", EPOCH)
    assert outcome.startswith("approximate"), outcome
