"""Index the sources of one program: its functions, its classes and what they derive from, its imports.

Owns the answer to "what does this name stand for in this file". By simple names: no types, no execution.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from flor_keras.errors import UsageError
from flor_keras.instrument import keras_words as words
from flor_keras.instrument.flornames import FlorNames
from flor_keras.instrument.syntax import (
    FunctionNode,
    dotted,
    first_line,
    outer_parts,
    own_nodes,
    parameters,
    parse,
)


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
    definitions: dict[str, list[Scope | Class]] = field(default_factory=dict)  # functions and classes, no methods


class Index:
    """All files of a program, and the meaning of names across them; ``script`` is run, if known."""

    def __init__(self, script: str | None, sources: Mapping[str, str]) -> None:
        if script is not None and script not in sources:
            raise UsageError(
                f"The script {script!r} is not among the sources ({', '.join(sorted(sources)) or 'none'}). "
                f"Expected one of them. Name the script as it is named there."
            )
        self.script = script
        self.files = {path: _read(path, text) for path, text in sources.items()}
        self.scopes = [scope for file in self.files.values() for scope in file.scopes]
        self.classes = [cls for file in self.files.values() for cls in file.classes]
        self.methods: dict[str, list[Scope]] = defaultdict(list)
        for cls in self.classes:
            for name, method in cls.methods.items():
                self.methods[name].append(method)
        self._link_classes()

    def lookup(self, path: str, name: str, seen: frozenset[str] = frozenset()) -> list[Scope | Class]:
        """Find the functions and classes a simple name can stand for in a file, through its imports."""
        if path in seen:
            return []
        file = self.files[path]
        found = file.definitions.get(name, [])
        if not found and name in file.imports:
            found = self.resolve(path, file.imports[name], seen | {path})
        for star in [] if found else file.stars:
            found = found + self.resolve(path, f"{star}.{name}", seen | {path})
        return found

    def resolve(self, importer: str, name: str, seen: frozenset[str] = frozenset()) -> list[Scope | Class]:
        """Find what an absolute name (``package.module.function``) stands for, if it is in the program."""
        module, _, last = name.rpartition(".")
        path = self.module_path(importer, module) if module else None
        return self.lookup(path, last, seen) if path else []

    def absolute(self, path: str, node: ast.AST) -> str | None:
        """Spell a chain of names from the top when it begins with an import; otherwise ``None``."""
        chain = dotted(node)
        if chain is None:
            return None
        root, _, rest = chain.partition(".")
        start = self.files[path].imports.get(root)
        return None if start is None else f"{start}.{rest}".rstrip(".")

    def module_path(self, importer: str, module: str) -> str | None:
        """Find a module's file: beside the importer, beside the script, under the root, or anywhere once."""
        tail = module.replace(".", "/")
        folders = [PurePosixPath(importer).parent, PurePosixPath(self.script or "").parent, PurePosixPath()]
        for folder in folders:
            for candidate in (str(folder / f"{tail}.py"), str(folder / tail / "__init__.py")):
                if candidate in self.files:
                    return candidate
        anywhere = [p for p in self.files if p.endswith((f"/{tail}.py", f"/{tail}/__init__.py"))]
        return anywhere[0] if len(anywhere) == 1 else None

    def outside_names(self, path: str) -> frozenset[str]:
        """List the names a file imports from outside the program: libraries."""
        imports = self.files[path].imports.items()
        return frozenset(
            local
            for local, name in imports
            if not any(self.module_path(path, part) for part in (name, name.rpartition(".")[0]) if part)
        )

    def imported_paths(self, path: str, node: ast.Import | ast.ImportFrom) -> list[str]:
        """List the program's files an import statement runs."""
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            module = _absolute_module(path, node)
            modules = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        found = [self.module_path(path, module) for module in modules if module]
        return [path for path in found if path is not None]

    def _link_classes(self) -> None:
        for cls in self.classes:
            for base in cls.node.bases:
                parents = [p for p in self._base_classes(cls.path, base) if p is not cls]
                cls.parents += parents
                for parent in parents:
                    parent.children.append(cls)
        for cls in self.classes:
            cls.kinds = {kind for ancestor in cls.ancestors() for kind in self._outside_kinds(ancestor)}

    def _base_classes(self, path: str, base: ast.expr) -> list[Class]:
        name = self.absolute(path, base)
        found = self.resolve(path, name) if name else self.lookup(path, dotted(base) or "")
        return [item for item in found if isinstance(item, Class)]

    def _outside_kinds(self, cls: Class) -> Iterator[ClassKind]:
        for base in cls.node.bases:
            if not self._base_classes(cls.path, base):
                kind = kind_of_name(self.absolute(cls.path, base) or dotted(base) or "?")
                if kind is not None:
                    yield kind


def kind_of_name(name: str) -> ClassKind | None:
    """Say what Keras takes an outside class for, from its dotted name; ``None`` for a plain Python class."""
    *packages, last = name.split(".")
    if last in words.CALLBACK_CLASSES or "callbacks" in packages:
        return ClassKind.CALLBACK
    if last in words.DATASET_CLASSES:
        return ClassKind.DATASET
    if last in words.OBJECT_CLASSES or words.OBJECT_PACKAGES.intersection(packages):
        return ClassKind.OBJECT
    is_plain = last in {
        "object",
        "ABC",
        "Enum",
        "StrEnum",
        "NamedTuple",
        "Protocol",
        "Exception",
        "Generic",
        "dict",
        "list",
    }
    return None if is_plain else ClassKind.UNKNOWN


def _closure(cls: Class, relation: str) -> list[Class]:
    found = [cls]
    for item in found:
        found += [other for other in getattr(item, relation) if other not in found]
    return found


def _read(path: str, text: str) -> File:
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
        module = _absolute_module(self.file.path, node)
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


def _absolute_module(path: str, node: ast.ImportFrom) -> str:
    """Spell the module of ``from X import ...`` from the top, also where it is relative."""
    if not node.level:
        return node.module or ""
    folders = list(PurePosixPath(path).parent.parts)
    folders = folders[: len(folders) - (node.level - 1)]
    return ".".join([*folders, *([node.module] if node.module else [])])


def calls_in(scope: Scope) -> Iterator[ast.Call]:
    """List the calls that stand in a scope itself."""
    return (node for node in own_nodes(scope.node) if isinstance(node, ast.Call))
