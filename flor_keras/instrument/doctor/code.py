"""What the doctor asks of a source: which code is traced, which makes data, where a value comes from.

Names and calls only, nothing is run. Where the call graph cannot tell, a question is answered with no: a rule
that finds too much is worse than one that finds too little.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from flor_keras.instrument.calls import Calls, bindings_in
from flor_keras.instrument.fitting import is_fit
from flor_keras.instrument.index import Index
from flor_keras.instrument.keras_words import words
from flor_keras.instrument.levels import Level
from flor_keras.instrument.main_loops import MainLoop, MainLoops, Refused
from flor_keras.instrument.scopes import Class, ClassKind, Scope, calls_in
from flor_keras.instrument.syntax import is_generator, last_name, own_nodes

Found = tuple[Scope, ast.AST]

PIPELINE_TAKERS = words("map filter flat_map interleave scan take_while")
STEP_TAKERS = words("Lambda MeanMetricWrapper LossFunctionWrapper add_loss")
DATASET_MAKERS = words("from_tensor_slices from_tensors from_generator")
_TRACED_KEYWORDS = words("loss loss_fn activation")
_UNTRACED_METHODS = words("build __init__ make_train_function result reset_state reset_states get_config")


@dataclass(frozen=True)
class Surroundings:
    """What a program would find around it: environment variables, and how many GPUs."""

    variables: Mapping[str, str]
    num_gpus: int = 0


class Code:
    """The sources of one program; ``script`` is the path that is run.

    Raises ``UsageError`` that names file and line when a source is not valid Python.
    """

    def __init__(self, script: str, sources: Mapping[str, str], around: Surroundings) -> None:
        self.index = Index(script, sources)
        self.calls = Calls(self.index)
        self.script = self.index.files[script]
        self.around = around
        self._scopes = {scope.node: scope for scope in self.index.scopes}
        self._bound: dict[tuple[Scope, str], list[tuple[Scope, ast.AST]]] = {}
        self._locals = {scope: _assigned_names(scope) for scope in self.index.scopes}
        for scope in self.index.scopes:
            for where, target, value in bindings_in(scope):
                for name in _names_bound(target) if value is not None else ():
                    holder = self._holder(scope, name)
                    self._bound.setdefault((holder, name), []).append((where, value))  # type: ignore[arg-type]

    # -- calls ---------------------------------------------------------------------------------------------

    def name_of(self, scope: Scope, call: ast.Call) -> str:
        """Spell the called function from the top (``numpy.random.rand``); empty where it is no import's."""
        return self.index.absolute(scope.path, call.func) or ""

    def all_calls(self) -> Iterator[tuple[Scope, ast.Call]]:
        """List every call of the program."""
        return ((scope, call) for scope in self.index.scopes for call in calls_in(scope))

    def calls_of(
        self, is_wanted: Callable[[str], bool], scopes: Iterable[Scope] | None = None
    ) -> Iterator[tuple[Scope, ast.Call]]:
        """List the calls of imported functions whose whole name is wanted, in the order of the source."""
        for scope in self.index.scopes if scopes is None else self.in_order(scopes):
            found = [call for call in calls_in(scope) if is_wanted(self.name_of(scope, call))]
            yield from ((scope, call) for call in sorted(found, key=lambda call: call.lineno))

    def in_order(self, scopes: Iterable[Scope]) -> list[Scope]:
        """Return scopes in the order of the source."""
        wanted = set(scopes)
        return [scope for scope in self.index.scopes if scope in wanted]

    def flor_calls(self, name: str) -> Iterator[tuple[Scope, ast.Call]]:
        """List the calls of a function of flor_keras."""
        for scope, call in self.all_calls():
            if self.index.files[scope.path].flor.is_call(call, name):
                yield scope, call

    def compile_keywords(self, keyword: str) -> Iterator[tuple[Scope, ast.keyword]]:
        """List what calls of ``compile`` are given under a keyword."""
        for scope, call in self.all_calls():
            if last_name(call.func) == "compile":
                yield from ((scope, given) for given in call.keywords if given.arg == keyword)

    @cached_property
    def fits(self) -> list[tuple[Scope, ast.Call]]:
        """The calls of Keras's ``fit``."""
        return [(scope, call) for scope, call in self.all_calls() if is_fit(self.calls, scope, call)]

    @cached_property
    def is_marked(self) -> bool:
        """Whether the program says itself what its loops are: by ``fit``, `flor.loop` or `@flor.record`."""
        if self.fits or any(True for name in ("loop", "record") for _ in self.flor_calls(name)):
            return True
        return any(self._main_loops.is_decorated(scope) for scope in self.index.scopes)

    @cached_property
    def own_loops(self) -> tuple[list[MainLoop], list[Refused]]:
        """The loops that train by themselves, which `flor-keras record` finds, and those of them it leaves alone."""
        judged = [self._main_loops.training(scope) for scope in self.index.scopes]
        return [loop for found, _ in judged for loop in found], [r for _, refused in judged for r in refused]

    @cached_property
    def _main_loops(self) -> MainLoops:
        return MainLoops(self.calls)

    @cached_property
    def seeds(self) -> list[tuple[Scope, ast.Call]]:
        """The calls that give TensorFlow a global seed, apart from `flor.seed`."""
        names = ("utils.set_random_seed", "random.set_seed", "random.set_random_seed")
        return list(self.calls_of(lambda name: name.endswith(names)))

    @cached_property
    def has_flor_seed(self) -> bool:
        """Whether the program calls `flor.seed`."""
        return any(True for _ in self.flor_calls("seed"))

    @property
    def has_global_seed(self) -> bool:
        """Whether TensorFlow has a global seed."""
        return self.has_flor_seed or bool(self.seeds)

    # -- which code runs where -----------------------------------------------------------------------------

    @cached_property
    def _graph(self) -> dict[Scope, set[Scope]]:
        return self.calls.graph()

    def reached_from(self, scopes: Iterable[Scope]) -> set[Scope]:
        """Return the scopes and all that they may run."""
        found, todo = set[Scope](), list(scopes)
        while todo:
            scope = todo.pop()
            if scope not in found:
                found.add(scope)
                todo += self._graph.get(scope, ())
        return found

    @cached_property
    def traced(self) -> set[Scope]:
        """The functions TensorFlow traces into a training step; none where the model runs eagerly."""
        if any(_is_true(given.value) for _, given in self.compile_keywords("run_eagerly")):
            return set()
        starts = [
            scope for scope in self.index.scopes if self._is_tf_function(scope) or self._is_step_method(scope)
        ]
        for scope, call in self.all_calls():
            takes_all = (
                last_name(call.func) in STEP_TAKERS or self.name_of(scope, call) == "tensorflow.function"
            )
            given = [*call.args, *(k.value for k in call.keywords if takes_all or k.arg in _TRACED_KEYWORDS)]
            for argument in given if takes_all else given[len(call.args) :]:
                starts += self.calls.values(scope, argument)
        return {s for s in self.reached_from(starts) if s.name not in _UNTRACED_METHODS} - self.hooks

    def _is_step_method(self, scope: Scope) -> bool:
        is_object = scope.owner is not None and any(ClassKind.OBJECT in c.kinds for c in scope.owner.family())
        is_step = self.calls.entries.get(scope) is Level.STEP
        return is_object and is_step and scope.name not in _UNTRACED_METHODS

    def _is_tf_function(self, scope: Scope) -> bool:
        decorators = getattr(scope.node, "decorator_list", [])
        called = [d.func if isinstance(d, ast.Call) else d for d in decorators]
        return any(self.index.absolute(scope.path, d) == "tensorflow.function" for d in called)

    @cached_property
    def callbacks(self) -> list[Class]:
        """The callback classes of the program."""
        return [cls for cls in self.index.classes if ClassKind.CALLBACK in cls.kinds]

    @cached_property
    def hooks(self) -> set[Scope]:
        """The methods of callbacks and the functions given to LambdaCallback; not what these call."""
        found = {method for cls in self.callbacks for method in cls.methods.values()}
        for scope, call in self.all_calls():
            if last_name(call.func) == "LambdaCallback":
                found |= {f for given in call.keywords for f in self.calls.values(scope, given.value)}
        return found

    @cached_property
    def pipelines(self) -> list[tuple[Scope, bool]]:
        """The functions given to ``Dataset.map`` and the like, and whether calls of each run at once."""
        found: dict[Scope, bool] = {}
        for scope, call in self.all_calls():
            if isinstance(call.func, ast.Attribute) and last_name(call.func) in PIPELINE_TAKERS:
                given = [
                    *call.args[:1],
                    *(k.value for k in call.keywords if k.arg in ("map_func", "predicate")),
                ]
                reached = self.reached_from(
                    f for argument in given for f in self.calls.values(scope, argument)
                )
                for function in reached:
                    found[function] = found.get(function, False) or is_parallel(call)
        return [(scope, found[scope]) for scope in self.in_order(found)]

    @cached_property
    def generators(self) -> set[Scope]:
        """The generators that make training data: given to ``from_generator`` or to ``fit``."""
        found: set[Scope] = set()
        fits = [call for _, call in self.fits]
        for scope, call in self.all_calls():
            if last_name(call.func) == "from_generator" or call in fits:
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                found |= {
                    f
                    for argument in given
                    for f in self.calls.values(scope, argument)
                    if is_generator(f.node)
                }
        return found

    # -- where a value comes from --------------------------------------------------------------------------

    @cached_property
    def data(self) -> dict[ast.AST, Scope]:
        """Every expression that training data are made of, as far as names tell."""
        starts: list[Found] = []
        fits = [call for _, call in self.fits]
        for scope, call in self.all_calls():
            if call in fits or last_name(call.func) in DATASET_MAKERS:
                starts += [(scope, a) for a in call.args]
                starts += [
                    (scope, k.value)
                    for k in call.keywords
                    if k.arg in (None, "x", "y", "validation_data", "tensors")
                ]
        return self.sources_of(starts)

    def sources_of(
        self, starts: Iterable[Found], stops: frozenset[str] = frozenset()
    ) -> dict[ast.AST, Scope]:
        """Return the expressions values are computed from, through names, loops and results of functions.

        Args:
          starts: the values, each with the scope it stands in.
          stops: functions whose result says nothing of what they are given.
        """
        found: dict[ast.AST, Scope] = {}
        todo = list(starts)
        while todo:
            scope, node = todo.pop()
            if node in found or isinstance(node, ast.Lambda | ast.FunctionDef):
                continue
            found[node] = scope
            if isinstance(node, ast.Call) and last_name(node.func) in stops:
                continue
            if isinstance(node, ast.Name):
                todo += self.bound(scope, node.id)
            if isinstance(node, ast.Call):
                todo += [(f, value) for f in self.calls.values(scope, node.func) for value in _results(f)]
            todo += [(scope, child) for child in ast.iter_child_nodes(node)]
        return found

    def bound(self, scope: Scope, name: str) -> list[Found]:
        """List what a name may have been given, in the scope it belongs to."""
        return list(self._bound.get((self._holder(scope, name), name), ()))

    def is_global(self, scope: Scope, name: str) -> bool:
        """Whether a name is a variable of the file and not of the function ``scope``."""
        holder = self._holder(scope, name)
        return holder is not scope and holder.outer is None and (holder, name) in self._bound

    def _holder(self, scope: Scope, name: str) -> Scope:
        """Find the scope a name belongs to: the innermost that assigns it or has it as a parameter."""
        at = scope
        while at.outer is not None and name not in at.parameters and name not in self._locals[at]:
            at = at.outer
        return at


def is_parallel(call: ast.Call) -> bool:
    """Whether a transformation runs several calls at once."""
    given = [k.value for k in call.keywords if k.arg == "num_parallel_calls"]
    return any(not (isinstance(value, ast.Constant) and value.value in (None, 1)) for value in given)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call is given under a keyword."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _assigned_names(scope: Scope) -> set[str]:
    nodes = list(own_nodes(scope.node))
    elsewhere = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - elsewhere


def _names_bound(target: ast.AST) -> Iterator[str]:
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from _names_bound(element)
        case ast.Starred(value=value) | ast.Subscript(value=value):
            yield from _names_bound(value)


def _results(scope: Scope) -> Iterator[ast.AST]:
    if isinstance(scope.node, ast.Lambda):
        yield scope.node.body
        return
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
            yield node.value
