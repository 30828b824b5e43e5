"""`@flor.record`: whatever the loop looks like, hindsight values equal those of a twin run that logged them live."""

from __future__ import annotations

import json
import textwrap

import pytest

from flor_keras.records import Kind, Status

pytestmark = pytest.mark.slow

PRELUDE = """
import contextlib, os, sys
import flor_keras as flor
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
x = np.random.rand(96, 6).astype("float32")
y = (x.sum(axis=1) > 3).astype("int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(32)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def build():
    return keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(2)])

model, optimizer = build(), keras.optimizers.Adam(0.01)

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss

def norm(model=model):
    return float(sum(tf.reduce_sum(tf.square(w)) for w in model.weights))
"""
LOOPS = {
    "a function": """
        @flor.record
        def train(dataset, epochs):
            history = []
            for epoch in range(epochs):
                #BEGIN
                for step, (xb, yb) in enumerate(dataset):
                    loss = train_step(xb, yb)
                    #STEP
                history.append(float(loss))
                #END
            #FINAL
            return history, loss

        history, loss = train(data, 4)
        print(history, float(loss))
    """,
    "a method": """
        class Trainer:
            def __init__(self):
                self.seen, self.sums = 0, {"total": 0.0}

            @flor.record
            def train(self):
                for epoch in range(4):
                    #BEGIN
                    for xb, yb in data:
                        loss = train_step(xb, yb)
                        self.seen += 1
                        self.sums["total"] += float(loss) * self.seen
                        #STEP
                    #END
                #FINAL

        trainer = Trainer()
        trainer.train()
        print(trainer.seen, trainer.sums)
    """,
    "a nested function": """
        def make(scale):
            network, adam, count = build(), keras.optimizers.Adam(0.02), 0

            @flor.record
            def train():
                nonlocal count
                for epoch in range(4):
                    #BEGIN
                    for xb, yb in data:
                        with tf.GradientTape() as tape:
                            loss = scale * loss_fn(yb, network(xb, training=True))
                        gradients = tape.gradient(loss, network.trainable_variables)
                        adam.apply(gradients, network.trainable_variables)
                        count += 1
                        #STEP
                    #END
                #FINAL
                return norm(network), count

            return train

        print(make(0.5)())
    """,
    "while loops": """
        @flor.record
        def train():
            epoch, losses = 0, []
            while epoch < 4:
                #BEGIN
                batches, done = iter(data), 0
                while done < 2:
                    xb, yb = next(batches)
                    loss = train_step(xb, yb)
                    done += 1
                    #STEP
                losses.append(float(loss))
                #END
                epoch += 1
            #FINAL
            return losses, epoch

        print(train())
    """,
    "a loop without one inside": """
        @flor.record
        def train():
            total, batches = 0.0, iter(data.repeat())
            for step in range(8):
                #BEGIN
                xb, yb = next(batches)
                loss = train_step(xb, yb)
                total = 0.9 * total + float(loss)
                #END
            #FINAL
            return total

        print(train())
    """,
    "several loops": """
        @flor.record
        def train():
            for warmup in range(2):
                for xb, yb in data:
                    loss = train_step(xb, yb)
            optimizer.learning_rate = 0.001
            for epoch in range(3):
                #BEGIN
                for xb, yb in data:
                    loss = train_step(xb, yb) * warmup
                    #STEP
                #END
            #FINAL
            return float(loss)

        print(train())
    """,
    "an early break": """
        @flor.record
        def train():
            loss, epoch = None, 0
            for epoch in range(9):
                #BEGIN
                for xb, yb in data:
                    loss = train_step(xb, yb)
                    if epoch == 1:
                        break
                    #STEP
                #END
                if epoch == 3:
                    break
            else:
                loss = None
            #FINAL
            return epoch, float(loss)

        print(train())
    """,
    "continue": """
        @flor.record
        def train():
            kept = []
            for epoch in range(4):
                #BEGIN
                if epoch == 1:
                    kept.append("skipped")
                    continue
                for xb, yb in data:
                    loss = train_step(xb, yb)
                    #STEP
                kept.append(float(loss))
                #END
            #FINAL
            return kept

        print(train())
    """,
    "return from the inner loop": """
        @flor.record
        def train():
            for epoch in range(9):
                #BEGIN
                for xb, yb in data:
                    loss = train_step(xb, yb)
                    #STEP
                    if epoch == 3:
                        return epoch, float(loss)
                #END

        result = train()
        #FINAL
        print(result)
    """,
    "an exception that is caught outside": """
        class Enough(Exception):
            pass

        @flor.record
        def train(losses):
            for epoch in range(9):
                #BEGIN
                for xb, yb in data:
                    loss = train_step(xb, yb)
                    #STEP
                    if epoch == 3:
                        raise Enough(float(loss))
                losses.append(float(loss))
                #END

        losses = []
        try:
            train(losses)
        except Enough as enough:
            losses += [norm(), *enough.args]
            #FINAL
        print(losses)
    """,
    "an exception in each epoch": """
        @flor.record
        def train():
            losses, loss = [], None
            for epoch in range(4):
                #BEGIN
                for step, (xb, yb) in enumerate(data):
                    try:
                        if step == epoch:
                            raise ValueError(step)
                        loss = train_step(xb, yb)
                    except ValueError as error:
                        losses.append(str(error))
                    finally:
                        losses.append(0.5 if loss is None else float(loss))
                    #TRIED
                losses.append("end")
                #END
            #FINAL
            return losses

        print(train())
    """,
    "a function for each epoch": """
        def train_epoch(network, batches, totals):
            for xb, yb in batches:
                totals["steps"] += 1
                loss = train_step(xb, yb)
            return loss

        @flor.record
        def train():
            totals = {"steps": 0}
            for epoch in range(4):
                #BEGIN
                loss = train_epoch(model, data, totals)
                #END
            #FINAL
            return totals, float(loss)

        print(train())
    """,
    "a loop inside a with": """
        @flor.record
        def train():
            for epoch in range(4):
                #BEGIN
                with contextlib.nullcontext([]) as losses:
                    for xb, yb in data:
                        losses.append(float(train_step(xb, yb)))
                        #STEP
                    total = sum(losses)
                #END
            #FINAL
            return total

        print(train())
    """,
    "variables without a model": """
        w, b = tf.Variable(tf.random.normal((6, 1))), tf.Variable(tf.zeros((1,)))
        best = {"loss": 9.0, "w": w.numpy()}

        def descend(xb, yb, rate=0.1):
            with tf.GradientTape() as tape:
                error = tf.reduce_mean(tf.square(xb @ w + b - tf.cast(yb[:, None], tf.float32)))
            for variable, slope in zip((w, b), tape.gradient(error, (w, b))):
                variable.assign_sub(rate * slope)
            return error

        @flor.record
        def train():
            for epoch in range(4):
                #BEGIN
                for xb, yb in data:
                    loss = descend(xb, yb)
                    if loss < best["loss"]:
                        best.update(loss=float(loss), w=w.numpy())
                    #STEP
                #END
            #FINAL
            return best["loss"], float(np.sum(best["w"]))

        print(train())
    """,
    "a call of which nothing is known": """
        class Log:
            lines = []
            def __call__(self, text):
                Log.lines.append(text)

        tell = [Log()]

        @flor.record
        def train():
            for epoch in range(4):
                #BEGIN
                for xb, yb in data:
                    loss = train_step(xb, yb)
                    tell[0](epoch)
                    #STEP
                #END
            #FINAL
            return len(Log.lines), float(loss)

        print(train())
    """,
}
LINES = {
    "#BEGIN": 'flor.log("begin", norm() if model.built else 0.0)',
    "#STEP": 'flor.log("step_loss", float(loss) if "loss" in dir() else sum(losses))',
    "#TRIED": 'flor.log("step_loss", losses[-1])',
    "#END": 'flor.log("end", norm() if model.built else float(loss))',
    "#FINAL": 'flor.log("final", norm() if model.built else 0.0)',
}


def program(loop: str, lines: dict[str, str]) -> str:
    text = PRELUDE + textwrap.dedent(LOOPS.get(loop, loop))
    for place in LINES:
        text = text.replace(place, lines.get(place, "pass"))
    return text


def rows_of(project, name):
    found = project.flor("logs", name, "--json")
    return [
        (r["loop"], r.get("epoch"), r.get("step"), r[name]) for r in map(with_loop, json.loads(found.stdout))
    ]


def with_loop(row):
    return {"loop": 0, **row}


def replayed(report, name):
    rows = map(with_loop, report["values"])
    return [(r["loop"], r.get("epoch"), r.get("step"), r[name]) for r in rows if r.get(name) is not None]


@pytest.mark.parametrize("loop", LOOPS)
def test_hindsight_values_equal_those_of_a_twin_run_bit_for_bit(project, loop):
    """At the beginning and end of an epoch, of a single epoch, of each step, and after the loop."""
    plain = project.succeed(project.write("plain.py", program(loop, {}).replace("@flor.record", "")))
    project.write("train.py", program(loop, LINES))
    twin = project.succeed("train.py")
    names = [n for n in ("begin", "end", "step_loss", "final") if n in project.latest().names]
    live = {name: rows_of(project, name) for name in names}
    project.write("train.py", program(loop, {}))
    recorded = project.succeed("train.py")
    assert plain.stdout == twin.stdout == recorded.stdout
    project.write("train.py", program(loop, LINES))
    for asked in (["begin", "end"], ["step_loss"], ["final"]):
        asked = [name for name in asked if name in names]
        if not asked:
            continue
        for words in (["--epochs", "2"], []) if asked != ["final"] else ([],):
            report = project.replay("train.py", *asked, *words)
            assert (report["verified"], report["causes"]) == ("exact", []), (asked, words, report)
            for name in asked:
                expected = [row for row in live[name] if not words or row[1] == 2]
                assert expected or name == "step_loss"
                assert replayed(report, name) == expected, (name, words)


def test_tracebacks_show_the_programs_own_lines(project):
    text = PRELUDE + textwrap.dedent("""
        @flor.record
        def train():
            for epoch in range(2):
                for xb, yb in data:
                    train_step(xb, yb)
                    if epoch == 1:
                        raise ValueError("mine")

        train()
    """)
    project.write("plain.py", text.replace("@flor.record", ""))
    bare = project.run(project.write("plain.py", text.replace("@flor.record", "# as it was")))
    ended = project.run(project.write("train.py", text))
    assert ended.status == 1
    assert ended.stderr.replace("train.py", "plain.py") == bare.stderr
    run = project.latest()
    assert run.status is Status.FAILED
    assert [c.epoch for c in run.checkpoints if c.kind is Kind.EPOCH_END] == [0]


def test_what_cannot_be_recorded_is_told_and_runs_as_ever(project):
    text = PRELUDE + textwrap.dedent("""
        @flor.record
        def batches():
            for xb, yb in data:
                train_step(xb, yb)
                yield 1

        @flor.record
        def nothing():
            return 2

        print(sum(batches()), nothing())
        exec("@flor.record\\ndef unseen():\\n    for i in range(3): pass\\n    return i")
        print(unseen())
    """)
    ended = project.succeed(project.write("train.py", text))
    assert ended.stdout == "3 2\n2\n"
    assert "train.py:32: loop not recorded, and run as ever: it is in a generator" in ended.stderr
    assert "not recorded, and trained as ever: it has no loop" in ended.stderr
    assert (
        "<string>:1: not recorded, and trained as ever: its source, <string>, cannot be read" in ended.stderr
    )


def test_a_loop_of_which_nothing_can_be_skipped_is_shown_in_the_plan(project):
    project.write("train.py", program("a call of which nothing is known", {}))
    project.succeed("train.py")
    project.write("train.py", program("a call of which nothing is known", LINES))
    shown = project.flor("replay", "train.py", "end", "--epochs", "2", "--dry-run").stdout
    line = 1 + program("a call of which nothing is known", {}).splitlines().index(
        "            tell[0](epoch)"
    )
    assert (
        f"every epoch of loop 0 before them, too: train.py:{line}: tell[0](epoch) may change anything"
        in shown
    )


def test_the_first_epoch_is_exact_by_itself_where_the_first_step_builds_model_and_optimizer(project):
    loop = LOOPS["a function"].replace("return history", "return norm()")
    project.write("train.py", program(loop, LINES))
    project.succeed("train.py")
    names = ["begin", "end", "step_loss"]
    live = {name: [row for row in rows_of(project, name) if row[1] == 0] for name in names}
    project.write("train.py", program(loop, {}))
    project.succeed("train.py")
    project.write("train.py", program(loop, LINES))
    for asked in (["begin", "end"], ["step_loss"]):
        report = project.replay("train.py", *asked, "--epochs", "0")
        assert (report["verified"], report["causes"]) == ("exact", [])
        assert {name: replayed(report, name) for name in asked} == {name: live[name] for name in asked}


BOTH_WAYS = """
@flor.record
def train():
    for epoch in range(3):
        for xb, yb in data:
            loss = step(xb, yb)
            #STEP

train()
with flor.checkpointing(model=model, optimizer=optimizer):
    for epoch in flor.loop("by hand", range(2)):
        for xb, yb in flor.loop("step", data):
            loss = step(xb, yb)
"""
STEPS = """
def eagerly(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    #GRADIENTS
    if tf.reduce_sum(x) > 90:
        #BRANCH
        loss += 1.0
    return loss

in_graph = tf.function(eagerly)

def step(x, y):
    return in_graph(x, y) + eagerly(x, y)
"""


def test_lines_inside_of_graphs_log_what_they_log_eagerly_in_every_kind_of_loop(project):
    """A `tf.function` and the same code without it: tensors, values that are none, a line inside of a branch."""
    without = PRELUDE + STEPS + BOTH_WAYS
    lines = without.replace(
        "#GRADIENTS", 'flor.log("norm", tf.linalg.global_norm(gradients)); flor.log("what", {"is": "step"})'
    ).replace("#BRANCH", 'flor.log("large", loss)')
    names = ["norm", "what", "large"]

    def entries(name):
        return [(entry.position, entry.value) for entry in project.latest().entries(name)]

    project.write("train.py", lines)
    project.succeed("train.py")
    live = {name: entries(name) for name in names}
    assert len(live["norm"]) == len(live["what"]) == 2 * 3 * (3 + 2)
    assert 0 < len(live["large"]) < len(live["norm"])
    assert {str(value) for _, value in live["what"]} == {"{'is': 'step'}"}
    project.write("train.py", without)
    project.succeed("train.py")
    project.write("train.py", lines)
    report = project.replay("train.py", *names)
    assert (report["verified"], report["level"]) == ("exact", "step")
    assert {name: entries(name) for name in names} == live


def test_lines_no_value_leads_out_of_are_told_and_training_goes_on(project):
    """XLA has no way out; `tf.data` runs ahead of the steps, so that its values have no position."""
    without = (
        PRELUDE
        + STEPS
        + """
step = tf.function(eagerly, jit_compile=True)

def element(x, y):
    #ELEMENT
    return x, y

data = data.map(element)
"""
        + BOTH_WAYS
    )
    lines = without.replace("#GRADIENTS", 'flor.log("norm", tf.linalg.global_norm(gradients))')
    lines = lines.replace("#ELEMENT", 'flor.log("mean", tf.reduce_mean(x))')
    project.write("train.py", lines)
    told = project.succeed("train.py").stderr
    assert "flor.log('norm') inside a function compiled by XLA is not recorded" in told
    assert "flor.log('mean') inside a tf.data pipeline is not recorded" in told
    assert not project.latest().names
    project.write("train.py", without)
    project.succeed("train.py")
    project.write("train.py", lines)
    ended = project.flor("replay", "train.py", "norm", "mean", "--epochs", "1")
    assert ended.status == 2
    for name, why in (("norm", "a function compiled by XLA"), ("mean", "a tf.data pipeline")):
        assert f"flor.log('{name}') inside {why} is not recorded" in ended.stderr


def test_a_random_op_inside_of_a_graph_is_named_where_the_replay_of_a_loop_differs(project):
    text = (PRELUDE + "step = train_step\n" + BOTH_WAYS).replace(
        "model(x, training=True)", "model(x + tf.random.normal(tf.shape(x)), training=True)"
    )
    line = 1 + [*map(str.strip, text.splitlines())].index(
        "loss = loss_fn(y, model(x + tf.random.normal(tf.shape(x)), training=True))"
    )
    project.write("train.py", text)
    project.succeed("train.py")
    script = project.write("train.py", text.replace("#STEP", 'flor.log("step_loss", float(loss))'))
    report = project.replay("train.py", "step_loss", "--epochs", "2", status=3)
    assert report["verified"] == "approximate"
    assert report["causes"] == [
        f"RandomStandardNormal ({script}:{line}) draws from a state inside TensorFlow that cannot be put back"
    ]


FOLDED = """
@tf.function
def score_of(x):
    part = tf.reduce_mean(x) * 100.0
    #PART
    return part * 0.9

@flor.record
def train():
    for epoch in range(2):
        for xb, yb in data.unbatch().batch(8):
            train_step(xb, yb)
            flor.log("score", score_of(xb))

train()
"""


def test_a_line_that_keeps_tensorflow_from_folding_a_graph_is_named_where_that_rounds_differently(project):
    project.write("train.py", PRELUDE + FOLDED)
    project.succeed("train.py")
    project.write("train.py", PRELUDE + FOLDED.replace("#PART", 'flor.log("part", part)'))
    report = project.replay("train.py", "part", status=3)
    assert report["verified"] == "approximate"
    (cause,) = report["causes"]
    assert cause.startswith("flor.log('part') takes a value out of a graph")


DEBUGGED = """
import bdb, json

class Stops(bdb.Bdb):
    seen = []

    def user_line(self, frame):
        if self.break_here(frame):
            names = ("epoch", "step", "n")
            self.seen.append([frame.f_lineno, *(frame.f_locals.get(name) for name in names)])
        self.set_continue()

@flor.record
def train():
    n = 0
    for epoch in range(3):
        n += 1
        for step, (xb, yb) in enumerate(data):
            loss = train_step(xb, yb)
            if step == 1:
                continue
            n += 2
        else:
            n += 5
        with contextlib.nullcontext():
            n += 7
    while epoch > 0:
        epoch, step = epoch - 1, 0
        while step < 2:
            loss = train_step(x, y)
            step += 1
        n += 11
    return n

stops = Stops()
for line in range(train.__code__.co_firstlineno, len(open(__file__).readlines())):
    stops.set_break(__file__, line)
result = stops.runcall(train)
print(json.dumps([result, stops.seen]))
"""


def test_a_debugger_stops_at_the_lines_it_stops_at_without_the_decorator(project):
    """At each line of the body as often, with the same locals; at the head of a loop at least as often."""
    text = PRELUDE + DEBUGGED
    _, expected = json.loads(
        project.succeed(project.write("train.py", text.replace("@flor.record", "# plain"))).stdout
    )
    result, found = json.loads(project.succeed(project.write("train.py", text)).stdout)
    heads = {n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(("for ", "while "))}
    assert result == 3 * (1 + 2 * 2 + 5 + 7) + 2 * 11
    assert [stop for stop in found if stop[0] not in heads] == [s for s in expected if s[0] not in heads]
    assert len(expected) > 50
    assert all(found.count(stop) >= expected.count(stop) for stop in expected)


SEVERAL = """
import signal, time

def die(where):
    if os.environ.get("DIES") == where and "FLOR_RESUME" not in os.environ:
        time.sleep(0.3)  # the checkpoints before are written
        os.kill(os.getpid(), signal.SIGKILL)

@flor.record
def left_by_return():
    for epoch in range(9):
        for step, (xb, yb) in enumerate(data):
            loss = train_step(xb, yb)
            if epoch == 2 and step == 1:
                return epoch, float(loss)
        flor.log("end", float(loss))

class Enough(Exception):
    pass

@flor.record
def left_by_exception():
    for epoch in range(9):
        for xb, yb in data:
            loss = train_step(xb, yb)
            if epoch == 1:
                raise Enough(float(loss))
        flor.log("end", float(loss))

@flor.record
def left_by_break():
    for epoch in range(9):
        for xb, yb in data.take(2):
            loss = train_step(xb, yb)
        flor.log("end", float(loss))
        if epoch == 1:
            break
    else:
        loss = None
    return float(loss)

@flor.record
def dies(pairs):
    sums = []
    for epoch in range(3):
        mine = data.shuffle(5)
        for (xb, yb), (other, _) in pairs:
            loss = train_step(xb, yb) + tf.reduce_mean(other)
            sums.append(float(loss))
            die(f"decorated {epoch} {len(sums)}")
        for xb, yb in mine:
            sums.append(float(train_step(xb, yb)))
        flor.log("end", sums[-1])
        die(f"after {epoch}")
    return sums

try:
    left_by_exception()
except Enough as enough:
    results = enough.args
results = *results, left_by_return(), left_by_break(), dies(tf.data.Dataset.zip((data, data.shuffle(2))))
history = []
with flor.checkpointing(model=model, optimizer=optimizer, history=history):
    for name in ("third", "fourth"):
        for epoch in flor.loop(name, range(3)):
            for xb, yb in flor.loop("step", data):
                history.append(float(train_step(xb, yb)))
                die(f"{name} {epoch} {len(history)}")
            flor.log("end", history[-1])
            if name == "third" and epoch == 1:
                break
print(results, history, norm())
"""


@pytest.mark.parametrize("where", ["decorated 0 2", "decorated 2 14", "after 1", "third 1 5", "fourth 2 13"])
def test_a_killed_run_of_several_loops_is_resumed_to_the_same_end_with_each_row_once(project, where):
    """The model is built by the first step; loops that are over were left by `return` and `break`; pipelines share parts."""
    project.write("train.py", PRELUDE + SEVERAL)
    whole = project.succeed("train.py")
    expected = [(entry.position, entry.value) for entry in project.latest().entries("end")]
    assert project.run("train.py", env={"DIES": where}).status == -9
    assert project.latest().status is Status.KILLED
    resumed = project.flor("resume")
    assert resumed.status == 0, resumed.stderr
    assert resumed.stdout == whole.stdout
    assert [(entry.position, entry.value) for entry in project.latest().entries("end")] == expected
