"""Training on several devices (`tf.distribute`): written once, restored and exported as on one, replayed bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from project import values

pytestmark = pytest.mark.slow

TRAIN = """
import sys
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras, numpy as np
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
x, y = np.random.rand(64, 6).astype("float32"), np.random.rand(64, 2).astype("float32")
np.savez("x.npz", x)
with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])

class Live(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        weight = float(self.model.layers[0].kernel[0, 0])
        live.append(weight)
    def on_epoch_end(self, epoch, logs=None):
        np.savez(f"live-{epoch}.npz", *self.model.get_weights(), self.model(x, training=False))

live = []
model.fit(x, y, epochs=3, batch_size=16, verbose=0, callbacks=[Live(), flor.FlorKeras()])
np.save("weights.npy", live)
"""
# On one device, in another process.
CHECK = """
import json
import flor_keras as flor, keras, numpy as np, tensorflow as tf
from keras import layers

def built():
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model

x = np.load("x.npz")["arr_0"]
def check(what, model):
    got = [*model.get_weights(), model(x, training=False)]
    if len(got) != len(live) or not all(map(np.array_equal, got, live)):
        problems.append(f"{what} of epoch {epoch}")

problems = []
ends = [at for at in flor.run().checkpoints if at.kind == "epoch_end"]
for checkpoint in ends:
    epoch = checkpoint.epoch
    with np.load(f"live-{epoch}.npz") as file:
        live = [file[name] for name in file.files]
    model = built()
    checkpoint.restore(model)
    check("restored", model)
    checkpoint.export(f"{epoch}.keras", "keras")
    check("keras", keras.models.load_model(f"{epoch}.keras"))
    model = built()
    checkpoint.export(f"{epoch}.weights.h5", "weights.h5")
    model.load_weights(f"{epoch}.weights.h5")
    check("weights.h5", model)
    model = built()
    checkpoint.export(f"checkpoint-{epoch}", "checkpoint")
    tf.train.Checkpoint(model=model).read(f"checkpoint-{epoch}/ckpt").assert_existing_objects_matched()
    check("checkpoint", model)
    checkpoint.export(f"saved-{epoch}")
    loaded = tf.saved_model.load(f"saved-{epoch}")
    if not np.array_equal(loaded.serve(x), live[-1]):
        problems.append(f"saved_model of epoch {epoch}")
json.dump([len(ends), problems, sorted(ends[-1].tensors())], open("found.json", "w"))
"""


def test_a_mirrored_model_is_written_once_and_restored_exported_and_replayed_bit_for_bit(project):
    ended = project.succeed(project.write("train.py", TRAIN))
    assert ended.stderr == ""
    project.succeed(project.write("check.py", CHECK))
    num_ends, problems, names = json.loads((project.folder / "found.json").read_text())
    assert num_ends == 3
    assert problems == []
    assert not any("replica" in name for name in names)
    # Metrics have a value of their own on each device, and nothing else has.
    assert {name.partition("@")[0] for name in names if "@" in name} == {
        f"model/{of}/{part}"
        for of in ("_loss_tracker", "_compile_metrics/_flat_metrics/metrics_list/metrics/mae")
        for part in ("count", "total")
    }
    line = "        live.append(weight)\n"
    project.write("train.py", TRAIN.replace(line, f"{line}        flor.log('weight', weight)\n"))
    project.replay("train.py", "weight")  # ends with status 3 where something is not exact
    assert values(project.latest(), "weight") == np.load(project.folder / "weights.npy").tolist()
