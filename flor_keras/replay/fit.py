"""Replaying one `fit` call at the levels epoch, eval and after: resumed at each asked epoch, without a training step.

Keras's own `fit` runs, with a container of callbacks that decides which epochs and which callbacks get a word, and
with an iterator that yields no step. Where the steps of an epoch would be over, the state of its end is restored;
validation and epoch hooks then see what they saw when the run was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.errors import ReplayError
from flor_keras.instrument.levels import Level
from flor_keras.records import CheckpointRecord, Kind, Position
from flor_keras.replay.leads import leads, name_of, overrides, writes_files
from flor_keras.replay.replayer import Replayer
from flor_keras.state.restore import restore_objects
from flor_keras.state.variables import gather


def replay_fit(replayer: Replayer, loop: int, call: keras_internals.FitCall, callbacks: list[Any]) -> Any:
    """Make a recorded `fit` call again, as far as the plan needs it; return its recorded History."""
    epochs = replayer.plan.epochs.get(str(loop), [])
    visit = _Visit(replayer, loop, call.model, epochs)
    chosen = _choose(replayer, callbacks) if epochs else []
    arguments = call.arguments
    first = epochs[0] if epochs else 0
    arguments["initial_epoch"] = first
    arguments["epochs"] = epochs[-1] + 1 if epochs else first
    arguments["verbose"] = 0
    arguments["validation_freq"] = visit.validated_epochs()
    params = visit.recorded_params()
    with keras_internals.training_steps(visit.no_steps) as steps:
        arguments["callbacks"] = _Visits(visit, steps, chosen, call.model, params)
        history = call.make()
    visit.restore(Kind.AFTER)
    return visit.give_history(history)


def _choose(replayer: Replayer, callbacks: list[Any]) -> list[Any]:
    """Split the program's callbacks into those that are called and those that are held back."""
    from flor_keras.callback import FlorKeras

    chosen = []
    for callback in callbacks:
        if isinstance(callback, FlorKeras):
            continue
        is_needed = leads(callback, Path(replayer.plan.root), replayer.plan.reaching)
        if is_needed or (replayer.plan.callbacks == "all" and not writes_files(callback)):
            chosen.append(callback)
        elif name_of(callback) not in replayer.held_back:
            replayer.held_back.append(name_of(callback))
    replayer.tell({"event": "held_back", "names": replayer.held_back})
    return chosen


class _Visit:
    """One loop being visited: what is restored when, and what is compared."""

    def __init__(self, replayer: Replayer, loop: int, model: Any, epochs: list[int]) -> None:
        self.replayer = replayer
        self.loop = loop
        self.epochs = epochs
        self._model = model
        self._epoch: int | None = None
        self._restored: str | None = None

    def validated_epochs(self) -> list[int]:
        """Return the epochs, counted from 1 as Keras does here, whose validation is run again."""
        is_eval = Level.EVAL.value in self.replayer.plan.levels.values()
        return [epoch + 1 for epoch in self.epochs] if is_eval else []

    def build(self, steps: keras_internals.TrainingSteps) -> None:
        """Create all variables that were recorded, as training would have created them."""
        steps.build(self._model)
        last = self.replayer.checkpoint(self.loop, Kind.AFTER) or self._any_checkpoint()
        manifest = self._manifest(last)
        known = set(gather({"model": self._model}).variables) | set(manifest.get("metrics", ()))
        if any(name not in known and name.startswith("model/") for name in manifest.get("tensors", ())):
            steps.trace(self._model)

    def _any_checkpoint(self) -> CheckpointRecord | None:
        return self.replayer.checkpoint(self.loop, Kind.EPOCH_END, self.epochs[-1]) if self.epochs else None

    def no_steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Stand in for an epoch's steps: none, and then the state they led to."""
        if self._epoch is not None:
            self.restore(Kind.EPOCH_END, self._epoch)
            self.replayer.move(Position(self.loop, self._epoch))
        return iter(())

    def is_asked(self, epoch: int) -> bool:
        """Note that an epoch begins, and tell whether it is one to visit."""
        self._epoch = epoch if epoch in self.epochs else None
        return self._epoch is not None

    def restore(self, kind: Kind, epoch: int | None = None) -> None:
        """Put the model into a recorded state, unless it is in it already."""
        checkpoint = self.replayer.checkpoint(self.loop, kind, epoch)
        if checkpoint is None:
            raise ReplayError(
                f"The run has no checkpoint of loop {self.loop}, {kind.value}{'' if epoch is None else f' {epoch}'}: "
                "it ended before, or writing it failed. Ask for other epochs; `flor-keras show` lists what there is."
            )
        if self._restored != checkpoint.path:
            folder = self.replayer.folder(checkpoint)
            restore_objects(folder, {"model": self._model}, is_fresh=kind is Kind.START)
            self.replayer.note_exact(len(bundle.read_manifest(folder)["tensors"]))
            self._restored = checkpoint.path

    def restore_before(self, epoch: int) -> None:
        """Put the model into the state an epoch begins with."""
        if self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch - 1) is not None:
            self.restore(Kind.EPOCH_END, epoch - 1)
        else:
            self.restore(Kind.START)

    def disturb(self) -> None:
        """Note that the program has computed with the model, so that its state has to be restored again."""
        self._restored = None

    def recorded_logs(self, epoch: int) -> dict[str, Any]:
        """Return the logs the epoch's callbacks got when the run was recorded."""
        return dict(self._manifest(self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch)).get("logs", {}))

    def recorded_params(self) -> dict[str, Any]:
        """Return what callbacks were told about the loop (epochs, steps)."""
        after = self._manifest(self.replayer.checkpoint(self.loop, Kind.AFTER)).get("history") or {}
        return {**after.get("params", {}), "verbose": 0}

    def take_logs(self, epoch: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Compare recomputed logs with the recorded ones, log new ones, return all."""
        for name, value in logs.items():
            self.replayer.log(name, value)
        return {**logs, **self.recorded_logs(epoch)}

    def give_history(self, history: Any) -> Any:
        """Make the loop's History the recorded one."""
        recorded = self._manifest(self.replayer.checkpoint(self.loop, Kind.AFTER)).get("history")
        if recorded is not None:
            history.history, history.epoch = recorded["history"], recorded["epoch"]
            history.params = recorded["params"]
        return history

    def _manifest(self, checkpoint: CheckpointRecord | None) -> dict[str, Any]:
        return {} if checkpoint is None else bundle.read_manifest(self.replayer.folder(checkpoint))


class _Visits(keras.callbacks.CallbackList):
    """The callbacks of a visited loop: called at asked epochs only, with the recorded state and logs."""

    def __init__(
        self,
        visit: _Visit,
        steps: keras_internals.TrainingSteps,
        callbacks: list[Any],
        model: Any,
        params: dict[str, Any],
    ) -> None:
        self._visit = visit
        self._steps = steps
        super().__init__(callbacks, add_history=True, add_progbar=False, model=model, **params)

    def on_train_begin(self, logs: Any = None) -> None:
        self._visit.build(self._steps)
        self._visit.replayer.move(Position(self._visit.loop))
        if any(overrides(callback, "on_train_begin") for callback in self.callbacks):
            self._visit.restore(Kind.START)
        super().on_train_begin(logs)
        self._visit.disturb()
        self._steps.arm()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._visit.is_asked(epoch):
            return
        self._visit.replayer.move(Position(self._visit.loop, epoch))
        if any(overrides(callback, "on_epoch_begin") for callback in self.callbacks):
            self._visit.restore_before(epoch)
        super().on_epoch_begin(epoch, logs)
        self._visit.disturb()

    def on_test_begin(self, logs: Any = None) -> None:
        self._visit.disturb()
        super().on_test_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._visit.is_asked(epoch):
            return
        self._visit.restore(Kind.EPOCH_END, epoch)
        super().on_epoch_end(epoch, self._visit.take_logs(epoch, dict(logs or {})))
        self._visit.disturb()
        self.model.stop_training = False
        self._visit.replayer.flush()
        self._visit.replayer.tell({"event": "epoch", "loop": self._visit.loop, "epoch": epoch})

    def on_train_end(self, logs: Any = None) -> None:
        if any(overrides(callback, "on_train_end") for callback in self.callbacks):
            self._visit.restore(Kind.AFTER)
        self._visit.replayer.move(Position(self._visit.loop))
        super().on_train_end(logs)
