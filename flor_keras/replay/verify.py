"""Comparing what a replay computes with what was recorded, to the last bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flor_keras.records import Position, Verdict


@dataclass
class Comparison:
    """What comparing has given so far, of one position or of a whole replay.

    Attributes:
      num_compared: values compared, restored tensors included.
      max_abs_diff: the largest difference between two numbers; infinite where values differ in kind.
      first: the name and position of the first difference.
    """

    num_compared: int = 0
    max_abs_diff: float = 0.0
    first: tuple[str, Position] | None = None
    differing: list[str] = field(default_factory=list)

    def compare(self, name: str, position: Position, recorded: Any, replayed: Any) -> None:
        """Compare one value with its record."""
        self.num_compared += 1
        if is_identical(recorded, replayed):
            return
        self.max_abs_diff = max(self.max_abs_diff, _difference(recorded, replayed))
        if self.first is None:
            self.first = (name, position)
        if name not in self.differing:
            self.differing.append(name)

    def add(self, other: Comparison) -> None:
        """Take in what another comparison gave."""
        self.num_compared += other.num_compared
        self.max_abs_diff = max(self.max_abs_diff, other.max_abs_diff)
        self.first = self.first or other.first
        self.differing += [name for name in other.differing if name not in self.differing]

    @property
    def verdict(self) -> Verdict:
        """Exact, approximate, or unchecked where there was nothing to compare."""
        if not self.num_compared:
            return Verdict.UNCHECKED
        return Verdict.EXACT if self.first is None else Verdict.APPROXIMATE


def is_identical(left: Any, right: Any) -> bool:
    """Whether two logged values are the same to the last bit; NaN is the same as NaN."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        left, right = np.asarray(left), np.asarray(right)
        return bool(
            left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
        )
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    return bool(left == right) and type(left) is type(right)


def _difference(left: Any, right: Any) -> float:
    try:
        apart = np.abs(np.asarray(left, dtype=np.float64) - np.asarray(right, dtype=np.float64))
        largest = float(np.max(apart)) if apart.size else math.inf
    except (TypeError, ValueError):
        return math.inf
    return math.inf if math.isnan(largest) else largest
