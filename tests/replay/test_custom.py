"""Custom loops in hindsight: equal to a twin run that logged live, bit for bit; resumed as if never interrupted."""

from __future__ import annotations

from functools import cache

import pytest
from custom_training import custom_program
from project import values

pytestmark = pytest.mark.slow


def hexed(rows, name):
    return [(row.get("epoch"), row.get("step"), float(row[name]).hex()) for row in rows]


NORM = "sum(float(tf.reduce_sum(tf.square(w))) for w in model.weights)"
# What the tests of the plain program add to it; its live twin is recorded once, with all of them.
LINES = {
    "epoch_begin": f'flor.log("before", {NORM})',
    "step": 'flor.log("norm", norm)',
    "epoch_end": f'flor.log("weights", {NORM})',
}


@cache
def logged_live(project, program):
    """Record a program with its lines live; return the run."""
    project.write("train.py", program)
    project.succeed("train.py")
    return project.latest()


def twin(project, *names, words=(), arguments=None, **lines):
    """Record with the lines live and without, replay; return the live values by name and the replay's report."""
    run = logged_live(project, custom_program(**(arguments or LINES) | lines))
    live = {n: [(*e.position[1:], float(e.value).hex()) for e in run.entries(n)] for n in names}
    arguments = arguments or {}
    project.write("train.py", custom_program(**arguments))
    project.succeed("train.py")
    project.write("train.py", custom_program(**{**arguments, **lines}))
    report = project.replay("train.py", *names, *words)
    assert (report["verified"], report["causes"]) == ("exact", [])
    return live, report


def check(project, name, **rest):
    live, report = twin(project, name, **rest)
    assert hexed(report["values"], name) == live[name]
    return report


def test_a_value_of_each_epoch_is_computed_without_a_step(shared_project):
    report = check(shared_project, "weights", epoch_end=LINES["epoch_end"])
    assert report["level"] == "epoch"
    assert [row["epoch"] for row in report["values"]] == [0, 1, 2, 3]


def test_a_value_of_each_step_is_computed_by_redoing_the_steps(shared_project):
    report = check(shared_project, "norm", step=LINES["step"])
    assert report["level"] == "step"
    assert len(report["values"]) == 12


@pytest.mark.parametrize("epochs", ["0", "2", "1,3"])
def test_single_epochs_give_what_all_do(shared_project, epochs):
    project = shared_project
    lines = {where: LINES[where] for where in ("epoch_begin", "epoch_end")}
    live, report = twin(project, "before", "weights", words=("--epochs", epochs), **lines)
    asked = {int(e) for e in epochs.split(",")}
    for name in ("before", "weights"):
        expected = [row for row in live[name] if row[0] in asked]
        assert hexed(report["values"], name) == expected, name


def test_steps_of_single_epochs_are_those_of_all(shared_project):
    live, report = twin(shared_project, "norm", words=("--epochs", "2", "--steps", "1"), step=LINES["step"])
    assert hexed(report["values"], "norm") == [row for row in live["norm"] if row[:2] == (2, 1)]


OBJECTS = """
class Tracker:
    def __init__(self):
        self.model, self.count, self.seen = model, 0, {"losses": []}
    def update(self, loss):
        self.count += 1
        self.seen["losses"].append(float(loss))

tracker, table, rng = Tracker(), np.zeros(4), np.random.default_rng(5)
mine, losses = random.Random(4), []
losses_too = tracker.seen["losses"]
"""
STEP = "tracker.update(loss); table[epoch] += rng.random() + mine.random() + mine.gauss(0, 1); losses.append(float(norm))"


def test_python_objects_are_restored_in_place_and_with_what_they_share(shared_project):
    check(
        shared_project,
        "state",
        arguments={
            "before": OBJECTS,
            "extra": ", tracker=tracker, table=table, rng=rng, mine=mine, losses=losses",
            "step": STEP,
        },
        words=("--epochs", "0,1,2,3"),
        epoch_end='flor.log("state", table.sum() + tracker.count + sum(losses) + sum(losses_too) + DRAWS)'.replace(
            "DRAWS",
            'rng.bit_generator.state["state"]["state"] % 1009 + mine.getstate()[1][7] + (mine.getstate()[2] or 0)',
        ),
    )


ITERATOR = "iterator = iter(data.repeat())"
DRAWN = "drawn = float(tf.reduce_sum(next(iterator)[0]))"


def test_a_tf_data_iterator_is_kept_where_it_stands(shared_project):
    arguments = {"before": ITERATOR, "extra": ", iterator=iterator", "step": DRAWN}
    report = check(shared_project, "drawn", arguments=arguments, step=DRAWN + '; flor.log("drawn", drawn)')
    assert len(report["values"]) == 12


def test_a_loop_that_is_broken_off_is_replayed_to_where_it_was(shared_project):
    arguments = {"step": "if epoch == 1 and optimizer.iterations > 4: break"}
    check(shared_project, "weights", arguments=arguments, epoch_end=f'flor.log("weights", {NORM})')


def test_what_comes_after_a_loop_that_was_broken_off_has_its_final_state(shared_project):
    arguments = {"epoch_end": "if epoch == 2: break"}
    live, report = twin(shared_project, "final", arguments=arguments, after=f'flor.log("final", {NORM})')
    assert hexed(report["values"], "final") == live["final"]


INTERRUPT = 'if epoch == 2 and os.environ.get("STOP"): raise KeyboardInterrupt'


@pytest.mark.parametrize("where", ["step", "epoch_begin", "epoch_end"])
def test_an_interrupted_loop_is_resumed_to_the_same_end(project, where):
    report = "print(json.dumps([[w.tobytes().hex() for w in model.get_weights()], history]))"
    project.write("train.py", custom_program(after=report, **{where: INTERRUPT}))
    whole = project.succeed("train.py")
    assert project.run("train.py", env={"STOP": "1"}).status != 0
    resumed = project.flor("resume")
    assert resumed.status == 0, resumed.stderr
    assert resumed.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    assert [value.hex() for value in values(project.latest(), "loss")] == [
        value.hex() for value in values(project.latest("latest~1"), "loss")
    ]
