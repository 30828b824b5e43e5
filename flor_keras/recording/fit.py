"""Recording one `fit` call: its position, its logs, its checkpoints. Runs in the training process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from flor_keras import keras_internals
from flor_keras.checkpoint.schedule import DEFAULT_OVERHEAD, Every
from flor_keras.recording.pace import Pace
from flor_keras.recording.recorder import Recorder
from flor_keras.records import Kind, LoopRecord, Position
from flor_keras.state.callbacks import capture_callbacks, keyed
from flor_keras.state.changers import change_the_model
from flor_keras.state.data_position import DataSource
from flor_keras.state.random import capture_random
from flor_keras.state.variables import STEP, outside_of

if TYPE_CHECKING:
    from flor_keras.recording.going_on import GoingOn


# Which layers were trained when a training function made its first step, which is how it was traced.
_TRAINED: WeakKeyDictionary[Any, dict[int, bool]] = WeakKeyDictionary()
_WITH_DATA = (Kind.START, Kind.EPOCH_END)


class FitLoop:
    """One recorded `fit` call. Its methods are called at the moments their names say, and never raise.

    Args:
      recorder: the run the loop belongs to.
      loop: its number.
      is_own: the program calls its callbacks itself; there is no `fit` around the loop.
      initial_epoch: the first epoch, as `fit` was asked.
    """

    def __init__(self, recorder: Recorder, loop: int, is_own: bool, initial_epoch: int = 0) -> None:
        self._recorder = recorder
        self.loop = loop
        self.is_own = is_own
        self.source: DataSource | None = None
        self.callbacks: Sequence[Any] = ()
        self.fingerprint: str | None = None
        self._model: Any = None
        self._roots: dict[str, Any] = {}
        self._traced: Any = None  # the training function whose variables are known
        self._epoch = initial_epoch
        self._num_epochs: int | None = None
        self._steps_done = 0
        self._step_logs: Mapping[str, Any] = {}
        self._steps_before: int | None = None  # of the last whole epoch
        self._epoch_began = 0.0
        self.every = Every()
        self.overhead = DEFAULT_OVERHEAD
        self.began_at: float | None = None  # when `fit` was called, and what was done before it for recording
        self.setup_secs = 0.0
        self.exported_every: int | None = None
        self._pace: Pace | None = None
        self._is_kept_within = False  # whether there may be checkpoints between steps
        self._is_end_due: bool | None = None  # decided before the epoch's callbacks were called
        self._log_names: dict[str, None] = {}
        self._lost: list[str] = []
        self._changes: bool | None = None  # whether callbacks may change the model at the end of an epoch
        self.going_on: GoingOn | None = None  # where an interrupted run is resumed

    def begin(self, model: Any, params: Mapping[str, Any]) -> None:
        """The first step comes next; every other callback has had its `on_train_begin`."""
        with self._recorder.shielded("Recording the beginning of fit"):
            resumed = keras_internals.initial_epoch(model)
            self._epoch = self._epoch if resumed is None else resumed
            self._model = model
            self._roots = {"model": model}
            self._num_epochs = params.get("epochs")
            self._pace = Pace(self._recorder, self.loop, self.every, self.overhead, self.began_at)
            self._pace.schedule.pay(stall_secs=self.setup_secs)
            record = LoopRecord(
                run=self._recorder.run,
                loop=self.loop,
                kind="fit",
                name=model.name,
                initial_epoch=self._epoch,
                epochs=self._num_epochs,
                steps=params.get("steps"),
                started_at=time.time(),
            )
            self._recorder.journal.post(lambda store: store.begin_loop(record))
            self._recorder.move(Position(self.loop))
            if self.source is not None and self.source.training is not None:
                self.source.training.is_armed = True
                self._is_kept_within = self._pace.schedule.is_within_epochs
                if self._is_kept_within and self.source.training.runs_ahead:
                    self._is_kept_within = False
                    self._recorder.note(
                        "The workers of the PyDataset fetch batches ahead of the steps, so that checkpoints are taken at the ends "
                        "of epochs only."
                    )
                self.source.is_kept_within = self._is_kept_within
                self.source.on_boundary = self._between_steps
            described = {
                "params": dict(params),
                "callbacks": [key for key, _ in keyed(self.callbacks)],
                "fingerprint": self.fingerprint,
            }
            if self.going_on is None:
                self._take(Kind.START, described, goes_on=True)
        if self.going_on is not None:
            for why in self.going_on.inexact:
                self._recorder.report(f"The run may not go on exactly as it would have: {why}")
            self._log_names = dict.fromkeys(self.going_on.log_names)
            self._roots = self.going_on.begin(model)

    def outside_epochs(self) -> None:
        """The loop is about to begin, or its last epoch is over; no other callback knows yet."""
        self._recorder.move(Position(self.loop))

    def epoch_begin(self, epoch: int) -> None:
        """An epoch begins; no other callback knows yet."""
        self._epoch = epoch
        self._steps_done = 0
        self._is_end_due = None
        self._epoch_began = time.perf_counter()
        self._recorder.num_outside_steps = 0
        self._recorder.move(Position(self.loop, epoch))
        if self.going_on is not None:
            self.going_on.epoch_begin(epoch)

    def epoch_begun(self) -> None:
        """An epoch has begun; every other callback has had its `on_epoch_begin`."""
        if self.going_on is not None:
            self._steps_done, self._recorder.num_outside_steps = self.going_on.epoch_begun(self._roots)

    def batch_begin(self, step: int) -> None:
        """A step begins; no other callback knows yet."""
        if not step:
            self._note_trained()
        self._recorder.move(Position(self.loop, self._epoch, step))

    def batch_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """A step has ended; with several steps per execution, ``step`` is the last of them."""
        self._steps_done = step + 1
        self._step_logs = logs
        self._recorder.move(Position(self.loop, self._epoch, step))

    def _note_trained(self) -> None:
        with self._recorder.shielded("Recording which layers are trained"):
            if not self._model.run_eagerly:
                _TRAINED.setdefault(self._model.train_function, keras_internals.trained_layers(self._model))

    def _why_frozen(self) -> str | None:
        """Say that steps made again will not be those that were made, where layers were frozen too late for those."""
        function = self._model.train_function
        before = {} if function is None else _TRAINED.get(function, {})
        now = keras_internals.trained_layers(self._model)
        if all(now.get(layer, flag) == flag for layer, flag in before.items()):
            return None
        return (
            "a layer's trainable was set and the model not compiled again: its steps went on as they were, and "
            "steps made again heed it; call compile() after setting it"
        )

    def steps_end(self) -> None:
        """The epoch's steps are over; what is logged from here on belongs to the epoch as a whole."""
        self._recorder.move(Position(self.loop, self._epoch))

    def hooks_begin(self, epoch: int, logs: dict[str, Any]) -> None:
        """The epoch's callbacks are about to be called; keep what they see, where one may change it for the next."""
        self.steps_end()
        if self.going_on is not None:
            self.going_on.add_logs(epoch, self._steps_done, logs)
        with self._counted("Recording the end of an epoch"):
            if self._changes is None:
                self._changes = change_the_model(self.callbacks)
                if self._pace is not None and self._changes:
                    self._pace.schedule.num_at_end += 1
            if self._changes:
                self._is_end_due = self._is_last_epoch or self._is_due_at_end(2)
                if self._is_end_due:
                    self._take(Kind.EPOCH_HOOKS, {}, goes_on=False)

    @property
    def _is_last_epoch(self) -> bool:
        return self._num_epochs is not None and self._epoch + 1 >= self._num_epochs

    def _is_due_at_end(self, num_checkpoints: int = 1) -> bool:
        """Whether the end of this epoch, which may not be the last, is checkpointed."""
        assert self._pace is not None
        is_exported = self.exported_every is not None and (self._epoch + 1) % self.exported_every == 0
        return is_exported or self._pace.is_due_at_end(self._epoch, self._roots, num_checkpoints)

    def _between_steps(self, count: int, num_done: int) -> None:
        """``count`` steps were made at once, and ``num_done`` of this epoch are done; mostly another comes."""
        pace = self._pace
        if pace is None:
            return
        pace.schedule.note_steps(count)
        now = time.perf_counter()
        if now < pace.schedule.look_within_at or not self._is_kept_within:
            return
        with self._counted("Checkpointing between steps"):
            last = self._steps_before or self.source.training.num_steps  # type: ignore[union-attr]
            if last is not None and num_done >= last:
                return
            left = None if last is None else (last - num_done) * (now - self._epoch_began) / num_done
            end_at = None if left is None else now + left
            if pace.is_due_within(now, end_at, self._is_last_epoch, self._roots):
                self._find_outside()
                described: dict[str, Any] = {"num_outside_steps": self._recorder.num_outside_steps}
                if last is None:  # this may have been the last step
                    described["step_logs"] = dict(self._step_logs)
                self._take(Kind.STEP, described, goes_on=True)

    def _find_outside(self) -> None:
        """Add the variables the training step uses from outside of the model; known once a step was traced."""
        if self._model.train_function is not self._traced:
            self._traced = self._model.train_function
            outside = outside_of(self._model, keras_internals.step_variables(self._model))
            self._roots = {"model": self._model, **({STEP: outside} if outside else {})}

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """An epoch is over; every other callback has had its `on_epoch_end`."""
        if self.going_on is not None:
            self.going_on.epoch_end()
        with self._counted("Recording the end of an epoch"):
            self._find_outside()
            for name, value in logs.items():
                self._recorder.journal.entries.append((name, value, self.loop, epoch, None))
            self._log_names |= dict.fromkeys(logs)
            self._steps_before = self._steps_done or None
            goes_on = not self._is_last_epoch and not self._model.stop_training
            if not goes_on or (self._is_due_at_end() if self._is_end_due is None else self._is_end_due):
                described = {"logs": dict(logs), "is_changed_by_hooks": bool(self._changes)}
                self._take(Kind.EPOCH_END, described, goes_on)
        self.keep_model(is_needed=self.exported_every is not None)
        if self.exported_every is not None:
            self._recorder.exports.release(self.loop, epoch)

    def end(self, history: Any) -> None:
        """`fit` has returned; what its last callbacks did to the model is done."""
        with self._recorder.shielded("Recording the end of fit"):
            described = described_history(history)
            self._take(Kind.AFTER, {"history": described}, goes_on=False)
            self.keep_model(is_needed=True)
            self._recorder.checkpoints.finish()
            if self.exported_every is not None:
                self._recorder.exports.finish()
            run, loop, now = self._recorder.run, self.loop, time.time()
            self._recorder.journal.post(lambda store: store.finish_loop(run, loop, described, now))
            self._recorder.move(Position(self.loop))
            if self._pace is not None:
                self._pace.finish()

    @contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        """Keep a failure of ours from the program, and count what recording takes here."""
        with self._recorder.shielded(what), self._pace.counted() if self._pace else nullcontext():
            yield

    def keep_model(self, is_needed: bool) -> None:
        """Keep the model's graph, for export, if it ``is_needed`` or recording may cost that now."""
        with self._recorder.shielded("Keeping the graph of the model"):
            if self._pace is not None:
                self._pace.keep_model(self._roots, is_needed)

    def _take(self, kind: Kind, manifest: dict[str, Any], goes_on: bool) -> None:
        position = Position(self.loop, self._epoch, self._steps_done)
        captured, lost = capture_callbacks(self.callbacks, self._model)
        if lost != self._lost:
            self._recorder.note(
                f"Attributes of callbacks that cannot be pickled are not kept: {', '.join(lost)}"
            )
            self._lost = lost
        trainable = keras_internals.trainable_flags(self._model)
        python = {
            "callbacks": captured,
            "random": capture_random(),  # before the next iterator is made, whose code may draw from it at once
            **self._data(kind, goes_on),
            "stop_training": bool(getattr(self._model, "stop_training", False)),
            "trainable": trainable,
        }
        why = self.source.why_inexact if self.source is not None else None
        reasons = filter(None, [why, self._why_frozen()])
        inexact = [*reasons, *(f"{name} was not kept" for name in lost)]
        described = {**manifest, "inexact": inexact, "log_names": list(self._log_names)}
        self._recorder.checkpoints.take(position, kind, self._roots, python, described)
        if self._pace is not None:
            self._pace.took(is_within=kind is Kind.STEP)

    def _data(self, kind: Kind, goes_on: bool) -> dict[str, Any]:
        """Return where the data stand, and the orders of epochs since the last checkpoint."""
        source = self.source
        if source is None or source.training is None:
            return {"data": None, "orders": {}}
        data = None
        if kind is Kind.STEP:
            data = source.position_within(self._steps_done)
        elif kind in _WITH_DATA:
            data = source.position(goes_on)
        return {"data": data, "orders": source.take_passed()}


def described_history(history: Any) -> dict[str, Any] | None:
    """Return what a `History` holds, as plain values."""
    if history is None:
        return None
    return {
        "epoch": list(history.epoch),
        "history": dict(history.history),
        "params": dict(history.params or {}),
    }
