"""What traced functions use, and what code is traced for."""

import threading

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


def test_random_ops_of_what_was_traced_are_found_and_those_of_pipelines_are_not():
    @tf.function
    def noise():
        return tf.random.uniform([])

    noise()
    data = tf.data.Dataset.range(3).map(lambda x: x + tf.random.uniform([], maxval=5, dtype=tf.int64))
    found = [op for op in keras_internals.live_random_ops() if "test_traced.py" in op]
    assert [op.partition(" ")[0] for op in found if op.startswith("RandomUniform ")] == ["RandomUniform"]
    assert not any(op.startswith("RandomUniformInt ") for op in found)
    assert len(list(data)) == 3


def test_code_is_known_to_be_traced_for_xla_also_through_a_function_that_calls_it():
    seen = {}

    @tf.function
    def inner(name, x):
        seen[name] = keras_internals.is_in_xla()
        return x

    tf.function(lambda x: inner("compiled", x), jit_compile=True)(tf.ones(2))
    tf.function(lambda x: inner("not", x))(tf.ones(2))
    assert seen == {"compiled": True, "not": False}
    assert not keras_internals.is_in_xla()


def test_no_graph_is_under_way_but_inside_of_functions_in_every_thread():
    graphs, seen = keras_internals.graphs_under_way(), {}
    assert hasattr(graphs, "get_default"), "TensorFlow keeps its graphs elsewhere: this is the stand-in"

    def look(where):
        seen[where] = bool(graphs.stack), tf.inside_function()

    @tf.function
    def traced(where):
        look(f"in a function, {where}")
        with tf.init_scope():
            look(f"lifted out of a function, {where}")

    def run(where):
        look(where)
        traced(where)
        list(tf.data.Dataset.range(1).map(lambda x: look(f"in tf.data, {where}") or x))

    run("main")
    thread = threading.Thread(target=run, args=["thread"])
    thread.start()
    thread.join()
    assert seen["main"] == seen["thread"] == (False, False)
    # What is not under way is not inside of a function: the rest is asked of TensorFlow.
    assert all(is_under_way or not is_inside for is_under_way, is_inside in seen.values()), seen
    assert seen["in a function, main"] == seen["in a function, thread"] == (True, True)
    assert seen["in tf.data, thread"] == (True, True)
