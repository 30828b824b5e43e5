"""Loops whose epochs have no checkpoint at their end: what is made again is compared with the next state there is, or said not to be."""

from __future__ import annotations

import pytest
from project import values

pytestmark = pytest.mark.slow

SPARSE = {"FLOR_CHECKPOINT_EVERY": "auto"}  # in a loop as short as these: its beginning and its end
LOOP = """
import numpy as np
import tensorflow as tf
import keras
import flor_keras as flor

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices(np.ones((32, 4), "float32")).batch(8)

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x + NOISE) - 1.0))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss

@flor.record
def train():
    for epoch in range(4):
        for x in data:
            loss = train_step(x)
            print("A STEP")
            #STEP
        #END

train()
"""
PLAIN = LOOP.replace("NOISE", "0.5")
NOISY = LOOP.replace("NOISE", "tf.random.normal(tf.shape(x))")
STEP, END = 'flor.log("hind", loss)', 'flor.log("hind", float(tf.reduce_sum(model.weights[0])))'


def recorded(project, program, env=SPARSE):
    project.succeed(project.write("train.py", program), env=env)


def replayed(project, program, line, *words, status=0):
    project.write("train.py", program.replace("#STEP" if line is STEP else "#END", line))
    return project.replay("train.py", "hind", *words, status=status)


def test_epochs_made_again_to_the_end_are_compared_with_the_state_after_the_loop(project):
    recorded(project, PLAIN)
    assert [c.kind for c in project.latest().checkpoints] == ["start", "after"]
    for line, words in ((END, ()), (STEP, ("--epochs", "3")), (STEP, ())):
        assert replayed(project, PLAIN, line, *words)["verified"] == "exact"


def test_random_numbers_that_cannot_be_had_again_make_them_approximate(project):
    recorded(project, NOISY.replace("keras.utils.set_random_seed(1)", ""))
    report = replayed(project, NOISY.replace("keras.utils.set_random_seed(1)", ""), END, status=3)
    assert report["verified"] == "approximate"
    assert any("RandomStandardNormal" in cause for cause in report["causes"])


def test_epochs_that_nothing_recorded_comes_after_are_said_to_be_unchecked(project):
    recorded(project, PLAIN)
    report = replayed(project, PLAIN, END, "--epochs", "1", status=3)
    assert report["verified"] == "unchecked"
    told = project.flor("replay", "train.py", "hind", "--epochs", "1", "--yes").stdout
    assert "epoch 1 of loop 0 was made again, and nothing was recorded there or after to compare with" in told


def test_what_was_logged_in_an_epoch_checks_it(project):
    logging = PLAIN.replace("#STEP", 'flor.log("loss", loss); #STEP')
    recorded(project, logging)
    assert replayed(project, logging, END, "--epochs", "1")["verified"] == "exact"


def test_no_step_is_made_where_every_end_has_its_checkpoint(project):
    """The new line reads a module and a built-in function, which the training uses too."""
    hands_free = PLAIN.replace("@flor.record\ndef train():\n    for", "if True:\n    for").replace(
        "\ntrain()", "\nprint(tf.__version__, float(1).hex())"
    )
    project.write("train.py", hands_free.replace("import flor_keras as flor", ""))
    recording = project.flor("record", "train.py", env={"FLOR_CHECKPOINT_EVERY": "epoch"})
    assert recording.status == 0, recording.stderr
    assert replayed(project, hands_free, END)["verified"] == "exact"
    (output,) = project.store.glob("runs/*/replays/1/output.log")
    assert "A STEP" not in output.read_text()


FIT = """
import numpy as np
import tensorflow as tf
import keras
import flor_keras as flor

class Noisy(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x))

class Logged(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        flor.log("batch_loss", logs["loss"])
        #STEP

model = keras.Sequential([keras.Input((4,)), Noisy(), keras.layers.Dense(3)])
model.compile("sgd", "mse")
model.fit(np.ones((32, 4)), np.ones((32, 3)), batch_size=8, epochs=3, verbose=0, callbacks=[Logged(), flor.FlorKeras()])
"""


def test_the_cause_is_named_where_only_logged_numbers_differ(project):
    recorded(project, FIT)
    project.write("train.py", FIT.replace("#STEP", 'flor.log("hind", logs["loss"] * 2)'))
    report = project.replay("train.py", "hind", "--epochs", "1", status=3)
    assert report["verified"] == "approximate"
    assert any("RandomStandardNormal" in cause for cause in report["causes"])
    assert values(project.latest(), "hind")
