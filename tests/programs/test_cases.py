"""Troubles people reported about Keras and its tools, each with the outcome they expected. The names are those of the list of cases."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest
from project import values

from flor_keras import reading
from flor_keras.checkpoint.bundle import read_manifest
from flor_keras.store.database import Store

pytestmark = pytest.mark.slow

BASE = """
    import flor_keras as flor
    import copy, json, os, sys
    import keras, numpy as np, tensorflow as tf
    from keras import callbacks, layers

    IS_CUT = os.environ.get("CUT") == "1"  # whether this process is to die
    x = np.linspace(-1, 1, 64).reshape(16, 4).astype("float32")
    y = x.sum(1, keepdims=True)

    def dense(*parts, optimizer="adam", **arguments):
        model = keras.Sequential([keras.Input((4,)), *parts, layers.Dense(1)])
        model.compile(optimizer, "mse", **arguments)
        return model

    class Die(keras.callbacks.Callback):
        def __init__(self, epoch, step=0, loop=0):
            super().__init__()
            self.at, self.before = (epoch, step), (loop, epoch - 1, "epoch_end")
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
        def on_train_batch_begin(self, batch, logs=None):
            if IS_CUT and (self.epoch, batch) == self.at:
                checkpoints = lambda: flor.run("latest", os.environ["FLOR_STORE"]).checkpoints
                while self.before not in [(c.loop, c.epoch, c.kind.value) for c in checkpoints()]:
                    pass
                os._exit(1)

    keras.utils.set_random_seed(5)
"""


@pytest.fixture
def cut(project):
    """Return a runner of a program that dies and is resumed; it returns what the resumed process printed as JSON."""

    def run(*parts, die=True):
        script = project.write("train.py", BASE, *parts)
        if die:
            assert project.run(script, env={"CUT": "1"}).status == 1
        ended = project.flor("resume")
        assert ended.status == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    return run


def whole(project, *parts):
    """Run a program that does not die in a store of its own; return what it printed as JSON and its run."""
    script = project.write("train.py", BASE, *parts)
    ended = project.succeed(script, env={"FLOR_STORE": str(project.folder / "whole")})
    return json.loads(ended.stdout.splitlines()[-1])


# -- what an interrupted run comes back with ------------------------------------------------------------------


def test_c01_early_stopping_goes_on_counting_its_patience(cut):
    stopped = cut("""
        stop = callbacks.EarlyStopping(monitor="loss", patience=6)
        model = dense(optimizer=keras.optimizers.SGD(0.0))
        model.fit(x, y, epochs=20, shuffle=False, verbose=0, callbacks=[stop, Die(4), flor.FlorKeras()])
        print(json.dumps([stop.stopped_epoch, stop.wait]))
    """)
    assert stopped == [6, 6]


def test_the_rows_of_a_csv_file_are_those_of_a_run_that_was_not_interrupted(project, cut):
    program = """
        class Cut(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if IS_CUT and epoch == 2:
                    raise KeyboardInterrupt
        log = callbacks.CSVLogger(os.environ["LOG"])
        dense().fit(x, y, epochs=4, verbose=0, callbacks=[log, Cut(), flor.FlorKeras()])
        print(json.dumps(open(log.filename).read()))
    """
    script = project.write("train.py", BASE, program)
    expected = project.succeed(script, env={"LOG": "whole.csv", "FLOR_STORE": "whole"}).stdout
    assert project.run(script, env={"LOG": "log.csv", "CUT": "1"}).status == 130
    rows = (project.folder / "log.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == [
        "epoch",
        "0",
        "1",
        "2",
    ]  # the last without a checkpoint
    resumed = project.flor("resume", env={"LOG": "log.csv"})
    assert (resumed.status, resumed.stdout) == (0, expected)
    assert "not kept" not in resumed.stderr
    assert not any(read_manifest(c.path)["inexact"] for c in project.latest().checkpoints)


@pytest.mark.parametrize("is_logged", [True, False], ids=["with all logged before", "with a value lost"])
def test_a_checkpoint_that_was_committed_and_not_entered_is_gone_on_from(project, is_logged):
    script = project.write(
        "train.py",
        BASE,
        """
        from flor_keras.store.database import Store
        enter = Store.add_checkpoint
        Store.add_checkpoint = lambda store, row: enter(store, row) if row.epoch < 2 or not IS_CUT else None

        class Cut(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                run = lambda: flor.run("latest", os.environ["FLOR_STORE"])
                while IS_CUT and epoch == 3:
                    folder = os.path.join(os.environ["FLOR_STORE"], "runs", run().id, "checkpoints", "0-2-end")
                    if os.path.isdir(folder) and len(run().entries("loss")) == 3:
                        os._exit(1)
        model = dense()
        model.fit(x, y, epochs=4, verbose=0, callbacks=[Cut(), flor.FlorKeras()])
        print(json.dumps([v.numpy().tolist() for v in model.weights]))
    """,
    )
    whole = project.succeed(script, env={"FLOR_STORE": "whole"}).stdout
    assert project.run(script, env={"CUT": "1"}).status == 1
    run = project.latest()
    assert max(c.epoch for c in run.checkpoints) == 1
    with sqlite3.connect(project.store / "flor.db") as database:
        if not is_logged:
            database.execute("DELETE FROM entries WHERE epoch = 2")
    resumed = project.flor("resume")
    assert resumed.stdout == whole, resumed.stderr
    with Store.open(project.store) as store:
        messages = [event.message for event in store.events(run.id)]
    assert f"Resumed loop 0 from the end of epoch {2 if is_logged else 1}." in messages
    assert [value.hex() for value in values(run, "loss")] == [
        value.hex() for value in values(reading.run("latest", project.folder / "whole"), "loss")
    ]


def test_a_layer_frozen_without_compiling_is_told_where_the_run_goes_on(project):
    script = project.write(
        "train.py",
        BASE,
        """
        class Freeze(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.layers[0].trainable = epoch < 1
        model = dense(layers.Dense(3))
        model.fit(x, y, epochs=4, verbose=0, callbacks=[Freeze(), Die(3), flor.FlorKeras()])
    """,
    )
    assert project.run(script, env={"CUT": "1"}).status == 1
    assert [
        bool(read_manifest(c.path)["inexact"]) for c in project.latest().checkpoints if c.kind == "epoch_end"
    ] == [
        False,
        True,
        True,
    ]
    assert "trainable was set and the model not compiled again" in project.flor("resume").stderr


def test_c03_the_file_of_the_best_epoch_is_not_replaced_by_a_worse_one(project, cut):
    program = """
        class Ruin(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch >= 3:
                    self.model.optimizer.learning_rate = 50.0
        best = callbacks.ModelCheckpoint("best.weights.h5", "loss", save_best_only=True, save_weights_only=True)
        model = dense(optimizer=keras.optimizers.SGD(0.05))
        history = model.fit(x, y, epochs=6, verbose=0, callbacks=[Ruin(), best, Die(4), flor.FlorKeras()])
        print(json.dumps([best.best, history.history["loss"]]))
    """
    script = project.write("train.py", BASE, program)
    assert project.run(script, env={"CUT": "1"}).status == 1
    file = (project.folder / "best.weights.h5").read_bytes()
    best, losses = cut(program, die=False)
    assert best == min(losses) == losses[3]
    assert losses[5] > 100 * best
    assert (project.folder / "best.weights.h5").read_bytes() == file


def test_c04_the_optimizer_has_its_steps_and_moments_before_the_first_resumed_batch(project, cut):
    seen = cut("""
        class Look(keras.callbacks.Callback):
            seen = None
            def on_train_batch_begin(self, batch, logs=None):
                if self.seen is None:
                    Look.seen = [v.numpy().tolist() for v in self.model.optimizer.variables]
        model = dense()
        model.fit(x, y, epochs=4, batch_size=8, verbose=0, callbacks=[Die(2), Look(), flor.FlorKeras()])
        print(json.dumps(Look.seen))
    """)
    end = next(c for c in project.latest().checkpoints if (c.epoch, c.kind) == (1, "epoch_end"))
    saved = {name: v for name, v in end.tensors().items() if name.startswith("model/optimizer/")}
    assert saved["model/optimizer/_iterations"] == seen[0] == 4
    moments = [v for name, v in saved.items() if "_momentums" in name or "_velocities" in name]
    assert len(moments) == 4
    assert all(any(np.array_equal(np.float32(s), m) for s in seen) and m.any() for m in moments)


@pytest.mark.parametrize(
    "parts",
    [
        "layers.Dropout(0.5)",
        "layers.Reshape((2, 2, 1)), layers.RandomFlip(), layers.RandomRotation(0.1), layers.Flatten()",
        "layers.GaussianNoise(0.1), layers.Reshape((2, 2)), layers.SpatialDropout1D(0.3), layers.Flatten()",
        "layers.Reshape((2, 2)), layers.LSTM(3, dropout=0.3, recurrent_dropout=0.3)",
        "layers.Reshape((2, 2, 1)), layers.RandomFlip(seed=42), layers.RandomFlip(seed=42), layers.Flatten(), layers.Dropout(0.3, seed=1)",
    ],
    ids=["dropout", "augmentation", "noise", "recurrence", "c85 two flips of one seed"],
)
def test_c07_c85_seeds_go_on_where_they_were(project, cut, parts):
    program = f"""
        model = dense({parts})
        history = model.fit(x, y, epochs=4, batch_size=8, verbose=0, callbacks=[Die(2, 1), flor.FlorKeras()])
        seeds = [v.numpy().tolist() for v in model.non_trainable_variables if "seed" in v.path]
        print(json.dumps([[loss.hex() for loss in history.history["loss"]], seeds]))
    """
    expected = whole(project, program)
    assert cut(program) == expected
    assert all(calls > 0 for _, calls in expected[1])


@pytest.mark.parametrize(
    "order", ["shuffle(12)", "shuffle(12, seed=3)", "shuffle(12, seed=3).repeat()", "shuffle(5)"]
)
def test_c09_a_reshuffled_dataset_has_the_recorded_order_in_every_epoch(project, order):
    project.write(
        "train.py",
        BASE.replace("keras.utils.set_random_seed(5)", ""),
        f"""
        class Ordered(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = layers.Dense(1)
            def call(self, inputs):
                return self.out(inputs)
            def train_step(self, batch):
                flor.log("order", batch[0][:, 0])
                return super().train_step(batch)
        model = Ordered()
        model.compile("sgd", "mse")
        data = tf.data.Dataset.range(12).map(lambda n: (tf.cast([n], tf.float32), 0.0)).{order}.batch(12)
        model.fit(data, epochs=4, steps_per_epoch=1, verbose=0, callbacks=[flor.FlorKeras()])
    """,
    )
    project.succeed("train.py")
    recorded = [v.tolist() for v in values(project.latest(), "order")]
    assert len(recorded) == 4
    assert len({tuple(o) for o in recorded}) == 4
    for epoch in (1, 3):
        report = project.replay("train.py", "order", "--epochs", epoch)
        assert report["verified"] == "exact", report
        assert [row["order"] for row in report["values"] if row["epoch"] == epoch] == [recorded[epoch]]


def test_c17_a_schedule_that_a_callback_counts_itself_goes_on(project, cut):
    program = """
        class Rate(keras.callbacks.Callback):
            def __init__(self):
                super().__init__()
                self.counter, self.rates, self.last = 0, [], np.zeros(3)
            def on_train_batch_begin(self, batch, logs=None):
                self.counter += 1
                self.model.optimizer.learning_rate = 0.1 / self.counter
                self.rates.append(round(0.1 / self.counter, 9))
                self.last[:] = self.counter
        rate = Rate()
        dense().fit(x, y, epochs=4, batch_size=8, verbose=0, callbacks=[rate, Die(2), flor.FlorKeras()])
        print(json.dumps([rate.counter, rate.rates, rate.last.tolist()]))
    """
    expected = whole(project, program)
    assert cut(program) == expected
    assert expected[0] == 8


@pytest.mark.parametrize("damage", ["cut off", "without its index", "without its pickle"])
def test_c21_a_damaged_newest_checkpoint_is_told_and_the_one_before_it_is_used(project, damage):
    program = """
        history = dense().fit(x, y, epochs=5, batch_size=8, verbose=0, callbacks=[Die(3, 1), flor.FlorKeras()])
        print(json.dumps([loss.hex() for loss in history.history["loss"]]))
    """
    expected = whole(project, program)
    assert project.run("train.py", env={"CUT": "1"}).status == 1
    newest = project.latest().checkpoints[-1].path
    if damage == "cut off":
        file = next(newest.glob("bundle.data*"))
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        (newest / {"without its index": "bundle.index", "without its pickle": "python.pkl"}[damage]).unlink()
    ended = project.flor("resume")
    assert ended.status == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == expected
    assert newest.name in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [e.position.epoch for e in project.latest().entries("loss")] == [0, 1, 2, 3, 4]


def test_c62_finished_folds_are_not_trained_again_and_resume_says_where_it_goes_on(project, cut):
    program = """
        batches = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print("batch", file=sys.stderr))
        losses = []
        for fold in range(3):
            rows = np.arange(16) % 3 != fold
            chosen = [batches, *([Die(1, loop=1)] if fold == 1 else []), flor.FlorKeras()]
            history = dense().fit(x[rows], y[rows], epochs=3, batch_size=8, verbose=0, callbacks=chosen)
            losses.append([loss.hex() for loss in history.history["loss"]])
        print(json.dumps(losses))
    """
    expected = whole(project, program)
    project.write("train.py", BASE, program)
    assert project.run("train.py", env={"CUT": "1"}).status == 1
    ended = project.flor("resume")
    assert ended.status == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == expected
    assert ended.stderr.count("batch\n") == 2 * 2 + 3 * 2  # two epochs of the second fold, the third fold
    assert "Resumed loop 1 from the end of epoch 0" in project.flor("show").stdout
    assert len(project.latest().entries("loss")) == 9


# -- callbacks and compile inside of fit ------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2])
def test_c54_evaluating_in_a_callback_does_not_undo_a_stop(project, at):
    ended = project.succeed(
        project.write(
            "train.py",
            BASE,
            f"""
        stop = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 1))
        look = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.evaluate(x, y, verbose=0))
        chosen = [stop, look]
        chosen.insert({at}, flor.FlorKeras())
        model = dense()
        print(len(model.fit(x, y, epochs=6, verbose=0, callbacks=chosen).epoch))
    """,
        )
    )
    assert ended.stdout.split() == ["2"]
    assert [e.position.epoch for e in project.latest().entries("loss")] == [0, 1]


LOOKING = """
        class {name}(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                {line}
"""


@pytest.mark.parametrize("is_new", [True, False], ids=["in a new callback", "in one that was there"])
def test_c55_a_hindsight_evaluation_amid_an_epoch_leaves_what_was_recorded(project, is_new):
    fit = """
        model = dense(layers.Dropout(0.2))
        model.fit(x, y, epochs=3, batch_size=8, verbose=0, callbacks=[Look(), flor.FlorKeras(){more}])
    """
    line = 'flor.log("other", self.model.evaluate(x + 9, y, verbose=0))'
    look = LOOKING.format(name="Look", line="pass")
    project.succeed(project.write("train.py", BASE, look, fit.format(more="")))
    recorded = values(project.latest(), "loss")
    if is_new:
        project.write(
            "train.py", BASE, look, LOOKING.format(name="New", line=line), fit.format(more=", New()")
        )
    else:
        project.write("train.py", BASE, LOOKING.format(name="Look", line=line), fit.format(more=""))
    ended = project.flor("replay", "--json", "train.py", "other", "--epochs", "1")
    report = json.loads(ended.stdout)
    assert len([row for row in report["values"] if row["epoch"] == 1]) == 2
    # What the line adds to a callback that was there cannot be told from what that did before: not undone, but said.
    assert report["verified"] == ("exact" if is_new else "approximate"), report
    assert values(project.latest(), "loss") == recorded


def test_c57_copies_record_as_the_original_does_before_and_after_a_fit(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        first = flor.FlorKeras(name="tuned")
        before = copy.deepcopy(first)
        dense().fit(x, y, epochs=2, verbose=0, callbacks=[first])
        after = copy.deepcopy(first)
        for callback in (before, after, first):
            dense().fit(x, y, epochs=2, verbose=0, callbacks=[callback])
    """,
        )
    )
    run = project.latest("tuned")
    assert [(e.position.loop, e.position.epoch) for e in run.entries("loss")] == [
        (loop, epoch) for loop in range(4) for epoch in range(2)
    ]


def test_c58_each_phase_is_replayed_with_its_own_frozen_layers_and_optimizer(project):
    phases = """
        class Look(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                flor.log("step_loss", logs["loss"])
                {line}
        model = dense(layers.Dense(4), layers.BatchNormalization())
        for optimizer, is_open in ((keras.optimizers.Adam(0.01), False), (keras.optimizers.SGD(0.001, momentum=0.9), True)):
            model.layers[0].trainable = model.layers[1].trainable = is_open
            model.compile(optimizer, "mse")
            model.fit(x, y, epochs=3, batch_size=8, verbose=0, callbacks=[Look(), flor.FlorKeras()])
    """
    project.succeed(project.write("train.py", BASE, phases.format(line="pass")))
    line = 'flor.log("phase", [len(model.trainable_variables), type(model.optimizer).__name__, int(model.optimizer.iterations)])'
    project.write("train.py", BASE, phases.format(line=line))
    report = project.replay("train.py", "phase", "--epochs", "1")
    assert report["verified"] == "exact", report
    found = {(row["loop"], row["step"]): row["phase"] for row in report["values"] if row.get("phase")}
    assert found == {
        (0, 0): [2, "Adam", 3],
        (0, 1): [2, "Adam", 4],
        (1, 0): [6, "SGD", 3],
        (1, 1): [6, "SGD", 4],
    }


def test_c60_a_second_fit_after_an_interrupt_is_a_loop_that_says_what_weights_it_began_with(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        class Interrupt(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 3:
                    raise KeyboardInterrupt
        model = dense()
        try:
            model.fit(x, y, epochs=6, verbose=0, callbacks=[Interrupt(), flor.FlorKeras()])
        except KeyboardInterrupt:
            pass
        model.fit(x, y, epochs=2, verbose=0, callbacks=[flor.FlorKeras()])
    """,
        )
    )
    run = project.latest()
    positions = [(e.position.loop, e.position.epoch) for e in run.entries("loss")]
    assert positions == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    kinds = {(c.loop, c.epoch, c.kind.value): c for c in run.checkpoints}
    assert not [key for key in kinds if key[0] == 0 and key[2] == "after"]
    last, start = (kinds[key].tensors() for key in ((0, 2, "epoch_end"), (1, 0, "start")))
    weights = [name for name in start if name.endswith("_kernel")]
    assert start["model/optimizer/_iterations"] == 3
    assert all(np.array_equal(last[name], start[name]) for name in weights)


COMPILING = """
        class Thaw(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    self.model.layers[0].trainable = True
                    self.model.compile("sgd", "mse")
                    {more}
        model = dense(layers.Dense(4))
        model.layers[0].trainable = False
        others = [flor.FlorKeras()] if os.environ["RECORD"] == "1" else []
        epochs = []
        try:
            model.fit(x, y, epochs=4, verbose=0, callbacks=[Thaw(), callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: epochs.append(logs["loss"].hex())), *others])
        except Exception as error:
            epochs.append(f"{{type(error).__name__}}: {{error}}"[:200])
        print(json.dumps([epochs, [w.tobytes().hex() for w in model.get_weights()]]))
"""


@pytest.mark.parametrize(
    "more", ["pass", "self.model.make_train_function()"], ids=["compile alone", "and a new step"]
)
def test_c65_compiling_inside_a_callback_ends_as_without_us(project, more):
    script = project.write("train.py", BASE, COMPILING.format(more=more))
    with_us, without = (project.succeed(script, env={"RECORD": which}).stdout for which in "10")
    assert with_us == without


# -- the order and the split of the data ------------------------------------------------------------------------


def test_c82_a_seeded_fit_repeats_its_order_and_a_replay_does_not_mend_that(project):
    project.write(
        "train.py",
        BASE,
        """
        class Ordered(keras.Sequential):
            def train_step(self, batch):
                flor.log("order", batch[0][:, 0])
                return super().train_step(batch)
        keras.utils.set_random_seed(7)
        model = Ordered([layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x, y, epochs=3, batch_size=16, verbose=0, callbacks=[flor.FlorKeras()])
    """,
    )
    project.succeed("train.py")
    orders = [tuple(v) for v in values(project.latest(), "order")]
    assert len(orders) == 3
    assert len(set(orders)) == 1
    assert list(orders[0]) != sorted(orders[0])
    report = project.replay("train.py", "order", "--epochs", "1")
    assert report["verified"] == "exact"
    assert [tuple(np.float32(row["order"])) for row in report["values"] if row["epoch"] == 1] == [orders[1]]


SPLIT = """
        rows = {draw}
        model = dense(layers.Dense(4), metrics=["mae"])
        more = dict(validation_data=(x[rows[12:]], y[rows[12:]]), epochs=3, verbose=0)
        model.fit(x[rows[:12]], y[rows[:12]], callbacks=[flor.FlorKeras()], **more)
"""


@pytest.mark.parametrize(
    ("draw", "is_known"),
    [
        ("np.random.permutation(16)", True),
        ("__import__('random').sample(range(16), 16)", True),
        ("np.random.default_rng().permutation(16)", False),
        ("tf.random.shuffle(tf.range(16)).numpy()", False),
    ],
)
def test_c86_a_random_split_is_drawn_again_as_it_was_or_the_data_are_said_to_differ(project, draw, is_known):
    unseeded = BASE.replace("keras.utils.set_random_seed(5)", "")
    project.succeed(project.write("train.py", unseeded, SPLIT.format(draw=draw)))
    recorded = {e.position.epoch: e.value for e in project.latest().entries("val_mae")}
    ended = project.flor("replay", "--json", "train.py", "val_mae", "--level", "eval")
    report = json.loads(ended.stdout)
    again = {row["epoch"]: row["val_mae"] for row in report["values"]}
    if is_known:
        assert (ended.status, report["verified"]) == (0, "exact")
        assert again == recorded
    else:
        assert (ended.status, report["verified"]) == (3, "approximate")
        assert any(cause.startswith("data differ") for cause in report["causes"])
