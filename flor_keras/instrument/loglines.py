"""Find the lines of a program that log a name, how deep in training they stand, and what leads to them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from flor_keras.instrument.calls import Calls
from flor_keras.instrument.compiled import compiled_metrics
from flor_keras.instrument.index import Index
from flor_keras.instrument.levels import Level, dearest
from flor_keras.instrument.order import ExecutionOrder
from flor_keras.instrument.scopes import FunctionId, Scope, calls_in

__all__ = ["FunctionId", "Level", "LogLine", "Program"]


@dataclass(frozen=True)
class LogLine:
    """A ``flor.log`` call in the source."""

    path: str
    line: int
    name: str | None  # None when the name is computed
    pattern: str  # every name the line can log matches it in full
    function: FunctionId | None  # the innermost one around it; None at the top level of a file
    level: Level


class Program:
    """All sources of one program: ``sources`` maps paths to texts, ``script`` is the path that is run.

    In a program that is recorded hands-free, the loops that train are main loops without being marked.

    Raises ``UsageError`` that names file and line when a source is not valid Python.
    """

    def __init__(self, script: str, sources: Mapping[str, str], is_hands_free: bool = False) -> None:
        self._index = Index(script, sources)
        self._calls = Calls(self._index)
        self._levels = ExecutionOrder(self._calls, is_hands_free).levels
        self._lines = sorted(
            (
                self._log_line(scope, call)
                for scope in self._index.scopes
                for call in calls_in(scope)
                if call in self._levels
            ),
            key=lambda line: (line.path, line.line),
        )
        self._callers: dict[FunctionId, set[Scope]] | None = None

    @property
    def all_log_lines(self) -> list[LogLine]:
        """Every log line of the program, by path and line."""
        return list(self._lines)

    def log_lines(self, name: str) -> list[LogLine]:
        """List the lines that log ``name`` as a constant; where there are none, those that can compute it."""
        exact = [line for line in self._lines if line.name == name]
        return exact or [
            line for line in self._lines if line.name is None and re.fullmatch(line.pattern, name, re.DOTALL)
        ]

    def level_of(self, name: str) -> Level | None:
        """Give the dearest level among the lines that can log ``name``; ``None`` when no line can."""
        levels = [line.level for line in self.log_lines(name)]
        return reduce(dearest, levels) if levels else None

    def reaching(self, lines: Iterable[LogLine]) -> frozenset[FunctionId]:
        """Find every function from which calls can reach one of the lines, the one around it included."""
        callers = self._find_callers()
        todo = [line.function for line in lines if line.function is not None]
        found: set[FunctionId] = set()
        while todo:
            function = todo.pop()
            if function not in found:
                found.add(function)
                todo += [s.id for s in callers.get(function, ()) if s.id is not None]
        return frozenset(found)

    def compiled_metrics(self) -> tuple[str, ...]:
        """List the log names of the metrics given to ``compile``, as far as the source tells, sorted."""
        return compiled_metrics(self._index)

    def _find_callers(self) -> dict[FunctionId, set[Scope]]:
        """Turn the call graph round, once."""
        if self._callers is None:
            self._callers = defaultdict(set)
            for scope, functions in self._calls.graph().items():
                for function in functions:
                    if function.id is not None:
                        self._callers[function.id].add(scope)
        return self._callers

    def _log_line(self, scope: Scope, call: ast.Call) -> LogLine:
        name, pattern = self._index.files[scope.path].flor.logged_name(call)
        return LogLine(scope.path, call.lineno, name, pattern, scope.id, self._levels[call])
