"""Keeping the graph changes nothing of training, costs what there is room for, and never ends training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from models import program
from project import Project

from flor_keras.store import layout

pytestmark = pytest.mark.slow

# Counts its calls, draws from every random source while it is traced, and keeps a loss of its own.
WATCHED = """
import json, random, sys
import keras, numpy as np, tensorflow as tf
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
x, y = np.random.rand(32, 6).astype("float32"), np.random.rand(32, 2).astype("float32")
eager = "eager" in sys.argv

class Noisy(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = 0
    def call(self, x):
        self.count += 1
        np.random.rand(), random.random()
        self.add_loss(1e-3 * keras.ops.sum(x))
        return x * (1 + 0.01 * self.count) if eager else x

class Eager(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        drawn.append([random.random(), np.random.rand(), float(tf.random.uniform(())), float(keras.random.uniform(()))])

drawn = []
model = keras.Sequential([keras.Input((6,)), layers.Dense(8), Noisy(), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(2)])
model.compile("adam", "mse", metrics=["mae"], run_eagerly=eager)
callbacks = [Eager()] + ([flor.FlorKeras(overhead=1.0)] if "flor" in sys.argv else [])
history = model.fit(x, y, epochs=4, batch_size=8, validation_split=0.25, verbose=0, callbacks=callbacks)
names = [made.name for made in (layers.Layer(), layers.Dense(1), keras.optimizers.Adam(), keras.metrics.Mean(), keras.losses.MeanSquaredError())]
json.dump([names, history.history, drawn, model.layers[1].count if eager else 0, [w.tobytes().hex() for w in model.get_weights()]], open(sys.argv[1], "w"))
"""


def graphs(project: Project) -> dict[str, dict]:
    """Return the graph.json of every graph of the newest run by folder."""
    folder = layout.model_folder(project.store, project.latest().id)
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/graph.json"))}


def messages(project: Project) -> list[str]:
    """Return the events of the newest run."""
    from flor_keras.store.database import Store

    with Store.open(project.store) as store:
        return [event.message for event in store.events(project.latest().id)]


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_training_gives_the_same_numbers_whether_a_graph_is_kept_or_not(project, mode):
    script = project.write("train.py", WATCHED)
    project.succeed(script, "without.json", mode)
    project.succeed(script, "with.json", mode, "flor")
    without, with_flor = (
        json.loads((project.folder / f"{name}.json").read_text()) for name in ("without", "with")
    )
    assert with_flor == without
    assert list(graphs(project)) == ["0"]


def test_a_loop_with_the_model_of_an_earlier_loop_refers_to_its_graph(project):
    again = "\nmodel.fit(given, y, epochs=1, verbose=0, callbacks=[flor.FlorKeras()])\n"
    project.succeed(project.write("train.py", program("sequential") + again))
    found = graphs(project)
    assert found["0"]["rebuilt"]
    assert found["1"] == {"format": 1, "same_as": "0"}


CHANGED = """
first.enable_lora(2)
model.compile("adam", "mse")
model.fit(given, y, initial_epoch=1, epochs=3, verbose=0, callbacks=[Live(), flor.FlorKeras()])
"""


def test_a_structure_that_changes_has_a_new_graph_and_each_epoch_is_exported_with_its_own(project):
    """Case C40: LoRA is enabled after epoch 0."""
    text = program("lora").replace("first.enable_lora(2)", "").replace("epochs=3", "epochs=1")
    project.succeed(project.write("train.py", text + CHANGED))
    project.succeed(
        project.write(
            "check.py",
            """
            import flor_keras as flor, tensorflow as tf, numpy as np
            rng = np.random.default_rng(1)
            x = rng.random((24, 6), np.float32)
            for checkpoint in flor.run().checkpoints:
                if checkpoint.kind == "epoch_end":
                    checkpoint.export(f"out/{checkpoint.epoch}")
                    loaded = tf.saved_model.load(f"out/{checkpoint.epoch}")
                    got = loaded.serve(x).numpy()
                    assert np.array_equal(got, np.load(f"live-{checkpoint.epoch}.npz")["arr_0"]), checkpoint.epoch
            """,
        )
    )
    assert len(graphs(project)) == 2


def test_a_model_that_cannot_be_exported_is_told_once_and_recorded_all_the_same(project):
    project.succeed(project.write("train.py", program("dynamic")))
    told = [message for message in messages(project) if "cannot be exported as saved_model" in message]
    assert len(told) == 1
    assert len(project.latest().checkpoints) == 5


def test_a_run_that_fails_after_an_epoch_can_be_exported(project):
    failing = """
class Fail(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise RuntimeError
"""
    text = (
        program("sequential")
        .replace("model.fit", failing + "\nmodel.fit")
        .replace("[Live()", "[Fail(), Live()")
    )
    assert project.run(project.write("train.py", text)).status == 1
    assert list(graphs(project)) == ["0"]


def test_what_keeping_the_graph_cost_is_told(project):
    project.succeed(project.write("train.py", program("sequential")))
    assert any("The graph of the model of loop 0 was kept in 0." in message for message in messages(project))


SLOW = """
import time

class Slow(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        time.sleep(1)
"""


@pytest.mark.parametrize("kind", ["sequential", "unbuilt_sequential"])
def test_a_graph_kept_where_no_checkpoint_is_taken_is_of_the_model_as_it_is_then(project, kind):
    """Of an epoch's end without a checkpoint the last is that of the start: no optimizer, maybe no model was built."""
    text = program(kind).replace("model.fit", SLOW + "\nmodel.fit")
    text = text.replace("[Live(), flor.FlorKeras()]", "[Slow(), flor.FlorKeras(overhead=1.0)]")
    project.succeed(project.write("train.py", text), env={"FLOR_CHECKPOINT_EVERY": "3"})
    assert not [message for message in messages(project) if "cannot be exported" in message]
    assert list(graphs(project)) == ["0"]


def test_nothing_is_left_behind_by_a_graph_that_could_not_be_written(project, tmp_path):
    text = program("sequential").replace(
        "import flor_keras as flor",
        "import flor_keras as flor\nimport flor_keras.export.graph as g\ng.json = None",
    )
    project.succeed(project.write("train.py", text))
    assert any(message.startswith("Keeping the graph of the model failed") for message in messages(project))
    assert not list(Path(layout.model_folder(project.store, project.latest().id)).glob("*"))


EXPORTING = """
import os, sys
import keras, numpy as np, tensorflow as tf
from flor_keras import reading
run = reading.run()
folder = run.store / "runs" / run.id / "export" / "0"
print(*sorted(path.name for path in folder.iterdir()))
x = np.random.default_rng(1).random((24, 6), np.float32)
for epoch in (1, 2) if "saved_model" in sys.argv else ():
    path = folder / str(epoch + 1)
    if path.is_dir():
        loaded = tf.saved_model.load(str(path))
        assert np.array_equal(loaded.serve(x).numpy(), np.load(f"live-{epoch}.npz")["arr_0"])
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("export='saved_model'", "1 2 3"),
        ("export='saved_model', export_every=2", "2"),
        ("export='keras'", "epoch-0.keras epoch-1.keras epoch-2.keras"),
    ],
)
def test_models_are_written_while_training_goes_on(project, arguments, expected):
    text = program("sequential").replace("flor.FlorKeras()", f"flor.FlorKeras({arguments})")
    project.succeed(project.write("train.py", text))
    ended = project.succeed(
        project.write("look.py", EXPORTING), *(["saved_model"] if "saved" in arguments else [])
    )
    assert ended.stdout.split("\n")[0] == expected


def test_a_model_that_cannot_be_exported_while_training_does_not_end_training(project):
    text = program("dynamic").replace("flor.FlorKeras()", "flor.FlorKeras(export='saved_model')")
    ended = project.succeed(project.write("train.py", text))
    assert ended.stderr.count("Exporting a model failed") == 1
    assert len(project.latest().checkpoints) == 5


CUSTOM = """
import keras, numpy as np, tensorflow as tf
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
x, y = np.random.rand(32, 6).astype("float32"), np.random.rand(32, 2).astype("float32")
net = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.Dense(2)])
optimizer = keras.optimizers.Adam()
with flor.checkpointing(net=net, optimizer=optimizer):
    for epoch in flor.loop("epoch", range(3)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
np.savez("live.npz", net(x))
"""


def test_the_model_of_a_custom_loop_is_exported_too(project):
    project.succeed(project.write("train.py", CUSTOM))
    project.succeed(
        project.write(
            "check.py",
            """
            import flor_keras as flor, tensorflow as tf, numpy as np, keras
            keras.utils.set_random_seed(1)
            x = np.random.rand(32, 6).astype("float32")
            checkpoint = flor.run().checkpoints[-1]
            checkpoint.export("out")
            loaded = tf.saved_model.load("out")
            assert np.array_equal(loaded.serve(x).numpy(), np.load("live.npz")["arr_0"])
            """,
        )
    )


KILLED = """
import os, time
import keras, numpy as np, tensorflow as tf
from keras import layers
import flor_keras as flor
from flor_keras.recording import custom

custom._SHARE_OF_TIME = 1.0
keras.utils.set_random_seed(1)
x, y = np.random.rand(32, 6).astype("float32"), np.random.rand(32, 2).astype("float32")
np.savez("x.npz", x)

@flor.record
def train(net, optimizer):
    for epoch in range(4):
        time.sleep(0.5)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((net(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        np.savez(f"live-{epoch}.npz", net(x))
        flor.log("loss", loss)
    os._exit(7)

net = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.Dense(2)])
train(net, keras.optimizers.Adam())
"""


def test_a_custom_loop_that_is_found_and_killed_can_be_exported(project):
    assert project.run(project.write("train.py", KILLED)).status == 7
    project.succeed(
        project.write(
            "check.py",
            """
            import flor_keras as flor, tensorflow as tf, numpy as np
            checkpoint = [at for at in flor.run().checkpoints if at.kind == "epoch_end"][-1]
            checkpoint.export("out")
            loaded = tf.saved_model.load("out")
            outputs = loaded.serve(np.load("x.npz")["arr_0"]).numpy()
            assert np.array_equal(outputs, np.load(f"live-{checkpoint.epoch}.npz")["arr_0"])
            """,
        )
    )


SEVERAL = """
import keras, numpy as np, tensorflow as tf
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
x = np.random.rand(32, 4).astype("float32")
teacher = keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.Dense(2)])
student = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
optimizer = keras.optimizers.Adam()

@flor.record
def distil():
    for epoch in range(3):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((student(x) - teacher(x)) ** 2)
            optimizer.apply(tape.gradient(loss, student.trainable_variables), student.trainable_variables)
            teacher.layers[0].bias.assign_add(tf.ones(8) * 0.01)

distil()
np.savez("live.npz", x=x, student=student(x), teacher=teacher(x))
"""


def test_of_several_models_of_a_loop_each_is_exported_by_its_name(project):
    project.succeed(project.write("train.py", SEVERAL))
    asked = project.flor("export", "latest", "out")
    assert asked.status == 2
    assert "--model student" in asked.stderr and "teacher" in asked.stderr
    unknown = project.flor("export", "latest", "out", "--model", "nobody")
    assert unknown.status == 2
    assert "it has student, teacher" in unknown.stderr
    project.succeed(
        project.write(
            "check.py",
            """
            import flor_keras as flor, tensorflow as tf, numpy as np, keras
            live = np.load("live.npz")
            checkpoint = flor.run().checkpoints[-1]
            for name in ("student", "teacher"):
                checkpoint.export(f"out/{name}", model=name)
                loaded = tf.saved_model.load(f"out/{name}")
                assert np.array_equal(loaded.serve(live["x"]).numpy(), live[name]), name
                checkpoint.export(f"out/{name}.keras", "keras", model=name)
                assert np.array_equal(keras.models.load_model(f"out/{name}.keras")(live["x"]), live[name]), name
            """,
        )
    )
