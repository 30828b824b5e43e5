"""Learn handwritten digits, with augmentation. Something about the validation accuracy will look odd.

python digits_fit.py
python digits_fit.py --arg rotation=0.05 --arg epochs=12
"""

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import flor_keras as flor

seed = flor.arg("seed", 7)
epochs = flor.arg("epochs", 20)
filters = flor.arg("filters", 96)
rotation = flor.arg("rotation", 0.5)

keras.utils.set_random_seed(seed)
images, digits = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
x, x_val, y, y_val = train_test_split(images, digits, test_size=0.25, random_state=0, stratify=digits)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.RandomRotation(rotation, fill_mode="constant"),
        keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.Conv2D(2 * filters, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.Conv2D(2 * filters, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    flor.FlorKeras(name="digits"),
]
model.fit(x, y, epochs=epochs, validation_data=(x_val, y_val), callbacks=callbacks, verbose=2)
