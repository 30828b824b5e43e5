"""The state of callbacks comes back into the callbacks of another process, and refers to the objects of that process."""

from __future__ import annotations

import operator

import keras
import numpy as np
import pytest
import tensorflow as tf

from flor_keras.state.callbacks import capture_callbacks, restore_callbacks
from flor_keras.state.random import capture_random, is_same_random, restore_random

pytestmark = pytest.mark.slow

LOSSES: list[float] = []


class Own(keras.callbacks.Callback):
    """A callback with whatever attributes a test gives it."""

    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)

    def on_epoch_end(self, epoch, logs=None):
        LOSSES.append(epoch)


def a_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.1)])
    model.compile("adam", "mse")
    return model


def moved(capturing, restoring, models=None):
    """Capture one list of callbacks and restore another, each with a model of its own; return that and what is lost."""
    here, there = models or (a_model(), a_model())
    captured, lost = capture_callbacks(capturing, here)
    restore_callbacks(restoring, there, captured)
    return there, lost


def test_attributes_that_refer_to_the_model_refer_to_the_program_s_own_again():
    here, there = a_model(), a_model()

    def referring(model):
        return Own(
            found={"layers": [model.layers[0]], "model": model, "weights": model.variables, "best": None}
        )

    before, after = referring(here), Own(found=None)
    before.found["best"] = 3
    _, lost = moved([before], [after], (here, there))
    assert lost == []
    assert after.found["best"] == 3
    assert after.found["model"] is there
    assert after.found["layers"][0] is there.layers[0]
    assert all(left is right for left, right in zip(after.found["weights"], there.variables, strict=True))


def test_callbacks_refer_to_each_other_again():
    first, second = Own(count=4), Own()
    second.others = (first, second)
    again = [Own(count=0), Own()]
    moved([first, second], again)
    assert again[0].count == 4
    assert again[1].others[0] is again[0]
    assert again[1].others[1] is again[1]


def test_a_model_that_is_not_the_trained_one_is_left_to_the_program_and_named():
    teacher = a_model()
    after = Own(teachers=[teacher], count=0)
    _, lost = moved([Own(teachers=[a_model()], count=7)], [after])
    assert lost == ["Own.teachers"]
    assert after.teachers[0] is teacher
    assert after.count == 7


def test_containers_and_arrays_keep_the_other_names_the_program_has_for_them():
    names, table, seen, array = [], {}, set(), np.zeros(3)
    before = Own(names=[1, 2], table={"a": [1]}, seen={4}, array=np.arange(3.0), new=[5])
    moved([before], [Own(names=names, table=table, seen=seen, array=array, new=None)])
    assert (names, table, seen, array.tolist()) == ([1, 2], {"a": [1]}, {4}, [0, 1, 2])


def test_what_a_function_fills_outside_of_its_callback_comes_back():
    inner = [1]
    LOSSES[:] = [0.5, 0.25]
    chosen = [Own(), keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: inner.append(epoch))]
    captured, _ = capture_callbacks(chosen, model := a_model())
    LOSSES.clear()
    inner[:] = [9]
    restore_callbacks(chosen, model, captured)
    assert (LOSSES, inner) == ([0.5, 0.25], [1])


def test_a_library_function_is_state_and_the_program_s_code_is_not():
    code, library = (lambda: 1), operator.lt
    after = Own(code=code, compare=None, method=None)
    moved([Own(code=lambda: 2, compare=library, method=[].append)], [after])
    assert (after.code, after.compare, after.method) == (code, library, None)


def test_metrics_variables_and_seeds_of_a_callback_get_their_values_and_stay_the_same_objects():
    def make():
        return Own(
            mean=keras.metrics.Mean(),
            step=tf.Variable(0),
            seed=keras.random.SeedGenerator(1),
            rate=keras.Variable(0.0),
        )

    before, after = make(), make()
    before.mean.update_state([4.0])
    before.step.assign(3)
    before.seed.next()
    before.rate.assign(0.5)
    objects = dict(vars(after))
    _, lost = moved([before], [after])
    assert lost == []
    assert float(after.mean.result()) == 4.0
    assert (int(after.step), float(after.rate.value)) == (3, 0.5)
    assert after.seed.state.numpy().tolist() == before.seed.state.numpy().tolist()
    assert all(getattr(after, name) is value for name, value in objects.items())


def test_one_more_callback_of_a_class_does_not_take_the_state_of_another():
    after = [Own(count=0), Own(count=1)]
    moved([Own(count=5)], after)
    assert [callback.count for callback in after] == [5, 1]


def test_random_states_are_told_apart():
    import random

    before = capture_random()
    assert is_same_random(before, capture_random())
    for draw in (random.random, np.random.rand):
        draw()
        assert not is_same_random(before, capture_random())
        restore_random(before)
        assert is_same_random(before, capture_random())
