"""Models with every kind of state a program can have. Each function returns a compiled model and its data."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers

ROWS = 16


class Specimen(NamedTuple):
    """A compiled model, and what to fit it on."""

    model: Any
    x: Any
    y: Any = None

    def train(self, epochs: int = 1) -> Any:
        return self.model.fit(self.x, self.y, epochs=epochs, batch_size=8, shuffle=False, verbose=0)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=(ROWS, *shape)).astype("float32")


TARGET = numbers(1)
WORDS = np.array([["cat"], ["dog"], ["bird"], ["cat"]] * 4, dtype=object)


def compiled(model: Any, optimizer: Any = "adam", **arguments: Any) -> Any:
    model.compile(optimizer, "mse", **{"metrics": ["mae"], **arguments})
    return model


def sequential(*parts: Any, shape: tuple[int, ...] = (8,), **arguments: Any) -> Any:
    return compiled(keras.Sequential([keras.Input(shape), *parts]), **arguments)


def dropout_and_batch_normalization() -> Specimen:
    parts = (
        layers.Dense(8),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
        layers.GaussianNoise(0.1),
        layers.Dense(1),
    )
    return Specimen(sequential(*parts), numbers(8), TARGET)


def random_flip() -> Specimen:
    parts = (
        layers.RandomFlip(seed=3),
        layers.RandomRotation(0.1),
        layers.Conv2D(2, 3),
        layers.Flatten(),
        layers.Dense(1),
    )
    return Specimen(sequential(*parts, shape=(6, 6, 1)), numbers(6, 6, 1), TARGET)


def string_lookup() -> Specimen:
    lookup = layers.StringLookup()
    inputs = keras.Input((1,), dtype="string")
    outputs = layers.Dense(1)(layers.Flatten()(layers.Embedding(8, 4)(lookup(inputs))))
    lookup.adapt(WORDS)
    return Specimen(compiled(keras.Model(inputs, outputs)), tf.constant(WORDS.tolist()), TARGET)


def integer_lookup() -> Specimen:
    lookup = layers.IntegerLookup(num_oov_indices=2)
    lookup.adapt(np.array([[40], [41], [41], [7]]))
    parts = lookup, layers.Embedding(12, 4), layers.Flatten(), layers.Dense(1)
    inputs = keras.Input((1,), dtype="int64")
    outputs = inputs
    for part in parts:
        outputs = part(outputs)
    return Specimen(compiled(keras.Model(inputs, outputs)), np.arange(ROWS).reshape(-1, 1), TARGET)


def text_vectorization(output_mode: str = "int") -> Specimen:
    text = layers.TextVectorization(
        output_mode=output_mode,
        **({"output_sequence_length": 4} if output_mode == "int" else {"max_tokens": 10}),
    )
    text.adapt(["the cat sat", "the dog ran", "a bird"])
    inputs = keras.Input((), dtype="string")
    vector = text(inputs)
    if output_mode == "int":
        vector = layers.Flatten()(layers.Embedding(20, 4)(vector))
    else:
        vector = layers.Reshape((-1,))(vector) if None not in vector.shape[1:] else vector
    outputs = layers.Dense(1)(vector)
    return Specimen(compiled(keras.Model(inputs, outputs)), tf.constant(["the cat", "a dog ran"] * 8), TARGET)


def text_vectorization_by_tf_idf() -> Specimen:
    return text_vectorization("tf_idf")


def discretization() -> Specimen:
    bins = layers.Discretization(num_bins=4)
    bins.adapt(numbers(1))
    parts = bins, layers.Embedding(6, 3), layers.Flatten(), layers.Dense(1)
    return Specimen(sequential(*parts, shape=(1,)), numbers(1), TARGET)


def normalization() -> Specimen:
    norm = layers.Normalization()
    norm.adapt(3 + 2 * numbers(8))
    return Specimen(sequential(norm, layers.Dense(1)), numbers(8), TARGET)


@keras.saving.register_keras_serializable()
class Nest(layers.Layer):
    """Keeps sublayers in every kind of plain container."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.in_list = [layers.Dense(8), layers.BatchNormalization()]
        self.in_dict = {"a": layers.Dense(8), "b/c": layers.BatchNormalization()}
        self.nested = [[layers.Dense(8)], [{"n": layers.BatchNormalization()}]]
        self.in_tuple = (layers.BatchNormalization(),)
        self.by_attribute = layers.Dropout(0.3)

    def call(self, x: Any, training: bool = False) -> Any:
        for part in self._parts():
            x = part(x, training=training) if "training" in part._call_signature.parameters else part(x)
        return x

    def _parts(self) -> list[Any]:
        nested = [self.nested[0][0], self.nested[1][0]["n"]]
        return [*self.in_list, *self.in_dict.values(), *nested, *self.in_tuple, self.by_attribute]


def sublayers_in_containers() -> Specimen:
    return Specimen(sequential(Nest(), layers.Dense(1)), numbers(8), TARGET)


class Counting(layers.Layer):
    """Holds raw variables Keras does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.scales = [tf.Variable(1.0), {"inner": tf.Variable([1.0, 2.0])}]

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return x * self.scales[0]


def raw_variables() -> Specimen:
    return Specimen(sequential(Counting(), layers.Dense(1)), numbers(8), TARGET)


class Part(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones((8, 8)))
        self.b = tf.Variable(tf.zeros((8,)))

    def __call__(self, x: Any) -> Any:
        self.b.assign_add(tf.ones((8,)))
        return x @ self.w + self.b


class UserObject:
    """A class of the program's own, unknown to Keras and TensorFlow."""

    def __init__(self) -> None:
        self.total = tf.Variable(0.0)
        self.history = {"layers": [layers.BatchNormalization()], "seed": keras.random.SeedGenerator(4)}


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = tf.Variable([1, 2, 3])


class WithObjects(keras.Model):
    """Holds a module, objects of its own classes and a random generator."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.own = UserObject()
        self.slotted = [Slotted()]
        self.generator = tf.random.Generator.from_seed(1)
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.dense = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.own.total.assign_add(tf.reduce_sum(x))
            self.slotted[0].value.assign_add([1, 1, 1])
            x = x + self.generator.normal((8,)) + keras.random.normal((8,), seed=self.own.history["seed"])
            self.table.insert(tf.constant(["seen"]), tf.constant([7], tf.int64))
        return self.dense(self.own.history["layers"][0](self.part(x), training=training))


def modules_and_objects() -> Specimen:
    model = WithObjects()
    model(numbers(8))
    return Specimen(compiled(model), numbers(8), TARGET)


class Gan(keras.Model):
    """Two optimizers, two trackers, a seed generator."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = keras.Sequential(
            [keras.Input((8,)), layers.Dense(8), layers.Dropout(0.3), layers.Dense(1)]
        )
        self.generator = keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.BatchNormalization()])
        self.seed_generator = keras.random.SeedGenerator(1)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss, self.g_loss]

    def train_step(self, real: Any) -> Any:
        noise = keras.random.normal((8, 4), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            scores = self.discriminator(real, training=True) - self.discriminator(
                self.generator(noise), training=True
            )
            loss = tf.reduce_mean(tf.square(1 - scores))
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(loss, [w.value for w in weights]), weights)
        with tf.GradientTape() as tape:
            fooled = tf.reduce_mean(tf.square(1 - self.discriminator(self.generator(noise, training=True))))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(fooled, [w.value for w in weights]), weights)
        self.d_loss.update_state(loss)
        self.g_loss.update_state(fooled)
        return {m.name: m.result() for m in self.metrics}


def gan() -> Specimen:
    model = Gan()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.RMSprop(1e-3, momentum=0.9))
    return Specimen(model, numbers(8))


def second_optimizer() -> Specimen:
    specimen = dropout_and_batch_normalization()
    specimen.model.second = keras.optimizers.SGD(0.1, momentum=0.9)
    specimen.model.second.build(specimen.model.trainable_variables[:2])
    return specimen


def stateful_lstm() -> Specimen:
    inputs = keras.Input(batch_shape=(8, 4, 3))
    outputs = layers.Dense(1)(layers.LSTM(5, stateful=True, dropout=0.2)(inputs))
    return Specimen(compiled(keras.Model(inputs, outputs)), numbers(4, 3), TARGET)


def lora() -> Specimen:
    specimen = Specimen(sequential(layers.Dense(8), layers.Dense(1)), numbers(8), TARGET)
    specimen.model.layers[0].enable_lora(2)
    return specimen._replace(model=compiled(specimen.model))


def mixed_precision() -> Specimen:
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    parts = (
        layers.Dense(8, dtype=policy),
        layers.BatchNormalization(dtype=policy),
        layers.Dense(1, dtype=policy),
    )
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    return Specimen(sequential(*parts, optimizer=optimizer), numbers(8), TARGET)


def moving_average_of_weights() -> Specimen:
    optimizer = keras.optimizers.Adam(use_ema=True, ema_momentum=0.9)
    return Specimen(sequential(layers.Dense(8), layers.Dense(1), optimizer=optimizer), numbers(8), TARGET)


class Unused(keras.Model):
    """Creates four layers and calls two."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [layers.Dense(8) for _ in range(3)]
        self.last = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.parts[1](x))


def unused_sublayers() -> Specimen:
    model = Unused()
    model(numbers(8))
    return Specimen(compiled(model), numbers(8), TARGET)


def shared_layers() -> Specimen:
    shared, inputs = layers.Dense(8), keras.Input((8,))
    tower = keras.Sequential([shared, layers.BatchNormalization()])
    outputs = layers.Dense(1)(layers.Add()([shared(inputs), tower(inputs), tower(shared(inputs))]))
    return Specimen(compiled(keras.Model(inputs, outputs)), numbers(8), TARGET)


def fine_tuned_after_a_recompile() -> Specimen:
    base = keras.Sequential([keras.Input((8,)), layers.Dense(8), layers.BatchNormalization()])
    base.trainable = False
    specimen = Specimen(sequential(base, layers.Dense(1)), numbers(8), TARGET)
    specimen.train()
    base.trainable = True
    return specimen._replace(model=compiled(specimen.model))


def frozen_base() -> Specimen:
    base = keras.Sequential([keras.Input((8,)), layers.Dense(8), layers.BatchNormalization()])
    base.trainable = False
    return Specimen(sequential(base, layers.Dense(1)), numbers(8), TARGET)


class Composed(layers.Layer):
    """Sublayers without a build method: their weights come with the first call (C46)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(4), layers.Dense(4)

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


def composed_without_build() -> Specimen:
    inputs = keras.Input((8,))
    return Specimen(compiled(keras.Model(inputs, layers.Dense(1)(Composed()(inputs)))), numbers(8), TARGET)


def unseeded_keras_random() -> Specimen:
    class Noise(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal((8,))

    return Specimen(sequential(Noise(), layers.Dense(1)), numbers(8), TARGET)


def several_outputs_and_metrics() -> Specimen:
    inputs = keras.Input((8,))
    left, right = layers.Dense(1, name="left")(inputs), layers.Dense(1, name="right")(inputs)
    model = keras.Model(inputs, {"left": left, "right": right})
    model.compile(
        "adam",
        {"left": "mse", "right": "mae"},
        metrics={"left": ["mae"], "right": ["mse", keras.metrics.MeanSquaredError()]},
    )
    return Specimen(model, numbers(8), {"left": TARGET, "right": TARGET})


def schedule_and_nested_models() -> Specimen:
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(8), layers.Dropout(0.2)])
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), clipnorm=1.0)
    return Specimen(sequential(inner, inner, layers.Dense(1), optimizer=optimizer), numbers(8), TARGET)


MAKERS = (
    dropout_and_batch_normalization,
    random_flip,
    string_lookup,
    integer_lookup,
    text_vectorization,
    text_vectorization_by_tf_idf,
    discretization,
    normalization,
    sublayers_in_containers,
    raw_variables,
    modules_and_objects,
    gan,
    second_optimizer,
    stateful_lstm,
    lora,
    mixed_precision,
    moving_average_of_weights,
    unused_sublayers,
    shared_layers,
    fine_tuned_after_a_recompile,
    frozen_base,
    composed_without_build,
    unseeded_keras_random,
    several_outputs_and_metrics,
    schedule_and_nested_models,
)
OPTIMIZERS = (
    "sgd",
    "rmsprop",
    "adam",
    "adamw",
    "adagrad",
    "adadelta",
    "adamax",
    "nadam",
    "ftrl",
    "adafactor",
    "lion",
    "muon",
)
