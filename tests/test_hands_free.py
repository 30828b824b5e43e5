"""Programs that do not know flor_keras: recorded without a change, in files and in numbers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys

import pytest

from flor_keras.hands_free import _Finder
from flor_keras.records import Kind, Position, Status

pytestmark = pytest.mark.slow

SEEDED = "keras.utils.set_random_seed(5)"
PROGRAM = """
import sys
import keras
import numpy as np
import tensorflow as tf
from steps import Trainer

SEED
x = np.random.rand(96, 6).astype("float32")
y = (x.sum(axis=1) > 3).astype("int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(32)
trainer = Trainer()

for epoch in range(4):
    #BEGIN
    for xb, yb in data:
        loss = trainer.step(xb, yb)
        #STEP
    print("epoch", epoch, float(loss).hex())
    #END
#AFTER
trainer.model.compile("sgd", "mse")
history = trainer.model.fit(x, np.stack([y, 1 - y], 1), epochs=2, verbose=0)
print([value.hex() for value in history.history["loss"]], sys.argv[1:])
"""
MODULE = """
import keras
import tensorflow as tf

class Trainer:
    def __init__(self):
        self.model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(2)])
        self.optimizer = keras.optimizers.Adam(0.01)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(self, x, y):
        noise = 0.1 * tf.random.normal(tf.shape(x))
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x + noise, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss
"""
NORM = "float(sum(tf.reduce_sum(tf.square(w)) for w in trainer.model.weights))"
LINES = {
    "#BEGIN": f'flor.log("begin", {NORM})',
    "#STEP": 'flor.log("step_loss", float(loss))',
    "#END": f'flor.log("norm", {NORM})',
    "#AFTER": f'flor.log("after", {NORM})',
}


def write(project, seed="", lines=None):
    text = PROGRAM.replace("SEED", seed)
    for place, line in (lines or {}).items():
        text = text.replace(place, line)
    if lines:
        text = text.replace(
            "import tensorflow as tf", "import tensorflow as tf\nimport flor_keras as flor", 1
        )
    project.write("train.py", text)
    project.write("steps.py", MODULE)


def record(project, *words, env=None):
    ended = project.flor("record", *words, env=env)
    assert ended.status == 0, ended.stderr
    return ended


def test_everything_is_recorded_and_no_file_is_written(project):
    write(project)
    before = {path: path.read_bytes() for path in project.folder.rglob("*.py")}
    ended = record(project, "--name", "mine", "train.py", "3", "--verbose")
    assert {path: path.read_bytes() for path in project.folder.rglob("*.py")} == before
    assert not list(project.folder.rglob("*.pyc"))
    assert ended.stdout.endswith("['3', '--verbose']\n")
    run = project.latest("mine")
    assert run.status is Status.FINISHED
    assert run.row.argv == ["3", "--verbose"]
    assert run.row.environment["variables"]["PYTHONHASHSEED"] == "0"
    assert isinstance(run.args["flor.seed"], int)
    kinds = [(c.loop, c.kind, c.epoch) for c in run.checkpoints]
    assert [k for k in kinds if k[1] is Kind.EPOCH_END] == [
        *((0, Kind.EPOCH_END, e) for e in range(4)),
        *((1, Kind.EPOCH_END, e) for e in range(2)),
    ]
    assert [e.position for e in run.entries("loss")] == [Position(1, 0), Position(1, 1)]


def test_it_is_told_what_was_instrumented_and_what_not_and_why(project):
    write(project)
    project.write(
        "train.py",
        (project.folder / "train.py").read_text()
        + "\ndef later():\n    for b in data:\n        yield trainer.step(*b)\n",
    )
    told = record(project, "train.py").stderr
    assert "train.py:14: main loop, training from line 16" in told
    assert "flor_keras:   fit\n" in told
    assert "left as it is, train.py:27: it is in a generator, whose position cannot be restored" in told


def test_a_seeded_program_gives_the_numbers_it_gives_without_flor_keras(project):
    write(project, SEEDED)
    bare = project.run("train.py", env={"PYTHONHASHSEED": "0"})
    assert record(project, "train.py").stdout == bare.stdout
    assert "flor.seed=" not in project.flor("show").stdout  # the program's own holds


def test_flor_seed_holds_in_a_program_that_is_recorded_hands_free(project):
    project.write("train.py", "import flor_keras as flor\nprint(flor.seed(5))\n")
    assert record(project, "train.py").stdout == "5\n"
    assert "args        flor.seed=5\n" in project.flor("show").stdout


def test_an_unseeded_program_follows_from_the_recorded_seed(project):
    write(project)
    first = record(project, "train.py")
    seed = project.latest().args["flor.seed"]
    again = record(project, "train.py", env={"FLOR_ARGS": json.dumps({"flor.seed": seed})})
    assert f"args        flor.seed={seed}\n" in project.flor("show").stdout
    other = record(project, "train.py")
    assert first.stdout == again.stdout != other.stdout


@pytest.mark.parametrize("seed", ["", SEEDED])
def test_values_added_afterwards_equal_those_of_a_twin_run(project, seed):
    args = {"FLOR_ARGS": json.dumps({"flor.seed": 77})}
    write(project, seed, LINES)
    record(project, "train.py", env=args)
    names = ["begin", "step_loss", "norm", "after"]
    live = {name: json.loads(project.flor("logs", name, "--json").stdout) for name in names}
    write(project, seed)
    record(project, "train.py", env=args)
    write(project, seed, LINES)
    report = project.replay("train.py", "begin", "norm", "--epochs", "2")
    assert report["verified"] == "exact"
    for name in names:
        report = project.replay("train.py", name)
        assert report["verified"] == "exact", (name, report)
        assert report["level"] == {"step_loss": "step", "after": "after"}.get(name, "epoch")
        assert [row[name].hex() for row in report["values"]] == [row[name].hex() for row in live[name]], name
    if not seed:  # where the program seeds, `tf.random` in a graph keeps its state to itself
        assert project.replay("train.py", "step_loss", "--epochs", "3")["verified"] == "exact"


STOPS = """
import os, signal, time

def stop(how, is_here):
    if is_here and "FLOR_RESUME" not in os.environ:
        time.sleep(0.3)  # the checkpoints before are written
        os.kill(os.getpid(), getattr(signal, how))
"""
AT = {
    "interrupted in the loop": (
        "SIGINT",
        "#STEP",
        'stop("SIGINT", sys.argv[1:] and epoch == 2 and xb[0, 0] > 0)',
    ),
    "killed in the loop": (
        "SIGKILL",
        "#STEP",
        'stop("SIGKILL", sys.argv[1:] and epoch == 2 and xb[0, 0] > 0)',
    ),
    "killed in fit": (
        "SIGKILL",
        "verbose=0)",
        'verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: stop("SIGKILL", sys.argv[1:] and e))])',
    ),
}


@pytest.mark.parametrize("how", AT)
def test_a_run_that_was_stopped_is_resumed_to_the_same_end_with_each_row_once(project, how):
    number, place, line = AT[how]
    project.write("steps.py", MODULE)
    project.write("train.py", STOPS + PROGRAM.replace("SEED", "").replace(place, line))
    args = {"FLOR_ARGS": json.dumps({"flor.seed": 77})}
    whole = record(project, "train.py", env=args)
    expected = [(entry.position, entry.value) for entry in project.latest().entries("loss")]
    assert len(expected) == 2
    stopped = project.flor("record", "--checkpoint-every", "3", "train.py", "stop", env=args)
    assert stopped.status == {"SIGINT": 130, "SIGKILL": 137}[number]
    assert project.latest().status is {"SIGINT": Status.INTERRUPTED, "SIGKILL": Status.KILLED}[number]
    resumed = project.flor("resume", env={"FLOR_CHECKPOINT_EVERY": ""})
    assert resumed.status == 0, resumed.stderr
    assert {loop.recording["every"] for loop in project.latest().loops} == {"3"}
    assert resumed.stdout.splitlines()[-1].split("]")[0] == whole.stdout.splitlines()[-1].split("]")[0]
    assert [(entry.position, entry.value) for entry in project.latest().entries("loss")] == expected
    shown = project.flor("show").stdout
    assert "custom train.py:" in shown
    assert ", 4 epochs\n" in shown
    assert "not finished" not in shown


TENSORFLOW_FIRST = """
import importlib.util
assert importlib.util.find_spec("tensorflow") is not None
import tensorflow as tf
import numpy as np

model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((64, 4), "float32")
model.fit(x, x[:, :1], epochs=2, verbose=0)
"""


def test_fit_is_recorded_where_tensorflow_comes_before_keras(project):
    project.write("train.py", TENSORFLOW_FIRST)
    ended = project.run_alone(
        "-m", "flor_keras.hands_free", "", "", "-f", "train.py"
    )  # nothing is imported yet
    assert ended.status == 0, ended.stderr
    assert "flor_keras:   fit\n" in ended.stderr
    assert len(project.latest().entries("loss")) == 2


class OwnsNothing:
    def is_own(self, file):
        return False


def test_a_library_that_is_looked_for_and_then_imported_makes_its_call_once(tmp_path, monkeypatch):
    (tmp_path / "flor_looked_for.py").write_text("is_there = True\n")
    calls = []
    finder = _Finder(OwnsNothing(), {"flor_looked_for": lambda: calls.append("flor_looked_for")})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for _ in range(2):
        assert importlib.util.find_spec("flor_looked_for") is not None
    assert calls == []
    module = importlib.import_module("flor_looked_for")
    assert module.is_there
    assert calls == ["flor_looked_for"]
    importlib.reload(module)
    assert calls == ["flor_looked_for"]
    monkeypatch.delitem(sys.modules, "flor_looked_for")


def test_an_error_of_the_program_is_shown_as_python_shows_it(project):
    project.write("train.py", "import steps\n\ndef f():\n    return 1 / 0\n\nf()\n")
    project.write("steps.py", MODULE)
    ended = project.flor("record", "train.py")
    assert ended.status == 1
    trace = ended.stderr[ended.stderr.index("Traceback") :].split("flor_keras:")[0]
    assert "flor_keras" not in trace
    assert 'train.py", line 6, in <module>' in trace
    assert trace.rstrip().endswith("ZeroDivisionError: division by zero")
    assert project.latest().status is Status.FAILED


def test_a_module_is_recorded_by_its_name(project):
    project.write("pkg/__init__.py", "")
    project.write("pkg/steps.py", MODULE)
    project.write("pkg/train.py", PROGRAM.replace("SEED", SEEDED).replace("from steps", "from .steps"))
    record(project, "-m", "pkg.train", "7")
    run = project.latest()
    assert run.row.environment["module"] == "pkg.train"
    text = (project.folder / "pkg" / "train.py").read_text()
    text = text.replace("import keras", "import keras\nimport flor_keras as flor", 1).replace(
        "#END", LINES["#END"]
    )
    (project.folder / "pkg" / "train.py").write_text(text)
    report = project.replay("pkg/train.py", "norm", "--epochs", "1,3")
    assert (report["verified"], len(report["values"])) == ("exact", 2)


def test_what_is_not_there_is_said_without_a_traceback(project):
    for words in (["nothing.py"], ["-m", "nothing"]):
        ended = project.flor("record", *words)
        assert ended.status == 2
        assert ended.stderr.startswith("Error: There is no ")


ONE_LOOP = """
import os, sys
import keras
import numpy as np
import tensorflow as tf
from steps import Trainer

x = np.random.rand(960, 6).astype("float32")
y = (x.sum(axis=1) > 3).astype("int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(960).batch(32).repeat(2)
trainer = Trainer()

for number, (xb, yb) in enumerate(data):
    loss = trainer.step(xb, yb)
    #END
    if number == 40 and len(sys.argv) > 1 and "FLOR_RESUME" not in os.environ:
        raise KeyboardInterrupt
print(float(loss).hex())
"""


def test_a_loop_over_a_data_set_itself_is_replayed_and_resumed_in_the_same_order(project):
    args = {"FLOR_ARGS": json.dumps({"flor.seed": 77})}
    project.write("steps.py", MODULE)
    line = f'flor.log("norm", {NORM})'
    with_line = ONE_LOOP.replace("#END", line).replace(
        "import keras", "import flor_keras as flor\nimport keras", 1
    )
    project.write("train.py", with_line)
    whole = record(project, "train.py", env=args)
    live = json.loads(project.flor("logs", "norm", "--json").stdout)
    project.write("train.py", ONE_LOOP)
    assert record(project, "train.py", env=args).stdout == whole.stdout
    project.write("train.py", with_line)
    for words in (["--epochs", "33"], []):
        report = project.replay("train.py", "norm", *words)
        assert report["verified"] == "exact"
        found = [row["norm"].hex() for row in report["values"]]
        assert found == [row["norm"].hex() for row in live if not words or row["epoch"] == 33]
    project.write("train.py", ONE_LOOP)
    assert project.flor("record", "train.py", "stop", env=args).status == 130
    assert project.flor("resume").stdout == whole.stdout
