"""Lists of epochs and steps as a person writes them."""

from __future__ import annotations

import pytest

from flor_keras.epochs import parse_epochs
from flor_keras.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", [3]),
        ("0,3,5:9:2", [0, 3, 5, 7]),
        ("-1", [9]),
        ("8:", [8, 9]),
        (":2", [0, 1]),
        ("all", list(range(10))),
    ],
)
def test_lists_and_ranges_follow_pythons_slices(text, expected):
    assert parse_epochs(text, range(10)) == expected


def test_a_range_leaves_out_what_the_run_has_not():
    assert parse_epochs("1:6", [0, 2, 4, 8]) == [2, 4]


@pytest.mark.timeout(20)
def test_an_open_range_of_very_many_steps_takes_no_time():
    assert len(parse_epochs("1:", range(1 << 20), "step")) == (1 << 20) - 1


@pytest.mark.parametrize("text", ["x", "1:2:0", "11", "1,,2"])
def test_what_is_no_list_or_not_there_is_refused(text):
    with pytest.raises(UsageError, match=r"Give one of those|separated by commas"):
        parse_epochs(text, range(10))
