"""Recording a custom loop: epochs of the outer `flor.loop`, steps of the one inside it. Runs in the training process.

A checkpoint is taken where the inner loop of an epoch ends, so that a replay can skip it and run the rest of the
epoch's code (evaluation, logging) again. Where there is no inner loop, it is taken at the end of the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flor_keras import keras_internals
from flor_keras.recording.recorder import Recorder
from flor_keras.records import CheckpointRecord, Kind, LoopRecord, Position
from flor_keras.state.loops import make_iterators, restore_loop
from flor_keras.state.objects import capture_objects, split
from flor_keras.state.random import capture_random
from flor_keras.state.restore import read_python


class CustomLoop:
    """One recorded outer loop.

    Args:
      recorder: the run it belongs to.
      loop: its number.
      objects: what `flor.checkpointing` named, by name.
    """

    def __init__(self, recorder: Recorder, loop: int, objects: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self.loop = loop
        self._objects = objects
        self._epoch = 0
        self._steps_done = 0
        self._is_checkpointed = False
        self._data: bytes | None = None  # the state of the epoch's data pipeline, before its first step
        self._num_iterators = 0
        self._skipped: CheckpointRecord | None = None

    def epochs(self, name: str, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of the outer loop, an epoch each."""
        last = self._last()
        self._begin(name, iterable)
        if last is not None:
            self._restore(last)
        if last is not None and last.kind is Kind.AFTER:
            return
        for self._epoch, item in enumerate(iterable):
            if self._is_over(last):
                continue
            self._skipped = last if last is not None and last.epoch == self._epoch else None
            self._is_checkpointed, self._steps_done, self._data = False, 0, None
            self._recorder.move(Position(self.loop, self._epoch))
            yield item
            if not self._is_checkpointed:
                self._take(Kind.EPOCH_END)
        self._end()

    def steps(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of an inner loop, a step each."""
        if self._is_checkpointed:  # a second inner loop of the epoch: part of what a replay runs again
            yield from iterable
            return
        if self._skipped is not None:  # its steps were made before the run was interrupted
            folder = self._recorder.past.folder(self._skipped)
            self._num_iterators = make_iterators(iterable, read_python(folder)["data"]["created"])
            self._restore(self._skipped)
            self._skipped, self._is_checkpointed = None, True
            return
        iterator = iter(iterable)
        self._num_iterators += 1
        with self._recorder.shielded("Keeping the state of a data pipeline"):
            self._data = keras_internals.fresh_state(iterator)
        for step, item in enumerate(iterator):
            self._recorder.move(Position(self.loop, self._epoch, step))
            self._steps_done = step + 1
            yield item
        self._recorder.move(Position(self.loop, self._epoch))
        self._take(Kind.EPOCH_END)

    def _begin(self, name: str, iterable: Iterable[Any]) -> None:
        num_epochs = len(iterable) if hasattr(iterable, "__len__") else None
        record = LoopRecord(
            run=self._recorder.run,
            loop=self.loop,
            kind="custom",
            name=name,
            initial_epoch=0,
            epochs=num_epochs,
            steps=None,
            started_at=time.time(),
        )
        self._recorder.journal.post(lambda store: store.begin_loop(record))
        self._recorder.move(Position(self.loop))
        if self._last() is None:
            self._take(Kind.START)

    def _last(self) -> CheckpointRecord | None:
        """Return the newest checkpoint of the loop, where an interrupted run is resumed."""
        return None if self._recorder.past is None else self._recorder.past.last(self.loop)

    def _is_over(self, last: CheckpointRecord | None) -> bool:
        """Whether an epoch is done: before the last checkpoint, or at it where no inner loop follows it in the code."""
        if last is None or last.kind is not Kind.EPOCH_END:
            return False
        return self._epoch < last.epoch or (self._epoch == last.epoch and last.step == 0)

    def _restore(self, last: CheckpointRecord) -> None:
        """Go to the newest checkpoint. Not shielded: wrong numbers are worse than none."""
        folder = self._recorder.past.folder(last)
        restore_loop(folder, self._objects, is_fresh=last.kind is Kind.START)

    def _end(self) -> None:
        self._recorder.move(Position(self.loop))
        self._take(Kind.AFTER)
        with self._recorder.shielded("Finishing a loop"):
            self._recorder.checkpoints.finish()
        run, loop, now = self._recorder.run, self.loop, time.time()
        self._recorder.journal.post(lambda store: store.finish_loop(run, loop, None, now))

    def _data_position(self) -> dict[str, Any]:
        return {"state": self._data, "created": self._num_iterators}

    def _take(self, kind: Kind) -> None:
        with self._recorder.shielded("Checkpointing a custom loop"):
            native, others = split(self._objects)
            captured, lost = capture_objects(others)
            python = {"objects": captured, "data": self._data_position(), "random": capture_random()}
            inexact = [f"{name} cannot be pickled and was not kept" for name in lost]
            position = Position(self.loop, self._epoch, self._steps_done)
            self._recorder.checkpoints.take(position, kind, native, python, {"inexact": inexact})
            self._is_checkpointed = True
