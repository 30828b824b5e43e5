"""Probes in a replay of a program that does not know of them equal the same numbers logged while training."""

from __future__ import annotations

import json

import numpy as np
import pytest
from project import values

pytestmark = pytest.mark.slow

PROGRAM = """
    import flor_keras as flor
    from flor_keras import probes
    import keras
    import numpy as np

    keras.utils.set_random_seed(5)
    x = np.random.rand(96, 6).astype("float32")
    y = np.random.randint(0, 3, 96)
    layers = [keras.Input((6,)), keras.layers.Dense(12, activation="relu"), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0), "sparse_categorical_crossentropy"METRICS)
    validation = (x[:40], y[:40])
    model.fit(x, y, epochs=3, verbose=0, validation_data=validation, callbacks=[LIVEflor.FlorKeras()])
"""
ALL = (
    *("gradient_norm", "gradient_norm_per_layer", "update_ratio", "weight_norm", "weight_norm_per_layer"),
    *(
        "weight_histogram",
        "learning_rate",
        "num_not_finite",
        "confusion_matrix",
        "class_accuracy",
        "sample_loss",
    ),
    *("activation_histogram", "dead_units"),
)
LIVE = (
    '*[getattr(probes, probe.class_name)(**({"data": validation} if probe.needs_batches else {})) '
    "for probe in probes.BUILT_IN.values()], "
)
EVAL_METRIC = ', metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]'


def program(live: str = "", metrics: str = "") -> str:
    return PROGRAM.replace("LIVE", live).replace("METRICS", metrics)


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.fixture(scope="module")
def twins(shared_project):
    """Two runs of one program: one with all probes as callbacks, and, newest, one without any."""
    shared_project.write("train.py", program(LIVE, EVAL_METRIC))
    shared_project.succeed("train.py")
    shared_project.write("train.py", program())
    shared_project.succeed("train.py")
    return shared_project


def test_probes_do_not_change_training(twins):
    assert values(twins.latest(), "loss") == values(twins.latest("latest~1"), "loss")


def test_step_probes_equal_those_logged_live(twins):
    steps = ALL[:3]
    told = twins.replay("train.py", *(word for probe in steps for word in ("--probe", probe)))
    assert told["verified"] == "exact"
    for name in steps:
        live, hindsight = (run.entries(name) for run in (twins.latest("latest~1"), twins.latest()))
        assert [e.position for e in hindsight] == [e.position for e in live]
        assert [plain(e.value) for e in hindsight] == [plain(e.value) for e in live]
        assert len(live) == 9


def test_epoch_probes_equal_those_logged_live(twins):
    told = twins.replay(
        "train.py", *(word for probe in ALL[3:] for word in ("--probe", probe)), "--workers", "2"
    )
    assert (told["verified"], told["level"]) == ("exact", "epoch")
    for name in ALL[3:]:
        live, hindsight = values(twins.latest("latest~1"), name), values(twins.latest(), name)
        np.testing.assert_equal([plain(value) for value in hindsight], [plain(value) for value in live])
        assert len(live) == 3


def test_a_metric_equals_the_one_compiled_in(twins):
    expression = "keras.metrics.SparseTopKCategoricalAccuracy(2)"
    told = twins.replay("train.py", "--metric", f"top={expression}")
    assert told["level"] == "eval"
    assert values(twins.latest(), "val_top") == values(twins.latest("latest~1"), "val_top")


def test_a_function_gets_the_model_the_position_the_logs_and_batches(twins):
    twins.write(
        "mine.py",
        """
        import numpy as np
        def mine(model, position, logs):
            return [position.epoch, len(model.weights), sorted(logs)]
        def count(model, position, logs, batches):
            return sum(len(y) for _, y in batches)
        def each(model, position, logs):
            return float(np.abs(model.weights[0]).max())
        """,
    )
    twins.replay("train.py", "--probe", "mine.py:mine", "--probe", "mine.py:count")
    assert values(twins.latest(), "mine") == [[epoch, 4, ["loss", "val_loss"]] for epoch in range(3)]
    assert values(twins.latest(), "count") == [40] * 3
    twins.replay("train.py", "--probe", "mine.py:each", "--level", "step", "--epochs", "1")
    assert [e.position.step for e in twins.latest().entries("each")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--probe", "gradient"), "There is no probe 'gradient'"),
        (("--probe", "nowhere.py:f"), "cannot be read"),
        (("--metric", "auc"), "expected something like auc="),
        (("--metric", "auc=keras."), "not a Python expression"),
        ((), "Nothing was asked for"),
        (("--probe", "weight_norm", "--probe", "weight_norm"), "Two probes would log under"),
    ],
)
def test_what_is_no_probe_is_refused(twins, words, message):
    ended = twins.flor("replay", "train.py", *words)
    assert ended.status == 2
    assert message in ended.stderr


def test_the_plan_has_the_probes(twins):
    plan = json.loads(
        twins.flor("replay", "train.py", "--probe", "gradient_norm", "--dry-run", "--json").stdout
    )
    assert (plan["names"], plan["level"], plan["is_in_graph"]) == (["gradient_norm"], "step", True)


CUSTOM = """
    import flor_keras as flor
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(5)
    x = np.random.rand(96, 6).astype("float32")
    y = x.sum(1, keepdims=True)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, activation="relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=1).batch(32)

    @tf.function
    def train_step(inputs, target):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - target) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        LIVE
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    mean = keras.metrics.Mean()
    with flor.checkpointing(model=model, optimizer=optimizer, mean=mean):
        for epoch in flor.loop("epoch", range(3)):
            mean.reset_state()
            for inputs, target in flor.loop("step", dataset):
                mean.update_state(train_step(inputs, target))
            flor.log("loss", float(mean.result()))
"""


def test_a_gradient_norm_of_a_loop_of_the_programs_own_equals_the_live_one(project):
    live = 'flor.log("gradient_norm", tf.linalg.global_norm(gradients))'
    project.write("train.py", CUSTOM.replace("LIVE", live))
    project.succeed("train.py")
    project.write("train.py", CUSTOM.replace("LIVE", "pass"))
    project.succeed("train.py")
    told = project.replay("train.py", "--probe", "gradient_norm", "--workers", "2")
    assert told["verified"] == "exact"
    assert values(project.latest(), "gradient_norm") == values(project.latest("latest~1"), "gradient_norm")
    assert len(values(project.latest(), "gradient_norm")) == 9
