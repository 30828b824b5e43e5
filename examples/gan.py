"""A small GAN that draws digits: two models, two optimizers, one loop.

python gan.py
python gan.py --arg epochs=3
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import flor_keras as flor

epochs = flor.arg("epochs", 10)
latent = flor.arg("latent", 16)

flor.seed(flor.arg("seed", 7))
images = (load_digits(return_X_y=True)[0] / 8 - 1).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices(images[:1750]).shuffle(1750).batch(50)

generator = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "tanh")])
discriminator = keras.Sequential(
    [keras.layers.Dense(64, "leaky_relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
)
generator_optimizer = keras.optimizers.Adam(0.002, beta_1=0.5)
discriminator_optimizer = keras.optimizers.Adam(0.001, beta_1=0.5)
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def discriminator_step(real):
    fake = generator(tf.random.normal((tf.shape(real)[0], latent)))
    with tf.GradientTape() as tape:
        scores = discriminator(tf.concat([real, fake], 0), training=True)
        labels = tf.concat([tf.ones((tf.shape(real)[0], 1)), tf.zeros((tf.shape(real)[0], 1))], 0)
        loss = cross_entropy(labels, scores)
    gradients = tape.gradient(loss, discriminator.trainable_variables)
    discriminator_optimizer.apply(gradients, discriminator.trainable_variables)
    return loss


@tf.function
def generator_step(batch_size):
    noise = tf.random.normal((batch_size, latent))
    with tf.GradientTape() as tape:
        loss = cross_entropy(tf.ones((batch_size, 1)), discriminator(generator(noise, training=True)))
    gradients = tape.gradient(loss, generator.trainable_variables)
    generator_optimizer.apply(gradients, generator.trainable_variables)
    return loss, gradients


@flor.record
def train(num_epochs):
    for epoch in range(num_epochs):
        for real in dataset:
            discriminator_loss = discriminator_step(real)
            generator_loss, _gradients = generator_step(50)
        flor.log("generator_loss", generator_loss)
        print(f"epoch {epoch}: {float(discriminator_loss):.4f} against {float(generator_loss):.4f}")


train(epochs)
