"""Replaying a custom loop: its inner loop is skipped or made again, the rest of an epoch's code always runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.instrument.levels import Level
from flor_keras.records import CheckpointRecord, Kind, Position
from flor_keras.replay.replayer import ReplayDone, Replayer
from flor_keras.replay.states import compare_variables
from flor_keras.state.loops import make_iterators, restore_loop
from flor_keras.state.objects import split
from flor_keras.state.restore import read_python


class CustomVisit:
    """Visits the asked epochs of a recorded outer loop.

    Args:
      replayer: the replay.
      loop: the number of the loop.
      objects: what `flor.checkpointing` named, by name.
    """

    def __init__(self, replayer: Replayer, loop: int, objects: Mapping[str, Any]) -> None:
        self._replayer = replayer
        self._objects = objects
        self.loop = loop
        self._asked = replayer.plan.epochs.get(str(loop), [])
        self._is_redone = Level.STEP.value in replayer.plan.levels.values()
        self._epoch = 0
        self._has_inner = False
        self._num_iterators = 0

    def epochs(self, name: str, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of the epochs to visit; then leave everything as it was after the loop."""
        visited = self._visited()
        for self._epoch, item in enumerate(iterable):
            if self._epoch not in visited:
                if self._epoch > max(visited, default=-1):
                    break
                continue
            self._replayer.move(Position(self.loop, self._epoch))
            self._prepare(visited)
            self._has_inner = False
            yield item
            self._finish_epoch()
        if self._replayer.is_finished(self.loop):
            raise ReplayDone
        self._replayer.move(Position(self.loop))
        self._restore(self._replayer.required(self.loop, Kind.AFTER))

    def steps(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the steps of an epoch that is redone; of another, none, and leave the state they led to."""
        if self._has_inner:
            yield from iterable
            return
        self._has_inner = True
        end = self._replayer.checkpoint(self.loop, Kind.EPOCH_END, self._epoch)
        if not self._is_made_again():
            end = self._replayer.required(self.loop, Kind.EPOCH_END, self._epoch)
            created = read_python(self._replayer.folder(end))["data"]["created"]
            self._num_iterators += make_iterators(iterable, created - self._num_iterators)
            self._restore(end)
            return
        iterator = iter(iterable)
        self._num_iterators += 1
        if end is not None:
            keras_internals.go_to_fresh_state(iterator, read_python(self._replayer.folder(end))["data"]["state"])
        yield from self._made_again(iterator)
        self._replayer.move(Position(self.loop, self._epoch))
        if end is not None:
            self._compare(end)

    def _made_again(self, iterator: Iterator[Any]) -> Iterator[Any]:
        asked = self._replayer.plan.steps
        for step, item in enumerate(iterator):
            is_past = asked is not None and step > asked[-1]
            if is_past and self._epoch == self._asked[-1] and self._replayer.is_finished(self.loop):
                raise ReplayDone
            self._replayer.move(Position(self.loop, self._epoch, step))
            yield item

    def _visited(self) -> set[int]:
        """Return the asked epochs, and those before them whose end they are redone from."""
        asked = set(self._asked)
        if not self._is_redone and self._is_nested():
            return asked
        return asked | {epoch - 1 for epoch in asked if epoch > 0}

    def _is_nested(self) -> bool:
        ends = [self._replayer.checkpoint(self.loop, Kind.EPOCH_END, epoch) for epoch in self._asked]
        return any(end is not None and end.step > 0 for end in ends)

    def _is_made_again(self) -> bool:
        return self._is_redone and self._epoch in self._asked

    def _prepare(self, visited: set[int]) -> None:
        """Put everything where the epoch begins, as far as no inner loop of the epoch before does it."""
        if self._epoch == 0:
            self._restore(self._replayer.required(self.loop, Kind.START), is_fresh=True)
        elif not self._is_nested() and (before := self._replayer.checkpoint(self.loop, Kind.EPOCH_END, self._epoch - 1)):
            self._restore(before)

    def _finish_epoch(self) -> None:
        end = self._replayer.checkpoint(self.loop, Kind.EPOCH_END, self._epoch)
        if not self._has_inner and end is not None:
            self._compare(end)
        self._replayer.flush()
        if self._epoch in self._asked:
            self._replayer.tell({"event": "epoch", "loop": self.loop, "epoch": self._epoch})

    def _restore(self, checkpoint: CheckpointRecord, is_fresh: bool = False) -> None:
        folder = self._replayer.folder(checkpoint)
        restore_loop(folder, self._objects, is_fresh=is_fresh)
        if not self._is_redone:
            self._replayer.note_exact(len(bundle.read_manifest(folder)["tensors"]))

    def _compare(self, checkpoint: CheckpointRecord) -> None:
        native, _ = split(self._objects)
        compare_variables(self._replayer, checkpoint, native, Position(self.loop, self._epoch))
