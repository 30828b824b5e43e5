"""Finds what comes from outside of a program: folders, clocks, threads, hash seeds, devices."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flor_keras.instrument.doctor.code import Code, Found, keyword
from flor_keras.instrument.doctor.randomness import CLOCKS, Places
from flor_keras.instrument.keras_words import words
from flor_keras.instrument.scopes import Scope, calls_in
from flor_keras.instrument.syntax import dotted, last_name, own_nodes

_ORDERLESS = words(
    "sorted len sum min max any all set frozenset unique sort sort_values isin Counter bincount"
)
_LISTINGS = words(
    "os.listdir os.scandir os.walk glob.glob glob.iglob tensorflow.io.gfile.glob tensorflow.io.gfile.listdir"
)
_PATH_LISTINGS = words("iterdir rglob glob")
_TEXT_MAKERS = words("split splitlines lower upper strip read read_text listdir glob iterdir join decode")
_TRANSFORMATIONS = words("map interleave batch ragged_batch")
_ITERATING = words("list tuple enumerate iter array")
_OUTSIDE = (
    *CLOCKS,
    "requests.get",
    "urllib.request.urlopen",
    "threading.Thread",
    "queue.Queue",
    "socket.socket",
)


def no_loops(code: Code) -> Places:
    """Find a program without anything to record, with the reason where loops that train are left as they are."""
    if code.is_marked:
        return
    loops, refused = code.own_loops
    if not loops:
        whys = [f"; {at.path}:{at.line} is left as it is: {at.why}" for at in refused]
        yield code.script.top, code.script.tree, "".join(whys[:1])


def variables_outside_the_model(code: Code) -> Places:
    """Find variables of the file that a step assigns and no layer, model or optimizer holds."""
    for scope in code.in_order(code.traced):
        for call in calls_in(scope):
            match call.func:
                case ast.Attribute(value=ast.Name(id=name), attr="assign" | "assign_add" | "assign_sub"):
                    for where, value in code.bound(scope, name) if code.is_global(scope, name) else ():
                        if isinstance(value, ast.Call) and code.name_of(where, value).endswith(".Variable"):
                            yield where, value, name


def clocks_logged(code: Code) -> Places:
    """Find logged values that follow from the clock."""
    for scope, call in code.flor_calls("log"):
        given = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "value")]
        if _clock_in(code, [(scope, value) for value in given]):
            yield scope, call, ""


def _clock_in(code: Code, starts: list[Found]) -> bool:
    """Tell whether values follow from the clock, through attributes of ``self`` too."""
    found = code.sources_of(starts)
    attributes = {n.attr for n in found if isinstance(n, ast.Attribute) and dotted(n) == f"self.{n.attr}"}
    held = [value for scope, _ in starts for value in _held(scope, attributes)]
    every = {**found, **code.sources_of(held)}
    return any(
        isinstance(node, ast.Call) and code.name_of(scope, node) in CLOCKS for node, scope in every.items()
    )


def _held(scope: Scope, attributes: set[str]) -> Iterator[Found]:
    for method in scope.self_class.methods.values() if scope.self_class else ():
        for node in own_nodes(method.node):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value
                ) if name in attributes:
                    yield method, value


def logs_under_xla(code: Code) -> Places:
    """Find log lines in a step that XLA compiles."""
    is_compiled = any(_is_constant(given.value, True) for _, given in code.compile_keywords("jit_compile"))
    for scope, call in code.flor_calls("log") if is_compiled else ():
        if scope in code.traced:
            yield scope, call, ""


def repeated_shuffles(code: Code) -> Places:
    """Find `shuffle(…)` without a seed below `repeat()`, where TensorFlow has no seed either."""
    if code.has_global_seed:
        return
    for scope, call in code.all_calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "repeat":
            for shuffle in _shuffles_below(code, scope, call.func.value, call.lineno):
                yield scope, shuffle, ""


def _shuffles_below(code: Code, scope: Scope, node: ast.AST, line: int) -> Iterator[ast.Call]:
    """Follow a pipeline towards its source: the receivers of its calls, and names that were bound above."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_shuffle = node.func.attr == "shuffle" and (node.args or keyword(node, "buffer_size") is not None)
        if is_shuffle and len(node.args) < 2 and keyword(node, "seed") is None:
            yield node
        node = node.func.value
    if isinstance(node, ast.Name):
        bound = [
            (s, v) for s, v in code.bound(scope, node.id) if s is scope and getattr(v, "lineno", line) < line
        ]
        for where, value in bound:
            yield from _shuffles_below(code, where, value, value.lineno)  # type: ignore[attr-defined]


def unordered_pipelines(code: Code) -> Places:
    """Find pipelines that may give elements in the order they become ready."""
    for scope, call in code.all_calls():
        is_transformation = isinstance(call.func, ast.Attribute) and call.func.attr in _TRANSFORMATIONS
        if is_transformation and _is_constant(keyword(call, "deterministic"), False):
            yield scope, call, "deterministic=False"
    for scope in code.index.scopes:
        for node in own_nodes(scope.node):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(attr="deterministic" | "experimental_deterministic" as name)],
                    value=value,
                ):
                    if _is_constant(value, False):
                        yield scope, node, f"{name} = False"


def outside_in_generators(code: Code) -> Places:
    """Find generators of data whose elements follow from the clock, threads or the network."""
    for generator in code.in_order(code.generators):
        values = [
            n.value for n in own_nodes(generator.node) if isinstance(n, ast.Yield | ast.YieldFrom) and n.value
        ]
        for node, scope in code.sources_of((generator, value) for value in values).items():
            if isinstance(node, ast.Call) and code.name_of(scope, node) in _OUTSIDE:
                yield scope, node, dotted(node.func) or ""


def unsorted_listings(code: Code) -> Places:
    """Find listings of folders that training data are made of, without `sorted`."""
    for node, scope in _ordered_data(code).items():
        if isinstance(node, ast.Call) and _is_listing(code, scope, node):
            yield scope, node, dotted(node.func) or last_name(node.func)


def _is_listing(code: Code, scope: Scope, call: ast.Call) -> bool:
    name = code.name_of(scope, call)
    if name in _LISTINGS:
        return True
    is_method = isinstance(call.func, ast.Attribute) and not name
    return is_method and last_name(call.func) in _PATH_LISTINGS


def _ordered_data(code: Code) -> dict[ast.AST, Scope]:
    """Return what data are made of, less what is sorted or counted."""
    starts = [(scope, node) for node, scope in code.data.items() if isinstance(node, ast.Name | ast.Call)]
    covered = code.sources_of(
        [
            (scope, n)
            for n, scope in code.data.items()
            if isinstance(n, ast.Call) and last_name(n.func) in _ORDERLESS
        ]
    )
    return {node: scope for scope, node in starts if node not in covered}


def text_sets(code: Code) -> Places:
    """Find sets of text whose order the data follow, and `hash` of text, while PYTHONHASHSEED is not set."""
    if code.around.variables.get("PYTHONHASHSEED", "random") != "random":
        return
    for node, scope in _ordered_data(code).items():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id == "hash" and _is_text(code, scope, node.args[0]):
                yield scope, node, "hash()"
            if node.func.id in _ITERATING and _is_text_set(code, scope, node.args[0]):
                yield scope, node, "a set"
    for scope in code.index.scopes:
        for loop in (n for n in own_nodes(scope.node) if isinstance(n, ast.For | ast.comprehension)):
            is_data = any(
                isinstance(t, ast.Name) and s is scope and t.id in _loop_names(loop)
                for t, s in code.data.items()
            )
            if is_data and _is_text_set(code, scope, loop.iter):
                yield scope, loop.iter, "a set"


def _loop_names(loop: ast.For | ast.comprehension) -> set[str]:
    return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}


def _is_text_set(code: Code, scope: Scope, node: ast.AST) -> bool:
    """Tell a set of text that is about to be walked."""
    values = [v for _, v in code.bound(scope, node.id)] if isinstance(node, ast.Name) else [node]
    for value in values:
        if isinstance(value, ast.Set):
            return all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in value.elts)
        if isinstance(value, ast.SetComp) or (
            isinstance(value, ast.Call) and dotted(value.func) in ("set", "frozenset")
        ):
            return _is_text(code, scope, value)
    return False


def _is_text(code: Code, scope: Scope, node: ast.AST) -> bool:
    """Tell whether a value is made from text: by a method that gives text, or from constants."""
    for found in code.sources_of([(scope, node)]):
        if isinstance(found, ast.Call) and last_name(found.func) in _TEXT_MAKERS:
            return True
        elements = found.elts if isinstance(found, ast.List | ast.Tuple | ast.Set) else []
        if elements and all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in elements):
            return True
    return False


def undetermined_gpus(code: Code) -> Places:
    """Find a GPU whose kernels may add in any order."""
    is_asked = any(True for _ in code.calls_of(lambda name: name.endswith("enable_op_determinism")))
    is_set = code.around.variables.get("TF_DETERMINISTIC_OPS", "0") in ("1", "true")
    if code.around.num_gpus and not is_asked and not is_set:
        yield code.script.top, code.script.tree, ""


def _is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
