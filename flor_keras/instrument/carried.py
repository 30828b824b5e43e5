"""Whether a log line carries something from one epoch to the next: then epochs cannot be divided among workers.

By the shape of the source alone, and rather once too often than once too seldom: an object's attributes that change and are
read, or a name from outside that a function on the way to the line changes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from flor_keras.instrument.reads import (
    FunctionDef,
    attributes_read,
    hands_itself_on,
    is_changing,
    targets_of,
)
from flor_keras.instrument.scopes import FunctionId

# Methods that run again in every worker before its first epoch.
_BEGINNINGS = frozenset(
    ("__init__", "__new__", "set_model", "set_params", "on_train_begin", "build", "compile")
)


def carried_between_epochs(sources: Mapping[str, str], reaching: Iterable[FunctionId]) -> str | None:
    """Return where something is changed that may outlive an epoch, as ``path:line: text``; None where nothing is.

    Args:
      reaching: the functions from which calls lead to the asked lines.
    """
    by_path: dict[str, set[int]] = {}
    for function in reaching:
        by_path.setdefault(function.path, set()).add(function.line)
    trees = {path: ast.parse(text) for path, text in sources.items()} if by_path else {}
    read = attributes_read(trees.values())
    for path, lines in sorted(by_path.items()):
        for node in _changes(trees[path], lines, read):
            return f"{path}:{node.lineno}: {ast.unparse(node).splitlines()[0]}"
    return None


def _changes(tree: ast.Module, lines: set[int], read: frozenset[str]) -> Iterator[ast.stmt | ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_is_at(method, lines) for method in node.body):
            is_open = hands_itself_on(node)
            for method in node.body:
                if isinstance(method, FunctionDef) and method.name not in _BEGINNINGS:
                    changes = _changes_of_self(method)
                    yield from (change for change, name in changes if is_open or name in read)
        elif isinstance(node, FunctionDef) and _is_at(node, lines) and node.name not in _BEGINNINGS:
            yield from _changes_outside(node)


def _is_at(node: ast.AST, lines: set[int]) -> bool:
    """Whether a function is one of those that begin at ``lines``; a decorated one begins at its first decorator."""
    if not isinstance(node, FunctionDef):
        return False
    return bool({node.lineno, *(decorator.lineno for decorator in node.decorator_list)} & lines)


def _changes_of_self(method: FunctionDef) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """List what a method changes of its object, each with the name of the attribute."""
    owner = method.args.args[0].arg if method.args.args else "self"
    for node in ast.walk(method):
        targets = [*targets_of(node), *([node.func.value] if is_changing(node) else [])]  # type: ignore[attr-defined]
        for target in targets:
            if _root(target) == owner and _depth(target) == 1:
                yield node, _attribute(target)  # type: ignore[misc]


def _changes_outside(function: FunctionDef) -> Iterator[ast.stmt | ast.expr]:
    inside = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    inside |= {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield node
        is_call = isinstance(node, ast.Call) and is_changing(node) and _depth(node.func) == 1
        if is_call and _root(node.func) not in inside:  # type: ignore[attr-defined, operator]
            yield node  # type: ignore[misc]
        for target in targets_of(node):
            if not isinstance(target, ast.Name) and _root(target) not in {*inside, None}:
                yield node  # type: ignore[misc]


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _depth(node: ast.expr) -> int:
    """Return how many attributes deep an expression looks into a name."""
    depth = 0
    while isinstance(node, ast.Attribute | ast.Subscript):
        depth += isinstance(node, ast.Attribute)
        node = node.value
    return depth


def _attribute(node: ast.expr) -> str:
    """Return the attribute nearest to the name an expression begins with."""
    while isinstance(node, ast.Subscript):
        node = node.value
    assert isinstance(node, ast.Attribute)
    return node.attr
