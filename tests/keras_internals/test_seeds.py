"""Random state: Keras's global seed generator, TensorFlow's eager one, where random functions live."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_the_global_seed_generator_is_the_one_behind_unseeded_functions():
    keras_internals.ensure_global_seed_generator()
    generator = keras_internals.global_seed_generator()
    before = generator.state.numpy().copy()
    keras.random.normal((1,))
    assert not np.array_equal(before, generator.state.numpy())


def test_the_eager_random_state_goes_back():
    tf.random.set_seed(3)
    assert keras_internals.global_seed() == 3
    state = keras_internals.eager_random_state()
    first = tf.random.uniform([]).numpy()
    keras_internals.set_eager_random_state(state)
    assert keras_internals.eager_random_state() == state
    assert np.isfinite(first)


def test_random_functions_are_looked_up_where_they_are_replaced():
    for name in ("normal", "truncated_normal", "uniform", "shuffle", "categorical"):
        for module, attribute in keras_internals.homes_of_random(name):
            assert callable(getattr(module, attribute)), (module, attribute)
    _, (inner, attribute) = keras_internals.homes_of_random("uniform")
    calls, original = [], inner.random_uniform
    assert attribute == "random_uniform"
    try:
        inner.random_uniform = lambda *args, **kwargs: calls.append(True) or original(*args, **kwargs)
        tf.nn.dropout(tf.ones(3), 0.5)
        tf.image.random_flip_left_right(tf.ones((2, 2, 3)))
    finally:
        inner.random_uniform = original
    assert calls
