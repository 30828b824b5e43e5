"""Recognise calls of flor_keras, under whatever name it is imported, and read the name a log call uses."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field

from flor_keras.instrument.syntax import dotted

PACKAGE = "flor_keras"
ANYTHING = ".*"
_PERCENT = re.compile(r"%(?:\(\w+\))?[-#0 +]*(?:\d+|\*)?(?:\.\d+)?[a-zA-Z]")
_BRACES = re.compile(r"\{[^{}]*\}")


@dataclass
class FlorNames:
    """What one file calls the package and its functions, and which of its names are constant texts."""

    modules: set[str] = field(default_factory=set)
    functions: dict[str, str] = field(default_factory=dict)  # local name -> flor_keras's name
    texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: ast.Module) -> FlorNames:
        """Read the imports, the aliases (``log = flor.log``) and the constant texts of a file."""
        names = cls()
        nodes = list(ast.walk(tree))
        for node in nodes:
            names._read_import(node)
        for node in nodes:
            names._read_alias(node)
        names.texts = _constant_texts(nodes)
        return names

    def _read_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == PACKAGE:
                    self.modules.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE and not node.level:
            for alias in node.names:
                self.functions[alias.asname or alias.name] = alias.name

    def _read_alias(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and (name := self.meaning(node.value)):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.functions[target.id] = name

    def meaning(self, node: ast.AST) -> str | None:
        """Give flor_keras's own name of what ``node`` refers to (``log`` of ``flor.log``), or ``None``."""
        if isinstance(node, ast.Attribute) and dotted(node.value) in self.modules:
            return node.attr
        return self.functions.get(node.id) if isinstance(node, ast.Name) else None

    def is_call(self, node: ast.AST, name: str) -> bool:
        """Tell whether ``node`` calls the flor_keras function ``name``."""
        return isinstance(node, ast.Call) and self.meaning(node.func) == name

    def is_log_statement(self, node: ast.AST) -> bool:
        """Tell whether ``node`` is a statement that is nothing but a ``flor.log`` call."""
        return isinstance(node, ast.Expr) and self.is_call(node.value, "log")

    def logged_name(self, call: ast.Call) -> tuple[str | None, str]:
        """Give the name a log call uses, if constant, and a pattern every possible name matches."""
        named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
        candidates = [*call.args[:1], *named]
        if not candidates:
            return None, ANYTHING
        argument = candidates[0]
        text = self._text(argument)
        return (text, re.escape(text)) if text is not None else (None, self._pattern(argument))

    def _text(self, node: ast.AST) -> str | None:
        """Fold an expression to a constant text."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name):
                return self.texts.get(name)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                parts = [self._text(left), self._text(right)]
            case ast.JoinedStr(values=values):
                parts = [self._text(value) for value in values]
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                parts = [self._text(value)]
            case _:
                return None
        return None if any(part is None for part in parts) else "".join(part or "" for part in parts)

    def _pattern(self, node: ast.AST) -> str:
        """Describe every text an expression can give."""
        if (text := self._text(node)) is not None:
            return re.escape(text)
        match node:
            case ast.JoinedStr(values=values):
                return "".join(self._pattern(value) for value in values)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self._pattern(left) + self._pattern(right)
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str(template))):
                return _template_pattern(_PERCENT, template)
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(template)), attr="format")):
                return _template_pattern(_BRACES, template)
            case ast.IfExp(body=first, orelse=second):
                return f"(?:{self._pattern(first)}|{self._pattern(second)})"
            case _:
                return ANYTHING


def _template_pattern(placeholder: re.Pattern[str], template: str) -> str:
    return ANYTHING.join(re.escape(part) for part in placeholder.split(template))


def _constant_texts(nodes: list[ast.AST]) -> dict[str, str]:
    """Collect names that are bound exactly once in the whole file, to a text."""
    bound = Counter(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    bound.update(n.arg for n in nodes if isinstance(n, ast.arg))
    texts = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if (
                bound[name] == 1
            ):
                texts[name] = text
    return texts
