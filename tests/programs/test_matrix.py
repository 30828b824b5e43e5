"""Programs of every kind: an epoch redone gives the same steps, a killed run resumed ends as if nothing had happened."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from matrix import EACH_EPOCH, Result, Trial, as_markdown
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
FEWER_IN_SHORT = {
    "arrays · dropout · adam · early stopping",
    "dataset repeated · dropout · adam · batch rate",
    "sequence · dropout · adam · drawing",
    "arrays · gan · adam",
}
FEWER = ("2", "steps=5", "auto")
TABLE = os.environ.get(
    "FLOR_MATRIX_TABLE"
)  # where the page goes, `make matrix` says; what came out, beside it


def _parameters():
    assert {case.name for case in CASES} >= IN_SHORT
    for number, case in enumerate(CASES):
        for every in (EACH_EPOCH, FEWER[number % len(FEWER)]):
            short = IN_SHORT if every == EACH_EPOCH else FEWER_IN_SHORT
            marks = () if case.name in short else (pytest.mark.matrix,)
            yield pytest.param(case, every, id=f"{case.name} · {every}", marks=marks)


@pytest.mark.parametrize(("case", "every"), list(_parameters()))
def test_a_program_is_replayed_and_resumed_exactly_or_the_product_says_why_not(case, every, project):
    result = Trial(project, case, every).run()
    _keep(result)
    print(result)
    is_said = case.cause is not None and any(case.cause in cause for cause in result.causes)
    assert result.is_exact or is_said, str(result)


def _keep(result):
    """Add a result to those of all processes, and write the page anew."""
    if TABLE:
        kept = Path(TABLE).with_suffix(".jsonl")
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        results = {}
        for line in kept.read_text(encoding="utf-8").splitlines():
            found = Result(**json.loads(line))
            results[found.name, found.every] = found
        order = {case.name: number for number, case in enumerate(CASES)}
        in_order = sorted(results.values(), key=lambda found: order[found.name])
        Path(TABLE).write_text(as_markdown(in_order), encoding="utf-8")
