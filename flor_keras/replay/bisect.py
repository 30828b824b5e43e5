"""Finding where an expression over probes first turns true, with few epochs visited. Runs in the caller's process.

It is supposed that once true it stays true, as NaN does in weights. Each look is a replay of one epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flor_keras.errors import UsageError
from flor_keras.instrument.levels import Level
from flor_keras.records import Position, Verdict
from flor_keras.replay.asked import can_look_at_steps
from flor_keras.replay.engine import Outcome
from flor_keras.replay.merge import merge_verdicts
from flor_keras.replay.plan import Plan
from flor_keras.replay.segments import Place, places, with_places
from flor_keras.store.database import Store


@dataclass(frozen=True)
class Found:
    """What a search gave.

    Attributes:
      position: the first position where the expression holds; None where it never does.
      values: of the names there.
      num_visits: how many epochs were visited.
    """

    position: Position | None
    values: dict[str, Any]
    num_visits: int
    verdict: Verdict


def bisect(plan: Plan, expression: str, carry_out: Callable[[Plan], Outcome]) -> Found:
    """Find the first position at which ``expression`` over the plan's names holds.

    The epoch is found by halving, then the step in it, if the plan's probes can be computed after each step.

    Args:
      expression: Python over the names of the plan, NumPy as ``np``, and ``isnan``, ``isinf``, ``isfinite``.
      carry_out: replays a plan that visits one epoch.

    Raises:
      UsageError: the expression is none, or fails on the values.
    """
    search = _Search(plan, _compiled(expression), carry_out)
    candidates = places(plan)
    if not candidates or not search.holds_in(candidates[-1]):
        return search.result(None)
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if search.holds_in(candidates[middle]) else (middle + 1, high)
    first = candidates[low]
    if Level.STEP.value not in plan.levels.values() and can_look_at_steps(plan.probes, plan.names):
        search.plan = replace(plan, level="step", levels=dict.fromkeys(plan.levels, "step"))
        search.holds_in(first)
    return search.result(first)


def _compiled(expression: str) -> Any:
    try:
        return compile(ast.parse(expression, mode="eval"), "--bisect", "eval")
    except SyntaxError as error:
        raise UsageError(
            f"--bisect {expression!r} is not a Python expression: {error.msg}. Give something like --bisect "
            '"num_not_finite > 0".'
        ) from error


class _Search:
    """Looks at epochs and keeps what it has seen."""

    def __init__(self, plan: Plan, code: Any, carry_out: Callable[[Plan], Outcome]) -> None:
        self.plan = replace(plan, done={}, continues=[])
        self._code = code
        self._carry_out = carry_out
        self._verdicts: list[Verdict] = []
        self._seen: dict[Place, tuple[Position, dict[str, Any]]] = {}

    def holds_in(self, place: Place) -> bool:
        """Whether the expression holds anywhere in an epoch."""
        self._verdicts.append(self._carry_out(with_places(self.plan, [place])).verdict)
        by_position: dict[Position, dict[str, Any]] = {}
        with Store.open(Path(self.plan.store)) as store:
            for entry in store.entries(self.plan.run, self.plan.names, recorded=False):
                if entry.position[:2] == place:
                    by_position.setdefault(entry.position, {})[entry.name] = entry.value
        whole = {at: values for at, values in by_position.items() if len(values) == len(self.plan.names)}
        is_redone = Level.STEP.value in self.plan.levels.values()
        for position, values in whole.items():
            is_looked_at = not is_redone or position.step is not None or len(whole) == 1
            if is_looked_at and self._holds(values):
                self._seen[place] = position, values
                return True
        return False

    def _holds(self, values: Mapping[str, Any]) -> bool:
        import numpy as np

        known = {"np": np, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, **values}
        try:
            return bool(np.any(eval(self._code, known)))
        except Exception as error:
            raise UsageError(
                f"--bisect failed: {type(error).__name__}: {error}. It may use {', '.join(self.plan.names)}, np, isnan, isinf "
                f'and isfinite; give something like --bisect "isnan({self.plan.names[0]})".'
            ) from error

    def result(self, place: Place | None) -> Found:
        """Return what was found."""
        position, values = (None, {}) if place is None else self._seen[place]
        return Found(position, values, len(self._verdicts), merge_verdicts(self._verdicts))
