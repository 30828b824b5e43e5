"""Keeping the graph of the model that is being trained, once per loop and again when its structure changes.

A model of Keras's own layers is described, which takes about 1 ms a variable. Any other is traced too, about 6 ms a
variable, in the trainer, which alone has the program's code. It waits until the time budget of recording has room for
it, and is done at the end of the loop at the latest. Training is not changed: random states and what tracing does to
layers are put back.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras

from flor_keras import keras_internals
from flor_keras.export.graph import MODEL, Subject, baked_hashes, write_graph, write_reference
from flor_keras.export.kept import folder_of
from flor_keras.export.stock import is_of_keras_alone
from flor_keras.state.pickles import signature
from flor_keras.state.random import capture_random, restore_random
from flor_keras.state.tables import table_arrays
from flor_keras.state.variables import State
from flor_keras.store import layout

_DESCRIBING_SECS = 0.02, 0.001  # in any case, and for each variable
_TRACING_SECS = 0.1, 0.006


class _Kept(NamedTuple):
    """A graph that was kept: of which model and what of it, where it lies, and whether it has no SavedModel."""

    model: Any
    of: Any
    name: str
    is_described: bool


class Models:
    """The graphs of one run.

    Args:
      store: the store's folder.
      run: the run's id.
      note: called with a sentence to keep with the run.
    """

    def __init__(self, store: Path, run: str, note: Callable[[str], None]) -> None:
        self._folder = layout.model_folder(store, run)
        self._note = note
        self._numbers: dict[int, int] = {}  # loop -> graphs it has
        self._current: dict[tuple[int, str], Any] = {}  # loop, name -> what the model's newest graph is of
        self._shapes: tuple[State, Any] | None = None  # those of the last state, which is mostly the same
        self._kept: list[_Kept] = []
        self._traced_loops: set[int] = set()
        self._of_keras_alone: tuple[State | None, dict[int, bool]] = (
            None,
            {},
        )  # of the last state, by the model's id

    def trace(self, loop: int) -> None:
        """Say that SavedModels of a loop are wanted while it runs: its model is traced in any case."""
        self._traced_loops.add(loop)

    def keep(
        self,
        loop: int,
        roots: Mapping[str, Any],
        state: State,
        gather: Callable[[], State],
        room_secs: float,
    ) -> float:
        """Keep the graph of every model that has none yet, or has become another; return the seconds it took.

        Args:
          loop: the loop.
          roots: what is recorded in the loop, by name.
          state: its variables and tables as the last checkpoint had them, which tells whether there is something to do.
          gather: returns those there are now: the first step may have built the model since the last checkpoint.
          room_secs: what it may cost now.
        """
        models = {name: root for name, root in roots.items() if isinstance(root, keras.Model)}
        if not models:
            return 0.0
        began = time.perf_counter()
        subject = self._subject(state)
        new = [name for name in models if self._current.get((loop, name)) != subject]
        if not new or sum(self._expected_secs(loop, models[name], state) for name in new) > room_secs:
            return 0.0
        state = gather()
        subject = self._subject(state)
        for name in new:
            self._keep(loop, name, models[name], state, subject)
            self._current[loop, name] = subject
        return time.perf_counter() - began

    def owed_secs(self, loop: int, roots: Mapping[str, Any], state: State) -> float:
        """Return what keeping the graphs of a loop is going to take; 0 if they are kept, or there are none."""
        return sum(
            self._expected_secs(loop, root, state)
            for name, root in roots.items()
            if isinstance(root, keras.Model) and (loop, name) not in self._current
        )

    def _keep(self, loop: int, root: str, model: Any, state: State, subject: Any) -> None:
        number = self._numbers.get(loop, self._num_on_disk(loop))
        folder = folder_of(self._folder, loop, number)
        self._numbers[loop] = number + 1
        whole = (subject, _compiled(model))
        is_described = self._is_described(loop, model, state)
        for kept in self._kept:
            if kept.model() is model and kept.of == whole and (is_described or not kept.is_described):
                write_reference(folder, kept.name)
                return
        random = capture_random()
        began = time.perf_counter()
        try:
            described = Subject(model, root, state.variables, _mutable_tables(state), dict(subject[1]))
            why_not = write_graph(described, folder, signature, is_described)
        finally:
            restore_random(random)
        self._kept.append(_Kept(weakref.ref(model), whole, folder.name, is_described))
        called = "the model" if root == MODEL else f"the model {root}"
        self._note(f"The graph of {called} of loop {loop} was kept in {time.perf_counter() - began:.2f} s.")
        for form, why in why_not.items():
            self._note(f"{called.capitalize()} of loop {loop} cannot be exported as {form}: {why}")

    def _is_described(self, loop: int, model: Any, state: State) -> bool:
        """Whether a model need not be traced: values that become part of a graph are in no configuration."""
        if loop in self._traced_loops or state.tables or state.derived:
            return False
        if self._of_keras_alone[0] is not state:
            self._of_keras_alone = state, {}
        known = self._of_keras_alone[1]
        if id(model) not in known:
            known[id(model)] = is_of_keras_alone(model)
        return known[id(model)]

    def _expected_secs(self, loop: int, model: Any, state: State) -> float:
        base_secs, secs_per_variable = _DESCRIBING_SECS
        if not self._is_described(loop, model, state):
            base_secs, secs_per_variable = base_secs + _TRACING_SECS[0], secs_per_variable + _TRACING_SECS[1]
        return base_secs + secs_per_variable * len(model.variables)

    def _subject(self, state: State) -> tuple[Any, Any]:
        """Return what a graph depends on: names, types and shapes of variables, and values that become part of it."""
        if self._shapes is None or self._shapes[0] is not state:
            self._shapes = state, _shapes(state)
        return self._shapes[1], tuple(sorted(_baked(state).items()))

    def _num_on_disk(self, loop: int) -> int:
        """Return how many graphs a loop has already: a run that was resumed comes to it again."""
        number = 0
        while folder_of(self._folder, loop, number).is_dir():
            number += 1
        return number


def _shapes(state: State) -> Any:
    return tuple((name, v.dtype.name, tuple(v.shape)) for name, v in state.variables.items())


def _baked(state: State) -> dict[str, str]:
    contents = {
        f"{name}/{part}": array
        for name, table in state.tables.items()
        if not keras_internals.is_mutable_table(table)
        for part, array in table_arrays(table).items()
    }
    names = {id(variable): name for name, variable in state.variables.items()} if state.derived else {}
    for layer in state.derived:
        for variable in layer.variables:
            native = keras_internals.native_variable(variable)
            if id(native) in names:
                contents[names[id(native)]] = native.numpy()
    return baked_hashes(contents)


def _mutable_tables(state: State) -> Mapping[str, Any]:
    return {name: table for name, table in state.tables.items() if keras_internals.is_mutable_table(table)}


def _compiled(model: Any) -> Any:
    """Return what of a model's configuration may change while its variables stay."""
    trainable = tuple(layer.trainable for layer in model._flatten_layers())
    return id(getattr(model, "_compile_config", None)), trainable
