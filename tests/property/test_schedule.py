"""The schedule holds its bound, wastes nothing of it, and takes what was asked for."""

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flor_keras.checkpoint.schedule import (
    AUTO,
    EPOCHS,
    SECONDS,
    STEPS,
    WITHIN_EPOCHS,
    WITHIN_FIRST_EPOCH,
    Every,
    Schedule,
    parse_every,
)
from flor_keras.errors import UsageError

OVERHEAD = 1 / 15


class Training:
    """A loop under way by a clock of its own; each checkpoint stalls it for half its cost, the worker takes the rest.

    Attributes:
      inside: (epoch, steps done) of each checkpoint inside an epoch.
      ends: the epochs whose end has one.
      total_secs: how long the loop trained.
    """

    def __init__(self, num_epochs, num_steps, step_secs, cost, every=AUTO, busy_secs=0.0, knows_length=True):
        self.now, self.cost = 100.0, cost
        self.schedule = Schedule(parse_every(every), OVERHEAD, self.now)
        self.inside, self.ends, self.worst = [], [], 0.0
        self._busy_until, self._busy_secs = 0.0, busy_secs
        self._write()
        for epoch in range(num_epochs):
            end_at = self.now + num_steps * step_secs if knows_length else None
            for step in range(1, num_steps + 1):
                self.now += step_secs
                self.schedule.note_steps(1)
                if step < num_steps and self.schedule.is_due_within(
                    self.now, end_at, epoch == num_epochs - 1
                ):
                    self._take(self.inside, (epoch, step))
            if epoch == num_epochs - 1 or self.schedule.is_due_at_end(self.now, epoch):
                self._take(self.ends, epoch, is_needed=epoch == num_epochs - 1)
        self.total_secs = self.schedule.training_secs(self.now)
        self._write()
        self.num_written = len(self.inside) + len(self.ends) + 2

    def _take(self, places, place, is_needed=False):
        if self.now < self._busy_until and not self.schedule.waits and not is_needed:
            self.schedule.pass_by(self.now)
            return
        self.schedule.take(self.now, is_within=places is self.inside)
        places.append(place)
        self._write()

    def _write(self):
        self.schedule.grow_to(1000)
        self.schedule.pay(self.cost / 2, self.cost / 2)
        self.schedule.learn(self.cost, 1000)
        self.now += self.cost / 2
        self._busy_until = self.now + self._busy_secs


def flor_count(num_epochs, epoch_secs, cost):
    """How many checkpoints FLOR's rule gives, which looks at the ends of epochs alone."""
    count = 0
    for epoch in range(1, num_epochs + 1):
        if (count + 1) * cost < epoch * epoch_secs * OVERHEAD:
            count += 1
    return count


LOOPS = {
    "num_epochs": st.integers(1, 40),
    "num_steps": st.integers(1, 60),
    "step_secs": st.floats(1e-3, 2.0),
    "cost": st.floats(1e-3, 5.0),
}


@given(**LOOPS, busy_secs=st.floats(0, 1), knows_length=st.booleans())
def test_recording_never_costs_more_than_the_bound_and_what_cannot_be_left_out(
    num_epochs, num_steps, step_secs, cost, busy_secs, knows_length
):
    training = Training(
        num_epochs, num_steps, step_secs, cost, busy_secs=busy_secs, knows_length=knows_length
    )
    allowed = max(OVERHEAD * training.total_secs, 3 * cost)  # the start, the last epoch's end, and after
    assert training.schedule.spent_secs <= allowed * (1 + 1e-9)


@given(**LOOPS)
@example(num_epochs=10, num_steps=1, step_secs=1.0, cost=0.01)
@example(num_epochs=1, num_steps=1000, step_secs=0.1, cost=0.05)
def test_there_are_as_many_checkpoints_as_flors_rule_gives_and_hardly_any_room_is_wasted(
    num_epochs, num_steps, step_secs, cost
):
    training = Training(num_epochs, num_steps, step_secs, cost)
    epoch_secs = (num_steps - 1 / num_epochs) * step_secs  # up to the last step before the end
    assert (
        training.num_written >= flor_count(num_epochs, epoch_secs, cost) - 1
    )  # the state after the loop is set aside
    overhead = OVERHEAD * WITHIN_EPOCHS
    room = overhead * training.total_secs - training.schedule.spent_secs
    is_cheap = cost < overhead * step_secs  # then each step has one, but for the first few
    assert room < 2 * cost + overhead * step_secs or is_cheap


@given(**LOOPS)
def test_places_inside_of_epochs_have_a_tenth_of_the_bound_while_every_end_has_its_checkpoint(
    num_epochs, num_steps, step_secs, cost
):
    training = Training(num_epochs, num_steps, step_secs, cost)
    if len(training.ends) == num_epochs:
        share = WITHIN_EPOCHS if num_epochs > 1 else WITHIN_FIRST_EPOCH
        allowed = share * OVERHEAD * training.total_secs
        assert len(training.inside) * cost <= max(0.0, allowed - 2 * cost) * (1 + 1e-9)


@given(**LOOPS)
def test_the_end_of_an_epoch_comes_before_places_inside_of_one(num_epochs, num_steps, step_secs, cost):
    training = Training(num_epochs, num_steps, step_secs, cost)
    for epoch in {epoch for epoch, _ in training.inside} - {num_epochs - 1}:
        assert epoch in training.ends


def test_a_long_epoch_has_its_checkpoints_at_about_equal_distances():
    training = Training(1, 5000, 0.01, 0.02)
    steps = [step for _, step in training.inside]
    between = [after - before for before, after in itertools.pairwise(steps)]
    assert len(steps) >= 10
    assert max(between) - min(between) <= 2
    assert 5000 - steps[-1] <= 3 * max(between)


def test_a_state_that_grows_is_expected_to_cost_more_before_it_is_taken():
    schedule = Schedule(Every(), OVERHEAD, 0.0)
    schedule.grow_to(1_000_000_000)
    schedule.learn(1.0, 1_000_000_000)
    assert schedule.expected_secs == pytest.approx(1.0)
    schedule.grow_to(10_000_000_000)
    assert schedule.expected_secs == pytest.approx(10.0, rel=0.01)
    assert not schedule.is_due_at_end(440.0, 0)
    assert schedule.is_due_at_end(460.0, 1)
    assert schedule.skipped == {"cost": 1}


def test_a_model_that_has_no_weights_yet_says_little_of_what_its_checkpoints_will_cost():
    schedule = Schedule(Every(), OVERHEAD, 0.0)
    schedule.learn(0.01, 36)
    schedule.grow_to(3_000_000)
    assert 0.01 < schedule.expected_secs < 0.03


@pytest.mark.parametrize(
    ("every", "inside", "ends"),
    [
        ("epoch", [], [0, 1, 2, 3, 4]),
        (2, [], [1, 3, 4]),
        ({"steps": 3}, [(0, 3), (1, 2), (2, 1), (3, 3), (4, 2)], [2, 4]),
        ({"seconds": 5.5}, [(1, 2), (4, 2)], [2, 4]),
    ],
)
def test_what_is_asked_for_is_taken_whatever_it_costs(every, inside, ends):
    for cost in (1e-9, 100.0) if "seconds" not in str(every) else (1e-9, 0.2):
        training = Training(5, 4, 1.0, cost, every)
        assert (training.inside, training.ends) == (inside, ends)


def test_a_boundary_is_passed_by_while_the_worker_is_busy():
    training = Training(1, 1000, 0.1, 0.01, busy_secs=3.0)
    steps = [step for _, step in training.inside]
    assert all(after - before >= 30 for before, after in itertools.pairwise(steps))
    assert training.schedule.skipped["busy"] > 0


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        ("auto", Every(AUTO)),
        ("epoch", Every(EPOCHS, 1)),
        (3, Every(EPOCHS, 3)),
        ("3", Every(EPOCHS, 3)),
        ({"steps": 100}, Every(STEPS, 100)),
        ("steps=100", Every(STEPS, 100)),
        ({"seconds": 0.5}, Every(SECONDS, 0.5)),
        (" seconds=30 ", Every(SECONDS, 30)),
    ],
)
def test_what_can_be_asked_for_is_read_from_values_and_from_text(given_as, expected):
    assert parse_every(given_as) == expected
    assert parse_every(str(expected)) == expected


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "often",
        "0",
        "-1",
        "1.5",
        "steps=",
        "steps=0",
        "epoch=2",
        0,
        -3,
        1.5,
        True,
        None,
        math.nan,
        math.inf,
        {},
        {"steps": 1, "seconds": 1},
        {"steps": "3"},
        {"steps": 2.5},
        {"minutes": 3},
        {"seconds": 0},
        [3],
    ],
)
def test_anything_else_is_refused_with_what_is_expected(bad):
    with pytest.raises(UsageError, match=r"expected \"auto\", \"epoch\"") as refused:
        parse_every(bad, "FLOR_CHECKPOINT_EVERY")
    assert str(refused.value).startswith(f"FLOR_CHECKPOINT_EVERY is {bad!r}")
