"""Small questions about Python syntax trees. Owns no knowledge of Keras or flor_keras."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flor_keras.errors import UsageError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Loop = ast.For | ast.AsyncFor | ast.While
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def parse(path: str, text: str) -> ast.Module:
    """Parse one source file; a syntax error becomes a ``UsageError`` that names file and line."""
    try:
        return ast.parse(text, filename=path)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        raise UsageError(
            f"{path}:{line} is not valid Python: {reason}. flor_keras reads a program before it runs it. "
            f"Correct {path} at line {line} and type the command again."
        ) from error


def dotted(node: ast.AST) -> str | None:
    """Spell a chain of names, ``a.b.c``; ``None`` when anything else is in the chain."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return None if head is None else f"{head}.{node.attr}"
    return None


def last_name(node: ast.AST) -> str:
    """Spell the last part of a called expression: ``map`` of ``a.b().map``; empty when it has no name."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def root_name(node: ast.AST) -> str | None:
    """Find the name a chain of attributes, subscripts and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Call):
        return root_name(node.func)
    return node.id if isinstance(node, ast.Name) else None


def first_line(node: ast.stmt | ast.expr) -> int:
    """Give the line Python reports as ``co_firstlineno``: the first decorator's, where there is one."""
    decorators = getattr(node, "decorator_list", None)
    first = decorators[0] if decorators else node
    return int(first.lineno)


def parameters(node: FunctionNode) -> list[ast.arg]:
    """List all parameters: those bound by position in their order, then keyword-only and starred ones."""
    spec = node.args
    starred = [arg for arg in (spec.vararg, spec.kwarg) if arg is not None]
    return [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *starred]


def outer_parts(node: FunctionNode) -> list[ast.AST]:
    """List what of a definition runs where the definition stands: decorators, defaults, annotations."""
    spec = node.args
    found: list[ast.AST | None] = [
        *spec.defaults,
        *spec.kw_defaults,
        *(arg.annotation for arg in parameters(node)),
    ]
    if not isinstance(node, ast.Lambda):
        found = [*node.decorator_list, *found, node.returns]
    return [part for part in found if part is not None]


def inner_parts(node: ast.Module | FunctionNode) -> list[ast.AST]:
    """List what runs when the function is called, or the module imported."""
    return [node.body] if isinstance(node, ast.Lambda) else list(node.body)


def children_here(node: ast.AST) -> list[ast.AST]:
    """List the child nodes that run where ``node`` runs: not the bodies of the functions it defines."""
    if isinstance(node, FunctionNode):
        return outer_parts(node)
    return list(ast.iter_child_nodes(node))


def own_nodes(scope: ast.Module | FunctionNode) -> Iterator[ast.AST]:
    """Walk what belongs to one function or module; functions inside it appear, their bodies do not."""
    todo = inner_parts(scope)
    while todo:
        node = todo.pop()
        yield node
        todo.extend(children_here(node))


def blocks(statement: ast.AST) -> list[list[ast.stmt]]:
    """List the statement lists inside a statement, in the same order for every statement of its kind."""
    found = [
        getattr(statement, field) for field in ("body", "orelse", "finalbody") if _is_block(statement, field)
    ]
    for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
        found.append(part.body)
    return found


def _is_block(statement: ast.AST, field: str) -> bool:
    return isinstance(statement, ast.stmt | ast.Module) and isinstance(getattr(statement, field, None), list)


def is_generator(node: ast.AST) -> bool:
    """Tell whether a definition makes a generator."""
    return isinstance(node, FunctionNode) and any(
        isinstance(n, ast.Yield | ast.YieldFrom) for n in own_nodes(node)
    )
