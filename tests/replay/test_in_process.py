"""Replaying in the process that asks: `fit` goes through the record, and what callbacks log joins the run."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

TRAINED = """
import keras
import numpy as np
import flor_keras as flor
from flor_keras import probes
from flor_keras.store.database import Store

keras.utils.set_random_seed(3)
x = np.random.rand(96, 5).astype("float32")
y = x.sum(axis=1, keepdims=True)

class Norm(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("norm", float(np.linalg.norm(self.model.layers[0].kernel)))

class Batches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        flor.log("batch_loss", float(logs["loss"]))

def build():
    model = keras.Sequential(
        [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model

def train(model, *callbacks):
    data = {"validation_data": (x[:32], y[:32])}
    return model.fit(x, y, epochs=4, verbose=0, callbacks=[*callbacks, keras.callbacks.CSVLogger("log.csv")], **data)

model = build()
live = Norm(), Batches()
history = train(model, *live, flor.FlorKeras(name="twin", checkpoint_every="epoch"))
"""

REPLAYED = """
twin = flor.run("twin")  # at once: nothing logged so far is missing
assert len(twin.dataframe("norm")) == 4
expected = {name: [e.value.hex() for e in twin.entries(name)] for name in ("norm", "batch_loss")}
weights = [w.tobytes() for w in model.get_weights()]
csv = open("log.csv").read()

def values(run, name):
    return [e.value.hex() for e in flor.run(run).entries(name, recorded=False)]

# What is new is kept, in a model that has no weights yet; the run of this process is still open.
fresh = build()
with flor.replaying("twin") as nothing:
    again = train(fresh, Norm())
assert (nothing.names, nothing.verdict) == ([], "exact"), nothing
assert again.history == history.history
assert [w.tobytes() for w in fresh.get_weights()] == weights
assert nothing.held_back == ["CSVLogger"]
assert open("log.csv").read() == csv

with flor.replaying("twin", "norm", "batch_loss", level="step", epochs="1:3") as replay:
    train(build(), Norm(), Batches(), flor.FlorKeras())
assert replay.verdict == "exact", replay.causes
assert values("twin", "norm") == expected["norm"][1:3]
assert values("twin", "batch_loss") == expected["batch_loss"][3:9]
assert list(replay.dataframe()) == ["run", "loop", "epoch", "step", "norm", "batch_loss"]

class New(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("largest", float(np.max(self.model.layers[0].kernel)))

with flor.replaying("twin", epochs="::2") as replay:
    fresh.fit(x, y, epochs=4, verbose=0, validation_data=(x[:32], y[:32]), callbacks=[New()])
assert replay.names == ["largest"] and len(replay.dataframe()) == 2
fresh.compile("adam", "mse", metrics=["mae"])
with flor.replaying("twin", level="eval") as replay:
    train(fresh)
assert replay.names == ["val_mae"], replay.names  # of the training steps there are no new metrics
with flor.replaying("twin"):
    other = fresh.fit(x + 1, y, epochs=4, verbose=0, validation_data=(x[:32], y[:32]), callbacks=[New()])
assert flor.run("twin").entries("largest", recorded=False)
with Store.open(twin.store) as store:
    rows = [(row.level, row.names, row.status, row.verdict.value) for row in store.replays(twin.id)]
assert rows[1] == ("step", ["norm", "batch_loss"], "finished", "exact"), rows
assert rows[-1] == ("epoch", ["largest"], "finished", "approximate"), rows

frame = flor.replay("twin", fresh, probes.weight_norm, epochs="-1")
assert frame.to_dict("list") == {"loop": [0], "epoch": [3], "weight_norm": [probes.weight_norm(model)]}
assert flor.replay(flor.run("twin"), fresh, probes.weight_norm).equals(
    flor.run("twin").replay(fresh, probes.weight_norm)
)

def refused(message, body=lambda: train(fresh), **asked):
    try:
        with flor.replaying(asked.pop("run", "twin"), *asked.pop("names", ()), **asked):
            body()
    except flor.UsageError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)

def nested():
    with flor.replaying("twin"):
        pass

refused("No run 'nobody'", run="nobody")
refused("expected one of epoch, eval, step", level="setup")
refused('Give level="step" with it', steps="0:2")
refused("has no epoch 9", epochs="9")
refused("has those of the ends of epochs 0-3", level="step", epochs="0")
refused("this fit would be loop 1", lambda: (train(fresh), train(fresh)))
refused("the loop 'epoch' is none", lambda: list(flor.loop("epoch", range(2))))
refused("No fit was called", lambda: None)
refused("Nothing was logged under absent at the level epoch", names=("absent",))
refused("under way in this process already", nested)

# Afterwards this process records again, and new loops follow the old ones.
later = train(build(), flor.FlorKeras(checkpoint_every="epoch"))
run = flor.run("twin")
assert [loop.loop for loop in run.loops] == [0, 1]
assert run.id == flor.run("latest").id
with flor.replaying("twin", loop=1) as replay:
    assert train(build()).history == later.history
assert replay.verdict == "exact"
print("done")
"""


def test_fit_goes_through_the_record_in_the_same_process(project):
    ended = project.succeed(project.write("train.py", TRAINED, REPLAYED))
    assert ended.stdout == "done\n"
    assert ended.stderr == ""


def test_a_run_that_was_killed_is_replayed_as_far_as_it_came(project):
    project.write("train.py", TRAINED.replace("live = Norm(), Batches()", "live = (Killed(),)"))
    killed = """
import os, signal, time
class Killed(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            time.sleep(2)
            os.kill(os.getpid(), signal.SIGKILL)

def build"""
    text = (project.folder / "train.py").read_text().replace("\ndef build", killed, 1)
    project.write("train.py", text)
    assert project.run("train.py").status == -9
    again = (
        text.partition("model = build()")[0]
        + """
with flor.replaying("twin") as replay:
    train(build(), Norm())
    print("not reached: there is no state after the loop")
print(replay.dataframe()["epoch"].tolist(), replay.verdict.value)
"""
    )
    ended = project.succeed(project.write("again.py", again))
    assert ended.stdout == "[0, 1] exact\n"
