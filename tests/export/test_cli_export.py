"""`flor-keras export`: which epoch, under which name, and the numbers of that epoch (case C13: one index everywhere)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project import Project, values

from flor_keras.cli.export import choose, parse_epochs
from flor_keras.errors import UsageError
from flor_keras.records import Kind

pytestmark = pytest.mark.slow

PROGRAM = """
import keras, numpy as np
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x, xv = rng.random((64, 6), np.float32), rng.random((40, 6), np.float32)
y, yv = x.sum(1, keepdims=True), xv.sum(1, keepdims=True)
np.savez("val.npz", x=xv, y=yv)
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
model.fit(x, y, epochs=5, batch_size=8, validation_data=(xv, yv), verbose=0, callbacks=[flor.FlorKeras()])
"""
CHECK = """
import json, os, sys
import keras, numpy as np, tensorflow as tf
with np.load("val.npz") as file:
    x, y = file["x"], file["y"]
model = keras.models.load_model("best.keras")
found = {"evaluate": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)["loss"], "iterations": int(model.optimizer.iterations)}
before = model.get_weights()
model.fit(x, y, verbose=0)
found["trains_on"] = any((a != b).any() for a, b in zip(before, model.get_weights()))
for version in sorted(os.listdir("serving")):
    loaded = tf.saved_model.load(f"serving/{version}")
    signature = loaded.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    (output,) = signature(**{name: tf.constant(x)}).values()
    found[version] = [name, float(np.mean((output.numpy() - y) ** 2))]
assert "flor_keras" not in sys.modules
json.dump(found, open("found.json", "w"))
"""


@pytest.fixture(scope="module")
def recorded(shared_project: Project) -> Project:
    """A project with a run of five epochs whose program is gone."""
    shared_project.succeed(shared_project.write("train.py", PROGRAM))
    (shared_project.folder / "train.py").unlink()
    return shared_project


def exported(project: Project, *words: str) -> list[dict]:
    """Run `flor-keras export --json` and return its rows."""
    ended = project.flor("export", "latest", "--json", *words)
    assert ended.status == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_best_epoch_gives_its_val_loss_and_several_epochs_are_versions(recorded):
    losses = values(recorded.latest(), "val_loss")
    best = losses.index(min(losses))
    (row,) = exported(recorded, "best.keras", "--best", "val_loss", "--format", "keras")
    assert row["epoch"] == best
    rows = exported(recorded, "serving", "--epoch", "0,3:5")
    assert [(row["epoch"], Path(row["path"]).name) for row in rows] == [(0, "1"), (3, "2"), (4, "3")]
    recorded.succeed(recorded.write("check.py", CHECK))
    found = json.loads((recorded.folder / "found.json").read_text())
    assert found["evaluate"] == losses[best]
    assert found["iterations"] == 8 * (best + 1)
    assert found["trains_on"]
    for epoch, version in ((0, "1"), (3, "2"), (4, "3")):
        assert found[version] == ["keras_tensor", pytest.approx(losses[epoch], rel=1e-5)] or found[version][
            1
        ] == pytest.approx(losses[epoch], rel=1e-5)
    again = recorded.flor("export", "latest", "best.keras", "--best", "val_loss", "--format", "keras")
    assert again.status == 2
    assert "--overwrite" in again.stderr
    assert (
        recorded.flor(
            "export", "latest", "best.keras", "--epoch", "0", "--format", "keras", "--overwrite"
        ).status
        == 0
    )


def end_epochs(project: Project, **words) -> list[int]:
    """Return the epochs that are chosen."""
    given = {"loop": None, "epochs": None, "best": None} | words
    return [at.epoch for at in choose(project.latest(), **given)]


def test_without_an_epoch_the_last_is_chosen_and_best_follows_the_recorded_values(recorded):
    losses, errors = (values(recorded.latest(), name) for name in ("val_loss", "mae"))
    assert end_epochs(recorded) == [4]
    assert end_epochs(recorded, best="val_loss") == [losses.index(min(losses))]
    assert end_epochs(recorded, best="val_loss:max") == [losses.index(max(losses))]
    assert end_epochs(recorded, best="mae:min") == [errors.index(min(errors))]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"epochs": "5"}, "no checkpoint of epoch 5; epochs count from 0, and it has 0-4"),
        ({"epochs": "x"}, "is no epoch"),
        ({"epochs": "7:9"}, "means no recorded epoch"),
        ({"best": "nothing"}, "Nothing is logged under"),
        ({"best": "loss", "epochs": "1"}, "Give one of them"),
        ({"loop": 3}, "no checkpoint of the end of an epoch in loop 3"),
    ],
)
def test_an_epoch_that_is_not_there_is_refused_with_those_that_are(recorded, words, reason):
    with pytest.raises(UsageError, match=reason):
        end_epochs(recorded, **words)


def test_ranges_mean_what_python_means_by_them():
    assert parse_epochs("0,3:5", [0, 1, 2, 3, 4, 5]) == [0, 3, 4]
    assert parse_epochs(":", [2, 4]) == [2, 4]
    assert parse_epochs("3:", [0, 3, 6]) == [3, 6]


def test_the_end_of_a_loop_is_exported_too(recorded, tmp_path):
    after = next(at for at in recorded.latest().checkpoints if at.kind is Kind.AFTER)
    after.export(tmp_path / "after.weights.h5", "weights.h5")
    assert (tmp_path / "after.weights.h5").is_file()
