"""Evaluating epochs of a run: the SavedModel of each, Keras's own `evaluate`, hindsight entries.

The numbers equal those `fit` computed for the same data: the same loss and metrics, the same batches, and the graph
inside the same compiled test step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flor_keras import reading
from flor_keras.errors import UsageError
from flor_keras.export.kept import Graph
from flor_keras.export.serving import Server
from flor_keras.records import Entry, Position, Status, Verdict
from flor_keras.state.pickles import signature
from flor_keras.store import layout
from flor_keras.store.database import Store

LEVEL = "evaluate"
COMPILED = "compiled"


@dataclass
class Question:
    """What to evaluate.

    Attributes:
      run: the run.
      checkpoints: the ends of the epochs, in order.
      x, y, sample_weight: the data, as `model.evaluate` takes them.
      metrics: names or metric objects; without any, the loss and metrics the model was compiled with.
      batch_size: of arrays; the loss of a batch is a mean, so another size gives other last digits.
      prefix: put before the name of each result.
      source: where the data come from, for the record.
      model: the name of the model, where a loop trains several.
    """

    run: reading.Run
    checkpoints: Sequence[reading.Checkpoint]
    x: Any
    y: Any = None
    sample_weight: Any = None
    metrics: Sequence[Callable[[], Any]] = ()
    batch_size: int = 32
    prefix: str = "eval_"
    source: str = ""
    model: str | None = None


@dataclass
class Answer:
    """What came out: one row per epoch, and which results equal what was recorded (`val_` and the name)."""

    replay: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    equal_to_recorded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def evaluate(question: Question) -> Answer:
    """Evaluate every checkpoint, and add the results to the run as hindsight entries.

    Raises:
      UsageError: the model has no SavedModel, or metrics and data do not fit.
      CheckpointError: a checkpoint is damaged, or the store was recorded by somebody else.
    """
    run, began = question.run, time.perf_counter()
    answer, epochs = Answer(), [[at.loop, at.epoch] for at in question.checkpoints]
    results = list(_results(question, answer))
    names = list(dict.fromkeys(question.prefix + name for _, found in results for name in found))
    _check_free(run, names)
    answer.equal_to_recorded = _equal_to_recorded(run, results)
    verdict = (
        Verdict.EXACT
        if results and set(results[0][1]) == set(answer.equal_to_recorded)
        else Verdict.UNCHECKED
    )
    entries = [
        Entry(question.prefix + name, value, Position(at.loop, at.epoch))
        for at, found in results
        for name, value in found.items()
    ]
    report = {"equal_to_recorded": answer.equal_to_recorded, "notes": answer.notes}
    with Store.open(run.store, create=True) as store:
        answer.replay = store.begin_replay(
            run.id, LEVEL, names, epochs, {"level": LEVEL, "data": question.source}
        )
        store.add_entries(run.id, entries, answer.replay, verdict)
        store.finish_replay(
            answer.replay, Status.FINISHED, time.perf_counter() - began, verdict, None, report
        )
    answer.rows = [
        {
            "loop": at.loop,
            "epoch": at.epoch,
            **{question.prefix + name: value for name, value in found.items()},
        }
        for at, found in results
    ]
    return answer


def _check_free(run: reading.Run, names: list[str]) -> None:
    """Make sure that no result takes a name under which training itself logged."""
    with Store.open(run.store) as store:
        counts = store.name_counts(run.id)
    taken = [name for name in names if counts.get(name, (0, 0))[0]]
    if taken:
        raise UsageError(
            f"Run {run.id} has recorded values under {taken[0]}. Choose other names with --prefix."
        )


def _results(question: Question, answer: Answer) -> Iterator[tuple[reading.Checkpoint, dict[str, float]]]:
    server = Server(layout.model_folder(question.run.store, question.run.id), signature, question.model)
    model: Any = None
    try:
        for checkpoint in question.checkpoints:
            if server.load(checkpoint.path, checkpoint.loop):
                assert server.graph is not None
                model = server.keras_model()
                _compile(model, server.graph, [make() for make in question.metrics], answer)
            yield checkpoint, _evaluated(model, question, server)
    finally:
        server.close()


def _evaluated(model: Any, question: Question, server: Server) -> dict[str, float]:
    is_array = question.y is not None
    arrays = (
        {"y": question.y, "sample_weight": question.sample_weight, "batch_size": question.batch_size}
        if is_array
        else {}
    )
    try:
        found = model.evaluate(question.x, **arrays, verbose=0, return_dict=True)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"The data of {question.source or '--data'} do not fit the model, its loss or its metrics: "
            f"{str(error).strip().splitlines()[0]}. The model takes {server.inputs}; give --data with such an x, a y its "
            "loss takes, and --metric with metrics that fit both."
        ) from error
    return {name: float(value) for name, value in found.items() if name != "loss" or model.has_loss}


def _compile(model: Any, graph: Graph, metrics: list[Any], answer: Answer) -> None:
    """Compile with the recorded loss, and the metrics asked for or the recorded ones."""
    recorded = compiled_parts(graph)
    loss = recorded.get("loss")
    if loss is None:
        answer.notes.append("The loss of the model is not one of Keras; only metrics are computed.")
    elif graph.described.get("has_own_losses"):
        answer.notes.append(
            "The loss is without the model's own part (regularizers, add_loss), which is not in its graph."
        )
    model.has_loss = loss is not None
    chosen = (
        {"metrics": metrics}
        if metrics
        else {key: recorded.get(key) for key in ("metrics", "weighted_metrics")}
    )
    model.compile(
        loss=loss,
        loss_weights=recorded.get("loss_weights"),
        jit_compile=graph.described["jit_compile"],
        **chosen,
    )


def compiled_parts(graph: Graph) -> dict[str, Any]:
    """Return the loss, metrics and weights a model was compiled with, as far as they are Keras's own."""
    import keras

    config = graph.described.get("compile_config") or {}
    found = {}
    for key in ("loss", "metrics", "weighted_metrics", "loss_weights"):
        try:
            found[key] = keras.saving.deserialize_keras_object(config.get(key), safe_mode=True)
        except (TypeError, ValueError):
            found[key] = None
    return found


def _equal_to_recorded(
    run: reading.Run, results: list[tuple[reading.Checkpoint, dict[str, float]]]
) -> list[str]:
    """Return the results that equal, in every epoch and to the last bit, what `fit` recorded under `val_` and the name."""
    equal = []
    for name in results[0][1] if results else ():
        if f"val_{name}" in run.names:
            recorded = {entry.position: entry.value for entry in run.entries(f"val_{name}", recorded=True)}
            if all(recorded.get(Position(at.loop, at.epoch)) == found.get(name) for at, found in results):
                equal.append(name)
    return equal
