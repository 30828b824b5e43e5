"""Recording one `fit` call: its position, its logs, its checkpoints. Runs in the training process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import keras

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.recording.csv_rows import go_on_with_rows
from flor_keras.recording.recorder import Recorder
from flor_keras.records import CheckpointRecord, Entry, Execution, Kind, LoopRecord, Position
from flor_keras.state.callbacks import capture_callbacks, keyed, restore_callbacks
from flor_keras.state.changers import change_the_model
from flor_keras.state.data_position import DataSource, OrderSeed, data_fingerprint, recorded_order
from flor_keras.state.random import capture_random, restore_random
from flor_keras.state.restore import build_model, read_python, restore_objects
from flor_keras.state.skip import skip_fit
from flor_keras.state.variables import STEP, outside_of

if TYPE_CHECKING:
    from flor_keras.recording.resume import Past


# Which layers were trained when a training function made its first step, which is how it was traced.
_TRAINED: WeakKeyDictionary[Any, list[bool]] = WeakKeyDictionary()
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
        self._began = time.perf_counter()
        self._cost_before = 0.0
        self.overhead = 1 / 15
        self.is_exporting = False
        self._lost: list[str] = []
        self._changes: bool | None = None  # whether callbacks may change the model at the end of an epoch
        self.past: Past | None = None
        self._resumed: list[tuple[int, dict[str, Any]]] = []

    def begin(self, model: Any, params: Mapping[str, Any]) -> None:
        """The first step comes next; every other callback has had its `on_train_begin`."""
        with self._recorder.shielded("Recording the beginning of fit"):
            resumed = keras_internals.initial_epoch(model)
            self._epoch = self._epoch if resumed is None else resumed
            self._model = model
            self._roots = {"model": model}
            self._num_epochs = params.get("epochs")
            self._cost_before = self._recorder.checkpoints.cost.total_secs
            self._began = time.perf_counter()
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
            described = {
                "params": dict(params),
                "callbacks": [key for key, _ in keyed(self.callbacks)],
                "fingerprint": self.fingerprint,
            }
            if self.past is None or self.past.last(self.loop) is None:
                self._take(Kind.START, described, goes_on=True)
        if self.past is not None and (last := self.past.last(self.loop)) is not None:
            self._go_to(self.past.folder(last), last)

    def _go_to(self, folder: Path, last: CheckpointRecord) -> None:
        """Put everything into the state of the last checkpoint. Not shielded: wrong numbers are worse than none."""
        assert self.past is not None and self.source is not None and self.source.training is not None
        manifest = bundle.read_manifest(folder)
        for why in manifest.get("inexact", ()):
            self._recorder.report(f"The run may not go on exactly as it would have: {why}")
        if last.kind is Kind.EPOCH_END:
            self._roots = build_model(self.source.training, self._model, manifest)
            self._resumed = self.past.history(self.loop, last.epoch)
        restore_objects(folder, self._roots, is_fresh=last.kind is Kind.START)
        python = read_python(folder)
        keras_internals.set_trainable_flags(self._model, python["trainable"])
        restore_callbacks(self.callbacks, self._model, python["callbacks"])
        if python["data"] is not None:
            self.source.resume(python["data"], python["random"])
        else:
            restore_random(python["random"])

    def _give_history(self) -> None:
        """Put the logs of the epochs before the resumed one into the model's History, which `fit` has just emptied."""
        resumed, self._resumed = self._resumed, []
        history: Any = getattr(self._model, "history", None)
        for at, (epoch, logs) in enumerate(resumed):
            history.epoch.insert(at, epoch)
            for name, value in logs.items():
                history.history.setdefault(name, []).insert(at, value)

    def outside_epochs(self) -> None:
        """The loop is about to begin, or its last epoch is over; no other callback knows yet."""
        self._recorder.move(Position(self.loop))

    def epoch_begin(self, epoch: int) -> None:
        """An epoch begins; no other callback knows yet."""
        self._give_history()
        self._epoch = epoch
        self._steps_done = 0
        self._recorder.move(Position(self.loop, epoch))

    def batch_begin(self, step: int) -> None:
        """A step begins; no other callback knows yet."""
        if not step:
            self._note_trained()
        self._recorder.move(Position(self.loop, self._epoch, step))

    def batch_end(self, step: int) -> None:
        """A step has ended; with several steps per execution, ``step`` is the last of them."""
        self._steps_done = step + 1
        self._recorder.move(Position(self.loop, self._epoch, step))

    def _note_trained(self) -> None:
        with self._recorder.shielded("Recording which layers are trained"):
            if not self._model.run_eagerly:
                _TRAINED.setdefault(self._model.train_function, keras_internals.trainable_flags(self._model))

    def _why_frozen(self, trainable: list[bool]) -> str | None:
        """Say that steps made again will not be those that were made, where layers were frozen too late for those."""
        function = self._model.train_function
        if function is None or _TRAINED.get(function, trainable) == trainable:
            return None
        return (
            "a layer's trainable was set and the model not compiled again: its steps went on as they were, and "
            "steps made again heed it; call compile() after setting it"
        )

    def steps_end(self) -> None:
        """The epoch's steps are over; what is logged from here on belongs to the epoch as a whole."""
        self._recorder.move(Position(self.loop, self._epoch))

    def hooks_begin(self) -> None:
        """The epoch's callbacks are about to be called; keep what they see, where one may change it for the next."""
        self.steps_end()
        with self._recorder.shielded("Recording the end of an epoch"):
            if self._changes is None:
                self._changes = change_the_model(self.callbacks)
            if self._changes:
                self._take(Kind.EPOCH_HOOKS, {}, goes_on=False)

    def _find_outside(self) -> None:
        """Add the variables the training step uses from outside of the model; known once a step was traced."""
        if self._model.train_function is not self._traced:
            self._traced = self._model.train_function
            outside = outside_of(self._model, keras_internals.step_variables(self._model))
            self._roots = {"model": self._model, **({STEP: outside} if outside else {})}

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """An epoch is over; every other callback has had its `on_epoch_end`."""
        with self._recorder.shielded("Recording the end of an epoch"):
            self._find_outside()
            position = Position(self.loop, epoch)
            for name, value in logs.items():
                self._recorder.journal.entries.append(Entry(name, value, position))
            is_last = self._num_epochs is not None and epoch + 1 >= self._num_epochs
            goes_on = not is_last and not self._model.stop_training
            self._take(Kind.EPOCH_END, {"logs": dict(logs)}, goes_on)
        has_room = self.overhead * (time.perf_counter() - self._began) - self._cost_secs()
        self.keep_model(float("inf") if self.is_exporting else has_room)
        if self.is_exporting:
            self._recorder.exports.release(self.loop, epoch)

    def end(self, history: Any, overhead: float) -> None:
        """`fit` has returned; what its last callbacks did to the model is done."""
        with self._recorder.shielded("Recording the end of fit"):
            self._give_history()
            described = described_history(history)
            self._take(Kind.AFTER, {"history": described}, goes_on=False)
            self.keep_model(float("inf"))
            self._recorder.checkpoints.finish()
            if self.is_exporting:
                self._recorder.exports.finish()
            run, loop, now = self._recorder.run, self.loop, time.time()
            self._recorder.journal.post(lambda store: store.finish_loop(run, loop, described, now))
            self._recorder.move(Position(self.loop))
            self._tell_overhead(overhead)

    def keep_model(self, room_secs: float) -> None:
        """Keep the model's graph, for export, if that costs no more than ``room_secs``."""
        with self._recorder.shielded("Keeping the graph of the model"):
            checkpoints = self._recorder.checkpoints
            state = checkpoints.state(self._roots)
            checkpoints.cost.stall_secs += self._recorder.models.keep(
                self.loop, self._roots, state, room_secs
            )

    def _cost_secs(self) -> float:
        """Return what recording has cost this loop so far."""
        return float(self._recorder.checkpoints.cost.total_secs - self._cost_before)

    def _take(self, kind: Kind, manifest: dict[str, Any], goes_on: bool) -> None:
        position = Position(self.loop, self._epoch, self._steps_done)
        captured, lost = capture_callbacks(self.callbacks, self._model)
        if lost != self._lost:
            self._recorder.note(
                f"Attributes of callbacks that cannot be pickled are not kept: {', '.join(lost)}"
            )
            self._lost = lost
        trainable = keras_internals.trainable_flags(self._model)
        has_data = self.source is not None and self.source.training is not None and kind in _WITH_DATA
        python = {
            "callbacks": captured,
            "random": capture_random(),  # before the next iterator is made, whose code may draw from it at once
            "data": self.source.position(goes_on) if has_data and self.source else None,
            "stop_training": bool(getattr(self._model, "stop_training", False)),
            "trainable": trainable,
        }
        why = self.source.why_inexact if self.source is not None else None
        reasons = filter(None, [why, self._why_frozen(trainable)])
        inexact = [*reasons, *(f"{name} was not kept" for name in lost)]
        self._recorder.checkpoints.take(position, kind, self._roots, python, {**manifest, "inexact": inexact})

    def _tell_overhead(self, overhead: float) -> None:
        secs = time.perf_counter() - self._began
        share = self._cost_secs() / secs
        if share > overhead:
            self._recorder.note(
                f"Recording loop {self.loop} took {share:.1%} of its {secs:.1f} s, more than overhead={overhead:.1%}."
            )


class _Front(keras.callbacks.Callback):
    """Stands before all other callbacks, so that what they log has the right position."""

    def __init__(self, loop: FitLoop) -> None:
        super().__init__()
        self._loop = loop

    def on_train_begin(self, logs: Any = None) -> None:
        self._loop.outside_epochs()

    def on_train_end(self, logs: Any = None) -> None:
        self._loop.outside_epochs()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._loop.epoch_begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._loop.batch_begin(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._loop.batch_end(batch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._loop.steps_end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._loop.hooks_begin()


def record_fit(recorder: Recorder, call: keras_internals.FitCall, callbacks: list[Any], flor: Any) -> Any:
    """Make a `fit` call with ``flor`` last among its callbacks, and record it."""
    loop = recorder.begin_fit(initial_epoch=call.arguments.get("initial_epoch", 0))
    loop.overhead = flor.overhead
    if flor.export is not None:
        loop.is_exporting = True
        recorder.exports.want(loop.loop, flor.export, flor.export_every)
    loop.past = recorder.past
    last = None if loop.past is None else loop.past.last(loop.loop)
    own = [callback for callback in callbacks if not isinstance(callback, type(flor) | _Front)]
    if last is not None and last.kind is Kind.AFTER:
        history = skip_fit(call, loop.past.folder(last), own)
        recorder.move(Position(loop.loop))
        return history
    if last is not None:
        _resume_at(call, loop.past.folder(last), last, own)
    loop.callbacks = own
    with recorder.shielded("Fingerprinting the data"):
        loop.fingerprint = data_fingerprint(call)
    give_callbacks(call, [_Front(loop), *loop.callbacks, flor])
    order = order_seed(recorder.seed, loop.loop) if last is None else recorded_order(loop.past.folder(last))
    loop.source = DataSource(order)
    flor.loop = loop
    recorder.execution = Execution(call.model.steps_per_execution, bool(call.model.jit_compile))
    try:
        shuffle = order.shuffle if order else None
        with keras_internals.training_steps(loop.source, shuffle, loop.source.leave_order) as training:
            loop.source.training = training
            history = call.make()
    except BaseException as error:
        recorder.ending.fail(error)
        recorder.move(Position(loop.loop))
        if not isinstance(error, KeyboardInterrupt):  # who interrupts is waiting
            loop.keep_model(float("inf"))
        raise
    finally:
        flor.loop = None
        recorder.execution = Execution()
    recorder.ending.succeed()
    loop.end(history, flor.overhead)
    return history


def _resume_at(
    call: keras_internals.FitCall, folder: Path, last: CheckpointRecord, callbacks: Sequence[Any]
) -> None:
    """Have `fit` begin with the epoch after the last that is done; with none if training had decided to stop."""
    if last.kind is Kind.EPOCH_END:
        call.arguments["initial_epoch"] = last.epoch + 1
        if read_python(folder)["stop_training"]:
            call.arguments["epochs"] = last.epoch + 1
        go_on_with_rows(callbacks, last.epoch + 1)


def order_seed(seed: int | None, loop: int) -> OrderSeed | None:
    """Return what to shuffle arrays from; None where the program's own seed decides and Keras's way is kept.

    Args:
      seed: that of `flor.seed`, if called.
      loop: the loop; each has its own orders.
    """
    if seed is not None:
        return OrderSeed(seed + (loop << 32))
    return None if keras_internals.global_seed() is not None else OrderSeed(secrets.randbits(31))


def give_callbacks(call: keras_internals.FitCall, callbacks: list[Any]) -> None:
    """Put ``callbacks`` in place of those a `fit` call was given."""
    given = call.arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks[:] = callbacks
    else:
        call.arguments["callbacks"] = callbacks


def described_history(history: Any) -> dict[str, Any] | None:
    """Return what a `History` holds, as plain values."""
    if history is None:
        return None
    return {
        "epoch": list(history.epoch),
        "history": dict(history.history),
        "params": dict(history.params or {}),
    }
