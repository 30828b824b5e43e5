"""Probes that are asked for on the command line: what they log, at which level, and the callbacks that compute them.

Parsing runs in the caller's process without TensorFlow; `make_probes` in the worker.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flor_keras.errors import ReplayError, UsageError
from flor_keras.instrument.levels import Level
from flor_keras.probes import BUILT_IN

_METRIC = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(?!=)(.+)", re.DOTALL)


def parse_probes(probes: Iterable[str], metrics: Iterable[str]) -> list[dict[str, Any]]:
    """Return what each asked probe is, as plain data: its kind, name, level, and what makes it.

    Args:
      probes: names of built-in ones, or ``FILE.py:function``.
      metrics: ``name=expression``.

    Raises:
      UsageError: one of them is none of these.
    """
    found = [*map(_probe, probes), *map(_metric, metrics)]
    for name in {probe["name"] for probe in found}:
        if sum(probe["name"] == name for probe in found) > 1:
            raise UsageError(
                f"Two probes would log under {name!r}. Ask for one of them at a time, or give your function or metric "
                "another name."
            )
    return found


def _probe(spec: str) -> dict[str, Any]:
    path, colon, function = spec.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path).resolve(), function)
    if spec not in BUILT_IN:
        raise UsageError(
            f"There is no probe {spec!r}. Give FILE.py:function, or one of these: {', '.join(sorted(BUILT_IN))}."
        )
    known = BUILT_IN[spec]
    return {"kind": "built_in", "name": spec, "level": known.level, "is_in_graph": known.is_in_graph}


def _from_file(path: Path, function: str) -> dict[str, Any]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source, str(path))
    except (OSError, SyntaxError) as error:
        raise UsageError(
            f"The probe's file {path} cannot be read: {error}. Give FILE.py:function."
        ) from error
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function not in defined:
        raise UsageError(
            f"{path} defines no function {function!r}; it has {', '.join(defined) or 'none'}. "
            "Give one of its functions as FILE.py:function."
        )
    return {
        **{"kind": "file", "name": function, "level": Level.EPOCH.value, "is_in_graph": False},
        **{"path": str(path), "source": source},
    }


def _metric(spec: str) -> dict[str, Any]:
    match = _METRIC.fullmatch(spec)
    if match is None:
        raise UsageError(
            f'--metric {spec!r} has no name or no metric; expected something like auc="keras.metrics.AUC()".'
        )
    name, expression = match.groups()
    try:
        ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise UsageError(
            f"The metric {expression!r} is not a Python expression: {error.msg}. "
            'Give something like auc="keras.metrics.AUC()".'
        ) from error
    return {
        **{"kind": "metric", "name": f"val_{name}", "level": Level.EVAL.value, "is_in_graph": False},
        "expression": expression,
    }


def can_look_at_steps(probes: Iterable[dict[str, Any]], names: Iterable[str]) -> bool:
    """Whether all names are of probes that can be computed after each step, too."""
    able = {
        p["name"] for p in probes if p["kind"] == "file" or (p["kind"] == "built_in" and not p["is_in_graph"])
    }
    return set(names) <= able


def make_probes(asked: Iterable[dict[str, Any]], validation_data: Any, is_redone: bool) -> list[Any]:
    """Return the callbacks that compute asked probes on the state a replay restores.

    Args:
      validation_data: what `fit` was given, for probes that compute on data.
      is_redone: training steps are made again, so functions are called after each of them.
    """
    made = [_make(probe, validation_data, is_redone) for probe in asked]
    for probe in made:
        probe.is_asked = True  # a replay calls it, whatever it holds back
    return made


def _make(probe: dict[str, Any], validation_data: Any, is_redone: bool) -> Any:
    from flor_keras.probes import predictions

    if probe["kind"] == "file":
        return _Function(probe, validation_data, is_redone)
    if probe["kind"] == "metric":
        return predictions.MetricProbe(
            lambda: _evaluated(probe["expression"]), probe["name"], validation_data
        )
    import flor_keras.probes as package

    known = BUILT_IN[probe["name"]]
    cls = getattr(package, known.class_name)
    made = cls(validation_data) if known.needs_batches else cls()
    made.is_of_steps = is_redone
    return made


def _evaluated(expression: str) -> Any:
    import keras
    import numpy as np
    import tensorflow as tf

    try:
        metric = eval(expression, {"keras": keras, "tf": tf, "np": np})
    except Exception as error:
        raise ReplayError(
            f"The metric {expression} failed: {type(error).__name__}: {error}. It may use keras, tf and np; give "
            'something like --metric auc="keras.metrics.AUC()".'
        ) from error
    return keras.metrics.get(metric)


def _Function(probe: dict[str, Any], validation_data: Any, is_redone: bool) -> Any:
    """Return a callback that calls a person's function with the model, the position and the logs."""
    import keras

    from flor_keras import session
    from flor_keras.probes.probe import batched

    space: dict[str, Any] = {"__name__": Path(probe["path"]).stem, "__file__": probe["path"]}
    exec(compile(probe["source"], probe["path"], "exec"), space)
    function = space[probe["name"]]
    wants_batches = "batches" in function.__code__.co_varnames[: function.__code__.co_argcount]

    class Function(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not is_redone:
                self._call(logs)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if is_redone:
                self._call(logs)

        def _call(self, logs: Any) -> None:
            given = {"batches": batched(validation_data)} if wants_batches else {}
            current = session.current()
            assert current is not None
            value = function(self.model, current.position, dict(logs or {}), **given)
            if value is not None:
                session.log(probe["name"], value)

    return Function()
