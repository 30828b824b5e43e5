"""What kind of Keras or TensorFlow object a value is, and which of its attributes lead to state."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_the_attributes_left_out_of_a_walk_exist_on_keras_objects(model):
    model.fit(np.zeros((4, 3)), np.zeros((4, 2)), verbose=0)
    held = {*vars(model), *vars(model.layers[0]), *vars(model.optimizer), *vars(keras.layers.StringLookup())}
    assert {"_tracker", "_inbound_nodes", "train_function", "history", "_trainable_variables_indices"} <= held
    assert {"_tracker", "train_function"} <= keras_internals.SKIPPED_ATTRIBUTES
    assert held >= keras_internals.DEFERRED_ATTRIBUTES - {
        "_metrics",
        "_seed_generators",
        "_non_trainable_variables",
    }


def test_what_holds_keras_state_is_known(model):
    for value in (model, model.optimizer, keras.metrics.Mean(), keras.losses.MeanSquaredError()):
        assert keras_internals.is_keras_object(value)
    assert keras_internals.is_keras_object(keras.random.SeedGenerator(1))
    assert not keras_internals.is_keras_object([model])


def test_functions_and_data_sets_are_opaque():
    assert keras_internals.is_opaque(tf.function(lambda x: x))
    assert keras_internals.is_opaque(tf.data.Dataset.range(3))
    assert not keras_internals.is_opaque(tf.Variable(1.0))


def test_tables_are_told_apart():
    assert keras_internals.is_lookup_layer(keras.layers.StringLookup(vocabulary=["a"]))
    assert not keras_internals.is_lookup_layer(keras.layers.Dense(1))
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    assert keras_internals.is_mutable_table(table)


def test_parts_of_a_training_program_are_told_by_their_class(model):
    for cls in (type(model), keras.layers.Dense, keras.callbacks.Callback, tf.Variable, tf.data.Dataset):
        assert keras_internals.is_training_class(cls)
    assert not keras_internals.is_training_class(dict)


def test_a_traced_function_is_told_from_one_that_is_not():
    assert keras_internals.is_traced_function(tf.function(len))
    assert tf.function(len).python_function is len
    assert not keras_internals.is_traced_function(len)


def test_a_tensor_with_a_value_is_told_from_variables_and_symbols():
    seen = []
    tf.function(lambda symbol: seen.append(keras_internals.is_eager_tensor(symbol)))(1)
    assert seen == [False]
    assert keras_internals.is_eager_tensor(tf.constant(1))
    assert not keras_internals.is_eager_tensor(tf.Variable(1))
