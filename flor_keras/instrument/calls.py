"""Which functions a piece of code may run or hand on: a call graph by simple names.

It errs on the side of too many edges: a line thought reachable costs a little time in replay, a line missed
loses a value.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable, Iterator

from flor_keras.instrument.index import Index
from flor_keras.instrument.levels import Level, argument_rule, dearest, method_level
from flor_keras.instrument.scopes import Class, Scope, calls_in
from flor_keras.instrument.syntax import is_generator, last_name, own_nodes

_BUILTINS = frozenset(dir(builtins))
# Calls through which Keras runs methods of the program's own classes.
_KERAS_RUNS_ALL = frozenset({"fit", "train_on_batch"})
_KERAS_RUNS_FORWARD = frozenset({"evaluate", "predict", "test_on_batch", "predict_on_batch"})


class Calls:
    """The functions of a program, what each may run, and which of them Keras runs by itself."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._by_node = {scope.node: scope for scope in index.scopes}
        self._names: dict[tuple[str, str], set[Scope]] = defaultdict(set)  # variables that hold functions
        self._attributes: dict[str, set[Scope]] = defaultdict(set)
        self._results: dict[Scope, set[Scope]] = defaultdict(set)  # functions a function returns
        self._find_aliases()
        self.entries: dict[Scope, Level] = {}  # what Keras runs by itself
        for scope, level in self._find_entries():
            self.entries[scope] = dearest(level, self.entries.get(scope, level))

    # What expressions mean

    def run_by(self, scope: Scope, node: ast.AST) -> set[Scope]:
        """Find the functions that evaluating this one node (its children apart) may run or hand on."""
        if isinstance(node, ast.Lambda):
            return {self._by_node[node]}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            return self._of_name(scope, node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            return self._of_attribute(scope, node)
        if isinstance(node, ast.Call) and self._is_opaque(scope, node.func):
            return {m for name in ("__call__", "call") for m in self.index.methods.get(name, ())}
        return set()

    def run_by_keras(self, node: ast.AST) -> set[Scope]:
        """Find the functions Keras runs inside ``fit``, ``evaluate`` or ``predict``."""
        called = last_name(node.func) if isinstance(node, ast.Call) else ""
        if called in _KERAS_RUNS_ALL:
            return set(self.entries)
        if called in _KERAS_RUNS_FORWARD:
            return {s for s, level in self.entries.items() if level in (Level.STEP, Level.EVAL)}
        return set()

    def graph(self) -> dict[Scope, set[Scope]]:
        """Map every scope to the functions it may run."""
        edges: dict[Scope, set[Scope]] = {}
        for scope in self.index.scopes:
            edges[scope] = self.decorating(scope)
            for node in own_nodes(scope.node):
                edges[scope] |= self.run_by(scope, node) | self.run_by_keras(node)
        return edges

    def decorating(self, scope: Scope) -> set[Scope]:
        """Find what runs when a decorated function is called: its decorators and what they return."""
        found: set[Scope] = set()
        for decorator in getattr(scope.node, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            makers = self.values(scope, called)
            found |= makers
            for maker in makers:
                found |= self._results[maker] | {
                    r for inner in self._results[maker] for r in self._results[inner]
                }
        return found

    def values(self, scope: Scope, node: ast.AST | None) -> set[Scope]:
        """Find the functions an expression may evaluate to, or hold."""
        match node:
            case ast.Lambda() | ast.Name() | ast.Attribute():
                return self.run_by(scope, node)
            case ast.Call():
                return self._values_of_call(scope, node)
            case (
                ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.Starred() | ast.IfExp() | ast.BoolOp()
            ):
                parts = list(ast.iter_child_nodes(node))
            case ast.Subscript(value=value) | ast.NamedExpr(value=value) | ast.Await(value=value):
                parts = [value]
            case _:
                parts = []
        return {found for part in parts for found in self.values(scope, part)}

    def _values_of_call(self, scope: Scope, call: ast.Call) -> set[Scope]:
        """A function of the program gives what it returns, any other (``partial``) what it was given."""
        called = self.values(scope, call.func)
        if called:
            generators = {s for s in called if is_generator(s.node)}
            return generators | {result for s in called for result in self._results[s]}
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        return {found for argument in arguments for found in self.values(scope, argument)}

    def _of_name(self, scope: Scope, name: str) -> set[Scope]:
        return self._expand(self.index.lookup(scope.path, name)) | self._names.get((scope.path, name), set())

    def _of_attribute(self, scope: Scope, node: ast.Attribute) -> set[Scope]:
        absolute = self.index.absolute(scope.path, node)
        if absolute is not None and not self._is_object(scope, node):
            return self._expand(self.index.resolve(scope.path, absolute))
        held = self._attributes.get(node.attr, set())
        classes = self._receiver_classes(scope, node.value)
        if classes is not None:
            return held | {c.methods[node.attr] for c in classes if node.attr in c.methods}
        return held | set(self.index.methods.get(node.attr, ()))

    def _is_object(self, scope: Scope, node: ast.Attribute) -> bool:
        """Tell whether an imported name is a class or variable of the program: its attributes are methods."""
        name = self.index.absolute(scope.path, node.value) or ""
        module, _, _ = name.rpartition(".")
        is_module = self.index.module_path(scope.path, name) is not None
        return bool(module) and not is_module and self.index.module_path(scope.path, module) is not None

    def _receiver_classes(self, scope: Scope, receiver: ast.AST) -> list[Class] | None:
        """Find the classes a method called on ``self``, ``super()`` or a class name may come from."""
        own = scope.self_class
        if isinstance(receiver, ast.Call) and last_name(receiver.func) == "super":
            return own.ancestors()[1:] if own else []
        if isinstance(receiver, ast.Name) and receiver.id in ("self", "cls") and own:
            return own.family()
        if isinstance(receiver, ast.Name | ast.Attribute):
            name = self.index.absolute(scope.path, receiver)
            found = self.index.resolve(scope.path, name) if name else []
            if not found and isinstance(receiver, ast.Name):
                found = self.index.lookup(scope.path, receiver.id)
            classes = [relative for c in found if isinstance(c, Class) for relative in c.family()]
            return classes or None
        return None

    def _expand(self, found: Iterable[Scope | Class]) -> set[Scope]:
        """Replace classes by the methods that run when they are used without a method being named."""
        return {s for item in found for s in ([item] if isinstance(item, Scope) else _constructors(item))}

    def _is_opaque(self, scope: Scope, called: ast.AST) -> bool:
        """Tell whether a call is of some object, such as a model: nothing says which function runs."""
        if isinstance(called, ast.Name):
            is_known = called.id in _BUILTINS or called.id in self.index.files[scope.path].imports
            return not is_known and not self.index.lookup(scope.path, called.id)
        if not isinstance(called, ast.Attribute):
            return isinstance(called, ast.Call | ast.Subscript)
        is_own = isinstance(called.value, ast.Name) and called.value.id == "self"
        return (is_own or called.attr == "model") and not self._of_attribute(scope, called)

    # Variables that hold functions

    def _find_aliases(self) -> None:
        """Follow functions through assignments, arguments and results until nothing new is found."""
        bindings = [b for scope in self.index.scopes for b in bindings_in(scope)]
        calls = [(scope, call) for scope in self.index.scopes for call in calls_in(scope)]
        before = -1
        while before != (size := self._num_aliases()):
            before = size
            for scope, target, value in bindings:
                self._bind(scope, target, self.values(scope, value))
            for scope, call in calls:
                self._bind_arguments(scope, call)
            for scope in self.index.scopes:
                self._follow_results(scope)

    def _num_aliases(self) -> int:
        tables = (self._names, self._attributes, self._results)
        return sum(len(found) for table in tables for found in table.values())

    def _bind(self, scope: Scope, target: ast.AST, functions: set[Scope]) -> None:
        if not functions:
            return
        if isinstance(target, ast.Name):
            self._names[scope.path, target.id] |= functions
        elif isinstance(target, ast.Attribute):
            self._attributes[target.attr] |= functions
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(scope, element, functions)
        elif isinstance(target, ast.Starred | ast.Subscript):
            self._bind(scope, target.value, functions)

    def _bind_arguments(self, scope: Scope, call: ast.Call) -> None:
        for called in self.values(scope, call.func):
            for name, argument in matched_arguments(called, call):
                if found := self.values(scope, argument):
                    self._names[called.path, name] |= found

    def _follow_results(self, scope: Scope) -> None:
        if isinstance(scope.node, ast.Lambda):
            self._results[scope] |= self.values(scope, scope.node.body)
            return
        for node in own_nodes(scope.node):
            if isinstance(node, ast.Return):
                self._results[scope] |= self.values(scope, node.value)
        for decorator in getattr(scope.node, "decorator_list", []):
            for maker in self.values(scope, decorator):
                for name in maker.parameters[:1]:
                    self._names[maker.path, name].add(scope)

    # Functions Keras runs by itself

    def _find_entries(self) -> Iterator[tuple[Scope, Level]]:
        for cls in self.index.classes:
            for name, method in cls.methods.items():
                related = {kind for relative in cls.family() for kind in relative.kinds}
                if (level := method_level(related, name)) is not None:
                    yield method, level
        for scope in self.index.scopes:
            for call in calls_in(scope):
                yield from self._argument_entries(scope, call)

    def _argument_entries(self, scope: Scope, call: ast.Call) -> Iterator[tuple[Scope, Level]]:
        arguments: list[tuple[str | None, ast.expr]] = [(None, argument) for argument in call.args]
        arguments += [(keyword.arg, keyword.value) for keyword in call.keywords]
        for name, argument in arguments:
            rule = argument_rule(last_name(call.func), name)
            for found in self.values(scope, argument) if rule else ():
                if not rule.only_generators or is_generator(found.node):  # type: ignore[union-attr]
                    yield found, rule.level  # type: ignore[union-attr]


def _constructors(cls: Class) -> set[Scope]:
    """Methods that run when a class is called; of a plain class, whatever Python may call by itself."""
    methods = {name: m for relative in reversed(cls.ancestors()) for name, m in relative.methods.items()}
    if cls.kinds:
        return {m for name, m in methods.items() if name in ("__init__", "__new__")}
    return {m for name, m in methods.items() if name.startswith("__") and name != "__call__"}


def bindings_in(scope: Scope) -> Iterator[tuple[Scope, ast.AST, ast.AST | None]]:
    """List (target, value) of every assignment in a scope, loops over a collection included."""
    for node in own_nodes(scope.node):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((scope, target, value) for target in targets)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                yield scope, target, value
            case ast.AugAssign(target=target, value=value):
                yield scope, target, value
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield scope, target, value
            case ast.Call(
                func=ast.Attribute(value=target, attr="append" | "extend" | "insert"), args=[*_, value]
            ):
                yield scope, target, value


def matched_arguments(called: Scope, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Pair the arguments of a call with the parameters of the function called."""
    names = called.parameters
    is_bound = called.owner is not None and names[:1] in (["self"], ["cls"])
    yield from zip(names[is_bound:], call.args, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg in names)
