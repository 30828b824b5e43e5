"""FlorKeras, the callback, and how `fit` calls reach the session of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from flor_keras import keras_internals, session
from flor_keras.checkpoint.schedule import DEFAULT_OVERHEAD, Every, asked_every
from flor_keras.errors import UsageError
from flor_keras.export import FORMATS


class FlorKeras(keras.callbacks.Callback):
    """Record a `fit` call so that numbers can be computed after it is over.

    `model.fit(x, y, callbacks=[flor.FlorKeras()])` is all there is to do. Its place in the list does not matter. Training is not
    changed, and nothing that goes wrong here ends it. Every `fit` call of a program is one loop of its run.

    Args:
      store: the folder of the store; `.flor` at the top of the script's git work tree, else beside the script, if
        not given. The variable FLOR_STORE says otherwise for a whole program.
      name: a name for the run, to find it by.
      overhead: the share of training time that recording may cost.
      checkpoint_every: "auto" for as many checkpoints as ``overhead`` allows, at the ends of epochs and, where epochs are
        long, between steps; or, whatever they cost, "epoch", a number of epochs, {"steps": n} or {"seconds": s}. The
        variable FLOR_CHECKPOINT_EVERY says otherwise for a whole program.
      resume: a run to go on with instead of beginning a new one: its id, its name or "latest". `flor-keras resume`
        does this without a change to the program, and puts the program's random states back too.
      export: write models while training goes on, in this format (see `flor-keras export`). They lie in the run's
        folder, SavedModels as versions that TensorFlow Serving reads: version N is the model after N epochs.
      export_every: export after every so-many-th epoch.

    Raises:
      StoreError: the store cannot be written; raised when `fit` begins, before its first epoch.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        name: str | None = None,
        overhead: float = DEFAULT_OVERHEAD,
        resume: str | None = None,
        export: str | None = None,
        export_every: int = 1,
        checkpoint_every: str | int | dict[str, float] = "auto",
    ) -> None:
        super().__init__()
        if not 0 < overhead <= 1:
            raise UsageError(
                f"overhead is {overhead}; expected a share of training time between 0 and 1, such as 1/15."
            )
        if export is not None and export not in FORMATS:
            raise UsageError(f"export is {export!r}; expected one of {', '.join(FORMATS)}.")
        if export_every < 1:
            raise UsageError(f"export_every is {export_every}; expected a number of epochs, 1 or more.")
        asked_every(checkpoint_every)
        self.checkpoint_every = checkpoint_every
        self.export = export
        self.export_every = export_every
        self.store = store
        self.name = name
        self.overhead = overhead
        self.resume = resume
        self.loop: Any = None  # the loop that is being recorded
        keras_internals.hook_fit(_fit)

    # Within `fit` the session begins and ends the loop around the call. Where a program calls its callbacks itself,
    # `on_train_begin` and `on_train_end` do.

    def on_train_begin(self, logs: Any = None) -> None:
        """Checkpoint the state before the first step."""
        if self.loop is None:
            self.loop = session.ensure(self.store, self.name, self.resume).begin_fit(is_own=True)
            self.loop.every, self.loop.overhead = self.every(), self.overhead
        self.loop.begin(self.model, self.params)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the position; within `fit` a callback in front of all others does."""
        if self.loop.is_own:
            self.loop.epoch_begin(epoch)
        self.loop.epoch_begun()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch's logs and checkpoint its end."""
        self.loop.epoch_end(epoch, logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        """End a loop that was not begun by `fit`."""
        if self.loop is not None and self.loop.is_own:
            self.loop.end(getattr(self.model, "history", None))
            self.loop = None

    def every(self) -> Every:
        """Return how often to checkpoint."""
        return asked_every(self.checkpoint_every)

    def __deepcopy__(self, memo: dict[int, Any]) -> FlorKeras:
        return FlorKeras(*self._arguments())

    def __reduce__(self) -> Any:
        return FlorKeras, self._arguments()

    def _arguments(self) -> tuple[Any, ...]:
        return (
            *(self.store, self.name, self.overhead, self.resume),
            *(self.export, self.export_every, self.checkpoint_every),
        )


def flattened(callbacks: Any) -> list[Any]:
    """Return the callbacks of a `fit` call as a flat list, whichever way they were given."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks))


_num_fits = 0
_is_every_fit_recorded = False


def record_every_fit() -> None:
    """Give every `fit` call a FlorKeras that has none, from here on."""
    global _is_every_fit_recorded
    _is_every_fit_recorded = True
    keras_internals.hook_fit(_fit)


@contextmanager
def every_fit() -> Iterator[None]:
    """Give every `fit` call inside the context a FlorKeras that has none."""
    global _is_every_fit_recorded
    before = _is_every_fit_recorded
    record_every_fit()
    try:
        yield
    finally:
        _is_every_fit_recorded = before


def num_recorded_fits() -> int:
    """Return how many `fit` calls reached the session."""
    return _num_fits


def _fit(call: keras_internals.FitCall) -> Any:
    """Stand in for `Model.fit`: give the call to the session if FlorKeras is among its callbacks."""
    global _num_fits
    callbacks = flattened(call.arguments.get("callbacks"))
    ours = [callback for callback in callbacks if isinstance(callback, FlorKeras)]
    if not ours and _is_every_fit_recorded:
        ours = [FlorKeras()]
        callbacks = [*callbacks, *ours]
    if not ours or ours[0].loop is not None:
        return call.make()
    _num_fits += 1
    return session.ensure(ours[0].store, ours[0].name, ours[0].resume).fit(call, callbacks, ours[0])
