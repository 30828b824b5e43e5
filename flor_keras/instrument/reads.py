"""Which attributes a program reads at all, by name: what is changed and never looked at decides nothing.

An attribute that only its own updates look at (``self.steps += 1``) is not read, and neither is one that the same method has
just set, whatever it was before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from flor_keras.instrument.keras_words import words

FunctionDef = ast.FunctionDef | ast.AsyncFunctionDef
Member = tuple[str, str]  # ("self", "steps") of self.steps, self.steps[0]

_CHANGING = words(
    """append appendleft extend add update insert pop popleft setdefault remove discard clear sort write
    assign assign_add assign_sub update_state reset_state"""
)
_BY_NAME = frozenset(("getattr", "hasattr"))


def attributes_read(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of all attributes that are read anywhere in a program."""
    reads = _Reads()
    for tree in trees:
        reads.visit(tree)
    return frozenset(reads.names)


def hands_itself_on(owner: ast.ClassDef) -> bool:
    """Whether a method gives its object to somebody else, who may read any attribute of it."""
    methods = [method for method in owner.body if isinstance(method, FunctionDef) and method.args.args]
    return any(_is_used_whole(method, method.args.args[0].arg) for method in methods)


def targets_of(node: ast.AST) -> Iterator[ast.expr]:
    """List what a statement assigns to."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def is_changing(node: ast.AST) -> bool:
    """Whether a call changes what it is a method of, going by its name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING


class _Reads(ast.NodeVisitor):
    """Collects names; ``_ignored`` are those whose reading means nothing where the walk is."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._ignored: frozenset[Member] = frozenset()

    def visit(self, node: ast.AST) -> None:
        before = self._ignored
        self._ignored |= frozenset(_updated_by(node))
        member = _member_read(node)
        if member is not None and member not in self._ignored:
            self.names.add(member[1])
        self.generic_visit(node)
        self._ignored = before


def _updated_by(node: ast.AST) -> Iterator[Member]:
    if isinstance(node, FunctionDef):
        yield from _set_first(node)
    elif isinstance(node, ast.Expr) and is_changing(node.value):  # its result is not used
        yield from _member(node.value.func.value)  # type: ignore[attr-defined]
    else:
        for target in targets_of(node):
            yield from _member(target)


def _set_first(function: FunctionDef) -> Iterator[Member]:
    """List what a function sets before it can look at it."""
    seen: set[Member] = set()
    for statement in function.body:
        if isinstance(statement, ast.Assign):
            seen |= _members_read(statement.value)
            for target in statement.targets:
                if isinstance(target, ast.Attribute):
                    yield from (member for member in _member(target) if member not in seen)
        seen |= _members_read(statement)


def _members_read(node: ast.AST) -> set[Member]:
    return {member for inner in ast.walk(node) if (member := _member_read(inner)) is not None}


def _member_read(node: ast.AST) -> Member | None:
    """Return the attribute a node reads, of whatever it is an attribute: ("", name) if of no plain name."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return (node.value.id if isinstance(node.value, ast.Name) else "", node.attr)
    match node:
        case ast.Call(func=ast.Name(id=called), args=[of, ast.Constant(value=str(name)), *_]) if (
            called in _BY_NAME
        ):
            return (of.id if isinstance(of, ast.Name) else "", name)
    return None


def _member(target: ast.AST) -> Iterator[Member]:
    """Give the attribute of a plain name that a target lies in: ("self", "by") of self.by[epoch]."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        yield (target.value.id, target.attr)


def _is_used_whole(method: FunctionDef, owner: str) -> bool:
    """Whether a method uses its object in another way than to look at one named attribute of it."""
    named = {id(node.value) for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    for node in ast.walk(method):
        match node:
            case ast.Call(func=ast.Name(id="super")):
                named |= set(map(id, node.args))
            case ast.Call(func=ast.Name(id=called), args=[of, ast.Constant(), *_]) if called in _BY_NAME:
                named.add(id(of))
    is_dict = any(isinstance(node, ast.Attribute) and node.attr == "__dict__" for node in ast.walk(method))
    return is_dict or any(
        isinstance(node, ast.Name) and node.id == owner and id(node) not in named for node in ast.walk(method)
    )
