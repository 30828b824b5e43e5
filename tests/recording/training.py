"""The beginning of a small training program, for tests to go on from."""

BASE = """
import json, os, sys
import keras, numpy as np, tensorflow as tf
from keras import callbacks, layers
import flor_keras as flor

keras.utils.set_random_seed(1)
x = np.random.rand(64, 8).astype("float32")
y = x.sum(1, keepdims=True) + np.random.rand(64, 1).astype("float32")

def build(**arguments):
    first, last = layers.Dense(8, activation="relu"), layers.Dense(1)
    middle = layers.BatchNormalization(), layers.Dropout(0.3)
    model = keras.Sequential([keras.Input((8,)), first, *middle, last])
    model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **arguments})
    return model

def weights(model):
    return [array.tobytes().hex() for array in model.get_weights()]
"""
