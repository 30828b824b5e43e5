"""Making a `fit` call that is recorded: our callbacks and our source of data in it. Runs in the training process."""

from __future__ import annotations

import secrets
import time
from typing import Any

import keras

from flor_keras import keras_internals
from flor_keras.recording.fit import FitLoop
from flor_keras.recording.going_on import GoingOn
from flor_keras.recording.recorder import Recorder
from flor_keras.records import Execution, Kind, Position
from flor_keras.state.data_position import DataSource, OrderSeed, recorded_order
from flor_keras.state.fingerprints import data_fingerprint
from flor_keras.state.skip import skip_fit


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
        self._loop.batch_end(batch, {} if logs is None else logs)

    def on_test_begin(self, logs: Any = None) -> None:
        self._loop.steps_end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._loop.hooks_begin(epoch, {} if logs is None else logs)


def record_fit(recorder: Recorder, call: keras_internals.FitCall, callbacks: list[Any], flor: Any) -> Any:
    """Make a `fit` call with ``flor`` last among its callbacks, and record it."""
    began_at = time.perf_counter()
    loop = recorder.begin_fit(initial_epoch=call.arguments.get("initial_epoch", 0))
    loop.every, loop.overhead = flor.every(), flor.overhead
    if flor.export is not None:
        loop.exported_every = flor.export_every
        recorder.exports.want(loop.loop, flor.export, flor.export_every)
        if flor.export == "saved_model":
            recorder.models.trace(loop.loop)
    past = recorder.past
    last = None if past is None else past.last(loop.loop)
    own = [callback for callback in callbacks if not isinstance(callback, type(flor) | _Front)]
    if last is not None and last.kind is Kind.AFTER:
        history = skip_fit(call, past.folder(last), own)
        recorder.move(Position(loop.loop))
        return history
    loop.callbacks = own
    with recorder.shielded("Fingerprinting the data"):
        loop.fingerprint = data_fingerprint(call)
    give_callbacks(call, [_Front(loop), *loop.callbacks, flor])
    order = order_seed(recorder.seed, loop.loop) if last is None else recorded_order(past.folder(last))
    loop.source = DataSource(order)
    if last is not None:
        loop.going_on = GoingOn(past, last, own)
        loop.going_on.source = loop.source
        loop.going_on.arrange(call)
    flor.loop = loop
    recorder.execution = Execution(call.model.steps_per_execution, bool(call.model.jit_compile))
    loop.began_at, loop.setup_secs = began_at, time.perf_counter() - began_at
    try:
        shuffle = order.shuffle if order else None
        with keras_internals.training_steps(loop.source, shuffle, loop.source.leave_order) as training:
            loop.source.training = training
            history = call.make()
    except BaseException as error:
        recorder.ending.fail(error)
        recorder.move(Position(loop.loop))
        if not isinstance(error, KeyboardInterrupt):  # who interrupts is waiting
            loop.keep_model(is_needed=True)
        raise
    finally:
        flor.loop = None
        recorder.execution = Execution()
    recorder.ending.succeed()
    loop.end(history)
    return history


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
