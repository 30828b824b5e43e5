"""Metrics computed from SavedModels equal those `fit` recorded, to the last bit, and join the run as hindsight."""

from __future__ import annotations

import json

import pytest
from project import Project, values

from flor_keras.errors import UsageError
from flor_keras.evaluation.metrics import metric
from flor_keras.records import Verdict
from flor_keras.store.database import Store

pytestmark = pytest.mark.slow

PROGRAM = """
import keras, numpy as np
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x, xv = rng.random((96, 6)).astype("float32"), rng.random((50, 6))
y, yv = rng.integers(0, 3, 96), rng.integers(0, 3, 50)
np.savez("val.npz", x=xv, y=yv)
np.savez("other.npz", x=xv[:20], y=yv[:20])
np.savetxt("val.csv", np.column_stack([xv, yv]), delimiter=",", header="a,b,c,d,e,f,kind", comments="", fmt="%.17g")
model = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, epochs=20, batch_size=16, validation_data=(xv, yv), verbose=0, callbacks=[flor.FlorKeras()])
"""


@pytest.fixture(scope="module")
def recorded(shared_project: Project) -> Project:
    """A project with a run of 20 epochs, and its validation data in files."""
    shared_project.succeed(shared_project.write("train.py", PROGRAM))
    (shared_project.folder / "train.py").unlink()
    shared_project.write(
        "data.py",
        "import numpy as np\nwith np.load('val.npz') as file:\n    dataset = file['x'], file['y']\n",
    )
    return shared_project


def evaluate(project: Project, *words: str) -> dict:
    """Run `flor-keras evaluate --json` and return its object."""
    ended = project.flor("evaluate", "latest", "--json", *words)
    assert ended.status == 0, ended.stderr
    return json.loads(ended.stdout)


def test_twenty_epochs_equal_the_recorded_validation_to_the_last_bit(recorded):
    found = evaluate(recorded, "--data", "val.npz", "--batch-size", "16")
    run = recorded.latest()
    assert [row["eval_val_loss"] for row in found["values"]] == values(run, "val_loss")
    assert [row["eval_val_accuracy"] for row in found["values"]] == values(run, "val_accuracy")
    assert set(found["equal_to_recorded"]) == {"accuracy", "loss"}
    with Store.open(recorded.store) as store:
        (replay,) = [replay for replay in store.replays(run.id) if replay.id == found["replay"]]
    assert (replay.level, replay.verdict) == ("evaluate", Verdict.EXACT)


@pytest.mark.parametrize("data", ["val.csv", "data.py:dataset"])
def test_the_same_data_from_another_file_give_the_same_numbers(recorded, data):
    found = evaluate(recorded, "--data", data, "--batch-size", "16", "--epochs", "0,7:9", "--prefix", "same_")
    assert [row["epoch"] for row in found["values"]] == [0, 7, 8]
    run = recorded.latest()
    recorded_loss = {entry.position.epoch: entry.value for entry in run.entries("val_loss", recorded=True)}
    assert [row["same_loss"] for row in found["values"]] == [recorded_loss[epoch] for epoch in (0, 7, 8)]


def test_metrics_that_were_never_compiled_join_the_run_under_the_name_of_the_data(recorded):
    expression = "keras.metrics.SparseTopKCategoricalAccuracy(k=2, name='top2')"
    found = evaluate(
        recorded,
        "--data",
        "other.npz",
        "--metric",
        expression,
        "--metric",
        "sparse_categorical_crossentropy",
        "--epochs",
        "3",
    )
    (row,) = found["values"]
    assert set(row) == {
        "loop",
        "epoch",
        "eval_other_loss",
        "eval_other_top2",
        "eval_other_sparse_categorical_crossentropy",
    }
    (entry,) = recorded.latest().entries("eval_other_top2", recorded=False)
    assert entry.position.epoch == 3
    assert entry.value == row["eval_other_top2"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--data", "missing.npz"], "There is no file"),
        (["--data", "val.npz", "--epochs", "20"], "has no checkpoint of epoch 20"),
        (["--data", "val.npz", "--epochs", "3", "--prefix", "val_"], "has recorded values under val_"),
        (["--data", "val.npz", "--metric", "__import__('os').system('true')"], "is not understood"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_computed(recorded, words, reason):
    ended = recorded.flor("evaluate", "latest", *words)
    assert ended.status == 2
    assert reason in ended.stderr


@pytest.mark.parametrize(
    "text",
    [
        "keras.utils.get_file('x', 'http://x')",
        "keras.metrics.Mean.__init__.__globals__",
        "keras.metrics.get('mean')",
        "keras.metrics.deserialize({})",
        "keras.metrics._anything()",
        "open('x')",
        "keras.metrics.AUC(**{})",
        "lambda: 1",
        "keras.metrics.NoSuch()",
        "1 +",
    ],
)
def test_an_expression_can_name_and_call_metrics_and_nothing_else(text):
    with pytest.raises(UsageError, match="is not understood"):
        metric(text)


def test_an_expression_makes_the_metric_it_says():
    assert metric("accuracy") == "accuracy"
    made = metric("keras.metrics.AUC(num_thresholds=50, curve='PR')")
    assert (made.num_thresholds, type(made).__name__) == (50, "AUC")
