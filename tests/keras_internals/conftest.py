"""What tests of private parts share."""

import keras
import pytest

from flor_keras import keras_internals


@pytest.fixture
def model():
    built = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    built.compile("adam", "mse")
    return built


@pytest.fixture
def unhooked():
    yield
    keras_internals.unhook_fit()
