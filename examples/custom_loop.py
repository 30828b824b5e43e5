"""A training loop of one's own on handwritten digits: `flor.record` is the only thing added to it.

python custom_loop.py
python custom_loop.py --arg epochs=3
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import flor_keras as flor

epochs = flor.arg("epochs", 8)
learning_rate = flor.arg("learning_rate", 0.002)

keras.utils.set_random_seed(flor.arg("seed", 7))
images, digits = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
train = tf.data.Dataset.from_tensor_slices((images[:1500], digits[:1500])).shuffle(1500).batch(50)
test = tf.data.Dataset.from_tensor_slices((images[1500:], digits[1500:])).batch(99)

model = keras.Sequential(
    [
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]
)
optimizer = keras.optimizers.Adam(learning_rate)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss, gradients


@flor.record
def fit(dataset, num_epochs):
    for epoch in range(num_epochs):
        for x, y in dataset:
            loss, _gradients = train_step(x, y)
        accuracy.reset_state()
        for x, y in test:
            accuracy.update_state(y, model(x))
        flor.log("accuracy", accuracy.result())
        print(f"epoch {epoch}: loss {float(loss):.4f}, accuracy {float(accuracy.result()):.4f}")


fit(train, epochs)
