"""Taking up a `fit` loop of an interrupted run at its last checkpoint. Runs in the training process.

Nothing here is shielded: where a state cannot be put back, wrong numbers would be worse than an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.recording.csv_rows import be_as_made, go_on_with_rows
from flor_keras.recording.resume import Past
from flor_keras.records import CheckpointRecord, Kind
from flor_keras.state.callbacks import restore_callbacks
from flor_keras.state.data_position import DataSource
from flor_keras.state.random import restore_random
from flor_keras.state.restore import build_model, read_python, restore_objects

_HOOK = "on_epoch_begin"


class GoingOn:
    """One loop that goes on.

    Args:
      past: what the run had come to.
      last: the checkpoint to go on from.
      callbacks: the program's own.
    """

    def __init__(self, past: Past, last: CheckpointRecord, callbacks: Sequence[Any]) -> None:
        self._past = past
        self._last = last
        self._folder = past.folder(last)
        self._callbacks = callbacks
        self._model: Any = None
        self._manifest = bundle.read_manifest(self._folder)
        self._is_waiting = True  # for the first epoch
        self._held_back: list[tuple[Any, Any]] = []
        self._appending: list[Any] = []  # loggers that go on with their files
        self.source: DataSource | None = None

    def arrange(self, call: keras_internals.FitCall) -> None:
        """Have `fit` begin with the epoch that comes next; with none if training had decided to stop."""
        if self._last.kind is Kind.STEP:
            call.arguments["initial_epoch"] = self._last.epoch
        elif self._last.kind is Kind.EPOCH_END:
            call.arguments["initial_epoch"] = self._last.epoch + 1
            if read_python(self._folder)["stop_training"]:
                call.arguments["epochs"] = self._last.epoch + 1
        if self._last.kind is not Kind.START:
            self._appending = go_on_with_rows(self._callbacks, call.arguments["initial_epoch"])

    def begin(self, model: Any) -> dict[str, Any]:
        """Put everything where the next epoch begins; return what is recorded, by name."""
        assert self.source is not None and self.source.training is not None
        self._model = model
        roots = {"model": model}
        if self._last.kind is not Kind.START:
            roots = build_model(self.source.training, model, self._manifest)
        if self._last.kind is not Kind.STEP:
            self._restore(roots)
        return roots

    def epoch_begin(self, epoch: int) -> None:
        """An epoch begins: of the first give the History what came before, and hold its hooks back if they were called."""
        if not self._is_waiting:
            return
        self._give_history()
        if self._last.kind is Kind.STEP:
            for callback in self._callbacks:
                self._held_back.append((callback, vars(callback).get(_HOOK)))
                setattr(callback, _HOOK, _do_nothing)

    def epoch_begun(self, roots: dict[str, Any]) -> tuple[int, int]:
        """Go to the place inside of the first epoch; return the steps done, and the entries logged outside of steps."""
        is_within = self._is_waiting and self._last.kind is Kind.STEP
        self._is_waiting = False
        if not is_within:
            return 0, 0
        for callback, own in self._held_back:
            delattr(callback, _HOOK)
            if own is not None:
                setattr(callback, _HOOK, own)
        self._held_back = []
        self._restore(roots)
        return self._last.step, int(self._manifest["num_outside_steps"])

    def add_logs(self, epoch: int, num_done: int, logs: dict[str, Any]) -> None:
        """Add the logs of an epoch whose last step was the one before the place: Keras knows those of steps it makes."""
        if (epoch, num_done) == (self._last.epoch, self._last.step) and self._last.kind is Kind.STEP:
            whole = {**(self._manifest.get("step_logs") or {}), **logs}
            logs.clear()
            logs.update(whole)

    def epoch_end(self) -> None:
        """An epoch is over, and every callback has had its `on_epoch_end`."""
        be_as_made(self._appending)
        self._appending = []

    def _restore(self, roots: dict[str, Any]) -> None:
        restore_objects(self._folder, roots, is_fresh=self._last.kind is Kind.START)
        python = read_python(self._folder)
        keras_internals.set_trainable_flags(self._model, python["trainable"])
        restore_callbacks(self._callbacks, self._model, python["callbacks"])
        assert self.source is not None
        if python["data"] is None:
            restore_random(python["random"])
        elif self._last.kind is Kind.STEP:
            self.source.resume_within(python["data"], python["random"])
        else:
            self.source.resume(python["data"], python["random"])

    def _give_history(self) -> None:
        """Put the logs of earlier epochs into the model's History, which `fit` has just emptied."""
        history: Any = getattr(self._model, "history", None)
        names = self._manifest.get("log_names", [])
        for at, (epoch, logs) in enumerate(self._past.history(self._last, names)):
            history.epoch.insert(at, epoch)
            for name, value in logs.items():
                history.history.setdefault(name, []).insert(at, value)

    @property
    def inexact(self) -> list[str]:
        """Why the loop may not go on exactly as it would have."""
        return list(self._manifest.get("inexact", ()))

    @property
    def log_names(self) -> list[str]:
        """The names of the epoch logs so far."""
        return list(self._manifest.get("log_names", ()))


def _do_nothing(epoch: int, logs: Any = None) -> None:
    """Stand in for a hook that was called before the interruption."""
