"""Which names of a function, or of a module's top level, are read later on: live variables, statement by statement.

Errs on the side of too many: a name thought live is kept in a checkpoint, a name missed would be lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from flor_keras.instrument.syntax import FunctionNode, parameters

Names = frozenset[str]
_NONE: Names = frozenset()


@dataclass(frozen=True)
class _Exits:
    """What is live where control may go from here besides the next statement."""

    to_break: Names = _NONE
    to_continue: Names = _NONE
    to_return: Names = _NONE
    to_handler: Names = _NONE


class Liveness:
    """The names live after each statement of ``body``; ``always`` are names other code reads."""

    def __init__(self, body: list[ast.stmt], always: Names = _NONE) -> None:
        self.after: dict[ast.AST, Names] = {}
        self._head: dict[ast.AST, Names] = {}
        self.always = always | names_of_inner_functions(body)
        self._block(body, _NONE, _Exits())

    def after_statement(self, statement: ast.AST) -> Names:
        """Return the names that may be read after a statement."""
        return self.after.get(statement, _NONE) | self.always

    def at_head(self, loop: ast.AST) -> Names:
        """Return the names that may be read where a loop goes round, its own target apart."""
        return self._head.get(loop, _NONE) | self.always

    def _block(self, statements: list[ast.stmt], after: Names, exits: _Exits) -> Names:
        for statement in reversed(statements):
            self.after[statement] = self.after.get(statement, _NONE) | after
            after = self._before(statement, after, exits) | exits.to_handler
        return after

    def _before(self, node: ast.stmt, after: Names, exits: _Exits) -> Names:
        match node:
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, after, exits)
            case ast.If(test=test, body=body, orelse=orelse):
                return reads(test) | self._block(body, after, exits) | self._block(orelse, after, exits)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                bound = {name for item in items for name in writes(item.optional_vars)}
                return reads(*items) | (self._block(body, after, exits) - bound)
            case ast.Try() | ast.TryStar():
                return self._try(node, after, exits)
            case ast.Match(subject=subject, cases=cases):
                inner = [
                    reads(case.pattern, case.guard) | self._block(case.body, after, exits) for case in cases
                ]
                return reads(subject) | after.union(*inner)
            case ast.Return(value=value):
                return reads(value) | exits.to_return
            case ast.Raise():
                return reads(node) | exits.to_return
            case ast.Break():
                return exits.to_break
            case ast.Continue():
                return exits.to_continue
            case ast.AugAssign(target=ast.Name(id=name)):
                return after | reads(node) | {name}
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return (after - {node.name}) | reads(node)
            case _:
                return (after - writes(node)) | reads(node)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, after: Names, exits: _Exits) -> Names:
        if isinstance(node, ast.While):
            test, target, source = reads(node.test), _NONE, _NONE
        else:
            test, target, source = _NONE, writes(node.target), reads(node.iter, node.target)
        head = self._block(node.orelse, after, exits) | test
        while True:
            inside = replace(exits, to_break=after, to_continue=head)
            grown = head | (self._block(node.body, head, inside) - target)
            if grown == head:
                break
            head = grown
        self._head[node] = self._head.get(node, _NONE) | head
        return head | source

    def _try(self, node: ast.Try | ast.TryStar, after: Names, exits: _Exits) -> Names:
        last = self._block(node.finalbody, after, exits)
        through = replace(
            exits,
            to_break=exits.to_break | last,
            to_continue=exits.to_continue | last,
            to_return=exits.to_return | last,
            to_handler=exits.to_handler | last,
        )
        caught: Names = last
        for handler in node.handlers:
            inner = self._block(handler.body, last, through)
            caught |= reads(handler.type) | (inner - ({handler.name} if handler.name else set()))
        body = replace(through, to_handler=through.to_handler | caught)
        return self._block(node.body, self._block(node.orelse, last, through), body) | caught


def reads(*nodes: ast.AST | None) -> Names:
    """Return the names that evaluating nodes reads; those of functions defined there are `names_of_inner_functions`."""
    return frozenset(
        part.id
        for node in nodes
        if node is not None
        for part in _here(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    )


def writes(node: ast.AST | None) -> Names:
    """Return the names that a statement or target binds or deletes, those of comprehensions apart."""
    if node is None:
        return _NONE
    found: set[str] = set()
    inner = {
        id(n) for part in ast.walk(node) if isinstance(part, ast.comprehension) for n in ast.walk(part.target)
    }
    for part in _here(node):
        match part:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if id(part) not in inner:
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                found.add(name)
            case ast.MatchMapping(rest=str(name)):
                found.add(name)
            case ast.Import() | ast.ImportFrom():
                found |= {alias.asname or alias.name.partition(".")[0] for alias in part.names}
    return frozenset(found)


def names_of_inner_functions(nodes: Iterable[ast.AST]) -> Names:
    """Return the names of this scope that functions defined in nodes use: those may run at any time."""
    return frozenset(
        name
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, FunctionNode)
        for name in _free(part)
    )


def _free(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Names:
    body = function.body if isinstance(function.body, list) else [function.body]
    used = {n.id for inner in body for n in ast.walk(inner) if isinstance(n, ast.Name)}
    declared = {
        name
        for inner in body
        for n in ast.walk(inner)
        if isinstance(n, ast.Global | ast.Nonlocal)
        for name in n.names
    }
    local = {arg.arg for arg in parameters(function)} | {name for inner in body for name in writes(inner)}
    return frozenset(used - (local - declared))


def _here(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs where ``node`` runs: not the bodies of functions it defines."""
    todo: list[ast.AST] = [node]
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, FunctionNode):
            spec = part.args
            todo += [*spec.defaults, *(d for d in spec.kw_defaults if d is not None)]
            todo += getattr(part, "decorator_list", [])
        else:
            todo += ast.iter_child_nodes(part)
