"""A remembered walk is never taken for a program that has changed, nor repeated for one that has not."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("tensorflow")

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from specimens import MAKERS

from flor_keras import keras_internals
from flor_keras.state import gathering
from flor_keras.state.gathering import Gatherer
from flor_keras.state.variables import gather

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*was called on layer")]
x, y = np.random.default_rng(0).random((8, 4), np.float32), np.arange(8) % 3


class Holder:
    """An object of the program that holds state in every way Python has."""

    __slots__ = ("__dict__", "slot")

    def __init__(self):
        self.slot = tf.Variable(1.0)
        self.items = [tf.Variable(2.0)]
        self.table = {"a": (tf.Variable(3.0), {"deep": [tf.Variable(4.0)]})}
        self.group = {layers.Dense(2, name="grouped")}
        self.weight = keras.Variable(np.zeros(3, np.float32))
        self.steps = 0


class Model(keras.Model):
    """A model with a metric only its `metrics` property knows of, and an object beside its layers."""

    outside: ClassVar[list] = []

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(5), layers.Dense(3)
        self.holder = Holder()

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    @property
    def metrics(self):
        return [*super().metrics, *self.outside]


def compile_(model, metrics=("accuracy",), optimizer="adam"):
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=list(metrics)
    )


@pytest.fixture
def model():
    model = Model()
    compile_(model)
    model.fit(x, y, verbose=0)
    yield model
    Model.outside.clear()


def same(one, two):
    """Whether two states are made of the same objects under the same names."""
    return (
        {name: id(v) for name, v in one.variables.items()}
        == {name: id(v) for name, v in two.variables.items()}
        and {name: id(t) for name, t in one.tables.items()} == {name: id(t) for name, t in two.tables.items()}
        and list(one.optimizers) == list(two.optimizers)
        and one.metric_names == two.metric_names
        and one.mirrors.keys() == two.mirrors.keys()
        and [id(layer) for layer in one.derived] == [id(layer) for layer in two.derived]
    )


def _unfreeze(model):
    model.hidden.trainable = False
    compile_(model)
    model.fit(x, y, verbose=0)
    model.hidden.trainable = True
    compile_(model)
    model.fit(x, y, verbose=0)


def _swap(model):
    holder = model.holder
    holder.slot, holder.items[0] = holder.items[0], holder.slot


def _rename(model):
    model.holder.other_items = model.holder.__dict__.pop("items")


def _outside_metric(model):
    metric = keras.metrics.Mean(name="outside")
    metric.update_state(1.0)
    Model.outside.append(metric)


def _global_seed(model):
    keras_internals.ensure_global_seed_generator()
    keras.utils.clear_session()
    keras_internals.ensure_global_seed_generator()


CHANGES = {
    "unfreeze a layer": _unfreeze,
    "compile again": lambda model: compile_(model),
    "compile with another optimizer": lambda model: compile_(model, optimizer="sgd"),
    "compile with another metric": lambda model: (
        compile_(model, ["accuracy", "sparse_categorical_crossentropy"]),
        model.fit(x, y, verbose=0),
    ),
    "build the optimizer": lambda model: (compile_(model), model.optimizer.build(model.trainable_variables)),
    "enable LoRA": lambda model: model.hidden.enable_lora(2),
    "quantize": lambda model: model.hidden.quantize("int8"),
    "add an attribute": lambda model: setattr(model.holder, "extra", tf.Variable(0.0)),
    "replace a slot": lambda model: setattr(model.holder, "slot", tf.Variable(0.0)),
    "delete a slot": lambda model: delattr(model.holder, "slot"),
    "add an item": lambda model: model.holder.items.append(tf.Variable(0.0)),
    "replace an item": lambda model: model.holder.items.__setitem__(0, tf.Variable(0.0)),
    "replace a value deep inside": lambda model: model.holder.table["a"][1]["deep"].__setitem__(
        0, tf.Variable(0.0)
    ),
    "replace a tuple": lambda model: model.holder.table.__setitem__("a", (tf.Variable(0.0),)),
    "rename a key": lambda model: model.holder.table.__setitem__("b", model.holder.table.pop("a")),
    "change a set": lambda model: (
        model.holder.group.clear(),
        model.holder.group.add(layers.Embedding(2, 2)),
    ),
    "build a layer in a set": lambda model: next(iter(model.holder.group)).build((None, 2)),
    "None becomes a variable": lambda model: setattr(model.holder, "steps", tf.Variable(0)),
    "a variable under a variable": lambda model: setattr(
        model.holder.weight, "_value", tf.Variable(np.ones(3, np.float32))
    ),
    "swap two variables": _swap,
    "rename an attribute": _rename,
    "a metric only a property knows of": _outside_metric,
    "another global seed generator": _global_seed,
    "another name of a metric": lambda model: setattr(model.metrics[1].metrics[0], "_name", "other"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_can_be_reached_is_seen(model, change):
    gatherer = Gatherer()
    roots = {"model": model}
    before = gatherer.gather(roots)
    assert same(before, gather(roots))
    change(model)
    now = gather(roots)
    assert same(gatherer.gather(roots), now)
    assert same(gatherer.gather(roots), now)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_specimen_is_gathered_as_by_a_new_walk_at_any_time(make):
    specimen, gatherer = make(), Gatherer()
    roots = {"model": specimen.model}
    for _ in range(3):
        assert same(gatherer.gather(roots), gather(roots))
        specimen.train()
        assert same(gatherer.gather(roots), gather(roots))


def test_another_root_is_seen(model):
    gatherer, other = Gatherer(), Model()
    for roots in ({"model": model}, {"model": other}, {"other": model}, {"model": model, "more": Holder()}):
        assert same(gatherer.gather(roots), gather(roots))


def test_training_alone_leads_to_no_new_walk(model, monkeypatch):
    walks = []
    monkeypatch.setattr(gathering, "Walk", lambda roots, walk=gathering.Walk: walks.append(1) or walk(roots))
    gatherer = Gatherer()

    class Gathering(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.holder.steps += 1000
            gatherer.gather({"model": self.model})

    model.fit(x, y, validation_data=(x, y), epochs=5, verbose=0, callbacks=[Gathering()])
    assert len(walks) == 1
