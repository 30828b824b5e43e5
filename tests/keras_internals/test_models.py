"""How a model is trained: its step, its optimizer, which of its layers."""

import keras
import numpy as np
import pytest

from flor_keras import keras_internals

pytestmark = pytest.mark.slow

X, Y = np.ones((4, 3), "float32"), np.zeros((4, 2), "float32")


def test_a_training_step_of_the_programs_own_is_known(model):
    class Own(keras.Model):
        def train_step(self, data):
            return {}

    assert not keras_internals.has_own_train_step(model)
    assert keras_internals.has_own_train_step(Own())


def test_an_optimizer_has_the_slots_of_a_training_step_under_their_names(model):
    model.fit(X, Y, verbose=0)
    built = keras.optimizers.Adam(name=model.optimizer.name)
    keras_internals.build_optimizer(built, model.trainable_variables)
    assert [v.path for v in built.variables] == [v.path for v in model.optimizer.variables]


def test_an_optimizer_made_anew_has_the_same_variables_as_first_created(model):
    model.compile(keras.optimizers.Adagrad(0.5, initial_accumulator_value=0.25, use_ema=True), "mse")
    model.fit(X, Y, verbose=0)
    anew = keras_internals.made_anew(model.optimizer)
    assert [v.shape for v in anew.variables] == [v.shape for v in model.optimizer.variables]
    assert anew.iterations.numpy() == 0
    accumulators = [v.numpy() for v in anew.variables if "accumulator" in v.path]
    assert [set(values.ravel().tolist()) for values in accumulators] == [{0.25}, {0.25}]


def test_a_frozen_layer_is_frozen_again_in_a_step_that_is_compiled_already():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    kernel = model.layers[0].kernel

    def is_trained():
        before = kernel.numpy()
        model.fit(X, Y, verbose=0)
        return not np.array_equal(kernel.numpy(), before)

    trained = keras_internals.trainable_flags(model)
    assert is_trained()
    model.layers[0].trainable = False
    frozen = keras_internals.trainable_flags(model)
    model.layers[0].trainable = True
    keras_internals.set_trainable_flags(model, frozen)
    assert not is_trained()
    keras_internals.set_trainable_flags(model, trained)
    assert is_trained()


def test_the_layer_of_inputs_a_built_model_gets_is_none_that_is_trained():
    deferred = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    before, flags = keras_internals.trained_layers(deferred), keras_internals.trainable_flags(deferred)
    deferred.build((None, 3))
    assert keras_internals.trained_layers(deferred) == before
    assert keras_internals.trainable_flags(deferred) == flags == [True] * 3
    deferred.layers[0].trainable = False
    assert keras_internals.trained_layers(deferred) != before
