"""Find the names that lead to nothing but callbacks and compiled metrics: those are free to change.

``cbs = [...]``, ``cbs.append(...)``, ``fit(callbacks=cbs)``: ``cbs`` is free. As soon as one use of a name
leads anywhere else it is not. Both versions of a program are read together, so that a name has to be free in
each. Names are told apart by file, not by scope: a name used for two things in one file is free only if both
uses are.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from flor_keras.instrument.harm import is_harmless
from flor_keras.instrument.index import Index
from flor_keras.instrument.scopes import ClassKind, File, Scope
from flor_keras.instrument.syntax import FunctionNode, last_name, outer_parts

Key = tuple[str, str]  # path of the file, name
_FREE: Key = ("", "callbacks or metrics")
_SILENT: Key = ("", "a log line, a print or a callback")  # allowed, but does not make a name free

FREE_ARGUMENTS = {
    "fit": frozenset({"callbacks", "verbose"}),
    "evaluate": frozenset({"callbacks", "verbose"}),
    "predict": frozenset({"callbacks", "verbose"}),
    "compile": frozenset({"metrics", "weighted_metrics"}),
}
_GROWING = frozenset({"append", "extend", "insert"})


def free_names(versions: Iterable[Index]) -> set[Key]:
    """List the names that lead to callbacks or metrics and nowhere else, in all versions of a program."""
    uses: dict[Key, list[frozenset[Key]]] = defaultdict(list)
    for index in versions:
        for file in index.files.values():
            _Uses(index, file, uses).read()
    return _leading(uses, _only_allowed(uses))


def is_free_argument(call: ast.Call, keyword: ast.keyword) -> bool:
    """Tell whether a keyword of a call takes callbacks, metrics or ``verbose``."""
    is_method = isinstance(call.func, ast.Attribute)
    return is_method and keyword.arg in FREE_ARGUMENTS.get(last_name(call.func), ())


def parameter_keys(index: Index, path: str, call: ast.Call) -> Iterator[tuple[ast.expr, Key]]:
    """Pair the arguments of a call of one of the program's functions with the names they get there."""
    function = _called_function(index, path, call.func)
    if function is None:
        return
    names = function.parameters
    for name, argument in zip(names, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield argument, (function.path, name)
    yield from (
        (k.value, (function.path, k.arg)) for k in call.keywords if k.arg in names and k.arg is not None
    )


def grown_name(statement: ast.Expr) -> str | None:
    """Give the name of the list a statement such as ``cbs.append(x)`` adds to."""
    match statement.value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _GROWING:
            return name
    return None


def bound_name(statement: ast.stmt, is_foreign: Callable[[str], bool]) -> str | None:
    """Give the one name a harmless assignment binds; ``None`` for other statements and other targets."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
            | ast.AugAssign(target=ast.Name(id=name))
        ):
            value = statement.value
            return name if value is None or is_harmless(value, is_foreign) else None
    return None


def _called_function(index: Index, path: str, called: ast.expr) -> Scope | None:
    absolute = index.absolute(path, called)
    if absolute is not None:
        found = index.resolve(path, absolute)
    else:
        found = index.lookup(path, called.id) if isinstance(called, ast.Name) else []
    return found[0] if len(found) == 1 and isinstance(found[0], Scope) else None


def _only_allowed(uses: dict[Key, list[frozenset[Key]]]) -> set[Key]:
    """Largest set of names all of whose uses lead to callbacks, metrics, or names of the set."""
    allowed = {*uses, _FREE, _SILENT}
    while bad := {key for key in allowed & uses.keys() if any(not use & allowed for use in uses[key])}:
        allowed -= bad
    return allowed


def _leading(uses: dict[Key, list[frozenset[Key]]], allowed: set[Key]) -> set[Key]:
    """Those of the allowed names from which a chain of uses does end at callbacks or metrics."""
    leading = {_FREE}
    candidates = allowed & uses.keys()
    while more := {key for key in candidates - leading if any(use & leading for use in uses[key])}:
        leading |= more
    return leading - {_FREE}


class _Uses(ast.NodeVisitor):
    """Note of every use of a name in one file where it may lead; one allowed place is enough."""

    def __init__(self, index: Index, file: File, uses: dict[Key, list[frozenset[Key]]]) -> None:
        self._index = index
        self._file = file
        self._uses = uses
        self._leads: frozenset[Key] = frozenset()
        self._callbacks = {cls.node for cls in file.classes if ClassKind.CALLBACK in cls.kinds}
        self._in_class = False
        outside = index.outside_names(file.path)
        self._is_foreign: Callable[[str], bool] = lambda name: name not in outside

    def read(self) -> None:
        self.visit(self._file.tree)
        for module in self._file.stars:
            if path := self._index.module_path(self._file.path, module):
                for own_path, name in [key for key in self._uses if key[0] == self._file.path]:
                    self._uses[path, name].append(frozenset({(own_path, name)}))

    @contextmanager
    def _leading_to(self, *keys: Key) -> Iterator[None]:
        before = self._leads
        self._leads = before.union(keys)
        yield
        self._leads = before

    def _key(self, name: str) -> Key:
        return self._file.path, name

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Store):
            self._uses[self._key(node.id)].append(self._leads)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        absolute = self._index.absolute(self._file.path, node)
        path = self._index.module_path(self._file.path, absolute.rpartition(".")[0]) if absolute else None
        if path is not None:
            self._uses[path, node.attr].append(self._leads)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            local = alias.asname or alias.name
            absolute = self._file.imports.get(local, "")
            path = self._index.module_path(self._file.path, absolute.rpartition(".")[0])
            if path is not None:
                self._uses[path, alias.name].append(frozenset({self._key(local)}))

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        """A name rebound from elsewhere is left alone."""
        for name in node.names:
            self._uses[self._key(name)].append(frozenset())

    visit_Nonlocal = visit_Global

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._in_class = self._in_class, True
        with self._leading_to(_SILENT if node in self._callbacks else self._key(node.name)):
            self.generic_visit(node)
        self._in_class = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        keys = [] if self._in_class else [self._key(node.name)]
        before, self._in_class = self._in_class, False
        with self._leading_to(*keys):
            self._visit_signature(node)
            for statement in node.body:
                self.visit(statement)
        self._in_class = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_signature(node)
        self.visit(node.body)

    def _visit_signature(self, node: FunctionNode) -> None:
        for part in outer_parts(node):
            keys = [self._key(arg.arg) for arg, default in defaults(node) if default is part]
            with self._leading_to(*keys):
                self.visit(part)

    def visit_Expr(self, node: ast.Expr) -> None:
        grown = grown_name(node)
        is_print = isinstance(node.value, ast.Call) and last_name(node.value.func) == "print"
        if is_print or (self._file.flor.is_log_statement(node) and is_harmless(node, self._is_foreign)):
            with self._leading_to(_SILENT):
                self.generic_visit(node)
        elif grown is not None and isinstance(node.value, ast.Call):
            with self._leading_to(self._key(grown)):
                self.generic_visit(node)
        else:
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        name = None if self._in_class else bound_name(node, self._is_foreign)
        with self._leading_to(*([self._key(name)] if name else [])):
            self.generic_visit(node)

    visit_AnnAssign = visit_Assign
    visit_AugAssign = visit_Assign

    def visit_Call(self, node: ast.Call) -> None:
        self.visit(node.func)
        keys = {id(argument): key for argument, key in parameter_keys(self._index, self._file.path, node)}
        for argument in node.args:
            with self._leading_to(*([keys[id(argument)]] if id(argument) in keys else [])):
                self.visit(argument)
        for keyword in node.keywords:
            leads = [keys[id(keyword.value)]] if id(keyword.value) in keys else []
            leads += [_FREE] if is_free_argument(node, keyword) else []
            with self._leading_to(*leads):
                self.visit(keyword.value)


def defaults(node: FunctionNode) -> Iterator[tuple[ast.arg, ast.expr]]:
    """Pair the parameters that have a default with it."""
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    yield from zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True)
    yield from ((a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None)
