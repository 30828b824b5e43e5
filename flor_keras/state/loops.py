"""Putting the state of a custom loop back: the objects it named and the random states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flor_keras.state.objects import restore_objects_in_place, split
from flor_keras.state.random import restore_random
from flor_keras.state.restore import read_python, restore_objects


def make_iterators(iterable: Iterable[Any], count: int) -> int:
    """Make iterators and drop them, as skipped epochs would have; return how many.

    A `tf.data` pipeline that shuffles anew each time draws the order from the number of its iterators.
    """
    for _ in range(count):
        iter(iterable)
    return max(count, 0)


def restore_loop(folder: Path, objects: Mapping[str, Any], *, is_fresh: bool = False) -> None:
    """Restore the checkpoint in ``folder`` into ``objects``; see `restore_objects` for ``is_fresh``."""
    native, others = split(objects)
    restore_objects(folder, native, is_fresh=is_fresh)
    python = read_python(folder)
    restore_objects_in_place(others, python["objects"])
    restore_random(python["random"])
