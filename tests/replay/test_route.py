"""The way to epochs that are redone begins at the nearest checkpoint and makes nothing twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor_keras.records import CheckpointRecord, Kind, LoopRecord
from flor_keras.replay.plan import Plan
from flor_keras.replay.route import Leg, legs_to, with_checks
from flor_keras.replay.ways import Ways

START, STEP, END, AFTER = Kind.START, Kind.STEP, Kind.EPOCH_END, Kind.AFTER
LENGTH = 10


def at(kind, epoch=0, step=LENGTH):
    """A checkpoint; epochs have 10 steps."""
    step = 0 if kind is START else step
    return CheckpointRecord("run", 0, epoch, step, kind, f"{epoch}-{step}-{kind}", 1, 0.0, 0.0, 0.0)


def ways(needed, *checkpoints):
    """The legs as (epoch, first, last, is restored)."""
    legs = legs_to(needed, checkpoints)
    return legs and [(leg.epoch, leg.first, leg.last, leg.start is not None) for leg in legs]


WHOLE = (0, None)


@pytest.mark.parametrize(
    ("needed", "checkpoints", "expected"),
    [
        ({0: WHOLE}, [at(START)], [(0, 0, None, True)]),
        ({2: WHOLE}, [at(START), at(END, 1)], [(2, 0, None, True)]),
        ({2: WHOLE}, [at(START)], [(0, 0, None, True), (1, 0, None, False), (2, 0, None, False)]),
        ({2: WHOLE}, [at(START), at(STEP, 1, 7)], [(1, 7, None, True), (2, 0, None, False)]),
        ({1: WHOLE, 2: WHOLE}, [at(START), at(STEP, 1, 7)], [(0, 0, None, True)] + [(e, 0, None, False) for e in (1, 2)]),
        ({1: WHOLE, 2: WHOLE}, [at(START), at(END, 0), at(END, 1)], [(1, 0, None, True), (2, 0, None, True)]),
        ({0: (8, 9)}, [at(START), at(STEP, 0, 5), at(STEP, 0, 8), at(STEP, 0, 9)], [(0, 8, 9, True)]),
        ({0: (2, 3), 1: (2, 3)}, [at(START)], [(0, 0, None, True), (1, 0, 3, False)]),
        ({0: (2, 3), 1: (2, 3)}, [at(START), at(STEP, 1, 1)], [(0, 0, 3, True), (1, 1, 3, True)]),
        ({0: WHOLE}, [at(STEP, 0, 3), at(END, 0)], None),
        ({0: (9, 9)}, [at(START), at(STEP, 0, 10), at(AFTER, 0)], [(0, 0, 9, True)]),
        ({1: WHOLE}, [at(START), at(STEP, 0, 10), at(END, 2)], [(0, 0, None, True), (1, 0, None, False)]),
    ],
)  # fmt: skip
def test_the_way_begins_at_the_nearest_checkpoint_that_steps_follow(needed, checkpoints, expected):
    assert ways(needed, *checkpoints) == expected


places = st.tuples(st.integers(0, 5), st.integers(1, LENGTH - 1))
steps = st.tuples(st.integers(0, LENGTH - 1), st.integers(0, LENGTH - 1)).map(
    lambda pair: tuple(sorted(pair))
)


@given(
    st.dictionaries(st.integers(0, 5), st.one_of(st.just(WHOLE), steps), min_size=1),
    st.sets(places),
    st.sets(st.integers(0, 5)),
)
def test_all_that_is_needed_is_made_once_and_each_leg_begins_where_the_one_before_ends(needed, within, ends):
    checkpoints = [at(START), *(at(STEP, *place) for place in within), *(at(END, epoch) for epoch in ends)]
    legs = with_checks(legs_to(needed, checkpoints), checkpoints)
    assert [leg.epoch for leg in legs] == sorted({leg.epoch for leg in legs})
    for before, leg in zip([None, *legs], legs, strict=False):
        if leg.start is None:
            assert before is not None
            assert before.end == leg.begin
        else:
            known = (leg.start.epoch + 1, 0) if leg.start.kind is END else (leg.start.epoch, leg.start.step)
            assert known == leg.begin
    by_epoch = {leg.epoch: leg for leg in legs}
    for epoch, (first, last) in needed.items():
        leg = by_epoch[epoch]
        assert leg.first <= first
        assert leg.last is None or (last is not None and leg.last >= last)
        between = [step for e, step in within if e == epoch and leg.first < step <= first]
        assert not between or leg.start is None, "a checkpoint between would have been nearer"


def test_a_window_is_led_on_to_a_checkpoint_that_tells_whether_it_is_exact_but_not_far():
    leg = Leg(0, 4, 5, at(STEP, 0, 4))
    assert with_checks([leg], [at(STEP, 0, 8)])[0].last == 7
    assert with_checks([leg], [at(STEP, 0, 9)])[0].last == 5
    assert with_checks([leg], [at(END, 0, 8)])[0].last is None
    assert with_checks([leg], [at(END, 0, 9)])[0].last == 5
    whole = Leg(0, 4, None, None)
    assert with_checks([whole], [at(STEP, 0, 8)]) == [whole]


def test_what_is_redone_costs_its_share_of_the_epoch():
    loop = LoopRecord("run", 0, "fit", None, 0, 4, LENGTH, 0.0)
    checkpoints = [at(START), at(END, 0), at(STEP, 2, 5), at(END, 3)]
    epoch_secs = {(0, epoch): 10.0 for epoch in range(4)}
    plan = Plan(
        **{
            **dict.fromkeys(Plan.__dataclass_fields__),
            "steps": None,
            "epochs": {"0": [0, 1, 2, 3]},
            "levels": {"x": "epoch"},
        }
    )
    found = Ways(plan, [loop], checkpoints, epoch_secs)
    assert found.on_way_secs == {(0, 1): 10.0, (0, 2): 10.0}
    assert found.alone_secs == {(0, 1): 10.0, (0, 2): 20.0}
    assert found.unkept == {"0": [1, 2]}
