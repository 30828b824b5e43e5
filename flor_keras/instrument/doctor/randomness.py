"""Finds random numbers that another process does not draw again: hidden states, seeds of chance."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flor_keras.instrument.doctor.code import Code, keyword
from flor_keras.instrument.keras_words import words
from flor_keras.instrument.scopes import ClassKind, File, Scope, calls_in
from flor_keras.instrument.syntax import Definition, children_here, dotted, last_name

Places = Iterator[tuple[Scope, ast.AST, str]]

# What flor.seed has draw from a generator that checkpoints hold: see `flor_keras.state.seeds`.
COVERED_OPS = words("normal uniform truncated_normal shuffle categorical")
OTHER_OPS = words(
    """gamma poisson log_uniform_candidate_sampler uniform_candidate_sampler learned_unigram_candidate_sampler
    fixed_unigram_candidate_sampler"""
)
_SAMPLING_LOSSES = ("tensorflow.nn.nce_loss", "tensorflow.nn.sampled_softmax_loss")
_DROPOUTS = ("tensorflow.nn.dropout", "tensorflow.nn.experimental.general_dropout")
CLOCKS = words(
    """time.time time.time_ns time.perf_counter time.perf_counter_ns time.monotonic time.process_time
    datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today
    uuid.uuid1 uuid.uuid4 os.urandom
    secrets.token_bytes secrets.token_hex secrets.randbits secrets.randbelow"""
)
_SEEDING = words("numpy.random.seed random.seed")
_TAKES_SEED = (*_SEEDING, "numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_NUMPY_DRAWS = words(
    """rand randn randint random random_sample ranf sample choice shuffle permutation bytes uniform normal
    standard_normal binomial poisson beta gamma exponential multivariate_normal multinomial laplace
    lognormal"""
)
_PYTHON_DRAWS = words(
    """random randint randrange choice choices sample shuffle uniform gauss normalvariate triangular
    betavariate expovariate gammavariate lognormvariate getrandbits randbytes"""
)
_DRAW_NAMES = frozenset({f"numpy.random.{n}" for n in _NUMPY_DRAWS} | {f"random.{n}" for n in _PYTHON_DRAWS})
_GENERATORS = words("numpy.random.default_rng numpy.random.RandomState random.Random")
_STATEFUL_MAKERS = (
    "SeedGenerator",
    "Generator.from_seed",
    "Generator.from_state",
    "Generator.from_non_deterministic_state",
)


def is_covered_op(name: str) -> bool:
    """Tell a stateful random function of TensorFlow that `flor.seed` makes replayable."""
    prefix, _, last = name.rpartition(".")
    is_random = prefix == "tensorflow.random" and last in COVERED_OPS
    is_image = prefix == "tensorflow.image" and last.startswith("random_")
    return is_random or is_image or name in _DROPOUTS


def is_other_op(name: str) -> bool:
    """Tell a stateful random function of TensorFlow that nothing makes replayable."""
    prefix, _, last = name.rpartition(".")
    return (prefix == "tensorflow.random" and last in OTHER_OPS) or name in _SAMPLING_LOSSES


def is_draw(name: str) -> bool:
    """Tell a draw from Python's or NumPy's global random state."""
    return name in _DRAW_NAMES


def _in_step(code: Code) -> set[Scope]:
    return code.traced - {scope for scope, _ in code.pipelines}


def ops_in_steps(code: Code) -> Places:
    """Find covered ops in traced training code, without `flor.seed`."""
    if not code.has_flor_seed:
        for scope, call in code.calls_of(is_covered_op, _in_step(code)):
            yield scope, call, _spelled(call)


def other_ops_in_steps(code: Code) -> Places:
    """Find ops that are not covered in traced training code."""
    for scope, call in code.calls_of(is_other_op, _in_step(code)):
        yield scope, call, _spelled(call)


def ops_in_pipelines(code: Code) -> Places:
    """Find unseeded ops in functions of a data pipeline that run one call after the other."""
    serial = [scope for scope, is_parallel in code.pipelines if not is_parallel]
    for scope, call in code.calls_of(lambda n: is_covered_op(n) or is_other_op(n), serial):
        if not code.has_global_seed and keyword(call, "seed") is None:
            yield scope, call, _spelled(call)


def draws_in_parallel_pipelines(code: Code) -> Places:
    """Find draws of any kind in functions of a data pipeline of which several calls run at once."""
    parallel = [scope for scope, is_parallel in code.pipelines if is_parallel]
    for scope, call in code.calls_of(lambda n: is_covered_op(n) or is_other_op(n), parallel):
        yield scope, call, _spelled(call)


def eager_draws(code: Code) -> Places:
    """Find data drawn by unseeded TensorFlow ops outside of steps and pipelines."""
    if code.has_global_seed:
        return
    pipelines = {scope for scope, _ in code.pipelines}
    for node, scope in code.data.items():
        if isinstance(node, ast.Call) and scope not in code.traced | pipelines:
            name = code.name_of(scope, node)
            if (is_covered_op(name) or is_other_op(name)) and keyword(node, "seed") is None:
                yield scope, node, _spelled(node)


def seeds_of_chance(code: Code) -> Places:
    """Find seeds taken from the clock or the system: `np.random.seed()` without a value does that too."""
    seeding = {call: scope for scope, call in code.seeds}
    seeding |= {call: scope for scope, call in code.calls_of(lambda name: name in _TAKES_SEED)}
    for call, scope in seeding.items():
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("seed", "a", "x"))]
        is_reseeded = code.name_of(scope, call) in _SEEDING and all(_is_none(value) for value in given)
        found = code.sources_of((scope, value) for value in given)
        is_clock = any(isinstance(n, ast.Call) and code.name_of(s, n) in CLOCKS for n, s in found.items())
        if is_reseeded or is_clock:
            yield scope, call, _spelled(call)


def unseeded_default_rngs(code: Code) -> Places:
    """Find `np.random.default_rng()` without a seed, where no `flor.seed` gives it one."""
    for scope, call in _unseeded(code, "numpy.random.default_rng"):
        if not code.has_flor_seed:
            yield scope, call, _spelled(call)


def other_unseeded_generators(code: Code) -> Places:
    """Find generators that the system seeds whatever is called; `default_rng` too by its bare name."""
    for name in ("numpy.random.RandomState", "random.Random"):
        for scope, call in _unseeded(code, name):
            yield scope, call, _spelled(call)
    for scope, call in _unseeded(code, "numpy.random.default_rng"):
        if code.has_flor_seed and isinstance(call.func, ast.Name):
            yield scope, call, _spelled(call)


def _unseeded(code: Code, wanted: str) -> Iterator[tuple[Scope, ast.Call]]:
    for scope, call in code.calls_of(lambda name: name == wanted):
        if all(_is_none(value) for value in [*call.args, *(k.value for k in call.keywords)]):
            yield scope, call


def draws_before_import(code: Code) -> Places:
    """Find draws from the global random states before flor_keras is imported, with no seed before them."""
    before: list[tuple[Scope, ast.AST]] = []
    if not _collect_before(code, code.script, before, set()):
        return
    for scope, node in before:
        if isinstance(node, ast.Call):
            name = code.name_of(scope, node)
            if name in _SEEDING or name.endswith("set_random_seed"):
                return
            reached = code.reached_from(code.calls.run_by(scope, node.func))
            inside = [name_of for s in reached for c in calls_in(s) if is_draw(name_of := code.name_of(s, c))]
            if is_draw(name) or inside:
                yield scope, node, _spelled(node)


def _collect_before(code: Code, file: File, before: list[tuple[Scope, ast.AST]], seen: set[str]) -> bool:
    """Gather what runs before the first import of flor_keras, in order; tell whether there is one."""
    seen.add(file.path)
    for statement in file.tree.body:
        for node in _in_running_order(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = (
                    [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                )
                if any(module.partition(".")[0] == "flor_keras" for module in modules):
                    return True
                for path in code.index.imported_paths(file.path, node):
                    if path not in seen and _collect_before(code, code.index.files[path], before, seen):
                        return True
            before.append((file.top, node))
    return False


def _in_running_order(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, Definition):
        for child in children_here(node):
            yield from _in_running_order(child)
    yield node


def generators_outside_the_model(code: Code) -> Places:
    """Find seed generators that a step uses and no layer, model or optimizer holds."""
    for scope in code.in_order(_in_step(code)):
        for node in (n for call in calls_in(scope) for n in ast.walk(call)):
            if isinstance(node, ast.Name) and code.is_global(scope, node.id):
                for where, value in code.bound(scope, node.id):
                    if isinstance(value, ast.Call) and code.name_of(where, value).endswith(_STATEFUL_MAKERS):
                        yield where, value, node.id


def parallel_datasets(code: Code) -> Places:
    """Find a PyDataset that draws random numbers in `__getitem__` and is read by several workers."""
    for cls in code.index.classes:
        item = cls.methods.get("__getitem__")
        if (
            item is None
            or ClassKind.DATASET not in cls.kinds
            or not _is_read_in_parallel(code, cls.name, cls.methods)
        ):
            continue
        for scope in code.in_order(code.reached_from([item])):
            for call in calls_in(scope):
                if is_draw(code.name_of(scope, call)) or _draws_from_own(code, scope, call):
                    yield scope, call, _spelled(call)


def _is_read_in_parallel(code: Code, name: str, methods: dict[str, Scope]) -> bool:
    """Look at the calls of the class, and at what its constructor hands to PyDataset's."""
    calls = [call for _, call in code.all_calls() if last_name(call.func) == name]
    if "__init__" in methods:
        calls += [call for call in calls_in(methods["__init__"]) if last_name(call.func) == "__init__"]
    for call in calls:
        workers, processes = keyword(call, "workers"), keyword(call, "use_multiprocessing")
        if isinstance(workers, ast.Constant) and isinstance(workers.value, int) and workers.value > 1:
            return True
        if isinstance(processes, ast.Constant) and processes.value is True:
            return True
    return False


def _draws_from_own(code: Code, scope: Scope, call: ast.Call) -> bool:
    """Tell a draw from a generator the dataset holds: ``self.rng.normal()``."""
    match call.func:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=attribute)):
            cls = scope.self_class
            for method in cls.methods.values() if cls else ():
                for node in ast.walk(method.node):
                    match node:
                        case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call() as made) if (
                            name == attribute
                        ):
                            return code.name_of(method, made) in _GENERATORS
    return False


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _spelled(call: ast.Call) -> str:
    return dotted(call.func) or last_name(call.func)
