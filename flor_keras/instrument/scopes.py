"""Read one source file: its functions and classes under the names Python gives them, and its imports.

Leaves what a name means across files to ``index``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from flor_keras.instrument.flornames import FlorNames
from flor_keras.instrument.syntax import FunctionNode, first_line, outer_parts, own_nodes, parameters, parse


@dataclass(frozen=True)
class FunctionId:
    """A function as its code object knows it, by ``co_firstlineno`` and ``co_qualname``."""

    path: str
    line: int
    qualname: str


class ClassKind(StrEnum):
    """What Keras takes a class for."""

    CALLBACK = "callback"
    OBJECT = "object"  # layer, model, loss, metric, optimizer, ...
    DATASET = "dataset"
    UNKNOWN = "unknown"  # derives from something outside the program that Keras is not known for


@dataclass(eq=False)
class Class:
    """A class of the program."""

    path: str
    node: ast.ClassDef
    methods: dict[str, Scope] = field(default_factory=dict)
    parents: list[Class] = field(default_factory=list)
    children: list[Class] = field(default_factory=list)
    kinds: set[ClassKind] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The class's simple name."""
        return self.node.name

    def ancestors(self) -> list[Class]:
        """List the class and what it derives from within the program, nearest first."""
        return _closure(self, "parents")

    def family(self) -> list[Class]:
        """List the class, its ancestors and its descendants: where a method called on ``self`` may stand."""
        return [*self.ancestors(), *_closure(self, "children")[1:]]


@dataclass(eq=False)
class Scope:
    """Code that runs as one piece: a function, lambda or method, or the top level of a file."""

    path: str
    node: ast.Module | FunctionNode
    name: str
    qualname: str
    outer: Scope | None = None
    owner: Class | None = None  # the class whose body it stands in
    parameters: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = (
            [] if isinstance(self.node, ast.Module) else [arg.arg for arg in parameters(self.node)]
        )

    @property
    def id(self) -> FunctionId | None:
        """Its identity; ``None`` for the top level of a file."""
        if isinstance(self.node, ast.Module):
            return None
        return FunctionId(self.path, first_line(self.node), self.qualname)

    @property
    def self_class(self) -> Class | None:
        """The class ``self`` belongs to here, also inside functions nested in a method."""
        return self.owner or (self.outer.self_class if self.outer else None)


@dataclass(eq=False)
class File:
    """One source file."""

    path: str
    tree: ast.Module
    flor: FlorNames
    top: Scope
    scopes: list[Scope] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)  # local name -> absolute dotted name
    stars: list[str] = field(default_factory=list)
    definitions: dict[str, list[Scope | Class]] = field(
        default_factory=dict
    )  # functions and classes, no methods


def _closure(cls: Class, relation: str) -> list[Class]:
    found = [cls]
    for item in found:
        found += [other for other in getattr(item, relation) if other not in found]
    return found


def read_file(path: str, text: str) -> File:
    """Parse a file and index it; ``UsageError`` when it is not valid Python."""
    tree = parse(path, text)
    top = Scope(path, tree, "<module>", "<module>")
    file = File(path, tree, FlorNames.of(tree), top, [top])
    _Reader(file).read()
    for scope in file.scopes[1:]:
        if scope.owner is None:
            file.definitions.setdefault(scope.name, []).append(scope)
    for cls in file.classes:
        file.definitions.setdefault(cls.name, []).append(cls)
    return file


class _Reader(ast.NodeVisitor):
    """Collect scopes, classes and imports of one file, naming them as Python does."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.scope = file.top
        self.owner: Class | None = None
        self.prefix = ""

    def read(self) -> None:
        for statement in self.file.tree.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._enter_function(node, node.name, list(node.body))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter_function(node, node.name, list(node.body))

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._enter_function(node, "<lambda>", [node.body])

    def _enter_function(self, node: FunctionNode, name: str, body: list[ast.AST]) -> None:
        self._visit_all(outer_parts(node))
        scope = Scope(self.file.path, node, name, self.prefix + name, self.scope, self.owner)
        self.file.scopes.append(scope)
        if self.owner is not None and not isinstance(node, ast.Lambda):
            self.owner.methods[name] = scope
        self._visit_inside(body, f"{scope.qualname}.<locals>.", scope, None)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        cls = Class(self.file.path, node)
        self.file.classes.append(cls)
        self._visit_inside(list(node.body), f"{self.prefix}{node.name}.", self.scope, cls)

    def _visit_comprehension(self, node: ast.AST, name: str) -> None:
        """Name what stands in a comprehension; its first iterable belongs to the code around it."""
        first, *others = node.generators  # type: ignore[attr-defined]
        self.visit(first.iter)
        elements = [getattr(node, field) for field in ("elt", "key", "value") if hasattr(node, field)]
        inside = [first.target, *first.ifs, *others, *elements]
        is_inlined = sys.version_info >= (3, 12) and name != "<genexpr>"
        prefix = self.prefix if is_inlined else f"{self.prefix}{name}."
        self._visit_inside(inside, prefix, self.scope, None)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._visit_comprehension(node, "<listcomp>")

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._visit_comprehension(node, "<setcomp>")

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node, "<dictcomp>")

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._visit_comprehension(node, "<genexpr>")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self.file.imports[alias.asname or root] = alias.name if alias.asname else root

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = absolute_module(self.file.path, node)
        for alias in node.names:
            if alias.name == "*":
                self.file.stars.append(module)
            else:
                self.file.imports[alias.asname or alias.name] = f"{module}.{alias.name}".lstrip(".")

    def _visit_all(self, nodes: list[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _visit_inside(self, nodes: list[ast.AST], prefix: str, scope: Scope, owner: Class | None) -> None:
        before = self.prefix, self.scope, self.owner
        self.prefix, self.scope, self.owner = prefix, scope, owner
        self._visit_all(nodes)
        self.prefix, self.scope, self.owner = before


def absolute_module(path: str, node: ast.ImportFrom) -> str:
    """Spell the module of ``from X import ...`` from the top, also where it is relative."""
    if not node.level:
        return node.module or ""
    folders = list(PurePosixPath(path).parent.parts)
    folders = folders[: len(folders) - (node.level - 1)]
    return ".".join([*folders, *([node.module] if node.module else [])])


def calls_in(scope: Scope) -> Iterator[ast.Call]:
    """List the calls that stand in a scope itself."""
    return (node for node in own_nodes(scope.node) if isinstance(node, ast.Call))
