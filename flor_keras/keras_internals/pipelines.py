"""What a `tf.data` pipeline is made of."""

from __future__ import annotations

from typing import Any

from flor_keras.keras_internals.traced import STATEFUL_RANDOM, place_of


def pipeline_random_ops(dataset: Any) -> list[tuple[str, bool]]:
    """Return the random ops inside a `tf.data` pipeline, and whether each draws in parallel, in no fixed order."""
    found, todo, seen = set(), [dataset], set()
    while todo:
        source = todo.pop()
        if id(source) in seen:
            continue
        seen.add(id(source))
        todo += source._inputs() if hasattr(source, "_inputs") else []
        is_parallel = "Parallel" in type(source).__name__
        for wrapper in source._functions() if hasattr(source, "_functions") else []:
            graph = getattr(getattr(wrapper, "function", None), "graph", None)
            for op in graph.get_operations() if graph is not None else []:
                if op.type in STATEFUL_RANDOM and (is_parallel or not _is_seeded(op)):
                    found.add((f"{op.type} ({place_of(op)})", is_parallel))
    return sorted(found)


def _is_seeded(op: Any) -> bool:
    """Whether a random op has a seed, of its own or the global one when it was made."""
    return bool(op.get_attr("seed") or op.get_attr("seed2"))


def source_tensors(dataset: Any) -> list[Any]:
    """Return the tensors a `tf.data` pipeline was made from (`from_tensor_slices`); none where it reads elsewhere."""
    found, todo = [], [dataset]
    while todo:
        source = todo.pop()
        found += [t for t in getattr(source, "_tensors", None) or [] if hasattr(t, "_numpy_internal")]
        todo += source._inputs() if hasattr(source, "_inputs") else []
    return found


def has_shuffle_below_repeat(dataset: Any) -> bool:
    """Whether a pipeline repeats what it shuffles: its fresh iterator then does not know the shuffle's seeds yet."""
    name = type(dataset).__name__
    inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
    if "Repeat" in name:
        return any(_has(source, "Shuffle") for source in inputs)
    return any(has_shuffle_below_repeat(source) for source in inputs)


def _has(dataset: Any, word: str) -> bool:
    inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
    return word in type(dataset).__name__ or any(_has(source, word) for source in inputs)


def seeded_parts(dataset: Any) -> list[Any]:
    """Return the parts of a pipeline that draw a new seed for each iterator (`shuffle`), each as often as it is in it."""
    inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
    own = [dataset] if hasattr(dataset, "_seed2") else []
    return own + [part for source in inputs for part in seeded_parts(source)]


def seeds_of(part: Any) -> tuple[int, int]:
    """Return the seeds of a part of a pipeline that has some: its own and what comes of the global one."""
    return int(part._seed), int(part._seed2)


def number_of(dataset: Any) -> int:
    """Return a data set's place among all that eager TensorFlow makes, in order; see `next_number`."""
    number: int = dataset._variant_tensor._id
    return number


def next_number() -> int:
    """Return a number above that of every data set there is, and below that of every later one."""
    from tensorflow.python.framework import ops

    number: int = ops.uid()
    return number
