"""The variables under Keras's, and their memory."""

import numpy as np
import pytest
import tensorflow as tf

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_a_keras_variable_has_a_native_one(model):
    kernel = model.layers[0].kernel
    native = keras_internals.native_variable(kernel)
    assert isinstance(native, tf.Variable)
    native.assign(tf.ones((3, 2)))
    assert np.array_equal(kernel.numpy(), np.ones((3, 2)))


def test_distributed_variables_are_told_apart():
    assert not keras_internals.is_distributed(tf.Variable(1.0))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = tf.Variable(1.0)
        own = tf.Variable(
            1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
    assert keras_internals.is_distributed(mirrored)
    assert not keras_internals.is_sync_on_read(mirrored)
    assert keras_internals.is_sync_on_read(own)


def test_a_tensor_is_seen_without_a_copy():
    tensor = tf.range(1000)
    assert np.shares_memory(keras_internals.memory_of(tensor), keras_internals.memory_of(tensor))


def test_all_variables_are_read_at_once_into_tensors_of_their_own():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3, dtype=tf.int64)]
    read = keras_internals.reader(variables)
    first = read()
    variables[1].assign(4)
    assert [tensor.numpy().tolist() for tensor in first] == [[1.0, 2.0], 3]
    assert [tensor.dtype for tensor in first] == [tf.float32, tf.int64]
    assert read()[1].numpy() == 4
    assert keras_internals.reader([])() == []


def test_the_native_variables_of_many_are_those_of_each(model):
    variables = model.variables
    natives = keras_internals.native_variables(variables)
    assert all(n is keras_internals.native_variable(v) for n, v in zip(natives, variables, strict=True))
