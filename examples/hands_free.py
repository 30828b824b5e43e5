"""A training program that does not know flor_keras, and sets no seed.

flor-keras record hands_free.py
flor-keras record hands_free.py 3
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 6

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
order = np.random.permutation(len(images))
images, digits = images[order], digits[order]
batches = tf.data.Dataset.from_tensor_slices((images[:1500], digits[:1500])).shuffle(1500).batch(50)

model = keras.Sequential([keras.layers.Dense(48, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)])
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

for epoch in range(epochs):
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
    print(f"epoch {epoch}: loss {float(loss):.4f}")

model.compile(loss=loss_fn, metrics=["accuracy"])
print("accuracy on the rest:", model.evaluate(images[1500:], digits[1500:], verbose=0)[1])
