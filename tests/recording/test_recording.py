"""What a recorded run holds: entries at their positions, loops, checkpoints, a status that is true."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest
from project import values
from training import BASE

from flor_keras.records import Kind, Position, Status

pytestmark = pytest.mark.slow
FIT = "model = build()\nmodel.fit(x, y, epochs=2, verbose=0, callbacks=[flor.FlorKeras()])\n"


def events(project, run=None):
    from flor_keras.store.database import Store

    with Store.open(project.store) as store:
        return [event.message for event in store.events((run or project.latest()).id)]


def checkpoints(run):
    return [(c.loop, c.epoch, c.kind) for c in run.checkpoints]


# -- entries ------------------------------------------------------------------------------------------------


def test_keras_logs_are_entries_equal_to_the_history_to_the_last_bit(project):
    ended = project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        history = build().fit(x, y, epochs=5, validation_split=0.25, verbose=0, callbacks=[flor.FlorKeras()])
        print(json.dumps({name: [v.hex() for v in values] for name, values in history.history.items()}))
    """,
        )
    )
    import json

    history = json.loads(ended.stdout)
    run = project.latest()
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    for name, recorded in history.items():
        entries = run.entries(name)
        assert [entry.position for entry in entries] == [Position(0, epoch) for epoch in range(5)]
        assert [entry.value.hex() for entry in entries] == recorded
    assert run.status is Status.FINISHED
    assert checkpoints(run) == [
        (0, 0, Kind.START),
        *((0, e, Kind.EPOCH_END) for e in range(5)),
        (0, 4, Kind.AFTER),
    ]


@pytest.mark.parametrize("order", ["[ours, theirs]", "[theirs, ours]", "[other, ours, theirs]"])
def test_a_log_line_in_any_hook_has_the_position_of_that_hook(project, order):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        class Logs(callbacks.Callback):
            def on_train_begin(self, logs=None): flor.log("train_begin", 1)
            def on_epoch_begin(self, epoch, logs=None): flor.log("epoch_begin", epoch)
            def on_train_batch_begin(self, batch, logs=None): flor.log("batch_begin", batch)
            def on_train_batch_end(self, batch, logs=None): flor.log("batch_end", batch)
            def on_test_begin(self, logs=None): flor.log("test_begin", 1)
            def on_test_batch_end(self, batch, logs=None): flor.log("test_batch_end", batch)
            def on_test_end(self, logs=None): flor.log("test_end", 1)
            def on_epoch_end(self, epoch, logs=None): flor.log("epoch_end", epoch)
            def on_train_end(self, logs=None): flor.log("train_end", 1)
        flor.log("before", 1)
        ours, theirs, other = flor.FlorKeras(), Logs(), callbacks.TerminateOnNaN()
    """,
            f"""
        build().fit(x, y, batch_size=32, epochs=2, validation_data=(x, y), verbose=0, callbacks={order})
        flor.log("after", 1)
    """,
        )
    )
    run = project.latest()

    def positions(name):
        return [entry.position for entry in run.entries(name)]

    epochs = [Position(0, 0), Position(0, 1)]
    steps = [Position(0, epoch, step) for epoch in range(2) for step in range(2)]
    assert positions("before") == [Position()]
    assert positions("train_begin") in ([Position()], [Position(0)])
    assert positions("epoch_begin") == positions("epoch_end") == epochs
    assert positions("test_begin") == positions("test_end") == epochs
    assert positions("test_batch_end") == [epochs[0]] * 2 + [epochs[1]] * 2
    assert positions("batch_begin") == positions("batch_end") == steps
    assert positions("train_end") == [Position(0, 1)] or positions("train_end") == [Position(0)]
    assert positions("after") == [Position(0)]


def test_a_log_line_inside_a_training_step_is_logged_each_time_the_graph_runs(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.inner = build()
            def call(self, inputs, training=False):
                return self.inner(inputs, training=training)
            def train_step(self, batch):
                logs = super().train_step(batch)
                flor.log("in_graph", logs["loss"])
                return logs
        model = Own()
        model.compile("sgd", "mse")
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[flor.FlorKeras()])
    """,
        )
    )
    entries = project.latest().entries("in_graph")
    assert [entry.position for entry in entries] == [Position(0, e, s) for e in range(2) for s in range(4)]
    assert all(isinstance(entry.value, float) for entry in entries)


def test_values_of_every_kind_come_back(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        flor.log("kinds", 1.5)
        plain = 7, True, "text", None, [1, {"a": "b"}], float("nan"), np.float32(0.1)
        for value in (*plain, np.arange(3), tf.ones((2, 2)),
                      tf.Variable(3), np.array(["a", "b"]), 10**30):
            flor.log("kinds", value)
        flor.log("refused", object())
        flor.log("refused", lambda: 1)
        """,
            FIT,
        )
    )
    run = project.latest()
    found = values(run, "kinds")
    assert found[:6] == [1.5, 7, True, "text", None, [1, {"a": "b"}]]
    assert found[6] != found[6]
    assert found[7] == float(np.float32(0.1))
    assert (found[8] == np.arange(3)).all()
    assert found[9].dtype == np.float32
    assert found[9].shape == (2, 2)
    assert found[10] == 3
    assert found[12] == 10**30
    assert "refused" not in run.names
    assert sum("flor.log('refused') was not recorded" in message for message in events(project)) == 2
    assert run.status is Status.FINISHED


def test_arguments_come_from_the_command_line_then_the_environment_then_the_default(project):
    script = project.write(
        "train.py",
        BASE,
        """
        asked = {"lr": 0.5, "n": 3, "on": False, "word": "a", "free": None}
        print([flor.arg(name, default) for name, default in asked.items()])
    """,
    )
    ended = project.succeed(
        script, "--arg", "lr=0.01", "--arg=on=yes", env={"FLOR_ARGS": '{"lr": 9, "n": 4, "free": [1]}'}
    )
    assert ended.stdout == "[0.01, 4, True, 'a', [1]]\n"
    run = project.latest()
    assert run.args == {"lr": 0.01, "n": 4, "on": True, "word": "a", "free": [1]}
    assert run.row.argv == ["--arg", "lr=0.01", "--arg=on=yes"]


@pytest.mark.parametrize(
    ("words", "variable", "message"),
    [
        (["--arg", "lr=fast"], "", "The argument lr is 'fast', but its default 0.5 is of type float"),
        (["--arg", "lr"], "", "--arg lr has no value"),
        ([], "lr=1", "The variable FLOR_ARGS is not JSON"),
    ],
)
def test_a_wrong_argument_is_an_error_without_a_traceback(project, words, variable, message):
    script = project.write("train.py", "import flor_keras as flor\nflor.arg('lr', 0.5)\n")
    ended = project.run(script, *words, env={"FLOR_ARGS": variable})
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.status != 0


# -- loops --------------------------------------------------------------------------------------------------


def test_every_fit_of_a_program_is_a_loop_with_its_own_epochs(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        for fold in range(3):
            model = build()
            model.fit(x, y, epochs=fold + 1, verbose=0, callbacks=[flor.FlorKeras(name="folds")])
            flor.log("score", float(model.evaluate(x, y, verbose=0)[0]))
        model.fit(x, y, initial_epoch=3, epochs=5, verbose=0, callbacks=[flor.FlorKeras()])
    """,
        )
    )
    run = project.latest()
    assert run.name == "folds"
    assert [loop.loop for loop in run.loops] == [0, 1, 2, 3]
    assert [loop.initial_epoch for loop in run.loops] == [0, 0, 0, 3]
    assert [len(loop.history["epoch"]) for loop in run.loops] == [1, 2, 3, 2]
    assert [entry.position for entry in run.entries("score")] == [Position(0), Position(1), Position(2)]
    assert [(c.loop, c.epoch) for c in run.checkpoints if c.kind is Kind.EPOCH_END] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (2, 2),
        (3, 3),
        (3, 4),
    ]


def test_one_flor_keras_serves_several_fits_and_copies_of_it_too(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        import copy, pickle
        ours = flor.FlorKeras(name="kept", overhead=0.5)
        earlier = copy.deepcopy(ours)
        for chosen in (ours, ours, earlier, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            build().fit(x, y, epochs=1, verbose=0, callbacks=[chosen])
            assert (chosen.name, chosen.overhead, chosen.loop) == ("kept", 0.5, None)
    """,
        )
    )
    assert [len(loop.history["epoch"]) for loop in project.latest().loops] == [1] * 5


def test_the_run_gets_its_name_from_flor_keras_whoever_began_it(project):
    script = project.write(
        "train.py",
        BASE,
        """
        flor.log("first", 1)
        for name in ("wanted", "too late"):
            build().fit(x, y, epochs=1, verbose=0, callbacks=[flor.FlorKeras(name=name)])
    """,
    )
    project.succeed(script)
    assert project.latest("wanted").name == "wanted"


def test_an_imported_flor_keras_catches_the_very_first_fit(project):
    script = project.write("train.py", BASE, "history = ", FIT.partition("\n")[2], FIT)
    project.write("train.py", BASE, FIT)
    project.succeed(script)
    run = project.latest()
    assert [c.kind for c in run.checkpoints] == [Kind.START, Kind.EPOCH_END, Kind.EPOCH_END, Kind.AFTER]


def test_a_callback_list_of_the_program_is_used_and_stays_usable(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        class Logs(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                flor.log("epoch", epoch)
        model = build()
        given = callbacks.CallbackList([flor.FlorKeras(), Logs()], add_history=True, model=model)
        for _ in range(2):
            model.fit(x, y, epochs=2, verbose=0, callbacks=given)
    """,
        )
    )
    run = project.latest()
    assert [entry.position for entry in run.entries("epoch")] == [
        Position(loop, e) for loop in (0, 1) for e in (0, 1)
    ]
    assert [entry.position for entry in run.entries("loss")] == [
        Position(loop, e) for loop in (0, 1) for e in (0, 1)
    ]


def test_a_program_that_calls_its_callbacks_itself_is_recorded(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        model = build()
        given = callbacks.CallbackList([flor.FlorKeras()], model=model, epochs=2, steps=4)
        given.on_train_begin()
        for epoch in range(2):
            given.on_epoch_begin(epoch)
            for step in range(4):
                given.on_train_batch_begin(step)
                loss = model.train_on_batch(x[step * 16 :][:16], y[step * 16 :][:16])[0]
                given.on_train_batch_end(step, {"loss": loss})
            given.on_epoch_end(epoch, {"loss": float(loss)})
        given.on_train_end()
    """,
        )
    )
    run = project.latest()
    assert [entry.position for entry in run.entries("loss")] == [Position(0, 0), Position(0, 1)]
    assert len([c for c in run.checkpoints if c.kind is Kind.EPOCH_END]) == 2


def test_a_recompile_inside_a_callback_is_no_obstacle(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        class Thaw(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    self.model.layers[0].trainable = True
                    self.model.compile("sgd", "mse")
                    self.model.make_train_function()
        model = build()
        model.layers[0].trainable = False
        try:
            model.fit(x, y, epochs=4, verbose=0, callbacks=[Thaw(), flor.FlorKeras()])
        except Exception as error:
            print(type(error).__name__, error)
    """,
        )
    )
    assert len(values(project.latest(), "loss")) >= 2


# -- the state after fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    "other",
    [
        'callbacks.EarlyStopping("loss", patience=1, mode="max", restore_best_weights=True)',
        "callbacks.SwapEMAWeights(swap_on_epoch=False)",
    ],
    ids=["EarlyStopping", "SwapEMAWeights"],
)
def test_the_checkpoint_after_fit_is_the_model_fit_returned(project, other, at):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            f"""
        chosen = [{other}]
        chosen.insert({at}, flor.FlorKeras())
        model = build(optimizer=keras.optimizers.Adam(0.01, use_ema=True))
        model.fit(x, y, epochs=4, verbose=0, callbacks=chosen)
        import time
        from flor_keras import reading
        until = time.monotonic() + 30  # rows are written in the background
        while (last := reading.run("latest").checkpoints[-1]).kind != "after":
            assert time.monotonic() < until, last
            time.sleep(0.05)
        tensors = last.tensors()
        from flor_keras.state.variables import gather
        state = gather({{"model": model}})
        assert len(state.variables) > 10
        for name, variable in state.variables.items():
            assert tensors[name].tobytes() == np.asarray(variable.numpy()).tobytes(), name
    """,
        )
    )


# -- how a run ends -----------------------------------------------------------------------------------------

ENDINGS = {
    "ends": ("pass", 0, Status.FINISHED, None),
    "leaves": ("sys.exit(0)", 0, Status.FINISHED, None),
    "leaves with a status": ("sys.exit(5)", 5, Status.FAILED, "SystemExit: 5"),
    "fails": ("raise ValueError('no more')", 1, Status.FAILED, "ValueError: no more"),
    "is interrupted": ("raise KeyboardInterrupt", 130, Status.INTERRUPTED, "KeyboardInterrupt"),
    "is killed": ("os.kill(os.getpid(), 9)", -9, Status.KILLED, None),
    "vanishes": ("os._exit(3)", 3, Status.KILLED, None),
}


@pytest.mark.parametrize("where", ["in a callback", "after fit"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_status_and_the_exit_status_are_those_of_a_program_that(project, ending, where):
    line, exit_status, status, error = ENDINGS[ending]
    parts = {
        "in a callback": f"""
            class Ends(callbacks.Callback):
                def on_epoch_end(self, epoch, logs=None):
                    if epoch == 1:
                        {line}
            build().fit(x, y, epochs=2, verbose=0, callbacks=[Ends(), flor.FlorKeras()])
        """,
        "after fit": FIT + line,
    }
    ended = project.run(project.write("train.py", BASE, parts[where]))
    assert ended.status == exit_status, ended.stderr
    run = project.latest()
    assert run.status is status
    assert run.row.error == error
    is_waited_for = where == "in a callback" and status not in (Status.FINISHED, Status.FAILED)
    assert (project.store / "runs" / run.id / "model").exists() != is_waited_for
    if "raise" in line:
        assert "Traceback" in ended.stderr
        assert "flor_keras/recording" not in ended.stderr or where == "in a callback"


def test_a_failure_the_program_deals_with_is_no_failure_of_the_run(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        class Fails(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                raise RuntimeError("once")
        try:
            build().fit(x, y, epochs=2, verbose=0, callbacks=[Fails(), flor.FlorKeras()])
        except RuntimeError:
            pass
        """,
            FIT,
        )
    )
    assert project.latest().status is Status.FINISHED


def test_ctrl_c_interrupts_as_without_us_and_the_last_checkpoint_is_kept(project):
    import signal
    import time

    running = project.start(
        project.write(
            "train.py",
            BASE,
            """
        class Tells(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                open("epoch", "w").write(str(epoch))
        build().fit(x, y, epochs=100_000, verbose=0, callbacks=[Tells(), flor.FlorKeras()])
    """,
        )
    )
    for _ in range(600):
        if (project.folder / "epoch").exists() and int((project.folder / "epoch").read_text() or 0) >= 3:
            break
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the worker gets it too
    assert running.wait().status == 130
    run = project.latest()
    assert run.status is Status.INTERRUPTED
    assert len([c for c in run.checkpoints if c.kind is Kind.EPOCH_END]) >= 3


# -- what must not take training down -----------------------------------------------------------------------

STORES = {
    "a file": "file/.flor",
    "a folder that cannot be made": "/proc/nowhere/.flor",
    "another program's database": "foreign",
    "an address": "gs://bucket/runs",
}


@pytest.mark.parametrize("where", STORES)
def test_a_store_that_cannot_be_used_is_an_error_before_the_first_epoch(project, where):
    (project.folder / "file").write_text("")
    (project.folder / "foreign").mkdir()
    connection = sqlite3.connect(project.folder / "foreign" / "flor.db")
    connection.execute("CREATE TABLE theirs (a)")
    connection.commit()
    connection.close()
    script = project.write(
        "train.py",
        BASE,
        f"""
        class Tells(callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                print("epoch", epoch)
        build().fit(x, y, epochs=1, verbose=0, callbacks=[Tells(), flor.FlorKeras(store={STORES[where]!r})])
    """,
    )
    ended = project.run(script)
    assert ended.status == 1, ended
    assert "Error: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_two_stores_in_one_program_are_refused(project):
    script = project.write("train.py", BASE, FIT, FIT.replace("FlorKeras()", "FlorKeras(store='elsewhere')"))
    ended = project.run(script)
    assert ended.status != 0
    assert "records into" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_stores_folder_vanishing_costs_the_checkpoints_and_not_the_training(project):
    ended = project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        import shutil
        class Removes(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    shutil.rmtree(".flor", ignore_errors=True)
        history = build().fit(x, y, epochs=5, verbose=0, callbacks=[Removes(), flor.FlorKeras()])
        print(len(history.epoch))
    """,
        )
    )
    assert ended.stdout == "5\n"
    assert "Traceback" not in ended.stderr


def test_a_full_disk_costs_the_checkpoints_and_is_told_once(project):
    ended = project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        import resource, signal
        from flor_keras.checkpoint import writer
        writer.FORK_SECS = 0.0  # a worker from the first checkpoint on
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        class Fills(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    from flor_keras import session
                    session.current().checkpoints.finish()
                    pid = session.current().checkpoints._writer.worker_pid
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, 1000))
        history = build().fit(x, y, epochs=5, verbose=0, callbacks=[Fills(), flor.FlorKeras()])
        print(len(history.epoch))
    """,
        )
    )
    assert ended.stdout == "5\n"
    assert ended.stderr.count("A checkpoint could not be written") == 1, ended.stderr
    run = project.latest()
    assert run.status is Status.FINISHED
    assert [c.epoch for c in run.checkpoints if c.kind is Kind.EPOCH_END] == [0]
    assert len(values(run, "loss")) == 5
    assert sum("could not be written" in message for message in events(project)) == 5


def test_a_full_tmpfs_costs_what_does_not_fit_and_nothing_else(project):
    import subprocess

    folder = project.folder / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a tmpfs")
    try:
        script = project.write(
            "train.py",
            BASE,
            """
            model = keras.Sequential([keras.Input((8,)), layers.Dense(20_000), layers.Dense(1)])
            model.compile("adam", "mse")
            for n in range(200):
                flor.log("before", n)
            history = model.fit(x, y, epochs=6, verbose=0, callbacks=[flor.FlorKeras()])
            print(len(history.epoch))
        """,
        )
        ended = project.succeed(script, env={"FLOR_STORE": str(folder / ".flor")})
        assert ended.stdout == "6\n"
        assert ended.stderr.count("could not be written") == 1, ended.stderr
        project.store = folder / ".flor"
        run = project.latest()
        assert run.status in (Status.FINISHED, Status.KILLED)
        for checkpoint in run.checkpoints:
            assert checkpoint.tensors()
        assert not list((folder / ".flor").rglob(".tmp-*"))
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def test_a_stopped_worker_does_not_stop_training_and_the_run_says_so(project):
    script = project.write(
        "train.py",
        BASE,
        """
        import signal
        from flor_keras.checkpoint import writer
        writer.FORK_SECS = 0.0  # a worker from the first checkpoint on
        class Stops(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    from flor_keras import session
                    os.kill(session.current().checkpoints._writer.worker_pid, signal.SIGSTOP)
        history = build().fit(x, y, epochs=5, verbose=0, callbacks=[Stops(), flor.FlorKeras()])
        print(len(history.epoch))
    """,
    )
    ended = project.succeed(script, env={"FLOR_DEADLINE_SCALE": "0.05"})
    assert ended.stdout == "5\n"
    assert "hung and was killed; it is replaced" in ended.stderr
    run = project.latest()
    assert [c.epoch for c in run.checkpoints if c.kind is Kind.EPOCH_END] == [0, 1, 2, 3, 4]
    assert any("hung and was killed" in message for message in events(project))
    assert run.status is Status.FINISHED


def test_processes_the_program_forks_do_not_disturb_the_recording(project):
    project.succeed(
        project.write(
            "train.py",
            BASE,
            """
        import multiprocessing
        flor.log("parent", 0)
        def child(number):
            flor.log("child", number)
        class Forks(callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                process = multiprocessing.get_context("fork").Process(target=child, args=(epoch,))
                process.start()
                process.join(30)
                assert process.exitcode == 0
                pid = os.fork()
                if pid == 0:
                    os._exit(0)  # TensorFlow's exit handlers hang in a fork, without us too
                assert os.waitpid(pid, 0)[1] == 0
                flor.log("parent", epoch + 1)
        build().fit(x, y, epochs=3, verbose=0, callbacks=[Forks(), flor.FlorKeras()])
    """,
        )
    )
    run = project.latest()
    assert run.status is Status.FINISHED
    assert values(run, "parent") == [0, 1, 2, 3]
    assert len([c for c in run.checkpoints if c.kind is Kind.EPOCH_END]) == 3


def test_an_interpreter_of_its_own_records_the_same(project):
    """Once without the fork server that the other tests run in, with warnings as errors."""
    script = project.write("train.py", BASE, FIT)
    ended = project.run_alone("-W", "error::ResourceWarning", script)
    assert ended.status == 0, ended.stderr
    run = project.latest()
    assert run.status is Status.FINISHED
    assert len(run.checkpoints) == 4
    assert "flor_keras" not in ended.stderr


def test_a_script_that_is_edited_while_it_runs_is_recorded_as_it_ran(project):
    """People add the line they miss while training still goes on; modules imported late have the sources kept once more."""
    script = project.write(
        "train.py",
        """
        import time
        import flor_keras as flor

        flor.log("begun", 1)
        from flor_keras import session
        session.current().add_sources()
        session.current().settle()
        open("train.py", "a").write("# edited\\n")
        import wsgiref.util
        """,
    )
    before = script.read_text()
    project.succeed(script)
    from flor_keras.store.database import Store

    assert script.read_text() != before
    with Store.open(project.store) as store:
        assert store.sources(project.latest().id)["train.py"] == before
