"""Read the names of compiled metrics from the source: ``compile(metrics=[...])``, as Keras will log them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from flor_keras.instrument.index import Index
from flor_keras.instrument.scopes import Class, Scope
from flor_keras.instrument.syntax import dotted, last_name, own_nodes

_METRIC_KEYWORDS = ("metrics", "weighted_metrics")


def compiled_metrics(index: Index) -> tuple[str, ...]:
    """List the names that can be told, sorted. Of a metric for a named output both forms are listed."""
    reader = _Reader(index)
    found: set[str] = set()
    for scope in index.scopes:
        for node in own_nodes(scope.node):
            if isinstance(node, ast.Call) and last_name(node.func) == "compile":
                values = [keyword.value for keyword in node.keywords if keyword.arg in _METRIC_KEYWORDS]
                found.update(
                    name for value in values for name in reader.names(scope.path, value, frozenset())
                )
    return tuple(sorted(found))


def snake_case(name: str) -> str:
    """Turn a class name into the log name Keras gives its instances."""
    # The two steps of `keras.src.utils.naming.to_snake_case`, Keras 3.15.
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


class _Reader:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._assigned: dict[tuple[str, str], list[ast.expr]] = defaultdict(list)
        for path, file in index.files.items():
            for node in ast.walk(file.tree):
                for name, value in _assignments(node):
                    self._assigned[path, name].append(value)

    def names(self, path: str, node: ast.expr, seen: frozenset[str]) -> Iterator[str]:
        """List the metric names an expression stands for; ``seen`` breaks circles of names."""
        match node:
            case ast.Constant(value=str(name)):
                yield name
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                for element in elements:
                    yield from self.names(path, element, seen)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    yield from self._of_output(path, key, value, seen)
            case ast.BinOp(left=left, right=right):
                yield from self.names(path, left, seen)
                yield from self.names(path, right, seen)
            case ast.Starred(value=value):
                yield from self.names(path, value, seen)
            case ast.Call():
                yield from self._of_call(path, node, seen)
            case ast.Name() | ast.Attribute():
                yield from self._of_reference(path, node, seen)

    def _of_output(
        self, path: str, key: ast.expr | None, value: ast.expr, seen: frozenset[str]
    ) -> Iterator[str]:
        output = key.value if isinstance(key, ast.Constant) else None
        for name in self.names(path, value, seen):
            yield name
            if isinstance(output, str):
                yield f"{output}_{name}"

    def _of_call(self, path: str, call: ast.Call, seen: frozenset[str]) -> Iterator[str]:
        """A metric class called, or a function that returns metrics."""
        for keyword in call.keywords:
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                yield str(keyword.value.value)
                return
        functions = [f for f in self._meaning(path, call.func) if isinstance(f, Scope)]
        if not functions and last_name(call.func)[:1].isupper():
            yield snake_case(last_name(call.func))
        for function in functions:
            for node in own_nodes(function.node):
                key = f"{function.path}:{function.qualname}"
                if isinstance(node, ast.Return) and node.value is not None and key not in seen:
                    yield from self.names(function.path, node.value, seen | {key})

    def _of_reference(self, path: str, node: ast.expr, seen: frozenset[str]) -> Iterator[str]:
        """A variable that holds metrics, or a metric function."""
        name = dotted(node) or ""
        values = self._assigned.get((path, name), [])
        where = path
        absolute = self._index.absolute(path, node)
        if not values and absolute is not None:
            module, _, last = absolute.rpartition(".")
            where = self._index.module_path(path, module) or path
            values = self._assigned.get((where, last), [])
            if where == path and absolute.startswith(("keras.", "tensorflow.")):
                yield snake_case(last)
        for value in values:
            if f"{where}:{name}" not in seen:
                yield from self.names(where, value, seen | {f"{where}:{name}"})
        for function in self._meaning(path, node):
            yield snake_case(function.name)

    def _meaning(self, path: str, node: ast.expr) -> list[Scope | Class]:
        absolute = self._index.absolute(path, node)
        if absolute is not None:
            return self._index.resolve(path, absolute)
        return self._index.lookup(path, node.id) if isinstance(node, ast.Name) else []


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            yield name, value
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend"), args=[value]):
            yield name, value
