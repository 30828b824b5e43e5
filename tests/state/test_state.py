"""Every variable of every kind of program is gathered once, under a stable name, and restored bit for bit."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import keras
import numpy as np
import specimens
import tensorflow as tf
from keras import layers
from specimens import MAKERS, OPTIMIZERS, Counting, Nest, Specimen, compiled, numbers, sequential

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.errors import StateError
from flor_keras.state.capture import Snapshot, small_contents
from flor_keras.state.restore import restore_objects
from flor_keras.state.tables import table_arrays
from flor_keras.state.variables import gather

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*was called on layer")]
each_specimen = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)


def write(model, folder, described=()):
    """Checkpoint a model as a recorder does, without its processes."""
    state = gather({"model": model})
    snapshot = Snapshot(state, {})
    contents = snapshot.contents({}) + small_contents(state, snapshot)
    manifest = {
        "metrics": sorted(state.metric_names),
        "optimizers": list(state.optimizers),
        **dict(described),
    }
    bundle.write(folder, contents, manifest, {})
    return folder


def restore(model, folder):
    restore_objects(folder, {"model": model})


def bits(model):
    """Return the bytes of every variable and table of a model by name."""
    state = gather({"model": model})
    found = {name: np.asarray(variable.numpy()).tobytes() for name, variable in state.variables.items()}
    for name, table in state.tables.items():
        found |= {f"{name}/{part}": array.tolist() for part, array in table_arrays(table).items()}
    return found


def listed(model):
    """Return the native variables Keras itself lists."""
    optimizers = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    found = [*model.variables, *model.metrics_variables]
    found += [variable for optimizer in (model.optimizer, *optimizers) for variable in optimizer.variables]
    return [keras_internals.native_variable(variable) for variable in found]


@each_specimen
def test_every_variable_is_gathered_once_under_a_name_that_is_the_same_in_another_build(make):
    specimen, other = make(), make()
    specimen.train()
    other.train()
    state, again = gather({"model": specimen.model}), gather({"model": other.model})
    ids = [id(variable) for variable in state.variables.values()]
    assert len(ids) == len(set(ids))
    missing = [variable.name for variable in listed(specimen.model) if id(variable) not in ids]
    assert not missing
    assert list(state.variables) == list(again.variables)
    assert list(state.tables) == list(again.tables)
    assert not [name for name in state.variables if "/variables/" in name], (
        "named by Keras's path, which counts builds"
    )


@each_specimen
def test_a_fresh_build_gets_every_bit_back(make, tmp_path):
    trained, fresh = make(), make()
    trained.train()
    folder = write(trained.model, tmp_path / "c")
    before = bits(trained.model)
    restore(fresh.model, folder)
    after = bits(fresh.model)
    metrics = gather({"model": trained.model}).metric_names
    assert {name: value for name, value in after.items() if name not in metrics} == {
        name: value for name, value in before.items() if name not in metrics
    }


@each_specimen
def test_training_goes_on_from_a_restored_state_as_from_the_original(make, tmp_path):
    if make is specimens.modules_and_objects:
        pytest.skip("stateful table and generator inside the graph: covered at the level of a replayed epoch")
    trained, fresh = make(), make()
    trained.train()
    fresh.train()  # in another state, which the restored one must replace as a whole
    folder = write(trained.model, tmp_path / "c")
    restore(trained.model, folder)
    going_on = trained.train().history
    restore(fresh.model, folder)
    again = fresh.train().history
    assert {k: [v.hex() for v in vs] for k, vs in again.items()} == {
        k: [v.hex() for v in vs] for k, vs in going_on.items()
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_keeps_its_slots(name, tmp_path):
    def make():
        return Specimen(
            sequential(layers.Dense(6), layers.Dense(1), optimizer=keras.optimizers.get(name)),
            numbers(8),
            specimens.TARGET,
        )

    trained, fresh = make(), make()
    trained.train()
    folder = write(trained.model, tmp_path / "c")
    restore(fresh.model, folder)
    names = [n for n in bits(trained.model) if n.startswith("model/optimizer")]
    assert names
    assert {n: bits(fresh.model)[n] for n in names} == {n: bits(trained.model)[n] for n in names}


def test_a_metric_added_later_renames_nothing(tmp_path):
    first = Specimen(sequential(layers.Dense(1), metrics=["mae"]), numbers(8), specimens.TARGET)
    second = Specimen(
        sequential(layers.Dense(1), metrics=["mse", "mae", keras.metrics.RootMeanSquaredError()]),
        numbers(8),
        specimens.TARGET,
    )
    first.train()
    second.train()
    one, two = gather({"model": first.model}), gather({"model": second.model})
    assert set(one.variables) < set(two.variables)
    assert all(name in two.metric_names for name in set(two.variables) - set(one.variables))
    folder = write(first.model, tmp_path / "c")
    restore(second.model, folder)
    for name in set(one.variables) - one.metric_names:
        assert bits(second.model)[name] == bits(first.model)[name]


def test_what_the_checkpoint_has_no_value_for_is_named(tmp_path):
    folder = write(sequential(layers.Dense(4), layers.Dense(1)), tmp_path / "c")
    larger = sequential(layers.Dense(4), layers.Dense(1), layers.Dense(1))
    with pytest.raises(StateError, match=r"has no value for: model/_layers/2/_kernel, model/_layers/2/bias"):
        restore(larger, folder)


def test_what_the_program_has_no_variable_for_is_named(tmp_path):
    folder = write(sequential(Counting(), layers.Dense(1)), tmp_path / "c")
    with pytest.raises(StateError, match=r"has no variable for: .*calls"):
        restore(sequential(layers.Dense(1)), folder)


def test_a_variable_of_another_shape_or_type_is_named_with_both(tmp_path):
    folder = write(sequential(layers.Dense(4), layers.Dense(1)), tmp_path / "c")
    with pytest.raises(
        StateError,
        match=r"another shape or type: .*_kernel \(8, 4\) in the checkpoint, \(8, 5\) in the program",
    ):
        restore(sequential(layers.Dense(5), layers.Dense(1)), folder)
    with pytest.raises(StateError, match="another shape or type"):
        restore(sequential(layers.Dense(4, dtype="float64"), layers.Dense(1)), folder)


def test_nothing_is_restored_where_something_does_not_fit(tmp_path):
    folder = write(sequential(layers.Dense(4), layers.Dense(1)), tmp_path / "c")
    model = sequential(layers.Dense(4), layers.Dense(2))
    before = bits(model)
    with pytest.raises(StateError):
        restore(model, folder)
    assert bits(model) == before


def test_a_model_that_is_not_compiled_is_restored_without_its_optimizer(tmp_path):
    trained = Specimen(sequential(layers.Dense(1)), numbers(8), specimens.TARGET)
    trained.train()
    folder = write(trained.model, tmp_path / "c")
    plain = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
    restore(plain, folder)
    assert (plain.get_weights()[0] == trained.model.get_weights()[0]).all()


def test_the_beginning_of_a_run_is_restored_into_a_model_that_was_trained_since(tmp_path):
    def trained(steps):
        specimen = Specimen(
            sequential(layers.Dense(1), optimizer=keras.optimizers.Adagrad(0.1)), numbers(8), specimens.TARGET
        )
        specimen.train(steps)
        return specimen

    begun, later = trained(0), trained(3)
    position = {"position": {"kind": "start"}}
    restore(later.model, write(begun.model, tmp_path / "start", position))
    begun.train(2)
    later.train(2)
    assert bits(later.model) == bits(begun.model)
    with pytest.raises(StateError, match="has no value for: .*optimizer"):
        restore(later.model, write(trained(0).model, tmp_path / "other"))


# -- cases people reported ----------------------------------------------------------------------------------


def test_c31_statistics_of_layers_in_containers_come_back_and_predictions_agree(tmp_path):
    trained, fresh = specimens.sublayers_in_containers(), specimens.sublayers_in_containers()
    trained.train(2)
    restore(fresh.model, write(trained.model, tmp_path / "c"))
    assert (fresh.model.predict(fresh.x, verbose=0) == trained.model.predict(trained.x, verbose=0)).all()
    nest = next(layer for layer in fresh.model.layers if isinstance(layer, Nest))
    assert float(nest.nested[1][0]["n"].moving_mean[0]) != 0


def test_c33_a_gan_gets_both_optimizers_back_and_goes_on_counting(tmp_path):
    trained, fresh = specimens.gan(), specimens.gan()
    trained.train(4)
    restore(fresh.model, write(trained.model, tmp_path / "c"))
    counts = [int(o.iterations.value) for o in (fresh.model.d_optimizer, fresh.model.g_optimizer)]
    assert counts == [8, 8]
    assert (
        fresh.model.seed_generator.state.value.numpy().tolist()
        == trained.model.seed_generator.state.value.numpy().tolist()
    )
    fresh.train(2)
    counts = [int(o.iterations.value) for o in (fresh.model.d_optimizer, fresh.model.g_optimizer)]
    assert counts == [12, 12]


def test_c35_a_vocabulary_comes_back_into_a_layer_that_was_never_adapted(tmp_path):
    def make(is_adapted):
        lookup = layers.StringLookup()
        if is_adapted:
            lookup.adapt(["a", "b", "b", "c", "c", "c"])
        inputs = keras.Input((1,), dtype="string")
        return lookup, compiled(
            keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(9, 2)(lookup(inputs)))))
        )

    _, trained = make(True)
    lookup, fresh = make(False)
    restore(fresh, write(trained, tmp_path / "c"))
    assert lookup.get_vocabulary() == ["[UNK]", "c", "b", "a"]
    words = tf.constant([["a"], ["c"], ["?"]])
    assert (fresh.predict(words, verbose=0) == trained.predict(words, verbose=0)).all()


def test_c35_bins_come_back_into_a_layer_that_was_never_adapted(tmp_path):
    def make(is_adapted):
        bins = layers.Discretization(num_bins=4)
        if is_adapted:
            bins.adapt(numbers(1))
        return bins, sequential(bins, layers.Embedding(6, 3), layers.Flatten(), layers.Dense(1), shape=(1,))

    (recorded, trained), (bins, fresh) = make(True), make(False)
    restore(fresh, write(trained, tmp_path / "c"))
    assert bins.bin_boundaries == recorded.bin_boundaries


def test_c37_states_of_a_stateful_lstm_come_back(tmp_path):
    trained, fresh = specimens.stateful_lstm(), specimens.stateful_lstm()
    trained.train()
    restore(fresh.model, write(trained.model, tmp_path / "c"))
    states = [[np.asarray(s) for s in s_.model.layers[1].states] for s_ in (trained, fresh)]
    assert all((a == b).all() and a.any() for a, b in zip(*states, strict=True))


def test_c38_the_loss_scale_comes_back(tmp_path):
    trained, fresh = specimens.mixed_precision(), specimens.mixed_precision()
    trained.train()
    restore(fresh.model, write(trained.model, tmp_path / "c"))
    for name in ("dynamic_scale", "step_counter", "iterations"):
        assert float(getattr(fresh.model.optimizer, name).value) == float(
            getattr(trained.model.optimizer, name).value
        )


def test_c40_a_checkpoint_with_lora_does_not_go_into_a_model_without(tmp_path):
    trained = specimens.lora()
    trained.train()
    folder = write(trained.model, tmp_path / "c")
    with pytest.raises(StateError, match="lora_kernel"):
        restore(sequential(layers.Dense(8), layers.Dense(1)), folder)
    fresh = specimens.lora()
    restore(fresh.model, folder)
    assert (fresh.model.predict(fresh.x, verbose=0) == trained.model.predict(trained.x, verbose=0)).all()


def test_c44_layers_that_are_never_called_are_no_obstacle(tmp_path):
    trained, fresh = specimens.unused_sublayers(), specimens.unused_sublayers()
    trained.train()
    restore(fresh.model, write(trained.model, tmp_path / "c"))
    assert (fresh.model.predict(fresh.x, verbose=0) == trained.model.predict(trained.x, verbose=0)).all()


def test_c46_weights_that_come_with_the_first_call_are_restored(tmp_path):
    trained, fresh = specimens.composed_without_build(), specimens.composed_without_build()
    trained.train()
    restore(fresh.model, write(trained.model, tmp_path / "c"))
    assert (fresh.model.predict(fresh.x, verbose=0) == trained.model.predict(trained.x, verbose=0)).all()


def test_c58_slots_of_the_first_phase_never_go_to_variables_of_the_second(tmp_path):
    first, second = specimens.frozen_base(), specimens.fine_tuned_after_a_recompile()
    first.train()
    folder = write(first.model, tmp_path / "c")
    with pytest.raises(StateError, match="model/optimizer/_momentums"):
        restore(second.model, folder)
    again = specimens.frozen_base()
    restore(again.model, folder)
    metrics = gather({"model": first.model}).metric_names
    assert {n: v for n, v in bits(again.model).items() if n not in metrics} == {
        n: v for n, v in bits(first.model).items() if n not in metrics
    }
