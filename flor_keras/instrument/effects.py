"""What statements change: names they bind, objects they change in place. FLOR's rules, widened by the call graph.

v = f(…)         binds v; f is looked into where it is the program's own, and trusted where it is a library's
v = obj.m(…)     binds v, changes obj; so does obj.m(…) alone
    v = obj.a, …     binds v; where the object v stands for is changed, so is obj
obj.a = …, obj[i] = …, v += …    change the object
f(…) alone       changes what f, the program's own, changes; nothing where f is known to only show something;
                 of any other f nothing can be said
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flor_keras.instrument.calls import Calls, matched_arguments
from flor_keras.instrument.keras_words import words
from flor_keras.instrument.liveness import reads, writes
from flor_keras.instrument.scopes import Scope
from flor_keras.instrument.syntax import FunctionNode, children_here, inner_parts, last_name, root_name

_BUILTINS = frozenset(dir(builtins))
_UNKNOWABLE = frozenset({"exec", "eval", "globals", "locals", "vars"})
_DRAWING = frozenset({"next", "setattr", "delattr", "anext"})  # change their first argument
# Functions of libraries that change their first argument, by the last word.
_CHANGING_FIRST = words(
    "shuffle copyto put place putmask fill_diagonal at heappush heappop heapify heapreplace insort insort_left insort_right"
)
# Methods that change nothing, of arrays, tensors, texts and containers.
_QUIET_METHODS = words(
    """sum mean max min std var argmax argmin any all astype reshape ravel flatten transpose squeeze item tolist numpy dot
    round clip cumsum copy get keys values items index count format join split strip replace startswith endswith lower
    upper encode decode isoformat shape cardinality element_spec numel as_numpy_iterator batch map prefetch take skip
    repeat cache unbatch padded_batch enumerate filter union difference intersection get_weights get_config summary"""
)
# Libraries whose functions, called alone, show or check something; by the beginning of the dotted name.
_QUIET = (
    *(
        "tensorflow.",
        "keras.",
        "numpy.",
        "math.",
        "logging.",
        "warnings.",
        "time.",
        "gc.",
        "sys.stdout",
        "sys.stderr",
    ),
    *(
        "matplotlib.",
        "tqdm.",
        "pprint.",
        "os.makedirs",
        "os.mkdir",
        "json.dump",
        "flor_keras.",
        "IPython.",
        "absl.",
    ),
)
_QUIET_BUILTINS = words("print input isinstance hasattr len repr str float int bool breakpoint super")


@dataclass(frozen=True)
class Unknown:
    """A call, alone in a statement, of which nothing can be said; ``name`` is the name called, if it is one."""

    path: str
    line: int
    text: str
    name: str | None


@dataclass
class Changes:
    """What some code changes.

    Attributes:
      bound: names it binds in its own scope.
      changed: names of that scope whose objects it changes in place.
      elsewhere: (path, name) of module-level names of files it binds or changes from inside functions.
      unknown: calls that may change anything.
    """

    bound: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    elsewhere: set[tuple[str, str]] = field(default_factory=set)
    unknown: list[Unknown] = field(default_factory=list)


class Effects:
    """Estimates changes in one program."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._summaries: dict[Scope, Changes] = {}

    def of(self, scope: Scope, nodes: Sequence[ast.AST]) -> Changes:
        """Return what running ``nodes``, which stand in ``scope``, changes."""
        found = Changes()
        for node in nodes:
            found.bound |= writes(node)
            for part, is_alone in _parts(node):
                self._note(scope, part, is_alone, found)
        _follow_aliases(nodes, found)
        return found

    def summary(self, scope: Scope) -> Changes:
        """Return what calling a function changes, names being those of the function."""
        if scope not in self._summaries:
            self._summaries[scope] = Changes()  # a recursive call finds this
            self._summaries[scope] = self.of(scope, inner_parts(scope.node))
        return self._summaries[scope]

    def _note(self, scope: Scope, node: ast.AST, is_alone: bool, found: Changes) -> None:
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                self._change(node, found)
            case ast.AugAssign(target=target):
                self._change(target, found)
            case ast.Call():
                self._call(scope, node, is_alone, found)

    def _change(self, node: ast.AST | None, found: Changes) -> None:
        root = root_name(node) if node is not None else None
        if root is not None:
            found.changed.add(root)

    def _call(self, scope: Scope, call: ast.Call, is_alone: bool, found: Changes) -> None:
        for keyword in call.keywords:
            if keyword.arg == "out":
                self._change(keyword.value, found)
        name = last_name(call.func)
        own = self._calls.values(scope, call.func)
        for function in own:
            self._enter(scope, function, call, found)
        if isinstance(call.func, ast.Name):
            self._call_of_name(scope, call, name, bool(own), is_alone, found)
        elif isinstance(call.func, ast.Attribute):
            self._call_of_attribute(scope, call, call.func, bool(own), is_alone, found)
        else:
            self._change(call.func, found)
            if is_alone and not own:
                found.unknown.append(_unknown(scope, call, None))

    def _call_of_name(
        self, scope: Scope, call: ast.Call, name: str, is_own: bool, is_alone: bool, found: Changes
    ) -> None:
        if is_own or self._calls.index.lookup(scope.path, name):
            return
        outside = self._calls.index.files[scope.path].imports.get(name)
        if outside is not None:
            self._library(scope, call, outside, is_alone, found)
        elif name in _DRAWING:
            self._change(call.args[0] if call.args else None, found)
        elif name in _UNKNOWABLE:
            found.unknown.append(_unknown(scope, call, None))
        elif name in _BUILTINS:
            if is_alone and name not in _QUIET_BUILTINS:
                found.unknown.append(_unknown(scope, call, None))
        else:
            found.changed.add(name)
            if is_alone:
                found.unknown.append(_unknown(scope, call, name))

    def _call_of_attribute(
        self, scope: Scope, call: ast.Call, func: ast.Attribute, is_own: bool, is_alone: bool, found: Changes
    ) -> None:
        absolute = self._calls.index.absolute(scope.path, func)
        if absolute is not None and not is_own:
            self._library(scope, call, absolute, is_alone, found)
        elif absolute is None and func.attr not in _QUIET_METHODS:
            self._change(func.value, found)
            if is_alone and root_name(func.value) is None and not isinstance(func.value, ast.Constant):
                found.unknown.append(_unknown(scope, call, None))

    def _library(self, scope: Scope, call: ast.Call, name: str, is_alone: bool, found: Changes) -> None:
        if last_name(call.func) in _CHANGING_FIRST:
            self._change(call.args[0] if call.args else None, found)
        elif is_alone and not f"{name}.".startswith(_QUIET) and not name.startswith(_QUIET):
            found.unknown.append(_unknown(scope, call, None))

    def _enter(self, scope: Scope, function: Scope, call: ast.Call, found: Changes) -> None:
        """Take over what a function of the program changes: its arguments, module-level names, unknown calls."""
        inside = self.summary(function)
        found.elsewhere |= inside.elsewhere
        found.unknown += [unknown for unknown in inside.unknown if unknown not in found.unknown]
        given = set(function.parameters)
        for argument in _changed_arguments(function, call, inside.changed & given):
            self._change(argument, found)
        local = given | (inside.bound - _declared(function))
        for name in (inside.changed | inside.bound) - local:
            home = _home(function, name)
            if home is scope:
                (found.bound if name in inside.bound else found.changed).add(name)
            elif home is None or isinstance(home.node, ast.Module):
                if name not in self._calls.index.files[function.path].imports:
                    found.elsewhere.add((function.path, name))
            elif home is not function:
                text = f"{function.qualname} changes {name} of {home.qualname}"
                found.unknown.append(Unknown(scope.path, call.lineno, text, None))


def _changed_arguments(function: Scope, call: ast.Call, changed: set[str]) -> list[ast.expr]:
    """Return the arguments of a call that stand for changed parameters: all, where stars hide which those are."""
    every = [*call.args, *(keyword.value for keyword in call.keywords)]
    has_stars = any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    )
    if changed and has_stars:
        return every
    return [argument for name, argument in matched_arguments(function, call) if name in changed]


def _follow_aliases(nodes: Sequence[ast.AST], found: Changes) -> None:
    """Where an object is changed under one name, what that name was taken from may hold it too: ``x = o.items``."""
    bindings = [binding for node in nodes for part, _ in _parts(node) for binding in _bindings(part)]
    while more := {
        name for names, value in bindings if names & found.changed for name in reads(value) - found.changed
    }:
        found.changed |= more


def _bindings(node: ast.AST) -> Iterator[tuple[frozenset[str], ast.AST]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((writes(target), value) for target in targets)
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            yield writes(target), value
        case ast.For(target=target, iter=value):
            yield writes(target), value
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield writes(target), value


def _home(function: Scope, name: str) -> Scope | None:
    """Return the enclosing scope a free name of a function belongs to."""
    outer = function.outer
    while outer is not None:
        is_bound = name in outer.parameters or any(name in writes(node) for node in inner_parts(outer.node))
        if is_bound or isinstance(outer.node, ast.Module):
            return outer
        outer = outer.outer
    return None


def _declared(scope: Scope) -> set[str]:
    """Return the names a function declares to be another scope's."""
    nodes = [node for part in inner_parts(scope.node) for node in ast.walk(part)]
    return {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}


def _unknown(scope: Scope, call: ast.Call, name: str | None) -> Unknown:
    text = ast.unparse(call)
    return Unknown(scope.path, call.lineno, text if len(text) <= 60 else f"{text[:57]}…", name)


def _parts(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield what runs where ``node`` runs, and whether it is a call that is a statement of its own."""
    todo = [(node, False)]
    while todo:
        part, is_alone = todo.pop()
        yield part, is_alone
        if isinstance(part, FunctionNode) and part is not node:
            todo += [(child, False) for child in children_here(part)]
        else:
            todo += [(child, isinstance(part, ast.Expr)) for child in children_here(part)]
