"""Values computed in hindsight equal those logged while training, and nothing else changes."""

from __future__ import annotations

import json

import pytest
from project import Project, values
from training import BASE

from flor_keras.records import Position, Status

pytestmark = pytest.mark.slow

# Everything `tf.train.Checkpoint` or `model.variables` leaves out in part.
RICH = """
import os, sys
import keras, numpy as np, tensorflow as tf
from keras import callbacks, layers
import flor_keras as flor

keras.utils.set_random_seed(1)
words = np.array([["cat"], ["dog"], ["bird"], ["fish"]] * 8, dtype=object)
images = np.random.rand(32, 6, 6, 1).astype("float32")
target = np.random.rand(32, 1).astype("float32")

class Blocks(layers.Layer):
    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(8), layers.BatchNormalization()]
        self.calls = tf.Variable(0.0, trainable=False)
    def call(self, x, training=False):
        self.calls.assign_add(1.0)
        for block in self.blocks:
            x = block(x)
        return x

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.lookup = layers.StringLookup()
        self.lookup.adapt(words)
        self.embedding, self.flip = layers.Embedding(8, 4), layers.RandomFlip()
        self.flat, self.norm = layers.Flatten(), layers.BatchNormalization()
        self.drop, self.blocks, self.head = layers.Dropout(0.4), Blocks(), layers.Dense(1)
        self.scale = tf.Variable(1.0)
        self.second = keras.optimizers.SGD(0.05, momentum=0.9)
    def call(self, inputs, training=False):
        text, image = inputs
        image = self.norm(self.flat(self.flip(image, training=training)), training=training)
        joined = tf.concat([self.flat(self.embedding(self.lookup(text))), image], -1)
        return self.head(self.drop(self.blocks(joined, training=training), training=training)) * self.scale
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        ours, theirs = self.trainable_variables[:2], self.trainable_variables[2:]
        self.optimizer.apply(tape.gradient(loss, [v.value for v in theirs]), theirs)
        self.second.apply(tape.gradient(loss, [v.value for v in ours]), ours)
        self.scale.assign_sub(0.01 * tape.gradient(loss, self.scale))
        return self.compute_metrics(x, y, y_pred)

def norm(model):
    from flor_keras.state.variables import gather
    found = gather({"model": model}).variables
    found = [np.asarray(v.numpy(), "float64").ravel() for n, v in sorted(found.items()) if "metrics" not in n]
    return float(np.sqrt(sum(float((a * a).sum()) for a in found)))

class Logs(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("live", norm(self.model))
        #NEW EPOCH

class Other(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        open("other", "a").write("called")

model = Model()
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"#NEW METRIC
])
data = tf.data.Dataset.from_tensor_slices(((words.astype(str), images), target)).batch(8)
writers = callbacks.CSVLogger("log.csv"), callbacks.ModelCheckpoint("best.keras")
history = model.fit(
    data.shuffle(32), validation_data=data, epochs=4, verbose=0,
    callbacks=[writers[0], writers[1], Logs(), Other(), flor.FlorKeras()],
)
print(model.name)
model.scale.assign(float(model.scale) * 1.0)
flor.log("after_live", norm(model))
#NEW AFTER
np.save("weights.npy", model.get_weights()[0])
model.save("final.keras")
import matplotlib.pyplot as plt
plt.plot(history.history["loss"])
plt.savefig("loss.png")
plt.show()
"""
NEW = {
    "EPOCH": 'flor.log("hindsight", norm(self.model))',
    "METRIC": ', "mse"',
    "AFTER": """
flor.log("after_hindsight", norm(model))
flor.log("history", history.history)
flor.log("epochs", history.epoch)
""",
}


def changed(source: str, *keys: str) -> str:
    """Return a program with lines added where its comments say so."""
    for key in NEW:
        source = source.replace(f"#NEW {key}", NEW[key] if key in keys else "")
    return source


@pytest.fixture(scope="module")
def rich(shared_project: Project) -> Project:
    """A project with one recorded run of the rich model, and the script with all new lines in it."""
    shared_project.script = shared_project.write("train.py", changed(RICH))
    shared_project.succeed(shared_project.script, env={"MPLBACKEND": "agg"})
    shared_project.before = photograph(shared_project)
    shared_project.write("train.py", changed(RICH, *NEW))
    return shared_project


def photograph(project: Project) -> dict:
    """Return the bytes and times of what the program wrote."""
    names = ("log.csv", "best.keras", "weights.npy", "other", "final.keras", "loss.png")
    return {
        name: ((project.folder / name).read_bytes(), (project.folder / name).stat().st_mtime_ns)
        for name in names
    }


def test_a_norm_over_the_whole_state_equals_the_live_one_at_every_epoch(rich):
    told = rich.replay(rich.script, "hindsight")
    run = rich.latest()
    live, hindsight = run.entries("live"), run.entries("hindsight")
    assert [e.value.hex() for e in hindsight] == [e.value.hex() for e in live]
    assert (
        [e.position for e in hindsight]
        == [Position(0, epoch) for epoch in range(4)]
        == [e.position for e in live]
    )
    assert len({e.value for e in live}) == 4
    assert {k: told[k] for k in ("level", "epochs", "names", "verified", "max_abs_diff")} == {
        "level": "epoch",
        "epochs": [0, 1, 2, 3],
        "names": ["hindsight"],
        "verified": "exact",
        "max_abs_diff": 0.0,
    }
    assert set(told["held_back"]) == {"CSVLogger", "ModelCheckpoint", "Other"}


def test_a_metric_compiled_in_later_is_evaluated_for_every_epoch(rich):
    told = rich.replay(rich.script, "val_mse", "--epochs", "1:")
    assert told["level"] == "eval"
    assert told["verified"] == "exact"
    run = rich.latest()
    assert [e.position for e in run.entries("val_mse")] == [Position(0, epoch) for epoch in (1, 2, 3)]
    # The loss is the same function over the same data, so its live value is known.
    assert values(run, "val_mse") == pytest.approx(values(run, "val_loss")[1:], rel=1e-6)


def test_code_after_fit_sees_the_final_state_and_the_recorded_history(rich):
    told = rich.replay(rich.script, "after_hindsight", "history", "epochs")
    assert told["level"] == "after"
    assert told["verified"] == "exact"
    run = rich.latest()
    assert values(run, "after_hindsight")[0].hex() == values(run, "after_live")[0].hex()
    (history,) = values(run, "history")
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    for name, found in history.items():
        assert [v.hex() for v in found] == [v.hex() for v in values(run, name)]
    assert values(run, "epochs") == [[0, 1, 2, 3]]


def test_what_the_program_wrote_is_as_it_was_after_all_these_replays(rich):
    told = rich.replay(rich.script, "hindsight", "val_mse", "after_hindsight", "--callbacks", "all")
    assert photograph(rich) == rich.before
    assert {"CSVLogger", "ModelCheckpoint"} <= set(told["held_back"])
    told_of = " ".join(map(str, [*told["diverted"], *told["refused"]]))
    assert all(name in told_of for name in ("final.keras", "weights.npy", "loss.png")), told_of


def test_the_json_object_has_the_agreed_keys(rich):
    told = rich.replay(rich.script, "hindsight", "--epochs", "2")
    agreed = {"run", "level", "epochs", "names", "values", "verified", "max_abs_diff", "held_back", "seconds"}
    assert agreed <= set(told)
    assert told["run"] == rich.latest().id
    assert told["epochs"] == [2]
    assert set(told["values"][0]) == {"run", "loop", "epoch", "step", "hindsight"}


def test_a_dry_run_shows_the_plan_and_changes_nothing(rich):
    before = len(rich.latest().entries("live", recorded=False))
    ended = rich.flor("replay", rich.script, "live", "--dry-run")
    assert ended.status == 0
    assert "epochs 0-3" in ended.stdout
    plan = json.loads(rich.flor("replay", rich.script, "live", "--dry-run", "--json").stdout)
    assert plan["level"] == "epoch"
    assert len(rich.latest().entries("live", recorded=False)) == before


def test_the_plan_and_the_values_are_shown(rich):
    ended = rich.flor("replay", rich.script, "hindsight")
    assert ended.status == 0
    assert "restore each epoch's end" in ended.stdout
    assert "exact: " in ended.stdout
    assert "not called: " in ended.stdout
    assert "ModelCheckpoint" in ended.stdout


def test_a_name_recorded_already_is_compared_with_its_record(rich):
    told = rich.replay(rich.script, "live")
    assert told["verified"] == "exact"


def test_a_checkpoint_restores_into_a_fresh_process_bit_for_bit(rich):
    """Must show 2: every variable of the rich model, optimizers of both kinds included."""
    body = RICH.partition("history = ")[0]
    restored = rich.write(
        "restore.py",
        changed(body),
        """
for x, y in data.take(1):
    model(x)
run = flor.run("latest")
from flor_keras.state.variables import gather
for checkpoint in run.checkpoints[1:]:
    checkpoint.restore(model)
    tensors, state = checkpoint.tensors(), gather({"model": model})
    assert len(state.variables) > 25, len(state.variables)
    for name, variable in state.variables.items():
        if name not in state.metric_names:
            assert np.asarray(variable.numpy()).tobytes() == tensors[name].tobytes(), name
    recorded = [e.value for e in run.entries("live") if e.position.epoch == checkpoint.epoch]
    assert norm(model).hex() == recorded[0].hex(), checkpoint
print("equal", len(run.checkpoints))
""",
    )
    assert rich.succeed(restored).stdout == "equal 6\n"


# -- refusals -----------------------------------------------------------------------------------------------

ERRORS = {
    "an unknown run": (["train.py", "hindsight", "--run", "nothing"], "No run 'nothing'"),
    "a script that is not there": (["other.py", "hindsight"], "There is no file other.py"),
    "a script no run matches": (["restore_nothing.py", "hindsight"], "No run in"),
    "a name that is never logged": (
        ["train.py", "hindsite"],
        "never logs 'hindsite'. Did you mean hindsight",
    ),
    "an epoch out of range": (
        ["train.py", "hindsight", "--epochs", "9"],
        "has no epoch 9 to replay; it has 0-3",
    ),
    "no epochs at all": (["train.py", "hindsight", "--epochs", "x"], "--epochs has 'x'"),
    "steps where none are made again": (
        ["train.py", "hindsight", "--steps", "0:3"],
        "none are for hindsight (level epoch). Leave --steps out, or give --level step",
    ),
    "nothing asked for": (["train.py"], "flor-keras replay train.py --probe weight_norm"),
    "a number of workers that is none": (
        ["train.py", "hindsight", "--workers", "0"],
        "for example: --workers 2",
    ),
    "two probes of one name": (["train.py", *["--metric", "a=1"] * 2], "another name"),
    "a search for nothing": (["train.py", "hindsight", "--bisect", ">"], '--bisect "num_not_finite > 0"'),
    "a store that is not there": (["train.py", "hindsight", "--store", "nowhere"], "No store at"),
}


@pytest.mark.parametrize("error", ERRORS)
def test_wrong_use_is_an_error_without_a_traceback(rich, error):
    words, message = ERRORS[error]
    rich.write("restore_nothing.py", "import flor_keras as flor\nflor.log('hindsight', 1)\n")
    ended = rich.flor("replay", *words)
    assert ended.status in (1, 2)
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("kind", ["no database", "foreign", "newer"])
def test_a_store_that_is_none_of_ours_is_refused(project, kind):
    import sqlite3

    (project.folder / ".flor").mkdir()
    database = project.folder / ".flor" / "flor.db"
    if kind == "no database":
        database.write_bytes(b"not a database" * 100)
    else:
        connection = sqlite3.connect(database)
        connection.execute("CREATE TABLE theirs (a)")
        if kind == "newer":
            from flor_keras.store.schema import APPLICATION_ID

            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA user_version = 99")
        connection.commit()
        connection.close()
    project.write("train.py", "")
    ended = project.flor("replay", "train.py", "x")
    assert ended.status in (1, 2)
    assert "Error: " in ended.stderr
    assert "Traceback" not in ended.stderr


# -- small programs, each with a twist ----------------------------------------------------------------------


def record_and_change(project: Project, source: str, **added: str) -> str:
    """Record a program without its marked lines, then put them in."""
    script = project.write(
        "train.py", BASE, "\n".join(line for line in source.splitlines() if "#new" not in line) + "\n"
    )
    project.succeed(script)
    return project.write("train.py", BASE, source)


def test_a_changed_program_is_refused_and_with_force_marked(project):
    source = """
model = build()
model.fit(x, y, epochs=2, verbose=0, callbacks=[flor.FlorKeras()])
flor.log("final", float(model.get_weights()[0].sum()))  #new
"""
    script = record_and_change(project, source)
    project.write("train.py", BASE.replace("0.3", "0.4"), source)
    ended = project.flor("replay", script, "final")
    assert ended.status == 1
    assert "changed in more than its log lines" in ended.stderr
    assert "0.4" in ended.stderr
    assert "Traceback" not in ended.stderr
    told = project.replay(script, "final", "--force", status=3)
    assert told["verified"] == "approximate"


def test_each_fold_of_a_cross_validation_is_visited(project):
    script = record_and_change(
        project,
        """
class Logs(callbacks.Callback):
    def __init__(self, fold):
        super().__init__()
        self.fold = fold
    def on_epoch_end(self, epoch, logs=None):
        flor.log("live", float(self.model.get_weights()[0].sum()))
        flor.log("hindsight", float(self.model.get_weights()[0].sum()))  #new
for fold in range(3):
    model = build()
    held = np.arange(64) % 3 == fold
    model.fit(x[~held], y[~held], validation_data=(x[held], y[held]), epochs=3, verbose=0,
              callbacks=[Logs(fold), flor.FlorKeras()])
    flor.log("score_live", float(model.evaluate(x[held], y[held], verbose=0)[0]))
    flor.log("score", float(model.evaluate(x[held], y[held], verbose=0)[0]))  #new
""",
    )
    told = project.replay(script, "hindsight", "--epochs", "1")
    run = project.latest()
    assert told["verified"] == "exact"
    assert [e.position for e in run.entries("hindsight")] == [Position(loop, 1) for loop in range(3)]
    live = {e.position: e.value for e in run.entries("live")}
    assert all(live[e.position].hex() == e.value.hex() for e in run.entries("hindsight"))
    project.replay(script, "score")
    run = project.latest()
    assert [v.hex() for v in values(run, "score")] == [v.hex() for v in values(run, "score_live")]


def test_both_phases_of_a_fine_tuning_are_visited_as_they_were(project):
    script = record_and_change(
        project,
        """
def state(model):
    return [int(model.optimizer.iterations.value), len(model.trainable_variables)]
class Logs(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("live", state(self.model))
        flor.log("hindsight", state(self.model))  #new
model = build()
for layer in model.layers[:2]:
    layer.trainable = False
model.compile("adam", "mse")
model.fit(x, y, epochs=2, verbose=0, callbacks=[Logs(), flor.FlorKeras()])
for layer in model.layers:
    layer.trainable = True
model.compile(keras.optimizers.Adam(1e-4), "mse")
model.fit(x, y, epochs=2, verbose=0, callbacks=[Logs(), flor.FlorKeras()])
""",
    )
    told = project.replay(script, "hindsight")
    run = project.latest()
    assert told["verified"] == "exact"
    assert values(run, "hindsight") == values(run, "live") == [[2, 2], [4, 2], [2, 6], [4, 6]]


def test_the_arguments_of_the_recorded_run_are_used_again(project):
    source = """
rate = flor.arg("lr", 0.5)
model = build(optimizer=keras.optimizers.SGD(rate))
model.fit(x, y, epochs=int(sys.argv[1]), verbose=0, callbacks=[flor.FlorKeras()])
flor.log("rate", [rate, sys.argv[1]])  #new
"""
    script = project.write(
        "train.py", BASE, "\n".join(line for line in source.splitlines() if "#new" not in line)
    )
    project.succeed(script, "3", "--arg", "lr=0.125")
    project.write("train.py", BASE, source)
    project.replay(script, "rate")
    assert values(project.latest(), "rate") == [[0.125, "3"]]


def test_an_interrupted_run_can_be_replayed_as_far_as_it_came(project):
    source = """
class Ends(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("hindsight", float(self.model.get_weights()[0].sum()))  #new
        if epoch == 2:
            raise KeyboardInterrupt
model = build()
model.fit(x, y, epochs=5, verbose=0, callbacks=[Ends(), flor.FlorKeras()])
"""
    script = project.write(
        "train.py", BASE, "\n".join(line for line in source.splitlines() if "#new" not in line)
    )
    assert project.run(script).status == 130
    assert project.latest().status is Status.INTERRUPTED
    project.write("train.py", BASE, source)
    told = project.replay(script, "hindsight")
    assert told["epochs"] == [0, 1]
    assert len(values(project.latest(), "hindsight")) == 2


def test_a_program_that_fails_in_replay_shows_its_error_and_log(project):
    script = record_and_change(
        project,
        """
model = build()
model.fit(x, y, epochs=2, verbose=0, callbacks=[flor.FlorKeras()])
flor.log("wrong", undefined_name)  #new
""",
    )
    ended = project.flor("replay", script, "wrong")
    assert ended.status == 1
    assert "NameError" in ended.stderr
    assert "Its whole output is in" in ended.stderr
    assert 'File "' in ended.stderr


def test_early_stopping_with_best_weights_is_replayed_to_its_end(project):
    script = record_and_change(
        project,
        """
stop = callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
model = build(optimizer=keras.optimizers.Adam(0.3))
history = model.fit(x, y, epochs=30, validation_split=0.5, verbose=0, callbacks=[stop, flor.FlorKeras()])
flor.log("live", [len(history.epoch), float(model.get_weights()[0].sum())])
flor.log("hindsight", [len(history.epoch), float(model.get_weights()[0].sum())])  #new
""",
    )
    told = project.replay(script, "hindsight")
    run = project.latest()
    assert told["verified"] == "exact"
    assert values(run, "hindsight") == values(run, "live")


def test_a_damaged_checkpoint_is_named_without_a_traceback_of_ours(project):
    script = record_and_change(
        project,
        """
class Logs(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("hindsight", 1)  #new
        logs["seen"] = True
model = build()
model.fit(x, y, epochs=3, verbose=0, callbacks=[Logs(), flor.FlorKeras()])
""",
    )
    (found,) = [c for c in project.latest().checkpoints if c.epoch == 1 and c.kind == "epoch_end"]
    (found.path / "bundle.data-00000-of-00001").write_bytes(b"")
    ended = project.flor("replay", script, "hindsight")
    assert ended.status == 1
    assert f"The checkpoint {found.path} is damaged" in ended.stderr
    told = project.replay(script, "hindsight", "--epochs", "0,2")
    assert told["verified"] == "exact"
