"""Which statements may be added to a recorded program because they cannot change what it computes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from dataclasses import dataclass, field

from flor_keras.instrument import keras_words as words
from flor_keras.instrument.harm import is_changing_call, is_harmless
from flor_keras.instrument.index import Index
from flor_keras.instrument.normal_form import header_names, header_parts, names_in
from flor_keras.instrument.scopes import Class, File, Scope
from flor_keras.instrument.syntax import (
    Definition,
    FunctionNode,
    blocks,
    last_name,
    outer_parts,
    parameters,
    root_name,
)

_BUILTINS = frozenset(dir(builtins))


@dataclass
class Additions:
    """Judges additions to one file; ``taken`` and ``attributes`` are the names the recorded file has."""

    index: Index  # of the current program
    file: File
    taken: set[str]
    attributes: set[str]
    imported: set[tuple[str, str]]  # (local name, what it stands for) of the recorded imports
    new_files: set[str]
    outside: frozenset[str] = field(init=False)
    _classes: dict[ast.ClassDef, Class] = field(init=False)

    def __post_init__(self) -> None:
        self.outside = self.index.outside_names(self.file.path)
        self._classes = {cls.node: cls for cls in self.file.classes}

    def allow(self, statement: ast.stmt, parent: ast.AST, in_loop: bool = False) -> bool:
        """Tell whether a statement may be addedto the body of ``parent``."""
        if isinstance(parent, ast.ClassDef):
            return self._allows_method(statement, parent)
        match statement:
            case ast.Import() | ast.ImportFrom():
                return self._allows_import(statement, isinstance(parent, ast.Module))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self._is_new(statement.name) and self._is_quiet_definition(statement)
            case ast.Assign(targets=targets, value=value):
                return all(self._is_new_target(t) for t in targets) and self._is_harmless(value)
            case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
                return self._is_new_target(target) and (value is None or self._is_harmless(value))
            case ast.Expr(value=value):
                return self._allows_expression(statement, value)
            case ast.If() | ast.For() | ast.With() | ast.Try():
                return self._allows_block(statement, in_loop)
            case ast.Break() | ast.Continue():
                return in_loop
        return isinstance(statement, ast.Pass)

    def _is_new(self, name: str) -> bool:
        return name not in self.taken and name not in _BUILTINS

    def _is_new_target(self, target: ast.AST) -> bool:
        if isinstance(target, ast.Tuple | ast.List):
            return all(self._is_new_target(element) for element in target.elts)
        if isinstance(target, ast.Starred):
            return self._is_new_target(target.value)
        return isinstance(target, ast.Name) and self._is_new(target.id)

    def _is_foreign(self, name: str) -> bool:
        return name in self.taken and name not in self.outside

    def _is_harmless(self, node: ast.AST) -> bool:
        return is_harmless(node, self._is_foreign)

    def _allows_import(self, node: ast.Import | ast.ImportFrom, at_top: bool) -> bool:
        """An import binds a new name, or once more at the top of the file what it stands for already."""
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            is_repeated = at_top and (local, self.file.imports.get(local, "")) in self.imported
            if alias.name == "*" or not (self._is_new(local) or is_repeated):
                return False
        return True

    def _allows_expression(self, statement: ast.Expr, value: ast.expr) -> bool:
        if isinstance(value, ast.Constant):
            return True
        if not isinstance(value, ast.Call) or not self._is_harmless(value):
            return False
        is_print = (
            isinstance(value.func, ast.Name) and value.func.id == "print" and "print" not in self._own_names
        )
        grows_new = isinstance(value.func, ast.Attribute) and self._is_new(root_name(value.func) or "print")
        is_growth = grows_new and last_name(value.func) in ("append", "extend", "add", "update", "insert")
        is_log = self.file.flor.is_log_statement(statement)
        return is_print or is_log or is_growth or self._calls_added_function(value.func)

    @property
    def _own_names(self) -> set[str]:
        return {scope.name for scope in self.file.scopes} | set(self.file.imports)

    def _calls_added_function(self, called: ast.expr) -> bool:
        """Tell whether a call is of a function that was added too: its body is judged where it stands."""
        name = self.index.absolute(self.file.path, called)
        if name is not None:
            found = self.index.resolve(self.file.path, name)
        else:
            found = self.index.lookup(self.file.path, called.id) if isinstance(called, ast.Name) else []
        return bool(found) and all(self._is_added(item) for item in found)

    def _is_added(self, item: Scope | Class) -> bool:
        is_new_here = item.path == self.file.path and self._is_new(item.name)
        return isinstance(item, Scope) and (item.path in self.new_files or is_new_here)

    def _allows_block(self, statement: ast.stmt, in_loop: bool) -> bool:
        is_new = all(self._is_new(name) for name in header_names(statement))
        targets = [statement.target] if isinstance(statement, ast.For) else []
        if isinstance(statement, ast.With):
            targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
        is_plain = all(self._is_new_target(target) for target in targets)
        is_calm = all(self._is_harmless(part) for part in header_parts(statement))
        inside_loop = in_loop or isinstance(statement, ast.For)
        inside = [child for block in blocks(statement) for child in block]
        return is_new and is_plain and is_calm and all(self.allow(c, statement, inside_loop) for c in inside)

    def _allows_method(self, statement: ast.stmt, owner: ast.ClassDef) -> bool:
        """In a class of the program only a method that overrides nothing may be added."""
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return isinstance(statement, ast.Pass)
        name = statement.name
        cls = self._classes.get(owner)
        is_keras = cls is None or bool(cls.kinds)
        overrides = name in words.OVERRIDES or name.startswith("_") or name.startswith("on_")
        is_free = self._is_new(name) and name not in self.attributes and not name.startswith("__")
        return is_free and not (is_keras and overrides) and self._is_quiet_definition(statement)

    def _is_quiet_definition(self, node: Definition) -> bool:
        """Tell whether a definition changes nothing where it stands, nor where it is called."""
        if any(isinstance(part, ast.Global | ast.Nonlocal) for part in ast.walk(node)):
            return False
        if isinstance(node, ast.ClassDef):
            here: Iterable[ast.AST] = [*node.decorator_list, *node.bases, *node.keywords]
            return all(self._is_harmless(part) for part in here)
        return all(self._is_harmless(part) for part in outer_parts(node)) and self._is_quiet_function(node)

    def _is_quiet_function(self, node: FunctionNode) -> bool:
        """Tell whether a function changes only what it made itself."""
        bound = names_in_stores(node)
        given = {arg.arg for arg in parameters(node)} | self.taken

        def is_foreign(name: str) -> bool:
            return name in given and name not in bound and name not in self.outside

        for part in ast.walk(node):
            is_target = isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load)
            if is_target and is_foreign(root_name(part) or ""):
                return False
            if isinstance(part, ast.Call) and is_changing_call(part, is_foreign):
                return False
        return True


def names_in_stores(node: ast.AST) -> set[str]:
    """List the names a function assigns itself."""
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {name.id for name in names if not isinstance(name.ctx, ast.Load)}


def taken_names(tree: ast.Module) -> set[str]:
    """List the names that occur in a recorded file."""
    return set(names_in(tree))


def attribute_names(tree: ast.Module) -> set[str]:
    """List the attributes a recorded file uses."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
