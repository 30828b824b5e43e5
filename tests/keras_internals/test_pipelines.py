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


def test_parts_that_draw_a_seed_for_each_iterator_are_found_as_often_as_they_are_there():
    tf.random.set_seed(4)
    shuffled = tf.data.Dataset.range(9).shuffle(9)
    parts = keras_internals.seeded_parts(tf.data.Dataset.zip((shuffled.batch(3).shuffle(2), shuffled)))
    assert [part is shuffled for part in parts] == [False, True, True]
    seeds = [keras_internals.seeds_of(part) for part in parts]
    assert seeds[0][0] == seeds[1][0] == 4
    assert seeds[0] != seeds[1] == seeds[2]


def test_data_sets_are_numbered_as_they_are_made():
    before = tf.data.Dataset.range(3)
    number = keras_internals.next_number()
    after = before.shuffle(3)
    assert keras_internals.number_of(before) < number < keras_internals.number_of(after)
