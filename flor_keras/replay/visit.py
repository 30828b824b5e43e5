"""One loop of a run being visited by a replay: states restored, data resumed, results compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.instrument.levels import Level
from flor_keras.records import CheckpointRecord, Kind, Position
from flor_keras.replay.replayer import ReplayDone, Replayer
from flor_keras.replay.states import compare_variables
from flor_keras.state.callbacks import keyed, restore_callbacks
from flor_keras.state.data_position import DataSource, OrderSeed, recorded_order
from flor_keras.state.random import capture_random, restore_random
from flor_keras.state.restore import build_model, read_python, restore_objects
from flor_keras.state.variables import State, gather


class Visit(DataSource):
    """Visits the asked epochs of one recorded loop.

    Args:
      replayer: the replay.
      loop: the number of the loop.
      model: the program's model.
      callbacks: all callbacks of the program, called or not.
    """

    def __init__(self, replayer: Replayer, loop: int, model: Any, callbacks: Sequence[Any]) -> None:
        self.replayer = replayer
        self.loop = loop
        self.epochs = replayer.plan.epochs.get(str(loop), [])
        self.is_redone = Level.STEP.value in replayer.plan.levels.values() and bool(self.epochs)
        self._model = model
        self._roots: dict[str, Any] = {"model": model}
        self._callbacks = callbacks
        self._epoch: int | None = None
        self._restored: str | None = None
        self._transient: State | None = None
        self.start = self.manifest(replayer.checkpoint(loop, Kind.START))
        if self.is_redone:
            self.epochs = self._with_lead_in(self.epochs)
        self._redone_to: int | None = None  # the epoch this process has redone to its end
        super().__init__(self._recorded_order() if self.is_redone else None)

    def _with_lead_in(self, asked: Sequence[int]) -> list[int]:
        """Return the epochs to redo: the asked ones, and those between them and the nearest checkpoint before."""
        first = self.start.get("position", {}).get("epoch", 0)
        needed = set(asked)
        for epoch in asked:
            while epoch > first and self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch - 1) is None:
                epoch -= 1
                needed.add(epoch)
        return sorted(needed)

    # -- which epochs ------------------------------------------------------------------------------------------

    def is_asked(self, epoch: int) -> bool:
        """Note that an epoch begins or ends, and tell whether it is one to visit."""
        self._epoch = epoch if epoch in self.epochs else None
        return self._epoch is not None

    def is_cut(self) -> bool:
        """Whether the epoch is left before its end, the asked steps being done."""
        return self.is_redone and self.replayer.plan.steps is not None

    def validated_epochs(self, frequency: Any) -> list[int]:
        """Return the epochs, counted from 1 as Keras does here, whose validation is run again."""
        if self.is_cut():
            return []
        if self.is_redone:
            is_due = (lambda e: e % frequency == 0) if isinstance(frequency, int) else frequency.__contains__
            return [epoch + 1 for epoch in self.epochs if is_due(epoch + 1)]
        is_eval = Level.EVAL.value in self.replayer.plan.levels.values()
        return [epoch + 1 for epoch in self.epochs] if is_eval else []

    # -- between fit and its data ------------------------------------------------------------------------------

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Give an asked epoch its steps if they are redone; else none, and then the state they led to."""
        if self._epoch is not None and self.is_redone:
            yield from self._redone(super().steps(steps))
        elif self._epoch is not None:
            self.restore_hooks(self._epoch)
            self.replayer.move(Position(self.loop, self._epoch))

    def _redone(self, steps: Iterator[Any]) -> Iterator[Any]:
        asked = self.replayer.plan.steps
        for begin, end, iterator in steps:
            if asked is not None and begin > asked[-1]:
                if self._epoch == self.epochs[-1] and self.replayer.is_finished(self.loop):
                    raise ReplayDone
                return
            yield begin, end, iterator

    def _recorded_order(self) -> OrderSeed | None:
        checkpoint = self.replayer.checkpoint(self.loop, Kind.START)
        return None if checkpoint is None else recorded_order(self.replayer.folder(checkpoint))

    # -- states ------------------------------------------------------------------------------------------------

    def build(self, training: keras_internals.TrainingSteps) -> None:
        """Create all variables that were recorded, as training would have created them."""
        last = self.replayer.checkpoint(self.loop, Kind.AFTER) or self._last_epoch_end()
        self._roots = build_model(training, self._model, self.manifest(last))

    def _last_epoch_end(self) -> CheckpointRecord | None:
        return self.replayer.checkpoint(self.loop, Kind.EPOCH_END, self.epochs[-1]) if self.epochs else None

    def restore(self, kind: Kind, epoch: int | None = None) -> None:
        """Put the model into a recorded state, unless it is in it already."""
        checkpoint = self.replayer.required(self.loop, kind, epoch)
        if self._restored != checkpoint.path:
            folder = self.replayer.folder(checkpoint)
            restore_objects(folder, self._roots, is_fresh=kind is Kind.START)
            if not self.is_redone:
                self.replayer.note_exact(len(bundle.read_manifest(folder)["tensors"]))
            self._restored = checkpoint.path

    def before(self, epoch: int) -> CheckpointRecord:
        """Return the checkpoint an epoch begins with."""
        end = self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch - 1)
        return end or self.replayer.required(self.loop, Kind.START)

    def restore_hooks(self, epoch: int) -> None:
        """Put the model into the state an epoch's callbacks saw, and them too where they change it."""
        hooks = self.replayer.checkpoint(self.loop, Kind.EPOCH_HOOKS, epoch)
        if hooks is None:
            self.restore(Kind.EPOCH_END, epoch)
        else:
            self.restore(Kind.EPOCH_HOOKS, epoch)
            restore_callbacks(
                self._callbacks, self._model, read_python(self.replayer.folder(hooks))["callbacks"]
            )

    def restore_before(self, epoch: int) -> None:
        """Put the model into the state an epoch begins with."""
        checkpoint = self.before(epoch)
        self.restore(checkpoint.kind, None if checkpoint.kind is Kind.START else checkpoint.epoch)

    def restore_end(self) -> None:
        """Put the callbacks into the state the loop's last epoch left them in, and the model where they saw it.

        Where callbacks that change the model at the end are called too, that is before the change, else after it.
        """
        ends = self.replayer.epoch_ends(self.loop)
        if not ends or self.replayer.checkpoint(self.loop, Kind.AFTER) is None:
            return
        last = max(ends)
        self.restore(*((Kind.EPOCH_END, last) if self.is_redone else (Kind.AFTER,)))
        restore_callbacks(
            self._callbacks, self._model, read_python(self.replayer.folder(ends[last]))["callbacks"]
        )

    def resume_before(self, epoch: int) -> None:
        """Put everything into the state an epoch begins with: model, callbacks, data and random states."""
        is_there = self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch - 1) is not None
        if not is_there and self._redone_to == epoch - 1:
            self._go_on(epoch)
            return
        checkpoint = self.before(epoch)
        self._restored = None
        self.restore_before(epoch)
        self._model.reset_metrics()
        python = read_python(self.replayer.folder(checkpoint))
        keras_internals.set_trainable_flags(self._model, python["trainable"])
        restore_callbacks(self._callbacks, self._model, python["callbacks"])
        if python["data"] is not None:
            self.resume(python["data"], python["random"])
        else:
            restore_random(python["random"])
        self._model.stop_training = False
        for cause in (*self.manifest(checkpoint).get("inexact", ()), *filter(None, [self.why_random])):
            self.replayer.suspect(cause)

    def _go_on(self, epoch: int) -> None:
        """Begin an epoch where this process stands; what the order of unseeded data came from is not there."""
        assert self.training is not None
        if self.training.adapter_kind == "dataset" and keras_internals.global_seed() is None:
            self.replayer.suspect(
                f"the checkpoint of the end of epoch {epoch - 1}, which holds the order of the data in epoch {epoch}, "
                "is missing"
            )

    def disturb(self) -> None:
        """Note that the program has computed with the model, so that its state has to be restored again."""
        self._restored = None

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Put back what evaluating inside this context changes: metrics, seeds, states, random states."""
        if self._transient is None:
            self._transient = gather(self._roots)
        optimizers = tuple(f"{name}/" for name in self._transient.optimizers)
        kept = [
            (variable, variable.read_value())
            for name, variable in self._transient.variables.items()
            if not variable.trainable and not name.startswith(optimizers)
        ]
        random, is_stopping = capture_random(), self._model.stop_training
        try:
            yield
        finally:
            for variable, value in kept:
                variable.assign(value)
            restore_random(random)
            self._model.stop_training = is_stopping

    def is_new(self, callback: Any) -> bool:
        """Whether a callback was not there when the run was recorded."""
        key = next((key for key, known in keyed(self._callbacks) if known is callback), None)
        return key is not None and key not in self.start.get("callbacks", ())

    # -- results -----------------------------------------------------------------------------------------------

    def take_logs(self, epoch: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Compare recomputed logs with the recorded ones, log new ones; return what hooks are to get."""
        position = Position(self.loop, epoch)
        for name, value in logs.items():
            is_recorded = self.replayer.recorded_value(name, position) is not None
            if self.is_redone or is_recorded or name.startswith("val_"):
                self.replayer.log(name, value)  # any other metric has seen no step of this epoch
        recorded = self.manifest(self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch)).get("logs", {})
        return dict(logs) if self.is_redone else {**logs, **recorded}

    def compare_state(self, epoch: int) -> None:
        """Compare every variable after a redone epoch with its checkpoint, bit for bit."""
        self._redone_to = epoch
        checkpoint = self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch)
        if checkpoint is None:
            return
        if compare_variables(self.replayer, checkpoint, self._roots, Position(self.loop, epoch)):
            self.replayer.suspect_random_ops(keras_internals.stateful_random_ops(self._model))

    def recorded_params(self) -> dict[str, Any]:
        """Return what callbacks were told about the loop (epochs, steps)."""
        return {**self.start.get("params", {}), "verbose": 0}

    def manifest(self, checkpoint: CheckpointRecord | None) -> dict[str, Any]:
        """Return what a checkpoint says of itself; nothing where there is none."""
        return {} if checkpoint is None else bundle.read_manifest(self.replayer.folder(checkpoint))
