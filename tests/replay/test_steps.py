"""Epochs redone step by step: equal to the record bit for bit, or said not to be, with the cause."""

import json
import sqlite3

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
    import flor_keras as flor
    import keras
    import numpy as np
    import tensorflow as tf

    kind = flor.arg("kind", "arrays")
    keras.utils.set_random_seed(7)
    x = np.random.rand(160, 6).astype("float32")
    y = (x.sum(axis=1) > 3).astype("int32")

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(8, activation="relu")
            self.dropout = keras.layers.Dropout(0.3)
            self.norm = keras.layers.BatchNormalization()
            self.out = keras.layers.Dense(2)

        def call(self, inputs, training=False):
            hidden = self.norm(self.hidden(inputs), training=training)
            return self.out(self.dropout(hidden, training=training))

        def train_step(self, data):
            inputs, labels = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=labels, y_pred=self(inputs, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            NOISE
            LIVE
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    model = Model()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), STEPS)
    data = (x, y)
    if kind == "tf.data":
        data = (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(160).batch(32).prefetch(2),)
    PROBE
    callbacks = [flor.FlorKeras(), CALLBACKS]
    model.fit(*data, epochs=4, verbose=0, callbacks=callbacks)
"""
NORM = 'flor.log("gradient_norm", tf.linalg.global_norm(gradients))'


def program(
    live: str = "", probe: str = "", callbacks: str = "", steps: str = "", noise: str = "pass"
) -> str:
    filled = PROGRAM.replace("LIVE", live).replace("CALLBACKS", callbacks).replace("STEPS", steps)
    return filled.replace("PROBE", probe).replace("NOISE", noise)


def recorded(project, source: str, kind: str = "arrays") -> None:
    project.write("train.py", source)
    project.succeed("train.py", env={"FLOR_ARGS": json.dumps({"kind": kind})})


def replayed(project, *words: str) -> dict:
    done = project.flor("replay", "train.py", *words, "--json")
    assert done.status in (0, 3), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
@pytest.mark.parametrize("steps", ["", "steps_per_execution=5"])
def test_a_gradient_norm_added_afterwards_equals_the_one_a_twin_run_logged_live(shared_project, kind, steps):
    recorded(shared_project, program(live=NORM, steps=steps), kind)
    live = json.loads(shared_project.flor("logs", "gradient_norm", "--json").stdout)
    recorded(shared_project, program(steps=steps), kind)
    shared_project.write("train.py", program(live=NORM, steps=steps))
    report = replayed(shared_project, "gradient_norm")
    assert report["verified"] == "exact"
    assert len(live) == 20
    assert [(r["epoch"], r["step"], r["gradient_norm"].hex()) for r in report["values"]] == [
        (r["epoch"], r["step"], r["gradient_norm"].hex()) for r in live
    ]


def test_only_the_asked_steps_are_kept(shared_project):
    recorded(shared_project, program())
    shared_project.write("train.py", program(live=NORM))
    report = replayed(shared_project, "gradient_norm", "--epochs", "1,3", "--steps", "1:3")
    assert [(r["epoch"], r["step"]) for r in report["values"]] == [(1, 1), (1, 2), (3, 1), (3, 2)]


def test_a_callback_added_afterwards_may_evaluate_between_steps_without_changing_the_training(shared_project):
    recorded(shared_project, program())
    probe = """
    class Probe(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            np.random.rand()
            flor.log("other_loss", self.model.evaluate(x[:40], y[:40], verbose=0))
"""
    shared_project.write("train.py", program(probe=probe, callbacks="Probe()"))
    report = replayed(shared_project, "other_loss", "--epochs", "2")
    assert (report["verified"], report["causes"]) == ("exact", [])
    assert len(report["values"]) == 5


def test_an_epoch_is_redone_from_the_nearest_checkpoint_before_it(shared_project):
    recorded(shared_project, program())
    database = sqlite3.connect(shared_project.store / "flor.db")
    database.execute("UPDATE checkpoints SET error = 'lost' WHERE epoch IN (1, 2) AND kind = 'epoch_end'")
    database.commit()
    database.close()
    shared_project.write("train.py", program(live=NORM))
    report = replayed(shared_project, "gradient_norm", "--epochs", "3")
    assert report["verified"] == "exact"
    assert {row["epoch"] for row in report["values"]} == {3}


def test_a_random_op_with_hidden_state_is_named_as_the_cause(shared_project):
    noise = "gradients = [g + 0.1 * tf.random.normal(tf.shape(g)) for g in gradients]"
    recorded(shared_project, program(noise=noise))
    shared_project.write("train.py", program(noise=noise, live=NORM))
    report = replayed(shared_project, "gradient_norm", "--epochs", "2")
    assert report["verified"] == "approximate"
    assert report["max_abs_diff"] > 0
    assert any("RandomStandardNormal" in cause and "train.py:" in cause for cause in report["causes"])


def test_with_flor_seed_the_same_random_op_is_replayed_exactly(shared_project):
    noise = "gradients = [g + 0.1 * tf.random.normal(tf.shape(g)) for g in gradients]"
    source = program(noise=noise).replace("keras.utils.set_random_seed(7)", "flor.seed()")
    recorded(shared_project, source)
    shared_project.write(
        "train.py", source.replace("self.optimizer.apply", f"{NORM}\n            self.optimizer.apply")
    )
    assert replayed(shared_project, "gradient_norm", "--epochs", "2")["verified"] == "exact"


def test_with_flor_seed_every_epoch_has_an_order_of_its_own_and_the_same_in_every_run(shared_project):
    shared_project.write(
        "orders.py",
        """
        import flor_keras as flor
        import keras
        import numpy as np

        flor.seed(11)

        class Order(keras.Model):
            def call(self, inputs):
                return inputs

            def train_step(self, data):
                flor.log("order", data[:, 0])
                return {"sum": keras.ops.sum(data)}

        model = Order()
        model.compile()
        model.fit(np.arange(12.0).reshape(12, 1), epochs=3, batch_size=12, verbose=0, callbacks=[flor.FlorKeras()])
        """,
    )
    orders = []
    for _ in range(2):
        shared_project.succeed("orders.py")
        rows = json.loads(shared_project.flor("logs", "order", "--json").stdout)
        orders.append([row["order"] for row in rows])
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders[0]}) == 3


def test_other_data_are_reported_as_such(shared_project):
    source = program(probe="x = x + float(__import__('os').environ.get('SHIFT', 0))\n    data = (x, y)")
    recorded(shared_project, source)
    shared_project.write(
        "train.py", source.replace("self.optimizer.apply", f"{NORM}\n            self.optimizer.apply")
    )
    done = shared_project.flor("replay", "train.py", "gradient_norm", "--json", env={"SHIFT": "1"})
    report = json.loads(done.stdout)
    assert (done.status, report["verified"]) == (3, "approximate")
    assert any(cause.startswith("data differ") for cause in report["causes"])
