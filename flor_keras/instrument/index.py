"""Index the sources of one program: what its names stand for across files, what its classes derive from.

Owns the answer to "what does this name stand for in this file". By simple names: no types, no execution.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from flor_keras.errors import UsageError
from flor_keras.instrument import keras_words as words
from flor_keras.instrument.scopes import Class, ClassKind, Scope, absolute_module, read_file
from flor_keras.instrument.syntax import dotted


class Index:
    """All files of a program, and the meaning of names across them; ``script`` is run, if known."""

    def __init__(self, script: str | None, sources: Mapping[str, str]) -> None:
        if script is not None and script not in sources:
            raise UsageError(
                f"The script {script!r} is not among the sources ({', '.join(sorted(sources)) or 'none'}). "
                f"Expected one of them. Name the script as it is named there."
            )
        self.script = script
        self._module_paths: dict[tuple[str, str], str | None] = {}
        self.files = {path: read_file(path, text) for path, text in sources.items()}
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
        key = importer, module
        if key not in self._module_paths:
            self._module_paths[key] = self._find_module(importer, module)
        return self._module_paths[key]

    def _find_module(self, importer: str, module: str) -> str | None:
        tail = module.replace(".", "/")
        for folder in (
            PurePosixPath(importer).parent,
            PurePosixPath(self.script or "").parent,
            PurePosixPath(),
        ):
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
            module = absolute_module(path, node)
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
