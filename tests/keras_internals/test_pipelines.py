"""What a `tf.data` pipeline is made of."""

import pytest
import tensorflow as tf

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_random_ops_inside_a_pipeline_are_found_and_parallel_ones_told():
    def draw(_):
        return tf.random.uniform([])

    numbers = tf.data.Dataset.range(3)
    assert keras_internals.pipeline_random_ops(numbers.map(lambda v: v + 1)) == []
    parallel = keras_internals.pipeline_random_ops(numbers.map(draw, num_parallel_calls=2).batch(2))
    assert [is_parallel for _, is_parallel in parallel] == [True]


def test_a_shuffle_below_a_repeat_is_found():
    numbers = tf.data.Dataset.range(3)
    assert keras_internals.has_shuffle_below_repeat(numbers.shuffle(3).repeat().batch(2))
    assert not keras_internals.has_shuffle_below_repeat(numbers.repeat().shuffle(3))


def test_the_tensors_a_pipeline_was_made_from_are_found():
    dataset = tf.data.Dataset.from_tensor_slices(tf.range(6)).shuffle(6).batch(2)
    (tensor,) = keras_internals.source_tensors(dataset)
    assert tensor.numpy().tolist() == list(range(6))


def test_code_traced_for_a_pipeline_knows_it():
    seen = []

    def look(value):
        seen.append(keras_internals.is_in_tf_data())
        return value

    tf.data.Dataset.range(1).map(look)
    tf.function(look)(1)
    assert seen == [True, False]
    assert not keras_internals.is_in_tf_data()
