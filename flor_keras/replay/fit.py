"""Replaying one `fit` call: Keras's own `fit` is resumed at each asked epoch.

A container of callbacks decides which epochs and which callbacks get a word; a source stands between `fit` and its
data. At the levels epoch, eval and after no training step is made: where the steps of an epoch would be over, the
state of its end is restored, and validation and epoch hooks see what they saw when the run was recorded. At the
level step the state of the epoch's beginning is restored, its steps are made again, and what comes out is compared.
"""

from __future__ import annotations

from typing import Any

import keras

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.records import Execution, Kind, Position
from flor_keras.replay.leads import is_needed, name_of, overrides, writes_files
from flor_keras.replay.replayer import Replayer
from flor_keras.replay.visit import Visit
from flor_keras.state.callbacks import restore_callbacks
from flor_keras.state.changers import change_the_model
from flor_keras.state.fingerprints import data_fingerprint
from flor_keras.state.random import restore_random
from flor_keras.state.restore import read_python
from flor_keras.state.skip import give_history, skip_fit


def replay_fit(replayer: Replayer, loop: int, call: keras_internals.FitCall, callbacks: list[Any]) -> Any:
    """Make a recorded `fit` call again, as far as the plan needs it; return its recorded History."""
    visit = Visit(replayer, loop, call.model, callbacks)
    if not visit.epochs and not replayer.plan.is_in_every_loop:
        after = replayer.folder(replayer.required(loop, Kind.AFTER))
        replayer.note_exact(len(bundle.read_manifest(after)["tensors"]))
        return skip_fit(call, after, callbacks)
    chosen, for_steps = _choose(replayer, visit, callbacks)
    _check_data(visit, call)
    if visit.is_redone and replayer.plan.is_in_graph and call.model.jit_compile:
        call.model.jit_compile = False  # a value cannot leave a step that XLA compiled
        replayer.suspect("the recorded step was compiled by XLA, the replayed one was not")
    replayer.execution = Execution(call.model.steps_per_execution, bool(call.model.jit_compile))
    arguments = call.arguments
    arguments["validation_freq"] = visit.validated_epochs(arguments.get("validation_freq", 1))
    arguments["initial_epoch"] = visit.epochs[0] if visit.epochs else 0
    arguments["epochs"] = visit.epochs[-1] + 1 if visit.epochs else 0
    arguments["verbose"] = 0
    shuffle = visit.order.shuffle if visit.order else None
    with keras_internals.training_steps(visit, shuffle) as visit.training:
        arguments["callbacks"] = _Visits(visit, chosen, for_steps, call.model)
        history = call.make()
    if replayer.is_finished(loop):
        return history
    visit.disturb()
    visit.restore(Kind.AFTER)
    after = replayer.folder(replayer.required(loop, Kind.AFTER))
    python = read_python(after)
    keras_internals.set_trainable_flags(call.model, python["trainable"])
    restore_callbacks(callbacks, call.model, python["callbacks"])
    restore_random(python["random"])
    return give_history(history, bundle.read_manifest(after))


def _choose(replayer: Replayer, visit: Visit, callbacks: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the callbacks that are called, and those of them that only redone steps need; others are held back and listed."""
    chosen, for_steps = [], []
    for callback in callbacks:
        is_called = is_needed(callback, replayer.plan) or (
            (replayer.plan.callbacks == "all" or change_the_model([callback])) and not writes_files(callback)
        )
        if is_called:
            chosen.append(callback)
        elif visit.is_redone and not writes_files(callback):
            chosen.append(callback)
            for_steps.append(callback)
        elif name_of(callback) not in replayer.held_back:
            replayer.held_back.append(name_of(callback))
    replayer.tell({"event": "held_back", "names": replayer.held_back})
    return chosen, for_steps


def _check_data(visit: Visit, call: keras_internals.FitCall) -> None:
    """Say so if the program has other data than when it was recorded; nothing else could be exact then."""
    recorded = visit.start.get("fingerprint")
    if recorded is not None and data_fingerprint(call) != recorded:
        visit.replayer.is_other_data = True
        visit.replayer.suspect("data differ: what fit was given is not what was recorded")


class _Visits(keras.callbacks.CallbackList):
    """The callbacks of a visited loop: called at asked epochs only, at the recorded state.

    What a callback that is new in the program does to metrics, seeds and random states is undone at once.
    """

    def __init__(self, visit: Visit, callbacks: list[Any], for_steps: list[Any], model: Any) -> None:
        self._visit = visit
        self._for_steps = for_steps
        params = visit.recorded_params()
        super().__init__(callbacks, add_history=True, add_progbar=False, model=model, **params)

    def on_train_begin(self, logs: Any = None) -> None:
        visit = self._visit
        assert visit.training is not None
        visit.replayer.move(Position(visit.loop))
        if self._has("on_train_begin"):
            visit.restore(Kind.START)
        super().on_train_begin(logs)
        visit.build(visit.training)
        visit.disturb()
        visit.training.is_armed = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        visit = self._visit
        if not visit.is_asked(epoch):
            return
        visit.replayer.move(Position(visit.loop, epoch))
        if visit.redoes(epoch):
            visit.resume_before(epoch)
        elif any(overrides(c, "on_epoch_begin") for c in self.callbacks if c not in self._for_steps):
            visit.restore_before(epoch)
        if not visit.is_entered_midway(epoch):
            self._call("on_epoch_begin", epoch, logs)
        visit.disturb()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._visit.replayer.move(Position(self._visit.loop, self._visit.replayer.position.epoch, batch))
        self._call("on_train_batch_begin", batch, logs)

    def _on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._visit.replayer.move(Position(self._visit.loop, self._visit.replayer.position.epoch, batch))
        self._call("on_train_batch_end", batch, keras_internals.pythonify_logs(logs))

    def on_test_begin(self, logs: Any = None) -> None:
        self._visit.replayer.move(self._visit.replayer.position._replace(step=None))
        self._visit.disturb()
        super().on_test_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        visit = self._visit
        if not visit.is_asked(epoch) or visit.is_cut(epoch):
            return
        visit.replayer.move(Position(visit.loop, epoch))
        if not visit.redoes(epoch):
            visit.restore_hooks(epoch)
        given = visit.take_logs(epoch, keras_internals.pythonify_logs(logs))
        self._call("on_epoch_end", epoch, given)
        if visit.redoes(epoch):
            visit.compare_state(epoch)
        visit.disturb()
        self.model.stop_training = False
        visit.replayer.flush()
        visit.replayer.tell({"event": "epoch", "loop": visit.loop, "epoch": epoch})

    def on_train_end(self, logs: Any = None) -> None:
        if self._has("on_train_end"):
            self._visit.restore_end()
        self._visit.replayer.move(Position(self._visit.loop))
        super().on_train_end(logs)

    def _has(self, hook: str) -> bool:
        return any(overrides(callback, hook) for callback in self.callbacks)

    def _call(self, hook: str, index: int, logs: Any) -> None:
        is_redone = self._visit.redoes(self._visit.replayer.position.epoch)
        for callback in self.callbacks:
            if callback in self._for_steps and not is_redone:
                continue
            if overrides(callback, hook) and is_redone and self._visit.is_new(callback):
                with self._visit.undisturbed():
                    getattr(callback, hook)(index, logs)
            else:
                getattr(callback, hook)(index, logs)
