"""What a traced training step uses: random ops and variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_random_ops_of_a_traced_step_are_found_with_their_line():
    class Noisy(keras.Model):
        def call(self, inputs):
            return inputs

        def train_step(self, data):
            return {"loss": tf.reduce_sum(tf.random.normal(tf.shape(data)))}

    model = Noisy()
    model.compile()
    model.fit(np.zeros((4, 3)), verbose=0)
    (found,) = keras_internals.stateful_random_ops(model)
    assert found.startswith("RandomStandardNormal")
    assert "test_traced.py" in found


def test_variables_a_step_uses_are_found_wherever_they_are():
    outside = tf.Variable(2.0)

    class Scaled(keras.Model):
        def call(self, inputs):
            return inputs

        def train_step(self, data):
            return {"loss": outside * tf.reduce_sum(data)}

    model = Scaled()
    model.compile()
    model.fit(np.zeros((4, 3)), verbose=0)
    assert any(variable is outside for variable in keras_internals.step_variables(model))
