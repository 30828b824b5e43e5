"""Find the main loops of a program's own training, the training inside them, and what a replay needs of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from flor_keras.instrument.calls import Calls
from flor_keras.instrument.effects import Changes, Effects, Unknown
from flor_keras.instrument.fitting import is_fit
from flor_keras.instrument.keras_words import words
from flor_keras.instrument.liveness import Liveness, names_of_inner_functions
from flor_keras.instrument.scopes import Scope
from flor_keras.instrument.syntax import (
    FunctionNode,
    Loop,
    children_here,
    inner_parts,
    is_generator,
    last_name,
    own_nodes,
)

# Calls by which code is known to train.
_TRAINING = words("GradientTape ForwardAccumulator apply_gradients minimize train_on_batch stateless_apply")


@dataclass(frozen=True)
class MainLoop:
    """A main loop, and what is known of it from the source.

    Attributes:
      scope: the function or module it stands in.
      home: the statements the block is among: those of the loop's body, or of a statement in it.
      first: where in ``home`` the block begins, and ``last`` where it ends; None where an epoch has no block.
      kept: names whose values are needed after the block or the loop.
      changed_by_block: names whose values or objects the block changes.
      needed_after: names whose values are needed after the loop.
      changed: names whose objects the loop changes, those of before the loop.
      read: names the loop reads.
      read_around: names it or code after it reads.
      elsewhere: (path, name) of what it changes outside of its own scope.
      unknown: calls that may change anything.
    """

    scope: Scope
    node: ast.For | ast.While
    home: list[ast.stmt]
    first: int | None
    last: int
    kept: tuple[str, ...]
    changed_by_block: tuple[str, ...]
    needed_after: tuple[str, ...]
    changed: tuple[str, ...]
    read: tuple[str, ...]
    read_around: tuple[str, ...]
    elsewhere: tuple[tuple[str, str], ...]
    unknown: tuple[Unknown, ...]

    @property
    def is_jumpable(self) -> bool:
        """Whether an epoch can be entered at its block, which then is a statement of the loop's own body."""
        return self.first is None or self.home is self.node.body

    @property
    def is_way_out_seen(self) -> bool:
        """Whether leaving the loop early leads elsewhere than its end does."""
        has_return = any(isinstance(node, ast.Return) for node in _inside(self.node))
        return has_return or bool(self.node.orelse)


@dataclass(frozen=True)
class Refused:
    """A loop that is left as it is, and why."""

    path: str
    line: int
    why: str


class MainLoops:
    """The main loops of a program."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._effects = Effects(self.calls)
        self._liveness: dict[Scope, Liveness] = {}

    # -- which loops ----------------------------------------------------------------------------------------------

    def training(self, scope: Scope) -> tuple[list[MainLoop], list[Refused]]:
        """Return the outermost loops of a scope that train by themselves, and those of them that are refused."""
        outermost = [loop for loop in _outermost(scope) if self._trains(scope, loop)]
        return self._judged(scope, outermost)

    def recorded(self, scope: Scope) -> tuple[list[MainLoop], list[Refused]]:
        """Return the main loops of a function under `flor.record`: those that train, or else the outermost there are."""
        outermost = _outermost(scope)
        trained = [loop for loop in outermost if self._trains(scope, loop)]
        nested = [o for o in outermost if any(isinstance(node, Loop) for node in _inside(o) if node is not o)]
        return self._judged(scope, trained or nested or outermost)

    def is_decorated(self, scope: Scope) -> bool:
        """Whether a function is under `flor.record`."""
        flor = self.calls.index.files[scope.path].flor
        decorators = getattr(scope.node, "decorator_list", [])
        return any(flor.meaning(d.func if isinstance(d, ast.Call) else d) == "record" for d in decorators)

    def _judged(self, scope: Scope, loops: Iterable[Loop]) -> tuple[list[MainLoop], list[Refused]]:
        found, refused = [], []
        for loop in loops:
            why = self._why_not(scope, loop)
            if why is not None:
                refused.append(Refused(scope.path, loop.lineno, why))
            elif isinstance(loop, ast.For | ast.While):
                found.append(self._described(scope, loop))
        return sorted(found, key=lambda main: main.node.lineno), refused

    def _why_not(self, scope: Scope, loop: Loop) -> str | None:
        flor = self.calls.index.files[scope.path].flor
        if isinstance(loop, ast.AsyncFor) or isinstance(scope.node, ast.AsyncFunctionDef):
            return "it runs asynchronously, and its steps have no order that could be replayed"
        if any("function" in ast.unparse(d) for d in getattr(scope.node, "decorator_list", [])):
            return "it is in a tf.function, inside of whose graph nothing can be skipped"
        if is_generator(scope.node):
            return "it is in a generator, whose position cannot be restored; call a function from it that has the loop"
        if any(flor.is_call(node, "loop") for node in ast.walk(loop)):
            return "it has a flor.loop already"
        if self._reaches(scope, loop, self._fitting) or any(
            self._is_fit(scope, node) for node in _inside(loop)
        ):
            return "it calls fit, and each fit is a loop of its own"
        return None

    def _trains(self, scope: Scope, node: ast.AST) -> bool:
        return any(_is_training(part) for part in _inside(node)) or self._reaches(scope, node, self._trainers)

    def _reaches(self, scope: Scope, node: ast.AST, functions: set[Scope]) -> bool:
        return any(self.calls.run_by(scope, part) & functions for part in _inside(node))

    def _is_fit(self, scope: Scope, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and is_fit(self.calls, scope, node)

    @cached_property
    def _trainers(self) -> set[Scope]:
        own = {s for s in self.calls.index.scopes if any(_is_training(node) for node in own_nodes(s.node))}
        return self._leading_to(own)

    @cached_property
    def _fitting(self) -> set[Scope]:
        scopes = self.calls.index.scopes
        return self._leading_to(
            {s for s in scopes if any(self._is_fit(s, node) for node in own_nodes(s.node))}
        )

    @cached_property
    def _looping(self) -> set[Scope]:
        own = {
            s for s in self.calls.index.scopes if any(isinstance(node, Loop) for node in own_nodes(s.node))
        }
        return self._leading_to(own) & self._trainers

    @cached_property
    def _direct_calls(self) -> dict[Scope, set[Scope]]:
        """Map every function to those it runs, what Keras runs inside `fit` apart."""
        return {
            scope: {s for node in own_nodes(scope.node) for s in self.calls.run_by(scope, node)}
            for scope in self.calls.index.scopes
        }

    def _leading_to(self, found: set[Scope]) -> set[Scope]:
        found = {scope for scope in found if not isinstance(scope.node, ast.Module)}
        while True:
            more = {
                s
                for s, called in self._direct_calls.items()
                if called & found and not isinstance(s.node, ast.Module)
            }
            if more <= found:
                return found
            found |= more

    def is_known(self, line: int, qualname: str) -> bool:
        """Whether nothing that calling a function of the program changes is unknown, nor its arguments."""
        scopes = [
            s for s in self.calls.index.scopes if s.id and (s.id.line, s.id.qualname) == (line, qualname)
        ]
        changes = [self._effects.summary(scope) for scope in scopes]
        given = [set(scope.parameters) for scope in scopes]
        return bool(scopes) and not any(
            c.unknown or c.changed & g for c, g in zip(changes, given, strict=True)
        )

    # -- what is known of them ------------------------------------------------------------------------------------

    def _described(self, scope: Scope, loop: ast.For | ast.While) -> MainLoop:
        home, first, last = self._block(scope, loop)
        block: list[ast.stmt] = home[first : last + 1] if first is not None else list(loop.body)
        inside = self._effects.of(scope, block)
        whole = self._effects.of(scope, [loop])
        live = self._live(scope)
        after = live.after_statement(loop)
        at_end = live.after_statement(home[last]) if first is not None else live.at_head(loop)
        bound = whole.bound | _global_names(whole, scope)
        return MainLoop(
            scope=scope,
            node=loop,
            home=home,
            first=first,
            last=last,
            kept=tuple(sorted(bound & (at_end | after))),
            changed_by_block=tuple(sorted((inside.bound | inside.changed) & (at_end | after))),
            needed_after=tuple(sorted(bound & after)),
            changed=tuple(sorted((whole.changed | (whole.bound & _augmented(loop))) & live.at_head(loop))),
            read=tuple(sorted({n for node in ast.walk(loop) for n in _loads(node)})),
            read_around=tuple(sorted({*after, *(n for node in ast.walk(loop) for n in _loads(node))})),
            elsewhere=tuple(sorted(whole.elsewhere)),
            unknown=tuple(whole.unknown),
        )

    def _live(self, scope: Scope) -> Liveness:
        if scope not in self._liveness:
            body = [node for node in inner_parts(scope.node) if isinstance(node, ast.stmt)]
            always: frozenset[str] = frozenset()
            if isinstance(scope.node, ast.Module):
                always = names_of_inner_functions(body)
            else:
                declared = [
                    n for node in body for n in ast.walk(node) if isinstance(n, ast.Global | ast.Nonlocal)
                ]
                always = frozenset(name for node in declared for name in node.names)
            self._liveness[scope] = Liveness(body, always)
        return self._liveness[scope]

    def _block(self, scope: Scope, loop: ast.For | ast.While) -> tuple[list[ast.stmt], int | None, int]:
        """Return the statements the block is among, and its first and last."""
        long = [at for at, statement in enumerate(loop.body) if self._is_long(scope, statement)]
        plain = [at for at in long if isinstance(loop.body[at], Loop | ast.Expr | ast.Assign | ast.AnnAssign)]
        if plain:
            return loop.body, plain[0], plain[-1]
        for at in long:
            if (found := self._nested_block(scope, loop.body[at])) is not None:
                return found
        if any(self._trains(scope, statement) for statement in loop.body):
            return loop.body, None, 0
        loops = [at for at, statement in enumerate(loop.body) if isinstance(statement, ast.For | ast.While)]
        return (loop.body, loops[0], loops[0]) if loops else (loop.body, None, 0)

    def _nested_block(self, scope: Scope, statement: ast.AST) -> tuple[list[ast.stmt], int, int] | None:
        for home in _homes(statement):
            for at, inner in enumerate(home):
                if isinstance(inner, ast.For | ast.While) and self._trains(scope, inner):
                    return home, at, at
                if (found := self._nested_block(scope, inner)) is not None:
                    return found
        return None

    def _is_long(self, scope: Scope, statement: ast.stmt) -> bool:
        """Whether a statement trains in a loop, its own or that of a function it calls."""
        if not self._trains(scope, statement):
            return False
        return any(isinstance(node, Loop) for node in _inside(statement)) or self._reaches(
            scope, statement, self._looping
        )


def _global_names(changes: Changes, scope: Scope) -> set[str]:
    """At the top level of a file, what functions bind there are names of the loop's own scope."""
    if not isinstance(scope.node, ast.Module):
        return set()
    return {name for path, name in changes.elsewhere if path == scope.path}


def _augmented(loop: ast.AST) -> set[str]:
    return {
        node.target.id
        for node in _inside(loop)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }


def _loads(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id


def _outermost(scope: Scope) -> list[Loop]:
    loops = [node for node in own_nodes(scope.node) if isinstance(node, Loop)]
    inner = {node for loop in loops for node in _inside(loop) if node is not loop}
    return sorted((loop for loop in loops if loop not in inner), key=lambda loop: loop.lineno)


def _homes(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse"):
        if isinstance(statement, ast.If | ast.With | ast.Try) and getattr(statement, name, None):
            yield getattr(statement, name)


def _is_training(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _TRAINING


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs where ``node`` runs, ``node`` included."""
    todo = [node]
    while todo:
        part = todo.pop()
        yield part
        if not isinstance(part, FunctionNode):
            todo += children_here(part)
