"""Bring the files of a program into a form in which everything that is free to change is gone.

Gone are log statements, callback classes, the arguments that take callbacks, metrics and ``verbose``, the
names that lead only there, docstrings, ``pass``, and blocks of which nothing else was left. Works on the
trees of an index in place, which is of no other use afterwards.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

from flor_keras.instrument.free_names import (
    Key,
    bound_name,
    defaults,
    grown_name,
    is_free_argument,
    parameter_keys,
)
from flor_keras.instrument.harm import is_harmless
from flor_keras.instrument.index import Index
from flor_keras.instrument.scopes import Class, ClassKind, File
from flor_keras.instrument.syntax import Definition, FunctionNode, blocks

_HOLLOWABLE = ast.If | ast.For | ast.With | ast.Try


def normalise(index: Index, path: str, free: set[Key], is_replaceable: Callable[[Class], bool]) -> ast.Module:
    """Normalise one file of a program; ``is_replaceable`` says which callback classes may go."""
    normaliser = _Normaliser(index, index.files[path], free, is_replaceable)
    tree = normaliser.visit(index.files[path].tree)
    assert isinstance(tree, ast.Module)
    _drop_hollow(tree, normaliser.idle)
    return tree


def names_in(tree: ast.AST) -> Counter[str]:
    """Count every name that occurs in a tree, bound or used."""
    return Counter(name for node in ast.walk(tree) for name in _names_of(node))


def _names_of(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [(alias.asname or alias.name).partition(".")[0] for alias in aliases]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return list(names)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return [name]
    return []


def header_names(statement: ast.stmt) -> list[str]:
    """List the names the header of a compound statement binds."""
    match statement:
        case ast.For(target=target):
            bound: list[ast.AST] = [target]
        case ast.With(items=items):
            bound = [item.optional_vars for item in items if item.optional_vars is not None]
        case ast.Try(handlers=handlers):
            return [handler.name for handler in handlers if handler.name is not None]
        case _:
            bound = []
    return [name for target in bound for name in names_in(target)]


def header_parts(statement: ast.stmt) -> list[ast.expr]:
    """List the expressions the header of a compound statement evaluates."""
    match statement:
        case ast.If(test=test):
            return [test]
        case ast.For(iter=iterable):
            return [iterable]
        case ast.With(items=items):
            return [item.context_expr for item in items]
        case ast.Try(handlers=handlers):
            return [handler.type for handler in handlers if handler.type is not None]
    return []


class _Normaliser(ast.NodeTransformer):
    def __init__(
        self, index: Index, file: File, free: set[Key], is_replaceable: Callable[[Class], bool]
    ) -> None:
        self._index = index
        self._file = file
        self._free = free
        self._gone = {c.node for c in file.classes if ClassKind.CALLBACK in c.kinds and is_replaceable(c)}
        self._in_class = False
        self.idle: set[ast.AST] = set()  # loops written to do nothing: they are no log loops
        outside = index.outside_names(file.path)
        self._is_foreign: Callable[[str], bool] = lambda name: name not in outside

    def _is_free(self, name: str | None) -> bool:
        return name is not None and (self._file.path, name) in self._free

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str | type(...)):
            return None
        if self._file.flor.is_log_statement(node) and is_harmless(node, self._is_foreign):
            return None
        return None if self._is_free(grown_name(node)) else self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> ast.AST | None:
        is_free = not self._in_class and self._is_free(bound_name(node, self._is_foreign))
        return None if is_free else self.generic_visit(node)

    visit_AnnAssign = visit_Assign
    visit_AugAssign = visit_Assign

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        if node in self._gone or self._is_free(node.name):
            return None
        return self._definition(node, True)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST | None:
        if not self._in_class and self._is_free(node.name):
            return None
        self._drop_free_parameters(node)
        return self._definition(node, False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _definition(self, node: Definition, is_class: bool) -> ast.AST:
        before, self._in_class = self._in_class, is_class
        found = self.generic_visit(node)
        self._in_class = before
        return found

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._drop_free_parameters(node)
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        if all(isinstance(statement, ast.Pass) for statement in node.body):
            self.idle.add(node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        free = {id(a) for a, key in parameter_keys(self._index, self._file.path, node) if key in self._free}
        node.args = [argument for argument in node.args if id(argument) not in free]
        node.keywords = [k for k in node.keywords if not (id(k.value) in free or is_free_argument(node, k))]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        node.kind = None  # u"text" is "text"
        return node

    def _drop_free_parameters(self, node: FunctionNode) -> None:
        spec = node.args
        default = {arg: value for arg, value in defaults(node) if not self._is_free(arg.arg)}
        for field in ("posonlyargs", "args", "kwonlyargs"):
            setattr(spec, field, [arg for arg in getattr(spec, field) if not self._is_free(arg.arg)])
        positional = [*spec.posonlyargs, *spec.args]
        spec.defaults = [default[arg] for arg in positional if arg in default]
        spec.kw_defaults = [default.get(arg) for arg in spec.kwonlyargs]


def _drop_hollow(tree: ast.Module, idle: set[ast.AST]) -> None:
    """Drop blocks of which nothing is left, unless a name they bind is used outside of such blocks."""
    candidates = {node for node in ast.walk(tree) if _is_hollow(node, idle)}
    everywhere = names_in(tree)
    while True:
        outer = {n for n in candidates if not any(n in ast.walk(other) for other in candidates - {n})}
        kept = everywhere - sum((names_in(node) for node in outer), Counter())
        needed = {node for node in candidates if _is_needed(node, candidates, kept)}
        if not needed:
            break
        candidates -= needed
    for node in [*ast.walk(tree)]:
        for block in blocks(node):
            block[:] = [statement for statement in block if statement not in candidates]


def _is_hollow(node: ast.AST, idle: set[ast.AST]) -> bool:
    if not isinstance(node, _HOLLOWABLE) or node in idle:
        return False
    is_calm = all(is_harmless(part, lambda name: True) for part in header_parts(node))
    return is_calm and all(_is_hollow(statement, idle) for block in blocks(node) for statement in block)


def _is_needed(node: ast.AST, candidates: set[ast.AST], kept: Counter[str]) -> bool:
    """Tell whether a hollow block stays: it binds a name that other code has, or a block inside it stays."""
    assert isinstance(node, ast.stmt)
    is_used = any(kept[name] for name in header_names(node))
    return is_used or any(statement not in candidates for block in blocks(node) for statement in block)
