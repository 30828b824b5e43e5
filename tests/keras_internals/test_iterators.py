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
