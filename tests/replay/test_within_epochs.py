"""Epochs without a checkpoint at their end, and checkpoints inside of epochs: replayed and resumed to the last bit."""

import json
import signal

import pytest
from project import values

from flor_keras.records import Kind
from flor_keras.store.database import Store

LOOPS = """
import os, signal, sys, time
import keras, numpy as np, tensorflow as tf
import flor_keras as flor

if "seeded" in sys.argv:
    flor.seed(3)
rng = np.random.default_rng(0)
x = rng.random((96, 8), "float32")
y = x.sum(1, keepdims=True)


class Sequence(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.rng, self.order = np.random.default_rng(5), np.arange(96)

    def __len__(self):
        return 12

    def __getitem__(self, at):
        chosen = self.order[at * 8 : at * 8 + 8]
        return x[chosen] + self.rng.normal(size=(8, 8)).astype("float32"), y[chosen]

    def on_epoch_begin(self):
        self.rng.shuffle(self.order)


def endless():
    own = np.random.default_rng(7)
    while True:
        chosen = own.integers(0, 96, 8)
        yield x[chosen], y[chosen]


def batches():
    for at in range(12):
        yield x[at * 8 : at * 8 + 8], y[at * 8 : at * 8 + 8]


sliced = tf.data.Dataset.from_tensor_slices((x, y))
signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
KINDS = {
    "array": ((x, y), {"batch_size": 8}),
    "dataset": ((sliced.shuffle(96).batch(8).prefetch(2),), {}),
    "repeated": ((sliced.shuffle(96, seed=1).repeat().batch(8),), {"steps_per_epoch": 12}),
    "pydataset": ((Sequence(),), {}),
    "generator": ((endless(),), {"steps_per_epoch": 12}),
    "of unknown length": ((tf.data.Dataset.from_generator(batches, output_signature=signature),), {}),
    "several at once": ((x, y), {"batch_size": 8}),
}


class Own(keras.callbacks.Callback):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.count, self.seen = kind, 0, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        flor.log("begun", [epoch, self.count])

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        self.seen.append(batch)
        flor.log("count", self.count)
        flor.log("step_loss", logs["loss"])
        #STEP
        if sys.argv[-1] == f"{self.kind}/{self.epoch}/{batch}":
            from flor_keras import session
            session.current().checkpoints.finish()
            time.sleep(1)  # the journal writes rows four times a second
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch, logs=None):
        flor.log("steps", self.count)
        #END


for kind, (data, options) in KINDS.items():
    model = keras.Sequential(
        [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    )
    model.compile(
        keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=2 if kind == "several at once" else 1
    )
    history = model.fit(
        *data, epochs=3, verbose=0, callbacks=[Own(kind), flor.FlorKeras()], validation_data=(x[:8], y[:8]), **options
    )
    flor.log("history", history.history)
    flor.log("weights", float(sum(np.abs(w).sum(dtype="float64") for w in model.get_weights())))
"""
KINDS = 7
EVERY_FIVE = {"FLOR_CHECKPOINT_EVERY": "steps=5"}
WEIGHTS = "float(np.abs(self.model.get_weights()[0]).sum())"


@pytest.fixture(scope="module")
def recorded(shared_project):
    script = shared_project.write("train.py", LOOPS)
    shared_project.succeed(script, env=EVERY_FIVE)
    return shared_project, script


def test_checkpoints_fall_between_steps_where_that_was_asked_for(recorded):
    project, _ = recorded
    of_kind = [
        [(c.epoch, c.step) for c in project.latest().checkpoints if c.loop == loop and c.kind is Kind.STEP]
        for loop in range(KINDS)
    ]
    assert of_kind[0] == [(0, 5), (0, 10), (1, 3), (1, 8), (2, 1), (2, 6), (2, 11)]
    assert of_kind[6] == [(0, 6), (0, 10), (1, 4), (1, 8), (2, 2), (2, 6)]
    assert all(places == of_kind[0] for places in of_kind[:5])
    ends = [c.epoch for c in project.latest().checkpoints if c.kind is Kind.EPOCH_END]
    assert ends == [2] * KINDS


def test_a_window_of_steps_is_replayed_from_the_nearest_checkpoint_for_every_kind_of_data(recorded):
    project, script = recorded
    program = script.read_text()
    script.write_text(
        program.replace("#STEP", f"flor.log('w', {WEIGHTS}); flor.log('seen', list(self.seen))")
    )
    found = project.replay(script, "w", "seen", "--epochs", "1", "--steps", "9:11", "--workers", "1")
    script.write_text(program)
    assert (found["verified"], found["causes"]) == ("exact", [])
    seen = {(v["loop"], v["step"]): v["seen"] for v in found["values"] if v["seen"] is not None}
    assert len(seen) == 2 * KINDS - 1  # two steps at once have one hook
    recorded_before = list(range(12)) + list(range(8))
    assert seen[0, 10] == [*recorded_before, 8, 9, 10], (
        "what the callback remembers is that of the checkpoint"
    )


def test_epochs_without_a_checkpoint_at_their_end_are_redone_for_every_kind_of_data(recorded):
    project, script = recorded
    program = script.read_text()
    script.write_text(program.replace("#END", f"flor.log('norm', {WEIGHTS})"))
    plan = project.flor("replay", script, "norm", "--dry-run").stdout
    assert "the steps of epochs 0-1 of loop 0" in plan
    found = project.replay(script, "norm", "--workers", "2")
    script.write_text(program)
    assert (found["verified"], found["causes"]) == ("exact", [])
    assert len(found["values"]) == 3 * KINDS


def test_a_run_killed_inside_an_epoch_goes_on_there_and_ends_as_if_it_had_not_been(shared_project):
    project = shared_project
    script = project.write("seeded.py", LOOPS)
    project.succeed(script, "seeded", env=EVERY_FIVE)
    whole = project.latest()
    for kill_at in ("array/1/10", "pydataset/2/7", "of unknown length/1/4", "several at once/2/9"):
        ended = project.run(script, "seeded", kill_at, env=EVERY_FIVE)
        assert ended.status == -signal.SIGKILL, ended.stderr
        run = project.latest().id
        assert project.flor("resume", run, "--", "seeded", env=EVERY_FIVE).status == 0
        resumed = project.latest(run)
        with Store.open(project.store) as store:
            assert any("of epoch" in event.message and "step" in event.message for event in store.events(run))
        for name in ("history", "weights", "count", "step_loss", "begun", "steps", "loss", "val_mae"):
            assert values(resumed, name) == values(whole, name), (kill_at, name)
            positions = [entry.position for entry in resumed.entries(name)]
            assert positions == [entry.position for entry in whole.entries(name)], (kill_at, name)


ONE_EPOCH = """
import itertools, time
import keras, numpy as np
import flor_keras as flor

x = np.random.default_rng(0).random((800, 8), "float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile("adam", "mse")
made = itertools.count(1)  # no list: what callbacks keep in one is put back


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        num_made = next(made)
        if num_made == batch + 1:
            time.sleep(0.03)  # the schedule goes by time: an epoch that is long for so small a state
        flor.log("step_loss", logs["loss"])
        #STEP


model.fit(x, x.sum(1), batch_size=4, verbose=0, callbacks=[Slow(), flor.FlorKeras(overhead=0.5)])
"""


def test_a_single_long_epoch_is_checkpointed_all_along_and_its_last_tenth_replayed_from_nearby(project):
    script = project.write("train.py", ONE_EPOCH)
    project.succeed(script, env={"FLOR_CHECKPOINT_EVERY": ""})
    within = [c.step for c in project.latest().checkpoints if c.kind is Kind.STEP]
    assert len(within) >= 10
    assert (within[0] <= 100, within[-1] >= 170) == (True, True)
    script.write_text(ONE_EPOCH.replace("#STEP", "flor.log('made', num_made)"))
    found = project.replay(script, "made", "--steps", "185:195")
    assert found["verified"] == "exact"
    assert len(found["values"]) == 10
    assert found["values"][-1]["made"] < 40
    shown = project.flor("show").stdout
    assert "recording" in shown
    assert "of training" in shown


OWN_LOOP = """
import keras, numpy as np, tensorflow as tf
import flor_keras as flor

x = np.random.default_rng(0).random((96, 8), "float32")
batches = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).shuffle(96).batch(8)


@flor.record(checkpoint_every=3)
def train():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    for epoch in range(7):
        for inputs, targets in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            flor.log("step_loss", float(loss))
        flor.log("loss", float(loss))
        #END


train()
"""


def test_a_loop_of_the_programs_own_is_checkpointed_as_asked_and_redone_in_the_order_it_had(project):
    script = project.write("train.py", OWN_LOOP)
    project.succeed(script, env={"FLOR_CHECKPOINT_EVERY": ""})
    assert [c.epoch for c in project.latest().checkpoints if c.kind is Kind.EPOCH_END] == [2, 5]
    script.write_text(OWN_LOOP.replace("#END", f"flor.log('norm', {WEIGHTS.replace('self.', '')})"))
    found = project.replay(script, "norm", "--epochs", "1,4,6")
    assert (found["verified"], len(found["values"])) == ("exact", 3)
    assert "5 passed by: checkpoint_every=3" in project.flor("show").stdout


GROWING = """
import keras, numpy as np
import flor_keras as flor

x = np.random.default_rng(0).random((64, 8), "float32")
body = keras.layers.Dense(64, activation="relu")
model = keras.Sequential([body, keras.layers.Dense(1)])


class Unfreeze(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 40:
            self.model.metrics_seen = [keras.metrics.Mean(name="late") for _ in range(3)]
            self.model.extra = keras.Variable(np.arange(50_000, dtype="float32"), name="extra")


model.compile("adam", "mse")
data = (x.repeat(10, 0), x.repeat(10, 0).sum(1))
model.fit(*data, batch_size=8, epochs=1, verbose=0, callbacks=[Unfreeze(), flor.FlorKeras(checkpoint_every={"steps": 20})])
"""


def test_a_state_that_grows_in_the_middle_of_training_is_followed(project):
    script = project.write("train.py", GROWING)
    project.succeed(script, env={"FLOR_CHECKPOINT_EVERY": ""})
    sizes = {
        c.step: sum(array.nbytes for array in c.tensors().values())
        for c in project.latest().checkpoints
        if c.kind is Kind.STEP
    }
    assert list(sizes) == [20, 40, 60]
    assert sizes[60] - sizes[20] >= 200_000
    refused = project.run(script, env={"FLOR_CHECKPOINT_EVERY": "often"})
    assert refused.status == 1
    assert "FLOR_CHECKPOINT_EVERY is 'often'; expected" in refused.stderr
    assert len(project.latest().checkpoints) == len(sizes) + 3


VALIDATED = """
import keras, numpy as np
import flor_keras as flor

keras.utils.set_random_seed(1)
x = np.random.rand(64, 4).astype("float32")
y = (x.sum(1) > 2).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1, activation="sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

class Look(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("loss again", logs["loss"])  # NEW
        flor.log("bias", float(model.layers[-1].bias[0]))

split = {"batch_size": 8, "validation_data": (x[::2], y[::2]), "verbose": 0}
model.fit(x, y, epochs=5, callbacks=[Look(), flor.FlorKeras()], **split)
"""


def test_restored_epochs_between_redone_ones_are_not_judged_by_what_validation_left_in_the_metrics(project):
    lines = VALIDATED.splitlines(keepends=True)
    script = project.write("train.py", "".join(line for line in lines if "# NEW" not in line))
    project.succeed(script, env={"FLOR_CHECKPOINT_EVERY": "2"})
    project.write("train.py", VALIDATED)
    ended = project.flor("replay", script, "loss again", "--json")
    assert ended.status == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["verified"] == "exact" and len(report["values"]) == 5
    assert values(project.latest(), "loss again") == values(project.latest(), "loss")
