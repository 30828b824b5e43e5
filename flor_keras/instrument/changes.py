"""Compare a program with the version that was recorded: may this version stand in for it in a replay?

It may when only log lines, metrics, callbacks and code that binds nothing but new names were added or
changed. Syntax trees are compared, so comments and layout never count.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field

from flor_keras.instrument.additions import Additions, attribute_names, taken_names
from flor_keras.instrument.flornames import PACKAGE
from flor_keras.instrument.free_names import free_names
from flor_keras.instrument.index import Index
from flor_keras.instrument.normal_form import normalise
from flor_keras.instrument.scopes import Class, ClassKind
from flor_keras.instrument.syntax import blocks

Statements = list[ast.stmt]


@dataclass(frozen=True)
class Change:
    """One difference that makes a version unfit to stand in for the recorded one."""

    path: str
    line: int  # in the current file; of a removal, in the recorded one
    kind: str  # "changed", "removed" or "added"
    text: str  # that line


def forbidden_changes(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[Change]:
    """List the changes that could alter training, by path and line; empty when there are none.

    Both arguments map paths to texts. Raises ``UsageError`` when a text is not valid Python.
    """
    old, new = Index(None, recorded), Index(None, current)
    imported = {path: set(file.imports.items()) for path, file in old.files.items()}
    free = free_names([old, new])
    changes = [Change(path, 1, "removed", "the whole file") for path in recorded if path not in current]
    changes += _hijacking_files(old, new)
    replaceable = _replaceable_callbacks(old)
    for path in [path for path in recorded if path in current]:
        before = normalise(old, path, free, lambda cls: True)
        taken = taken_names(before)
        after = normalise(new, path, free, replaceable(path, taken))
        additions = Additions(
            new, new.files[path], taken, attribute_names(before), imported[path], set(current) - set(recorded)
        )
        comparison = _Comparison(path, recorded[path], current[path], additions)
        comparison.compare(before.body, after.body, after)
        changes += comparison.changes
    return sorted(changes, key=lambda change: (change.path, change.line))


def difference(recorded: Mapping[str, str], current: Mapping[str, str]) -> str:
    """Show all differences between two versions as a unified diff, for people."""
    parts: list[str] = []
    for path in sorted({*recorded, *current}):
        before, after = recorded.get(path, ""), current.get(path, "")
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"recorded/{path}", f"current/{path}", lineterm=""
        )
        parts += lines
    return "".join(f"{line}\n" for line in parts)


def _replaceable_callbacks(old: Index) -> Callable[[str, set[str]], Callable[[Class], bool]]:
    """A callback class may come in under a new name, or take the place of a callback class."""
    callbacks = {(cls.path, cls.name) for cls in old.classes if ClassKind.CALLBACK in cls.kinds}

    def for_file(path: str, taken: set[str]) -> Callable[[Class], bool]:
        return lambda cls: (path, cls.name) in callbacks or cls.name not in taken

    return for_file


def _hijacking_files(old: Index, new: Index) -> Iterator[Change]:
    """A new file must not be what an old import finds now."""
    imports = [
        (path, node)
        for path, file in old.files.items()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    found = {found for path, node in imports if path in new.files for found in new.imported_paths(path, node)}
    known = {found for path, node in imports for found in old.imported_paths(path, node)}
    for path in sorted(found - known - set(old.files)):
        yield Change(path, 1, "added", "a file that an import of the recorded program now finds")


@dataclass
class _Comparison:
    """The comparison of one file."""

    path: str
    recorded: str
    current: str
    additions: Additions
    changes: list[Change] = field(default_factory=list)
    _headers: dict[ast.AST, str] = field(default_factory=dict)
    _scores: dict[tuple[ast.AST, ast.AST], int] = field(default_factory=dict)

    def compare(self, old: Statements, new: Statements, parent: ast.AST) -> None:
        """Compare two statement lists: align them, look into aligned compounds, judge the rest."""
        removed: Statements = []
        added: Statements = []
        for before, after in self._align(old, new):
            if before is not None and after is not None:
                self._judge(removed, added, parent)
                removed, added = [], []
                self._compare_inside(before, after)
            elif before is not None:
                removed.append(before)
            elif after is not None:
                added.append(after)
        self._judge(removed, added, parent)

    def _compare_inside(self, before: ast.stmt, after: ast.stmt) -> None:
        for old, new in zip(blocks(before), blocks(after), strict=False):
            self.compare(old, new, after)

    def _judge(self, removed: Statements, added: Statements, parent: ast.AST) -> None:
        """Report what was removed and added between two aligned statements, as a change where it replaces."""
        suspects = [statement for statement in added if not self.additions.allow(statement, parent)]
        for before in removed:
            after = next((s for s in suspects if type(s) is type(before)), None)
            if after is not None:
                suspects.remove(after)
                self._report("changed", _first_difference(before, after))
                self._compare_inside(before, after)
            elif not _imports_only_flor(before):
                self._report("removed", before)
        for statement in suspects:
            self._report("added", statement)

    def _report(self, kind: str, node: ast.AST) -> None:
        lines = (self.recorded if kind == "removed" else self.current).splitlines()
        line = getattr(node, "lineno", 1)
        text = lines[line - 1].strip() if line <= len(lines) else ""
        self.changes.append(Change(self.path, line, kind, text))

    def _align(self, old: Statements, new: Statements) -> Iterator[tuple[ast.stmt | None, ast.stmt | None]]:
        """Pair equal statements in order, as many as possible; the unpaired stand alone."""
        table = self._table(old, new)
        i = j = 0
        while i < len(old) and j < len(new):
            score = self._score(old[i], new[j])
            if score and table[i][j] == score + table[i + 1][j + 1]:
                yield old[i], new[j]
                i, j = i + 1, j + 1
            elif table[i][j] == table[i + 1][j]:
                yield old[i], None
                i += 1
            else:
                yield None, new[j]
                j += 1
        yield from ((statement, None) for statement in old[i:])
        yield from ((None, statement) for statement in new[j:])

    def _table(self, old: Statements, new: Statements) -> list[list[int]]:
        """Fill the table of longest common subsequences, from the end."""
        table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
        for i in reversed(range(len(old))):
            for j in reversed(range(len(new))):
                score = self._score(old[i], new[j])
                paired = score + table[i + 1][j + 1] if score else 0
                table[i][j] = max(paired, table[i + 1][j], table[i][j + 1])
        return table

    def _score(self, before: ast.stmt, after: ast.stmt) -> int:
        """How much of two statements is equal: 0 when their headers differ, else what is within counts."""
        if self._header(before) != self._header(after):
            return 0
        key = before, after
        if key not in self._scores:
            pairs = zip(blocks(before), blocks(after), strict=True)
            self._scores[key] = 1 + sum(self._table(old, new)[0][0] for old, new in pairs)
        return self._scores[key]

    def _header(self, statement: ast.stmt) -> str:
        """Spell a statement without the statements inside it."""
        if statement not in self._headers:
            self._headers[statement] = ast.dump(_without_blocks(statement))
        return self._headers[statement]


def _without_blocks(node: ast.AST) -> ast.AST:
    bare = copy(node)
    for name in ("body", "orelse", "finalbody"):
        if isinstance(getattr(bare, name, None), list):
            setattr(bare, name, [])
    for name in ("handlers", "cases"):
        if hasattr(bare, name):
            setattr(bare, name, [_without_blocks(part) for part in getattr(bare, name)])
    return bare


def _imports_only_flor(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import):
        return all(alias.name == PACKAGE for alias in statement.names)
    return isinstance(statement, ast.ImportFrom) and statement.module == PACKAGE


def _first_difference(before: ast.AST, after: ast.AST) -> ast.AST:
    """Find the smallest part of a changed statement that holds the whole change and has a line."""
    old = list(ast.iter_child_nodes(_without_blocks(before)))
    new = list(ast.iter_child_nodes(_without_blocks(after)))
    if len(old) != len(new):
        return after
    differing = [(a, b) for a, b in zip(old, new, strict=True) if ast.dump(a) != ast.dump(b)]
    if len(differing) != 1:
        return after
    part = _first_difference(*differing[0])
    return part if hasattr(part, "lineno") else after
