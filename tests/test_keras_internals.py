"""One test for each use of Keras and TensorFlow beyond their public interface: a new release breaks these first."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from flor_keras import keras_internals as internals

pytestmark = pytest.mark.slow


@pytest.fixture
def model():
    built = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    built.compile("adam", "mse")
    return built


@pytest.fixture
def unhooked():
    yield
    internals.unhook_fit()


def test_the_attributes_left_out_of_a_walk_exist_on_keras_objects(model):
    model.fit(np.zeros((4, 3)), np.zeros((4, 2)), verbose=0)
    held = {*vars(model), *vars(model.layers[0]), *vars(model.optimizer), *vars(keras.layers.StringLookup())}
    assert {"_tracker", "_inbound_nodes", "train_function", "history", "_trainable_variables_indices"} <= held
    assert {"_tracker", "train_function"} <= internals.SKIPPED_ATTRIBUTES
    assert held >= internals.DEFERRED_ATTRIBUTES - {
        "_metrics",
        "_seed_generators",
        "_non_trainable_variables",
    }


def test_what_holds_keras_state_is_known(model):
    for value in (model, model.optimizer, keras.metrics.Mean(), keras.losses.MeanSquaredError()):
        assert internals.is_keras_object(value)
    assert internals.is_keras_object(keras.random.SeedGenerator(1))
    assert not internals.is_keras_object([model])


def test_functions_and_data_sets_are_opaque():
    assert internals.is_opaque(tf.function(lambda x: x))
    assert internals.is_opaque(tf.data.Dataset.range(3))
    assert not internals.is_opaque(tf.Variable(1.0))


def test_a_keras_variable_has_a_native_one(model):
    kernel = model.layers[0].kernel
    native = internals.native_variable(kernel)
    assert isinstance(native, tf.Variable)
    native.assign(tf.ones((3, 2)))
    assert np.array_equal(kernel.numpy(), np.ones((3, 2)))


def test_distributed_variables_are_told_apart():
    assert not internals.is_distributed(tf.Variable(1.0))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = tf.Variable(1.0)
        own = tf.Variable(
            1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
    assert internals.is_distributed(mirrored)
    assert not internals.is_sync_on_read(mirrored)
    assert internals.is_sync_on_read(own)


def test_tables_are_told_apart():
    assert internals.is_lookup_layer(keras.layers.StringLookup(vocabulary=["a"]))
    assert not internals.is_lookup_layer(keras.layers.Dense(1))
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    assert internals.is_mutable_table(table)


def test_the_global_seed_generator_is_the_one_behind_unseeded_functions():
    internals.ensure_global_seed_generator()
    generator = internals.global_seed_generator()
    before = generator.state.numpy().copy()
    keras.random.normal((1,))
    assert not np.array_equal(before, generator.state.numpy())


def test_a_tensor_is_seen_without_a_copy():
    tensor = tf.range(1000)
    assert np.shares_memory(internals.memory_of(tensor), internals.memory_of(tensor))


def test_logs_come_as_plain_numbers():
    assert internals.pythonify_logs({"loss": tf.constant(0.5)}) == {"loss": 0.5}


def test_a_fit_that_was_looked_up_before_the_hook_is_hooked_too(model, unhooked):
    calls = []

    def hook(call):
        calls.append(call.model)
        return call.make()

    fit = model.fit
    internals.hook_fit(hook)
    history = fit(np.zeros((4, 3)), np.zeros((4, 2)), epochs=2, verbose=0)
    assert calls == [model]
    assert history.epoch == [0, 1]


def test_fit_has_the_arguments_that_are_changed(model):
    parameters = inspect.signature(keras.Model.fit).parameters
    assert {"callbacks", "initial_epoch", "epochs", "verbose", "validation_freq", "x", "y"} <= set(parameters)


def test_steps_and_iterators_of_fit_go_through_the_source(model, unhooked):
    class Source:
        num_created = num_steps = 0

        def create(self, make):
            self.num_created += 1
            return make()

        def steps(self, steps):
            for step in steps:
                self.num_steps += 1
                yield step

    class Arm(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            training.is_armed = True

    source = Source()
    with internals.training_steps(source) as training:
        model.fit(np.zeros((8, 3)), np.zeros((8, 2)), batch_size=4, epochs=3, verbose=0, callbacks=[Arm()])
    assert source.num_steps == 6
    assert source.num_created == 6  # Keras makes one more at the end of each epoch
    assert training.adapter_kind == "array"
    assert training.counters["num_batches"] == 2


def test_random_ops_of_a_traced_step_are_found_with_their_line():
    class Noisy(keras.Model):
        def call(self, inputs):
            return inputs

        def train_step(self, data):
            return {"loss": tf.reduce_sum(tf.random.normal(tf.shape(data)))}

    model = Noisy()
    model.compile()
    model.fit(np.zeros((4, 3)), verbose=0)
    (found,) = internals.stateful_random_ops(model)
    assert found.startswith("RandomStandardNormal")
    assert "test_keras_internals.py" in found


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
    assert any(variable is outside for variable in internals.step_variables(model))


def test_random_ops_inside_a_pipeline_are_found_and_parallel_ones_told():
    def draw(_):
        return tf.random.uniform([])

    numbers = tf.data.Dataset.range(3)
    assert internals.pipeline_random_ops(numbers.map(lambda v: v + 1)) == []
    parallel = internals.pipeline_random_ops(numbers.map(draw, num_parallel_calls=2).batch(2))
    assert [is_parallel for _, is_parallel in parallel] == [True]


def test_a_shuffle_below_a_repeat_is_found():
    numbers = tf.data.Dataset.range(3)
    assert internals.has_shuffle_below_repeat(numbers.shuffle(3).repeat().batch(2))
    assert not internals.has_shuffle_below_repeat(numbers.repeat().shuffle(3))


def test_the_tensors_a_pipeline_was_made_from_are_found():
    dataset = tf.data.Dataset.from_tensor_slices(tf.range(6)).shuffle(6).batch(2)
    (tensor,) = internals.source_tensors(dataset)
    assert tensor.numpy().tolist() == list(range(6))


def test_code_traced_for_a_pipeline_knows_it():
    seen = []

    def look(value):
        seen.append(internals.is_in_tf_data())
        return value

    tf.data.Dataset.range(1).map(look)
    tf.function(look)(1)
    assert seen == [True, False]
    assert not internals.is_in_tf_data()


def test_the_eager_random_state_goes_back():
    tf.random.set_seed(3)
    assert internals.global_seed() == 3
    state = internals.eager_random_state()
    first = tf.random.uniform([]).numpy()
    internals.set_eager_random_state(state)
    assert internals.eager_random_state() == state
    assert np.isfinite(first)


def test_a_fresh_iterator_of_an_unseeded_shuffle_is_had_again_in_another_iterator():
    dataset = tf.data.Dataset.range(50).shuffle(50).batch(5)
    iterator = iter(dataset)
    state = internals.serialize_iterator(iterator)
    order = [batch.numpy().tolist() for batch in iterator]
    other = iter(dataset)
    internals.deserialize_iterator(other, state)
    assert [batch.numpy().tolist() for batch in other] == order


def test_a_shuffle_of_ours_that_fails_leaves_training_to_kerass_own(model, unhooked):
    class Source:
        def create(self, make):
            return make()

        def steps(self, steps):
            return steps

    def broken(indices):
        raise TypeError("ours")

    refused = []
    with internals.training_steps(Source(), broken, lambda: refused.append(True)):
        history = model.fit(np.zeros((8, 3)), np.zeros((8, 2)), epochs=2, verbose=0)
    assert refused == [True]
    assert history.epoch == [0, 1]
