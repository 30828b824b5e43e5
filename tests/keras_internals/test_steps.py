"""The training data of a `fit` call, step by step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

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
    assert isinstance(training, keras_internals.TrainingSteps)
    assert source.num_steps == 6
    assert source.num_created == 6  # Keras makes one more at the end of each epoch
    assert training.adapter_kind == "array"
    assert training.counters["num_batches"] == training.num_steps == 2


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


class Building(keras.callbacks.Callback):
    """Has the variables of a training step made before the first one; keeps what there was before and after."""

    def create(self, make):
        return make()

    def steps(self, steps):
        self.before = [v.path for v in self.known()]
        self.training.build(self.model, ["a name"], lambda: [])
        self.after = [v.path for v in self.known()]
        self.traced = self.training.trace(self.model)
        return steps

    def known(self):
        return self.model.variables + self.model.optimizer.variables

    def on_train_begin(self, logs=None):
        self.training.is_armed = True


def built_before_training(model):
    building = Building()
    with keras_internals.training_steps(building) as building.training:
        model.fit(np.zeros((4, 3)), np.zeros((4, 2)), verbose=0, callbacks=[building])
    return building


def test_the_variables_of_a_training_step_are_made_without_one_and_under_its_names(model):
    building = built_before_training(model)
    assert len(building.before) < len(building.after)
    assert building.after == [v.path for v in building.known()]  # the step that followed made no more
    assert model.optimizer.iterations.numpy() == 1
    assert {id(v) for v in building.traced} >= {id(v.value) for v in model.trainable_variables}


def test_a_model_that_keras_cannot_build_has_a_step_traced():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.part = keras.layers.Dense(2)

        def train_step(self, batch):
            return {"loss": tf.reduce_sum(self.part(batch[0]))}

    model = Own()
    model.compile()
    building = built_before_training(model)
    assert not any("kernel" in path for path in building.before)
    assert any("kernel" in path for path in building.after)
