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
