"""Programs of every kind: an epoch redone gives the same steps, a killed run resumed ends as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from matrix import Result, Trial, as_markdown
from zoo import CASES

pytestmark = pytest.mark.slow

IN_SHORT = {  # every kind once
    "arrays · dropout · adam · early stopping",
    "arrays split · dropout · adamw · best file · early stopping · no seed",
    "dataset repeated · dropout · adam · batch rate",
    "sequence · dropout · adam · drawing",
    "generator drawing from numpy · dense · adam",
    "arrays · mixed precision · adam",
    "dataset · own train_step · adam · plateau",
    "arrays · tf.random in train_step · adam",
    "dataset · tf.random in train_step · adam · counter · flor, drawn",
    "arrays · gan · adam",
    "arrays · dropout · adam · counter · steps_per_execution=4",
    "arrays · dropout · adam · folds",
}
RESULTS: list[Result] = []
TABLE = os.environ.get("FLOR_MATRIX_TABLE")  # where the table goes, `make matrix` says


def _parameters():
    assert {case.name for case in CASES} >= IN_SHORT
    for case in CASES:
        marks = () if case.name in IN_SHORT else (pytest.mark.matrix,)
        yield pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", list(_parameters()))
def test_a_program_is_replayed_and_resumed_exactly_or_the_product_says_why_not(case, project):
    result = Trial(project, case).run()
    RESULTS.append(result)
    print(result)
    is_said = case.cause is not None and any(case.cause in cause for cause in result.causes)
    assert result.is_exact or is_said, str(result)


@pytest.fixture(scope="module", autouse=True)
def _table():
    yield
    if TABLE:
        Path(TABLE).write_text(as_markdown(RESULTS), encoding="utf-8")
    print("\n" + as_markdown(RESULTS))
