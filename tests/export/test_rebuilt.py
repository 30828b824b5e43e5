"""A model of Keras's own layers is traced when a SavedModel is wanted: from its configuration, to the very same graph."""

from __future__ import annotations

import json
import random
import re

import pytest

pytest.importorskip("tensorflow")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from flor_keras import keras_internals
from flor_keras.errors import CheckpointError
from flor_keras.export import graph, rebuilt, stock
from flor_keras.export.kept import Graph, read_graph
from flor_keras.state.pickles import signature
from flor_keras.state.variables import gather

pytestmark = pytest.mark.slow


def image(*hidden, size=(8, 8, 3)):
    return keras.Sequential([keras.Input(size), *hidden, layers.Flatten(), layers.Dense(2)])


def sequence(*hidden):
    return keras.Sequential([keras.Input((6, 4)), *hidden, layers.Flatten(), layers.Dense(2)])


def shared():
    i = keras.Input((6,), name="features")
    twice = layers.Dense(6, "tanh")
    h = layers.Add()([twice(twice(i)), layers.Dense(6, kernel_regularizer="l2")(i)])
    return keras.Model(i, layers.Dense(2, name="answer")(layers.Dropout(0.3)(layers.BatchNormalization()(h))))


def several():
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    h = keras.ops.concatenate([layers.Dense(4)(a), layers.Dense(3)(b) * 2.5], axis=-1)[:, 1:]
    return keras.Model({"a": a, "b": b}, {"one": layers.Dense(2, name="one")(h), "two": keras.ops.relu(h)})


def nested():
    inner = keras.Sequential([layers.Dense(5, "gelu"), layers.BatchNormalization()], name="inner")
    inner.trainable = False
    i = keras.Input((6,))
    return keras.Model(i, layers.Dense(2)(inner(i, training=False)))


def attention():
    i = keras.Input((6, 8))
    h = layers.MultiHeadAttention(2, 4, dropout=0.1)(i, i, use_causal_mask=True)
    h = layers.LayerNormalization()(layers.Add()([i, h]))
    return keras.Model(i, layers.Dense(2)(layers.GlobalAveragePooling1D()(h)))


def tokens():
    embedded = layers.Embedding(10, 4, mask_zero=True)
    return keras.Sequential([keras.Input((5,), dtype="int32"), embedded, layers.LSTM(3), layers.Dense(2)])


def mixed():
    policy = keras.mixed_precision.DTypePolicy("mixed_bfloat16")
    return image(layers.Conv2D(4, 3, dtype=policy), layers.GroupNormalization(2, dtype=policy))


def unbuilt():
    model = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(2)])
    model.build((None, 6))
    return model


MODELS = {
    "unbuilt": unbuilt,
    "dense": lambda: keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(2)]),
    "shared": shared,
    "several": several,
    "nested": nested,
    "attention": attention,
    "tokens": tokens,
    "mixed": mixed,
    "convolutions": lambda: image(
        layers.Rescaling(1 / 255),
        layers.RandomFlip(),
        layers.SeparableConv2D(4, 3, padding="same"),
        layers.PReLU(),
        layers.Conv2DTranspose(4, 3),
        layers.LeakyReLU(),
        layers.MaxPooling2D(),
        layers.SpatialDropout2D(0.2),
        layers.DepthwiseConv2D(3, padding="same"),
        layers.UpSampling2D(),
        layers.ZeroPadding2D(),
        layers.Cropping2D(),
        layers.UnitNormalization(),
    ),
    "recurrent": lambda: sequence(
        layers.Bidirectional(layers.LSTM(4, return_sequences=True, recurrent_dropout=0.1)),
        layers.RNN([layers.GRUCell(3), layers.SimpleRNNCell(3)], return_sequences=True),
        layers.TimeDistributed(layers.Dense(3, kernel_constraint="max_norm")),
        layers.Conv1D(3, 2, kernel_initializer=keras.initializers.HeNormal(3)),
        layers.SpectralNormalization(layers.Conv1D(3, 2)),
    ),
    "application": lambda: keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=2),
}


def trained(model):
    """Return the model after a step, as it is when its graph is kept."""
    model.compile("adam", "mse")
    inputs, outputs = (
        (model.inputs[0], model.outputs[0])
        if isinstance(model, keras.Sequential)
        else (model.input, model.output)
    )
    x = keras.tree.map_structure(lambda i: np.ones((4, *i.shape[1:]), i.dtype), inputs)
    y = keras.tree.map_structure(lambda o: np.ones((4, *o.shape[1:]), "float32"), outputs)
    model.fit(x, y, verbose=0)
    return model


def kept(model, folder, is_rebuildable):
    """Return the model's graph, traced at once or described only."""
    state = gather({"model": model})
    why_not = graph.write_graph(
        graph.Subject(model, "model", state.variables, {}, {}), folder, signature, is_rebuildable
    )
    assert why_not == {}
    return read_graph(folder)


def functions(found: Graph):
    """Return what a SavedModel computes, as texts without the numbers of this process.

    Not the two functions that save and restore variables: those name them.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString(found.file("saved_model.pb").read_bytes())
    texts = map(str, saved.meta_graphs[0].graph_def.library.function)
    numbers = re.compile(r'(__inference_\w*?_|_while_(?:cond|body)_|seed_generator_?|\bs: ")\d+')
    return sorted(numbers.sub(r"\1", text) for text in texts if "__inference__traced_" not in text)


@pytest.mark.parametrize("kind", MODELS)
def test_the_graph_traced_later_is_that_traced_at_once(kind, tmp_path):
    keras.utils.clear_session()
    model = trained(MODELS[kind]())
    assert stock.is_of_keras_alone(model)
    at_once, described = (kept(model, tmp_path / name, name == "later") for name in ("now", "later"))
    assert not (described.folder / "saved_model.pb").exists()
    later = rebuilt.traced(described)
    assert later.keys("saved_model") == at_once.keys("saved_model")
    assert described.names("saved_model") >= set(at_once.keys("saved_model").values())
    assert functions(later) == functions(at_once)
    assert rebuilt.traced(described) is later


def relu(x):
    return x * 3  # not what Keras has under this name


class Scaled(layers.Dense):
    def call(self, inputs):
        return 2 * super().call(inputs)


class Ones(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None, **_):
        return keras.ops.ones(shape, dtype)


def dense(layer=None, after=lambda layer: None):
    layer = layer or layers.Dense(2)
    made = keras.Sequential([keras.Input((6,)), layer])
    after(layer)
    return made


FOREIGN = {
    "an activation of the program with a name of Keras's": lambda: dense(layers.Dense(2, relu)),
    "an activation of TensorFlow's": lambda: dense(layers.Dense(2, tf.nn.relu)),
    "a lambda": lambda: dense(layers.Dense(2, lambda x: x * 2)),
    "a layer of the program": lambda: dense(Scaled(2)),
    "a layer of the program inside of another": lambda: sequence(layers.TimeDistributed(Scaled(2))),
    "an initializer of the program": lambda: dense(layers.Dense(2, kernel_initializer=Ones())),
    "a call set on a layer": lambda: dense(after=lambda layer: setattr(layer, "call", lambda x: x)),
    "inputs that are not known yet": lambda: keras.Sequential([layers.Dense(2)]),
    "a Lambda": lambda: dense(layers.Lambda(keras.activations.relu)),
    "LoRA": lambda: dense(after=lambda layer: layer.enable_lora(2)),
    "quantization": lambda: dense(after=lambda layer: layer.quantize("int8")),
    "a vocabulary": lambda: keras.Sequential(
        [keras.Input((1,), dtype="string"), layers.StringLookup(vocabulary=["a", "b"])]
    ),
    "a state between calls": lambda: keras.Sequential(
        [keras.Input(batch_shape=(4, 6, 1)), layers.LSTM(2, stateful=True)]
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_model_that_keras_alone_cannot_make_again_is_traced_at_once(what):
    assert not stock.is_of_keras_alone(FOREIGN[what]())


def test_a_method_of_keras_that_the_program_replaces_is_seen(monkeypatch):
    model = dense()
    assert stock.is_of_keras_alone(model)
    monkeypatch.setattr(layers.Dense, "call", lambda self, x: x)
    assert not stock.is_of_keras_alone(model)


def test_making_a_model_again_changes_nothing_in_the_process(tmp_path):
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    model = trained(shared())
    described = kept(model, tmp_path / "later", True)
    before = random.getstate(), keras_internals.eager_random_state()
    rebuilt.traced(described)
    after = random.getstate(), keras_internals.eager_random_state()
    assert str(after) == str(before)
    assert layers.Dense(1).name == "dense_2"


def change(described: Graph, edit):
    """Change a kept configuration, with the hash that belongs to it."""
    path = described.folder / graph.CONFIG
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    described.described["files"][graph.CONFIG] = graph.file_hash(path)


def call_of(name, module):
    return {"class_name": "function", "config": name, "module": module, "registered_name": name}


SPOILT = {
    "a function of another module": lambda config: [
        config["config"]["layers"][-1]["config"].update(activation=call_of("system", "os")),
        config,
    ][1],
    "a class of another module": lambda config: {**config, "module": "os", "class_name": "system"},
    "a Lambda": lambda config: [
        config["config"]["layers"][-1].update(class_name="Lambda"),
        config,
    ][1],
    "other shapes": lambda config: [config["config"]["layers"][-1]["config"].update(units=7), config][1],
    "nothing": lambda config: [],
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_configuration_that_was_changed_is_refused(what, tmp_path):
    described = kept(trained(MODELS["dense"]()), tmp_path / "later", True)
    change(described, SPOILT[what])
    with pytest.raises(CheckpointError, match="is damaged: Keras"):
        rebuilt.traced(described)
