"""The program `replay.py` records and replays: a convolutional network on made-up images.

python replayed.py EPOCHS PASSES [THREADS]

An epoch goes over the images PASSES times, so that its length says nothing of the size of data and state.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import flor_keras as flor

NUM_IMAGES, BATCH_SIZE = 640, 32


def prepare(passes: int, threads: int = 0) -> tuple[Any, Any, Any]:
    """Return the model, the training data and the validation data; without THREADS TensorFlow takes what it likes."""
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(1)
    images = random.random((NUM_IMAGES, 32, 32, 3), np.float32)
    data = tf.data.Dataset.from_tensor_slices((images, random.integers(0, 10, NUM_IMAGES)))
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(128, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model, data.repeat(passes).batch(BATCH_SIZE), data.take(NUM_IMAGES // 2).batch(BATCH_SIZE)


def main(epochs: int, passes: int, threads: int = 0) -> None:
    """Train, and log something before and after."""
    model, data, validation_data = prepare(passes, threads)
    flor.log("num_weights", model.count_params())
    callbacks = [flor.FlorKeras(checkpoint_every="epoch")]
    model.fit(data, validation_data=validation_data, epochs=epochs, verbose=0, callbacks=callbacks)
    flor.log("final_loss", model.evaluate(validation_data, verbose=0)[0])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
