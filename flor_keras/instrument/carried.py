"""Whether a log line carries something from one epoch to the next: then epochs cannot be divided among workers.

By the shape of the source alone, and rather once too often than once too seldom: an object's attributes or a name from
outside that a function on the way to the line changes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from flor_keras.instrument.scopes import FunctionId

# Methods that run again in every worker before its first epoch.
_BEGINNINGS = frozenset(("__init__", "__new__", "set_model", "set_params", "on_train_begin", "build"))
_CHANGING = frozenset(
    [
        "append",
        "appendleft",
        "extend",
        "add",
        "update",
        "insert",
        "pop",
        "popleft",
        "setdefault",
        "remove",
        "discard",
        "clear",
        "sort",
        "write",
        "assign",
        "assign_add",
        "assign_sub",
        "update_state",
        "reset_state",
    ]
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def carried_between_epochs(sources: Mapping[str, str], reaching: Iterable[FunctionId]) -> str | None:
    """Return where something is changed that may outlive an epoch, as ``path:line: text``; None where nothing is.

    Args:
      reaching: the functions from which calls lead to the asked lines.
    """
    by_path: dict[str, set[int]] = {}
    for function in reaching:
        by_path.setdefault(function.path, set()).add(function.line)
    for path, lines in sorted(by_path.items()):
        tree = ast.parse(sources[path])
        for node in _changes(tree, lines):
            return f"{path}:{node.lineno}: {ast.unparse(node).splitlines()[0]}"
    return None


def _changes(tree: ast.Module, lines: set[int]) -> Iterator[ast.stmt | ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_is_at(method, lines) for method in node.body):
            for method in node.body:
                if isinstance(method, _Function) and method.name not in _BEGINNINGS:
                    yield from _changes_of_self(method)
        elif isinstance(node, _Function) and _is_at(node, lines):
            yield from _changes_outside(node)


def _is_at(node: ast.AST, lines: set[int]) -> bool:
    """Whether a function is one of those that begin at ``lines``; a decorated one begins at its first decorator."""
    if not isinstance(node, _Function):
        return False
    return bool({node.lineno, *(decorator.lineno for decorator in node.decorator_list)} & lines)


def _changes_of_self(method: _Function) -> Iterator[ast.stmt | ast.expr]:
    owner = method.args.args[0].arg if method.args.args else "self"
    for node in ast.walk(method):
        for target in _targets(node):
            if _root(target) == owner and _depth(target) == 1:
                yield node  # type: ignore[misc]
        if (
            isinstance(node, ast.Call)
            and _is_changing(node)
            and _depth(node.func) == 2
            and _root(node.func) == owner
        ):
            yield node


def _changes_outside(function: _Function) -> Iterator[ast.stmt | ast.expr]:
    inside = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    inside |= {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield node
        is_call = isinstance(node, ast.Call) and _is_changing(node) and _depth(node.func) == 1
        if is_call and _root(node.func) not in inside:  # type: ignore[attr-defined, operator]
            yield node  # type: ignore[misc]
        for target in _targets(node):
            if not isinstance(target, ast.Name) and _root(target) not in {*inside, None}:
                yield node  # type: ignore[misc]


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_changing(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _CHANGING


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
