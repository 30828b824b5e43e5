"""What traced functions use, random ops and variables, and what the code that runs is traced for."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

STATEFUL_RANDOM = frozenset(
    [
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "RandomShuffle",
        "Multinomial",
        "RandomGamma",
        "RandomGammaGrad",
        "RandomPoisson",
        "RandomPoissonV2",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
    ]
)


def stateful_random_ops(model: Any) -> list[str]:
    """Return the random ops of a traced training step whose state lies in a kernel, as ``op (file:line)``.

    Such state can be neither read nor put back.
    """
    traced = [
        f for function in _traceable(model.train_function) for f in function._list_all_concrete_functions()
    ]
    return _stateful_random_ops([function.graph for function in traced])


def live_random_ops() -> list[str]:
    """Return what `stateful_random_ops` does, of all that was traced in this process and is still there.

    Which functions a loop of the program's own calls is known to the program alone. All objects are searched: a second.
    """
    from tensorflow.python.framework.func_graph import FuncGraph

    graphs = [found for found in gc.get_objects() if isinstance(found, FuncGraph)]
    return _stateful_random_ops([graph for graph in graphs if not _is_of_tf_data(graph)])


def _stateful_random_ops(graphs: list[Any]) -> list[str]:
    """Search graphs, through the functions they call."""
    todo, seen, found = graphs, set(), []
    while todo:
        graph = todo.pop()
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        for op in graph.get_operations():
            if op.type in STATEFUL_RANDOM:
                found.append(f"{op.type} ({place_of(op)})")
        todo += [f.graph for f in getattr(graph, "_functions", {}).values() if getattr(f, "graph", None)]
    return sorted(set(found))


def step_variables(model: Any) -> list[Any]:
    """Return the variables a traced training step uses, in the order it uses them first."""
    traced = [
        f for function in _traceable(model.train_function) for f in function._list_all_concrete_functions()
    ]
    return list({id(v): v for function in traced for v in function.graph.variables}.values())


def _traceable(function: Any) -> list[Any]:
    """Return the `tf.function` objects a training function is made of: it is a closure over them."""
    todo, seen, found = [function], set(), []
    while todo:
        current = todo.pop()
        if id(current) in seen or current is None:
            continue
        seen.add(id(current))
        if hasattr(current, "_list_all_concrete_functions"):
            found.append(current)
            todo.append(current.python_function)
        for cell in getattr(current, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                if callable(cell.cell_contents):
                    todo.append(cell.cell_contents)
    return found


def place_of(op: Any) -> str:
    """Return the line of the program that made an op: the innermost frame outside of installed packages."""
    frames = [frame for frame in op.traceback or () if "site-packages" not in frame.filename]
    ours = [frame for frame in frames if "flor_keras" not in frame.filename.replace("\\", "/").split("/")]
    return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else op.name


def graphs_under_way() -> Any:
    """Return an object whose ``stack`` holds the graphs the calling thread is building: none, as a rule.

    The public question, `tf.executing_eagerly`, takes 0.2 microseconds, as much as all else that logging a scalar takes.
    """
    from tensorflow.python.framework import ops

    return getattr(ops, "_default_graph_stack", None) or _AnyGraph()


class _AnyGraph:
    """Leaves the question to be asked, where TensorFlow keeps its graphs elsewhere."""

    stack = ("perhaps one",)


def is_in_tf_data() -> bool:
    """Whether the code that runs is being traced for a `tf.data` transformation."""
    import tensorflow as tf

    return not tf.executing_eagerly() and _is_of_tf_data(tf.compat.v1.get_default_graph())


def _is_of_tf_data(graph: Any) -> bool:
    """Whether a graph, or one around it, was traced for a `tf.data` transformation, which names its graphs after it."""
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith("Dataset_"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def is_in_xla() -> bool:
    """Whether the code that runs is being traced for XLA (``jit_compile=True``), or for a function that such one calls."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )
