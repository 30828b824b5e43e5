"""The training data of a `fit` call, step by step."""

import keras
import numpy as np
import pytest

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_steps_and_iterators_of_fit_go_through_the_source(model, unhooked):
    class Source:
        num_created = num_steps = 0

        def create(self, make):
            self.num_created += 1
            return make()

        def steps(self, steps):
            for step in steps:
                self.num_steps += 1
                yield step

    class Arm(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            training.is_armed = True

    source = Source()
    with keras_internals.training_steps(source) as training:
        model.fit(np.zeros((8, 3)), np.zeros((8, 2)), batch_size=4, epochs=3, verbose=0, callbacks=[Arm()])
    assert source.num_steps == 6
    assert source.num_created == 6  # Keras makes one more at the end of each epoch
    assert training.adapter_kind == "array"
    assert training.counters["num_batches"] == 2


def test_a_shuffle_of_ours_that_fails_leaves_training_to_kerass_own(model, unhooked):
    class Source:
        def create(self, make):
            return make()

        def steps(self, steps):
            return steps

    def broken(indices):
        raise TypeError("ours")

    refused = []
    with keras_internals.training_steps(Source(), broken, lambda: refused.append(True)):
        history = model.fit(np.zeros((8, 3)), np.zeros((8, 2)), epochs=2, verbose=0)
    assert refused == [True]
    assert history.epoch == [0, 1]
