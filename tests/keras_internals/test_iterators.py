"""Iterators of `tf.data`: seen when they are made, their state."""

import pytest
import tensorflow as tf

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_a_fresh_iterator_of_an_unseeded_shuffle_is_had_again_in_another_iterator():
    dataset = tf.data.Dataset.range(50).shuffle(50).batch(5)
    iterator = iter(dataset)
    state = keras_internals.serialize_iterator(iterator)
    order = [batch.numpy().tolist() for batch in iterator]
    other = iter(dataset)
    keras_internals.deserialize_iterator(other, state)
    assert [batch.numpy().tolist() for batch in other] == order


def test_every_iterator_a_loop_makes_is_seen_until_the_watch_ends_and_those_of_our_own_are_not():
    seen = []

    def watch(dataset, make):
        seen.append(dataset)
        return make()

    dataset = tf.data.Dataset.range(3)
    keras_internals.watch_iterators(watch)
    try:
        assert [int(value) for _, value in enumerate(dataset)] == [0, 1, 2]
        assert len(list(keras_internals.make_iterator(dataset))) == 3
    finally:
        keras_internals.watch_iterators(None)
    iterator = iter(dataset)
    assert seen == [dataset]
    assert keras_internals.is_data_iterator(iterator)
    assert not keras_internals.is_data_iterator(iter([1]))
