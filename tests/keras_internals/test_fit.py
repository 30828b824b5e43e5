"""Calls of `Model.fit`: seen before they are made."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from flor_keras import keras_internals

pytestmark = pytest.mark.slow


def test_logs_come_as_plain_numbers():
    assert keras_internals.pythonify_logs({"loss": tf.constant(0.5)}) == {"loss": 0.5}


def test_a_fit_that_was_looked_up_before_the_hook_is_hooked_too(model, unhooked):
    calls = []

    def hook(call):
        assert isinstance(call, keras_internals.FitCall)
        calls.append(call.model)
        return call.make()

    fit = model.fit
    keras_internals.hook_fit(hook)
    history = fit(np.zeros((4, 3)), np.zeros((4, 2)), epochs=2, verbose=0)
    assert calls == [model]
    assert history.epoch == [0, 1]
    keras_internals.unhook_fit()
    fit(np.zeros((4, 3)), np.zeros((4, 2)), verbose=0)
    assert calls == [model]


def test_fit_has_the_arguments_that_are_changed(model):
    parameters = inspect.signature(keras.Model.fit).parameters
    assert {"callbacks", "initial_epoch", "epochs", "verbose", "validation_freq", "x", "y"} <= set(parameters)


def test_the_epoch_a_restored_fit_goes_on_from_is_known(model, tmp_path):
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append((epoch, keras_internals.initial_epoch(self.model)))
            if epoch == 1:
                raise KeyboardInterrupt

    assert keras_internals.initial_epoch(model) is None
    for _ in range(2):
        backup = keras.callbacks.BackupAndRestore(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            model.fit(np.zeros((4, 3)), np.zeros((4, 2)), epochs=3, verbose=0, callbacks=[backup, Look()])
    assert seen == [(0, None), (1, None), (1, 1)]
