"""Finding the first bad step without visiting every epoch."""

import json

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
    import flor_keras as flor
    import keras
    import numpy as np

    keras.utils.set_random_seed(2)
    x = np.random.rand(80, 4).astype("float32")
    y = x.sum(1, keepdims=True)

    class Poison(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.epoch = -1
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch) == (33, 3):
                kernel = np.array(self.model.layers[0].kernel)
                kernel[0, 0] = np.nan
                self.model.layers[0].kernel.assign(kernel)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=16, epochs=50, verbose=0, callbacks=[Poison(), flor.FlorKeras()])
"""


def test_the_first_step_with_nan_of_fifty_epochs_is_found_with_ten_visits(project):
    project.write("train.py", PROGRAM)
    project.succeed("train.py")
    words = ("replay", "train.py", "--probe", "num_not_finite", "--json")
    ended = project.flor(*words, "--bisect", "num_not_finite > 0")
    assert ended.status == 0, ended.stderr + ended.stdout
    found = json.loads(ended.stdout)
    assert (found["epoch"], found["step"], found["values"]) == (33, 3, {"num_not_finite": 1})
    assert found["num_visits"] <= 10
    never = json.loads(project.flor(*words, "--bisect", "num_not_finite > 1000").stdout)
    assert (never["epoch"], never["num_visits"]) == (None, 1)
    refused = project.flor(*words, "--bisect", "unknown > 0")
    assert refused.status == 2
    assert "It may use num_not_finite" in refused.stderr
