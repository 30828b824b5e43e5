"""One loop of a run being visited by a replay: states restored, data resumed, results compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.instrument.levels import Level
from flor_keras.records import CheckpointRecord, Kind, Position
from flor_keras.replay.leads import is_needed, overrides
from flor_keras.replay.replayer import ReplayDone, Replayer
from flor_keras.replay.route import Leg, Steps, legs_to, taken_up_at, with_checks
from flor_keras.replay.states import compare_variables
from flor_keras.state.callbacks import keyed, restore_callbacks
from flor_keras.state.data_position import DataSource, OrderSeed, recorded_order
from flor_keras.state.random import capture_random, restore_random
from flor_keras.state.restore import build_model, read_python, restore_objects
from flor_keras.state.variables import State, gather

_ANY_STEP = 1 << 60  # an epoch may be taken up as late as can be


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
        self._model = model
        self._roots: dict[str, Any] = {"model": model}
        self._callbacks = callbacks
        self._epoch: int | None = None
        self._restored: str | None = None
        self._transient: State | None = None
        replayer.find_random_ops = lambda: keras_internals.stateful_random_ops(model)
        self._is_ordered = False  # whether the orders of epochs without a checkpoint were read
        self.start = self.manifest(replayer.checkpoint(loop, Kind.START))
        asked = replayer.plan.epochs.get(str(loop), [])
        self._legs = {leg.epoch: leg for leg in self._legs_to(asked)}
        self.epochs = sorted({*asked, *self._legs})
        self._steps_kept = {(c.epoch, c.step): c for c in replayer.whole(loop) if c.kind is Kind.STEP}
        super().__init__(self._recorded_order() if self._legs else None)
        self.on_boundary = self._check_between_steps

    def _legs_to(self, asked: Sequence[int]) -> list[Leg]:
        """Return what is made again: all asked epochs at the level step, else those whose state is not there."""
        plan, whole = self.replayer.plan, self.replayer.whole(self.loop)
        has_begin = any(
            overrides(callback, "on_epoch_begin") and (plan.callbacks == "all" or is_needed(callback, plan))
            for callback in self._callbacks
        )
        needed: dict[int, Steps] = {}
        for epoch in asked:
            if Level.STEP.value in plan.levels.values():
                needed[epoch] = (plan.steps[0], plan.steps[-1]) if plan.steps else (0, None)
            elif not self._is_there(epoch, has_begin):
                needed[epoch] = (0 if has_begin else _ANY_STEP, None)
        legs = legs_to(needed, whole)
        if legs is None:
            self.replayer.required(self.loop, Kind.START)
        return with_checks(legs or [], whole)

    def _is_there(self, epoch: int, has_begin: bool) -> bool:
        """Whether what an epoch's callbacks saw can be restored."""
        end = self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch)
        if end is None:
            return False
        hooks = self.replayer.checkpoint(self.loop, Kind.EPOCH_HOOKS, epoch)
        is_first = epoch == self.start.get("position", {}).get("epoch", 0)
        before = is_first or self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch - 1)
        is_seen = hooks is not None or not self.manifest(end).get("is_changed_by_hooks")
        return is_seen and (not has_begin or bool(before))

    # -- which epochs ------------------------------------------------------------------------------------------

    def is_asked(self, epoch: int) -> bool:
        """Note that an epoch begins or ends, and tell whether it is one to visit."""
        self._epoch = epoch if epoch in self.epochs else None
        return self._epoch is not None

    @property
    def is_redone(self) -> bool:
        """Whether steps are made again in any of the epochs."""
        return bool(self._legs)

    def redoes(self, epoch: int | None) -> bool:
        """Whether the steps of an epoch are made again."""
        return epoch in self._legs

    def is_entered_midway(self, epoch: int) -> bool:
        """Whether an epoch is taken up after its first step, so that its beginning is not to be gone through."""
        return self.redoes(epoch) and self._legs[epoch].first > 0

    def is_cut(self, epoch: int) -> bool:
        """Whether the epoch is left before its end, the asked steps being done."""
        return self.redoes(epoch) and self._legs[epoch].last is not None

    def validated_epochs(self, frequency: Any) -> list[int]:
        """Return the epochs, counted from 1 as Keras does here, whose validation is run again."""
        is_due = (lambda e: e % frequency == 0) if isinstance(frequency, int) else frequency.__contains__
        is_eval = Level.EVAL.value in self.replayer.plan.levels.values()
        asked = self.replayer.plan.epochs.get(str(self.loop), [])
        return [
            epoch + 1
            for epoch in self.epochs
            if not self.is_cut(epoch)
            and ((is_eval and epoch in asked) or (self.redoes(epoch) and is_due(epoch + 1)))
        ]

    # -- between fit and its data ------------------------------------------------------------------------------

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Give an asked epoch its steps if they are redone; else none, and then the state they led to."""
        if self._epoch is not None and self.redoes(self._epoch):
            yield from self._redone(super().steps(steps), self._legs[self._epoch].last)
        elif self._epoch is not None:
            self.restore_hooks(self._epoch)
            self.replayer.move(Position(self.loop, self._epoch))

    def _redone(self, steps: Iterator[Any], last: int | None) -> Iterator[Any]:
        for begin, end, iterator in steps:
            if last is not None and begin > last:
                if self._epoch == self.epochs[-1] and self.replayer.is_finished(self.loop):
                    raise ReplayDone
                return
            yield begin, end, iterator

    def _check_between_steps(self, count: int, num_done: int) -> None:
        """Compare with the checkpoint of this place, if there is one."""
        if self._epoch is not None and (checkpoint := self._steps_kept.get((self._epoch, num_done))):
            self._compare(checkpoint, Position(self.loop, self._epoch, num_done - 1))

    def _recorded_order(self) -> OrderSeed | None:
        checkpoint = self.replayer.checkpoint(self.loop, Kind.START)
        return None if checkpoint is None else recorded_order(self.replayer.folder(checkpoint))

    # -- states ------------------------------------------------------------------------------------------------

    def build(self, training: keras_internals.TrainingSteps) -> None:
        """Create all variables that were recorded, as training would have created them."""
        whole = [c for c in self.replayer.whole(self.loop) if taken_up_at(c) is not None]
        newest = max(whole, key=lambda c: taken_up_at(c) or (), default=None)
        last = self.replayer.checkpoint(self.loop, Kind.AFTER) or newest
        self._roots = build_model(training, self._model, self.manifest(last))

    def restore(self, kind: Kind, epoch: int | None = None) -> None:
        """Put the model into a recorded state, unless it is in it already."""
        checkpoint = self.replayer.required(self.loop, kind, epoch)
        if self._restored != checkpoint.path:
            folder = self.replayer.folder(checkpoint)
            restore_objects(folder, self._roots, is_fresh=kind is Kind.START)
            if not (self.is_redone if self._epoch is None else self.redoes(self._epoch)):
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
        is_seen_before = self.redoes(self.epochs[-1] if self.epochs else None)
        self.restore(*((Kind.EPOCH_END, last) if is_seen_before else (Kind.AFTER,)))
        restore_callbacks(
            self._callbacks, self._model, read_python(self.replayer.folder(ends[last]))["callbacks"]
        )

    def resume_before(self, epoch: int) -> None:
        """Put everything into the state an epoch, or what is redone of it, begins with: model, callbacks, data, random."""
        self._read_orders()
        checkpoint = self._legs[epoch].start
        if checkpoint is None:
            self._go_on(epoch)
            return
        folder = self.replayer.folder(checkpoint)
        restore_objects(folder, self._roots, is_fresh=checkpoint.kind is Kind.START)
        is_within = checkpoint.kind is Kind.STEP
        if not is_within:
            self._model.reset_metrics()
        python = read_python(folder)
        keras_internals.set_trainable_flags(self._model, python["trainable"])
        restore_callbacks(self._callbacks, self._model, python["callbacks"])
        if python["data"] is None:
            restore_random(python["random"])
        else:
            (self.resume_within if is_within else self.resume)(python["data"], python["random"])
        self._model.stop_training = False
        for cause in (*self.manifest(checkpoint).get("inexact", ()), *filter(None, [self.why_random])):
            self.replayer.suspect(cause)

    def _read_orders(self) -> None:
        """Read the orders that epochs without a checkpoint had; the next checkpoint after each has them."""
        if self._is_ordered:
            return
        self._is_ordered = True
        ends = {
            at: c
            for c in self.replayer.whole(self.loop)
            if (at := (float("inf"), 0) if c.kind is Kind.AFTER else taken_up_at(c)) is not None
        }
        epochs = [epoch for epoch, leg in self._legs.items() if leg.start is None]
        for at in {min(later) for epoch in epochs if (later := [at for at in ends if at > (epoch, 0)])}:
            self.orders = {**self.orders, **read_python(self.replayer.folder(ends[at])).get("orders", {})}

    def _go_on(self, epoch: int) -> None:
        """Begin an epoch where this process stands."""
        training = self.training
        assert training is not None
        is_unseeded = training.adapter_kind == "dataset" and keras_internals.global_seed() is None
        if is_unseeded and training.creates_next and self._created + 1 not in self.orders:
            self.replayer.suspect(f"the order of the data in epoch {epoch} was not kept by a checkpoint")

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
        for name, value in logs.items():
            if self.redoes(epoch) or name.startswith("val_"):
                self.replayer.log(name, value)  # any other metric has seen no step of this epoch
        if self.redoes(epoch):
            return dict(logs)
        recorded = self.manifest(self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch)).get("logs", {})
        return {**logs, **recorded}

    def compare_state(self, epoch: int) -> None:
        """Compare every variable after a redone epoch with its checkpoint, bit for bit."""
        checkpoint = self.replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch)
        if checkpoint is not None:
            self._compare(checkpoint, Position(self.loop, epoch))

    def _compare(self, checkpoint: CheckpointRecord, position: Position) -> None:
        compare_variables(self.replayer, checkpoint, self._roots, position)

    def recorded_params(self) -> dict[str, Any]:
        """Return what callbacks were told about the loop (epochs, steps)."""
        return {**self.start.get("params", {}), "verbose": 0}

    def manifest(self, checkpoint: CheckpointRecord | None) -> dict[str, Any]:
        """Return what a checkpoint says of itself; nothing where there is none."""
        return {} if checkpoint is None else bundle.read_manifest(self.replayer.folder(checkpoint))
