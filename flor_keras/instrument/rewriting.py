"""Put the calls that record and replay a main loop into a program's syntax tree. The file on disk stays as it is.

    for epoch in range(9):              with _flor_loop_(3) as _flor_3_:
        A                                   <names>
        for x in data: B                    for epoch in _flor_3_.epochs(range(9)):
        C                                       <names>
                                                if _flor_3_.runs_all: A
                                                if _flor_3_.enters():
                                                    for x in _flor_3_.steps(data): B
                                                    _flor_3_.leave()
                                                <names>
                                                C
                                        <names>

``<names>`` puts back the locals that a restored checkpoint holds: ``if _flor_3_.restores(): …``. Every node keeps its
line, so tracebacks and debuggers show the program's own.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable
from typing import Any

from flor_keras.instrument.main_loops import MainLoop
from flor_keras.instrument.syntax import Loop

BEGIN = "_flor_loop_"


def rewritten(tree: ast.Module, loops: Iterable[MainLoop]) -> ast.Module:
    """Return a copy of a file's tree in which the given main loops of the file are driven by flor_keras."""
    memo: dict[int, object] = {}
    result: ast.Module = copy.deepcopy(tree, memo)
    replacements = {id(memo[id(main.node)]): _Rewriting(main, memo) for main in loops}
    _Replacer(replacements).visit(result)
    ast.fix_missing_locations(result)
    return result


class _Replacer(ast.NodeTransformer):
    def __init__(self, replacements: dict[int, _Rewriting]) -> None:
        self._replacements = replacements

    def _visit_loop(self, node: Loop) -> ast.AST | list[ast.stmt]:
        rewriting = self._replacements.get(id(node))
        self.generic_visit(node)
        return node if rewriting is None else rewriting.statements(node)  # type: ignore[arg-type]

    visit_For = visit_While = _visit_loop


class _Rewriting:
    """Rewrites one main loop, in the copy of the tree."""

    def __init__(self, main: MainLoop, memo: dict[int, object]) -> None:
        self._main = main
        self._line = main.node.lineno
        self._variable = f"_flor_{self._line}_"
        self._home = memo[id(main.home)]

    def statements(self, loop: ast.For | ast.While) -> list[ast.stmt]:
        """Return what takes the place of the loop."""
        is_whole = self._main.first is None
        home = self._home
        assert isinstance(home, list)
        is_own = home is loop.body
        if not is_whole:
            assert self._main.first is not None
            first, last = self._main.first, self._main.last
            before, block, after = home[:first], home[first : last + 1], home[last + 1 :]
            if is_own and before:
                before = [self._if(f"{self._variable}.runs_all", before)]
            home[:] = [*before, self._block(block), *self._names(block[-1]), *after]
        loop.body[:0] = self._names(loop)
        self._drive(loop)
        item = ast.withitem(
            self._call(BEGIN, ast.Constant(self._line)), ast.Name(self._variable, ast.Store())
        )
        for part in (item.context_expr, item.optional_vars):
            _place(part, loop)
        opening = ast.copy_location(ast.With(items=[item], body=[*self._names(loop), loop]), loop)
        return [opening, *self._names(loop)]

    def _drive(self, loop: ast.For | ast.While) -> None:
        if isinstance(loop, ast.For):
            loop.iter = self._call("epochs", loop.iter)
            return
        code = f"{self._variable}.next_epoch() and ({self._variable}.is_entered or TEST or {self._variable}.ends())"
        condition = ast.parse(code, mode="eval").body
        assert isinstance(condition, ast.BoolOp)
        inner = condition.values[1]
        assert isinstance(inner, ast.BoolOp)
        _place(condition, loop.test)
        inner.values[1] = loop.test
        loop.test = condition

    def _block(self, block: list[ast.stmt]) -> ast.stmt:
        for statement in block:
            if isinstance(statement, ast.For):
                statement.iter = self._call("steps", statement.iter)
            elif isinstance(statement, ast.While):
                step = self._call("step")
                statement.test = ast.copy_location(
                    ast.BoolOp(ast.And(), [statement.test, step]), statement.test
                )
        leave = _place(ast.Expr(self._call("leave")), block[-1], is_last=True)
        return self._if(f"{self._variable}.enters()", [*block, leave])

    def _if(self, test: str, body: list[ast.stmt]) -> ast.stmt:
        condition = ast.parse(test, mode="eval").body
        _place(condition, body[0])
        found = ast.If(test=condition, body=body, orelse=[])
        return ast.copy_location(found, body[0])

    def _names(self, near: ast.stmt) -> list[ast.stmt]:
        """Put back the locals a restored checkpoint holds, those that are in it."""
        lines = [f"if {self._variable}.restores():", f"    _flor_names_ = {self._variable}.take()"]
        for name in self._main.kept:
            lines.append(f"    if {name!r} in _flor_names_: {name} = _flor_names_[{name!r}]")
        lines.append("    del _flor_names_")
        statements = ast.parse("\n".join(lines)).body
        for statement in statements:
            _place(statement, near, is_last=True)
        return statements

    def _call(self, name: str, *arguments: ast.expr) -> ast.Call:
        function = name if name == BEGIN else f"{self._variable}.{name}"
        call = ast.parse(f"{function}()", mode="eval").body
        assert isinstance(call, ast.Call)
        _place(call, arguments[0] if arguments and hasattr(arguments[0], "lineno") else self._main.node)
        call.args = list(arguments)
        return call


def _place(node: Any, near: ast.AST, is_last: bool = False) -> Any:
    """Give a new node, and all in it, the place of a node of the program."""
    line = getattr(near, "end_lineno" if is_last else "lineno", 1)
    if is_last and isinstance(near, ast.For | ast.While):
        line = near.lineno
    for part in ast.walk(node):
        if "lineno" in part._attributes:
            part.lineno = part.end_lineno = line  # type: ignore[attr-defined]
            part.col_offset = part.end_col_offset = near.col_offset  # type: ignore[attr-defined]
    return node
