"""Each use of what is private in Keras and TensorFlow, on its own, so that a new release breaks this file first."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tensorflow")

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras.src.saving import saving_lib

from flor_keras.export import internals

pytestmark = pytest.mark.slow


@pytest.fixture
def model():
    """A trained model with nested layers, an optimizer and metrics."""
    keras.utils.clear_session()
    inner = keras.Sequential([layers.Dense(3), layers.BatchNormalization()])
    made = keras.Sequential([keras.Input((4,)), inner, layers.Dropout(0.5), layers.Dense(2)])
    made.compile("adam", "mse", metrics=["mae"])
    made.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)
    return made


def test_a_saved_model_without_its_variables_is_that_of_export(model, tmp_path):
    (tmp_path / "ours").mkdir()
    saved = internals.write_saved_model(model, tmp_path / "ours")
    model.export(tmp_path / "theirs", verbose=False)
    values = {key: internals.value_of(given) for key, _, given in saved.owners}
    values["_CHECKPOINTABLE_OBJECT_GRAPH"] = tf.constant(saved.object_graph)
    (tmp_path / "ours" / "variables").mkdir()
    prefix = str(tmp_path / "ours" / "variables" / "variables")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )
    internals.write_fingerprint(tmp_path / "ours")
    assert tf.saved_model.experimental.read_fingerprint(str(tmp_path / "ours")).checkpoint_hash
    x = tf.ones((3, 4))
    ours, theirs = (tf.saved_model.load(str(tmp_path / name)) for name in ("ours", "theirs"))
    assert np.array_equal(ours.serve(x), theirs.serve(x))
    (our_names,), (their_names,) = (
        at.signatures["serving_default"].structured_input_signature[1:] for at in (ours, theirs)
    )
    assert our_names == their_names
    bundles = [tmp_path / name / "variables" / "variables.data-00000-of-00001" for name in ("ours", "theirs")]
    assert bundles[0].stat().st_size < bundles[1].stat().st_size  # Keras writes each variable twice


def test_the_groups_of_a_weights_file_are_those_keras_writes(model, tmp_path):
    import h5py

    model.save_weights(tmp_path / "keras.weights.h5")
    theirs, names = {}, {}
    with h5py.File(tmp_path / "keras.weights.h5") as file:
        file.visititems(
            lambda path, at: (
                theirs.__setitem__(path, np.array(at))
                if isinstance(at, h5py.Dataset)
                else names.__setitem__(path, dict(at.attrs))
            )
        )
    ours = {
        f"{g.path}/vars/{key}".lstrip("/"): keras.ops.convert_to_numpy(v)
        for g in internals.weight_groups(model)
        for key, v in g.values.items()
    }
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[path], theirs[path]) for path in ours)
    for group in internals.weight_groups(model):
        if group.name is not None:
            assert names[f"{group.path}/vars".lstrip("/")]["name"] == group.name


def test_looking_for_groups_makes_no_layer_for_every_layer(monkeypatch):
    deep = keras.Sequential([keras.Input((4,)), *(layers.Dense(4) for _ in range(30))])
    made, original = [], layers.Layer.__init__

    def counted(self, *args, **kwargs):
        made.append(self)
        original(self, *args, **kwargs)

    monkeypatch.setattr(layers.Layer, "__init__", counted)
    kept = saving_lib.get_attr_skipset
    internals.weight_groups(deep)
    assert len(made) <= 3  # one for each kind of object
    assert saving_lib.get_attr_skipset is kept


def test_the_keys_of_a_checkpoint_are_those_tensorflow_writes(model, tmp_path):
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    written = {name for name, _ in tf.train.list_variables(str(tmp_path / "ckpt"))} - {
        "_CHECKPOINTABLE_OBJECT_GRAPH"
    }
    saved = internals.checkpoint_owners(model)
    assert {key for key, _, _ in saved.owners} == written
    assert saved.object_graph


def test_a_configuration_is_that_of_a_keras_archive(model):
    config, _ = saving_lib._serialize_model_as_json(model)
    assert without_ids(json.loads(json.dumps(internals.config_of(model)))) == without_ids(json.loads(config))


def without_ids(described):
    """Return a description without the ids that Keras gives objects it may meet again."""
    if isinstance(described, dict):
        return {key: without_ids(value) for key, value in described.items() if key != "shared_object_id"}
    return [without_ids(item) for item in described] if isinstance(described, list) else described


def test_assets_are_those_of_a_keras_archive(tmp_path):
    lookup = layers.StringLookup()
    lookup.adapt(np.array(["cat", "dog"]))
    model = keras.Sequential([keras.Input((1,), dtype="string"), lookup])
    internals.write_assets(model, tmp_path / "assets")
    (path,) = [at for at in (tmp_path / "assets").rglob("*") if at.is_file()]
    assert path.read_text().split("\n")[1:] in (["dog", "cat"], ["cat", "dog"])
    assert all(at.is_file() or any(at.iterdir()) for at in (tmp_path / "assets").rglob("*"))


def test_tracing_leaves_nothing_on_the_layers(model):
    function, losses = model.train_function, [1]
    model.layers[0].count = 3
    model._losses.append(losses)
    with pytest.raises(ZeroDivisionError), internals.untouched(model):
        model.layers[0].count += 1
        model._losses.clear()
        model.train_function = None
        raise ZeroDivisionError
    assert model.layers[0].count == 3
    assert model._losses == [losses]
    assert model.train_function is function


def test_the_parts_of_low_rank_layers_are_found():
    plain, low = layers.Dense(4), layers.Dense(4)
    for layer in (plain, low):
        layer.build((None, 3))
    low.enable_lora(2, lora_alpha=3)
    assert internals.lora_parts(plain) is None
    first, second, scale = internals.lora_parts(low)
    assert (first.shape, second.shape, scale) == ((3, 2), (2, 4), 1.5)


def test_what_only_training_needs_is_told_from_what_outputs_need(model):
    ids = internals.state_of_training(model)
    outputs = [v for v in model.variables if not v.path.startswith("seed_generator")]
    assert not ids & {id(v._value) for v in outputs if "seed" not in v.path}
    assert {id(v._value) for v in model.optimizer.variables} <= ids


def test_losses_a_model_adds_itself_are_seen(model):
    assert not internals.has_own_losses(model)
    regular = keras.Sequential([keras.Input((4,)), layers.Dense(2, kernel_regularizer="l2")])
    assert internals.has_own_losses(regular)


def test_looking_for_tables_and_making_signatures_traces_the_model_no_more_than_twice(monkeypatch, tmp_path):
    """TensorFlow makes one trace in which variables may be created, and one in which not."""
    from tensorflow.python.autograph.impl import api

    traced, rewritten = [], []

    class Traced(layers.Layer):
        def call(self, x):
            traced.append(x)
            return x

    rewrite = api._convert_actual
    monkeypatch.setattr(api, "_convert_actual", lambda *given: rewritten.append(given) or rewrite(*given))
    made = keras.Sequential([keras.Input((4,)), Traced(), layers.Dense(2)])
    traced.clear()
    signature = type(made)._default_save_signature
    internals.write_saved_model(made, tmp_path)
    assert len(traced) == 2
    assert rewritten == []
    assert type(made)._default_save_signature is signature


def test_functions_that_other_threads_trace_meanwhile_are_rewritten_as_ever():
    import threading

    @tf.function
    def doubled(x):
        if x > 0:  # needs to be rewritten
            x = x * 2
        return x

    found = []
    with internals.without_autograph():
        thread = threading.Thread(target=lambda: found.append(doubled(tf.constant(2.0))))
        thread.start()
        thread.join()
    assert [float(value) for value in found] == [4.0]
