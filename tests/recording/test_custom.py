"""Recording custom loops marked with `flor.loop` and `flor.checkpointing`."""

from __future__ import annotations

import pytest
from custom_training import custom_program
from project import values

from flor_keras.records import Kind, Position, Status

pytestmark = pytest.mark.slow


def kinds(run):
    return [(c.loop, c.epoch, c.kind) for c in run.checkpoints]


def test_a_custom_loop_has_entries_checkpoints_and_a_loop_of_its_own(project):
    project.succeed(project.write("train.py", custom_program(step='flor.log("norm", norm)')))
    run = project.latest()
    assert run.status is Status.FINISHED
    assert kinds(run) == [
        (0, 0, Kind.START),
        *((0, e, Kind.EPOCH_END) for e in range(4)),
        (0, 3, Kind.AFTER),
    ]
    assert [e.position for e in run.entries("loss")] == [Position(0, e) for e in range(4)]
    assert [e.position for e in run.entries("norm")] == [
        Position(0, e, s) for e in range(4) for s in range(3)
    ]


def test_recording_leaves_the_numbers_as_they_are(project):
    report = "print([w.tobytes().hex() for w in model.get_weights()], history)"
    plain = custom_program(after=report).replace('flor.loop("epoch", range(4))', "range(4)")
    plain = plain.replace('flor.loop("step", data)', "data").replace(
        "with flor.checkpointing", "with dict_of"
    )
    plain = plain.replace(
        "@tf.function", "import contextlib\ndict_of = lambda **named: contextlib.nullcontext()\n@tf.function"
    )
    plain = plain.replace('flor.log("loss", history["loss"][-1])', "")
    bare = project.succeed(project.write("plain.py", plain))
    recorded = project.succeed(project.write("train.py", custom_program(after=report)))
    assert bare.stdout == recorded.stdout


def test_an_early_break_of_the_inner_loop_ends_the_epochs_steps(project):
    project.succeed(project.write("train.py", custom_program(step="if epoch == 1 and loss > 0: break")))
    run = project.latest()
    steps = {c.epoch: c.step for c in run.checkpoints if c.kind is Kind.EPOCH_END}
    assert steps == {0: 3, 1: 1, 2: 3, 3: 3}


def test_an_early_break_of_the_outer_loop_ends_the_loop(project):
    project.succeed(project.write("train.py", custom_program(epoch_end="if epoch == 2: break")))
    run = project.latest()
    assert run.status is Status.FINISHED
    assert kinds(run)[-2:] == [(0, 2, Kind.EPOCH_END), (0, 2, Kind.AFTER)]


def test_an_exception_in_a_step_leaves_no_checkpoint_of_that_epoch(project):
    ended = project.run(
        project.write("train.py", custom_program(step="if epoch == 2: raise ValueError('mine')"))
    )
    assert ended.status == 1
    run = project.latest()
    assert run.status is Status.FAILED
    assert run.row.error == "ValueError: mine"
    assert [c.epoch for c in run.checkpoints if c.kind is Kind.EPOCH_END] == [0, 1]
    assert not [c for c in run.checkpoints if c.kind is Kind.AFTER]


def test_what_cannot_be_restored_in_place_is_refused_with_what_to_do(project):
    ended = project.run(project.write("train.py", custom_program(extra=", best=0.5")))
    assert ended.status != 0
    assert "best=0.5, which cannot be restored in place. Put it into a list" in ended.stderr


def test_two_loops_after_one_another_are_two_loops(project):
    again = 'for item in flor.loop("tune", range(2)):\n    flor.log("item", item)\n'
    project.succeed(project.write("train.py", custom_program(after=again)))
    run = project.latest()
    assert [(e.position, e.value) for e in run.entries("item")] == [(Position(1, 0), 0), (Position(1, 1), 1)]
    assert values(run, "item") == [0, 1]
