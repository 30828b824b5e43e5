"""Walk a program in the order it runs, without running it, to see how its log lines stand to the training."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flor_keras.instrument.calls import Calls
from flor_keras.instrument.fitting import is_fit
from flor_keras.instrument.levels import Level, dearest
from flor_keras.instrument.main_loops import MainLoop, MainLoops
from flor_keras.instrument.scopes import Scope
from flor_keras.instrument.syntax import (
    Comprehension,
    Loop,
    children_here,
    inner_parts,
    own_nodes,
)


@dataclass(frozen=True)
class _Place:
    """Where the walk is: after a training or not, how deep in a main loop, or inside code that Keras runs."""

    is_after: bool = False
    depth: int = 0  # 1 in the body of a main loop, 2 in a loop inside it
    inside: Level | None = None

    @property
    def level(self) -> Level:
        if self.inside is not None:
            return self.inside
        if self.depth:
            return Level.EPOCH if self.depth == 1 else Level.STEP
        return Level.AFTER if self.is_after else Level.SETUP


class ExecutionOrder:
    """The level of every ``flor.log`` call of a program, as ``levels``."""

    def __init__(self, calls: Calls, is_hands_free: bool = False) -> None:
        self.calls = calls
        self.index = calls.index
        self._loops = MainLoops(calls)
        self._is_hands_free = is_hands_free
        self.blocks: set[ast.AST] = set()  # statements that a replay skips or redoes as a whole
        self.run_again: set[ast.AST] = set()  # loops in an epoch that are not part of its training
        self._walked: dict[tuple[Scope, _Place], _Place] = {}
        self.levels: dict[ast.Call, Level] = {}
        self._walk_program()

    def _walk_program(self) -> None:
        script = self.index.files.get(self.index.script or "")
        others = self.index.files.values()
        for file in (
            [script, *others] if script else others
        ):  # others are imported in ways the walk cannot see
            if not any(scope is file.top for scope, _ in self._walked):
                self._run(file.top, _Place())
        for scope, level in self.calls.entries.items():
            self._run(scope, _Place(inside=level))
        reached = {scope for scope, _ in self._walked}
        for scope in self.index.scopes:  # nothing is seen to call these
            if scope not in reached:
                self._run(scope, _Place(inside=Level.STEP))

    def _run(self, scope: Scope, place: _Place) -> _Place:
        """Walk a function or module that runs at ``place``; give the place where it ends."""
        key = scope, place
        if key not in self._walked:
            self._walked[key] = place  # a recursive call finds this
            mains = self._main_loops(scope)
            end = _Walk(self, scope, mains).all(inner_parts(scope.node), place)
            for other in self.calls.decorating(scope):
                self._run(other, place)
            self._walked[key] = replace(end, depth=place.depth)
        return self._walked[key]

    def _main_loops(self, scope: Scope) -> set[ast.AST]:
        explicit = _explicit_loops(scope, self.calls)
        found: list[MainLoop] = []
        if not explicit and self._loops.is_decorated(scope):
            found, _ = self._loops.recorded(scope)
        elif not explicit and self._is_hands_free:
            found, _ = self._loops.training(scope)
        for main in found:
            block = [] if main.first is None else main.home[main.first : main.last + 1]
            self.blocks.update(block)
            inside = {node for statement in block for node in ast.walk(statement)}
            self.run_again |= {n for n in ast.walk(main.node) if isinstance(n, Loop) and n not in inside}
        return explicit | {main.node for main in found}

    def enter(self, scopes: Iterable[Scope], place: _Place) -> _Place:
        """Walk functions called at ``place``; training in any of them counts."""
        ends = [self._run(scope, place) for scope in scopes]
        return replace(place, is_after=place.is_after or any(end.is_after for end in ends))

    def note(self, call: ast.Call, level: Level) -> None:
        """Remember that a log call was met at a level."""
        self.levels[call] = dearest(level, self.levels.get(call, level))


@dataclass
class _Walk:
    """The walk through one function or module."""

    order: ExecutionOrder
    scope: Scope
    mains: set[ast.AST]

    def all(self, nodes: Iterable[ast.AST | None], place: _Place) -> _Place:
        for node in nodes:
            place = self.one(node, place) if node is not None else place
        return place

    def one(self, node: ast.AST, place: _Place) -> _Place:
        if node in self.order.blocks and place.depth == 1:
            return replace(self.one(node, replace(place, depth=2)), depth=1)
        match node:
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, place)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._branches(self.one(test, place), [body, orelse])
            case ast.Match(subject=subject, cases=cases):
                return self._branches(self.one(subject, place), [case.body for case in cases])
            case ast.Import() | ast.ImportFrom():
                return self._import(node, place)
            case ast.Assign(targets=targets, value=value):
                return self.all([value, *targets], place)
            case _:
                return self._plain(node, place)

    def _plain(self, node: ast.AST, place: _Place) -> _Place:
        """Everything inside first, as Python evaluates arguments before it calls."""
        place = self.all(self._inside(node), place)
        flor = self.order.index.files[self.scope.path].flor
        if isinstance(node, ast.Call):
            if flor.is_call(node, "log"):
                self.order.note(node, place.level)
            if is_fit(self.order.calls, self.scope, node):
                place = replace(place, is_after=True)
        return self.order.enter(self.order.calls.run_by(self.scope, node), place)

    def _inside(self, node: ast.AST) -> list[ast.AST]:
        """List child nodes in running order: comprehensions iterate before they compute."""
        children = children_here(node)
        if isinstance(node, Comprehension):
            return sorted(children, key=lambda child: not isinstance(child, ast.comprehension))
        return children

    def _loop(self, node: Loop, place: _Place) -> _Place:
        outer = place.depth
        head = node.test if isinstance(node, ast.While) else node.iter
        place = self.one(head, place)
        depth = max(1, outer) if node in self.mains else min(2, outer + 1) if outer else 0
        depth = 2 if node in self.mains and outer else depth
        depth = 1 if outer == 1 and node in self.order.run_again else depth
        place = replace(self.all(node.body, replace(place, depth=depth)), depth=outer)
        if node in self.mains and not outer:
            place = replace(place, is_after=True)
        return self.all(node.orelse, place)

    def _branches(self, place: _Place, branches: list[list[ast.stmt]]) -> _Place:
        ends = [self.all(branch, place) for branch in branches]
        return replace(place, is_after=any(end.is_after for end in ends) or place.is_after)

    def _import(self, node: ast.Import | ast.ImportFrom, place: _Place) -> _Place:
        for path in self.order.index.imported_paths(self.scope.path, node):
            top = self.order.index.files[path].top
            if not any(scope is top for scope, _ in self.order._walked):  # a module runs once
                place = self.order.enter([top], place)
        return place


def _explicit_loops(scope: Scope, calls: Calls) -> set[ast.AST]:
    """Find the loops over ``flor.loop``."""
    flor = calls.index.files[scope.path].flor
    loops = [node for node in own_nodes(scope.node) if isinstance(node, ast.For)]
    return {node for node in loops if any(flor.is_call(call, "loop") for call in ast.walk(node.iter))}
