"""Eight training programs shaped like those FLOR was measured with, small enough for two cores. Data and weights are random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers

Arrays = tuple[np.ndarray, np.ndarray]
_CLASSES = 10


class Workload(NamedTuple):
    """A model, a maker of as many examples as asked for, and how long an epoch is to be."""

    build: Callable[[], keras.Model]
    data: Callable[[int], Arrays]
    batch_size: int
    epoch_share: float  # of the time of training; 1 is a single epoch


def _compiled(inputs: Any, outputs: Any, optimizer: Any = "adam") -> keras.Model:
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def _images(side: int, channels: int) -> Callable[[int], Arrays]:
    def make(count: int) -> Arrays:
        random = np.random.default_rng(0)
        return random.random((count, side, side, channels), np.float32), random.integers(0, _CLASSES, count)

    return make


def _texts(length: int, num_words: int) -> Callable[[int], Arrays]:
    def make(count: int) -> Arrays:
        random = np.random.default_rng(0)
        return random.integers(0, num_words, (count, length)), random.integers(0, _CLASSES, count)

    return make


def _rows(width: int) -> Callable[[int], Arrays]:
    def make(count: int) -> Arrays:
        random = np.random.default_rng(0)
        return random.random((count, width), np.float32), random.integers(0, _CLASSES, count)

    return make


def _fine_tuned(is_frozen: bool) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        backbone = keras.applications.MobileNetV2((64, 64, 3), weights=None, include_top=False, pooling="avg")
        backbone.trainable = not is_frozen
        inputs = keras.Input((64, 64, 3))
        features = backbone(inputs, training=False if is_frozen else None)
        return _compiled(inputs, layers.Dense(_CLASSES)(layers.Dropout(0.2)(features)))

    return build


def _convnet() -> keras.Model:
    inputs = keras.Input((28, 28, 1))
    x = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation="relu")(inputs))
    x = layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu")(x))
    return _compiled(inputs, layers.Dense(_CLASSES)(layers.Dropout(0.5)(layers.Flatten()(x))))


def _residual_net() -> keras.Model:
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for width in (16, 32, 64):
        for block in range(3):
            strides = 2 if block == 0 and width > 16 else 1
            y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, strides, "same")(x)))
            y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(y))
            x = x if strides == 1 else layers.Conv2D(width, 1, strides)(x)
            x = layers.ReLU()(layers.Add()([x, y]))
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    return _compiled(inputs, layers.Dense(_CLASSES)(layers.GlobalAveragePooling2D()(x)), sgd)


def _transformer() -> keras.Model:
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(10_000, 128)(inputs)
    for _ in range(4):
        attended = layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + attended)
        x = layers.LayerNormalization()(x + layers.Dense(128)(layers.Dense(512, activation="gelu")(x)))
    return _compiled(inputs, layers.Dense(_CLASSES)(layers.GlobalAveragePooling1D()(x)))


def _recurrent_net() -> keras.Model:
    inputs = keras.Input((40,), dtype="int32")
    x = layers.LSTM(128)(layers.Embedding(5_000, 64)(inputs))
    return _compiled(inputs, layers.Dense(_CLASSES)(x))


def _wide_net() -> keras.Model:
    inputs = keras.Input((128,))
    x = layers.Dense(512, activation="relu")(layers.Dense(512, activation="relu")(inputs))
    return _compiled(inputs, layers.Dense(_CLASSES)(x))


def _tiny_net() -> keras.Model:
    inputs = keras.Input((8,))
    return _compiled(inputs, layers.Dense(_CLASSES)(layers.Dense(16, activation="relu")(inputs)))


WORKLOADS = {
    "fine-tuning, frozen backbone": Workload(_fine_tuned(True), _images(64, 3), 32, 1 / 60),
    "fine-tuning, free backbone": Workload(_fine_tuned(False), _images(64, 3), 32, 1 / 8),
    "small convnet": Workload(_convnet, _images(28, 1), 64, 1 / 20),
    "residual net": Workload(_residual_net, _images(32, 3), 32, 1 / 10),
    "transformer": Workload(_transformer, _texts(64, 10_000), 32, 1 / 10),
    "recurrent net": Workload(_recurrent_net, _texts(40, 5_000), 32, 1 / 10),
    "one epoch of large data": Workload(_wide_net, _rows(128), 128, 1.0),
    "tiny model, very short epochs": Workload(_tiny_net, _rows(8), 32, 1 / 400),
}
