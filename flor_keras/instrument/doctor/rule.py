"""What a rule of the doctor is, and what it finds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from flor_keras.instrument.doctor.code import Code
from flor_keras.instrument.scopes import Scope

EXACT = "exact"
NOT_EXACT = "not exact"


class Part(StrEnum):
    """A part of training that a replay has to bring back."""

    WEIGHTS = "weights and slots"
    METRICS = "metrics"
    SEEDS = "seeds"
    DATA = "data order"
    BEFORE = "random states before the loop"
    CALLBACKS = "callbacks"
    OPS = "random ops"
    ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
      verdict: "exact", "not exact", or "exact if" and a condition.
      where: ``file:line``, several separated by commas; empty where no line is meant.
      change: what to type instead; empty where nothing is to be changed.
    """

    part: Part
    verdict: str
    where: str
    why: str
    change: str = ""


@dataclass(frozen=True)
class Rule:
    """Something in a program that decides whether its replay is exact.

    Attributes:
      name: short, for tests and docs.
      found: what is looked for, as a noun.
      find: yields each place; a text after the node replaces ``{}`` in ``why`` and ``change``.
    """

    name: str
    part: Part
    verdict: str
    found: str
    why: str
    change: str
    find: Callable[[Code], Iterator[tuple[Scope, ast.AST, str]]]

    def findings(self, code: Code) -> Iterator[Finding]:
        """Yield one finding for each place; of places on one line the first."""
        seen = set()
        for scope, node, word in self.find(code):
            where = place(scope, node)
            if where not in seen:
                seen.add(where)
                yield Finding(self.part, self.verdict, where, self.why.format(word), self.change.format(word))


def place(scope: Scope, node: ast.AST) -> str:
    """Spell where a node stands."""
    return f"{scope.path}:{getattr(node, 'lineno', 1)}"
