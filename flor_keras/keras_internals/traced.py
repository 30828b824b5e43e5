"""What a traced training step uses: random ops and variables."""

from __future__ import annotations

import contextlib
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

    Such state can be neither read nor put back. Graphs are searched through the functions they call.
    """
    traced = [
        f for function in _traceable(model.train_function) for f in function._list_all_concrete_functions()
    ]
    todo, seen, found = [function.graph for function in traced], set(), []
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
