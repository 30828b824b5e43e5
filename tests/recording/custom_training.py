"""A small custom loop under the expert API, for tests to go on from: words in capitals are filled in."""

from __future__ import annotations

import textwrap

PROGRAM = """
import json, os, random, sys
import flor_keras as flor
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
x = np.random.rand(96, 6).astype("float32")
y = (x.sum(axis=1) > 3).astype("int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(32)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.01)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean = keras.metrics.Mean()
history = {"loss": []}
BEFORE

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    mean.update_state(loss)
    return loss, tf.linalg.global_norm(gradients)

with flor.checkpointing(model=model, optimizer=optimizer, mean=mean, history=history, EXTRA):
    for epoch in flor.loop("epoch", range(4)):
        mean.reset_state()
        EPOCH_BEGIN
        for xb, yb in flor.loop("step", data):
            loss, norm = train_step(xb, yb)
            STEP
        history["loss"].append(float(mean.result()))
        flor.log("loss", history["loss"][-1])
        EPOCH_END
AFTER
"""
PLACES = ("BEFORE", "EXTRA", "EPOCH_BEGIN", "STEP", "EPOCH_END", "AFTER")


def custom_program(**filled: str) -> str:
    """Return the program with code at its places (``step=``, ``epoch_end=``, …)."""
    lines = []
    for line in PROGRAM.strip("\n").splitlines():
        place = line.strip()
        indent = line[: len(line) - len(line.lstrip())]
        if place in PLACES:
            lines += textwrap.indent(textwrap.dedent(filled.get(place.lower(), "")), indent).splitlines()
        else:
            lines.append(line.replace(", EXTRA", filled.get("extra", "")))
    return "\n".join(lines) + "\n"
