"""Recording a custom loop. Runs in the training process.

A checkpoint is taken where the block of an epoch ends, so that a replay can skip it and run the rest of the epoch's code
(evaluation, logging) again. Where an epoch has no block, it is taken at the end of the epoch, as often as the cost
allows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.schedule import DEFAULT_OVERHEAD, Every
from flor_keras.recording.pace import Pace
from flor_keras.recording.recorder import Recorder
from flor_keras.records import CheckpointRecord, Kind, LoopRecord, Position
from flor_keras.state.loops import LoopState, data_in
from flor_keras.state.mainloop import MainLoop, Visit

_RUN = Visit()


class CustomLoop(MainLoop):
    """One recorded main loop.

    Args:
      recorder: the run it belongs to.
      loop: its number.
      name: what it is called in tables.
      state: what its epochs begin and end with.
      every: how often to checkpoint.
    """

    def __init__(self, recorder: Recorder, loop: int, name: str, state: LoopState, every: Every) -> None:
        super().__init__(loop, state, recorder.move)
        self._recorder = recorder
        self._name = name
        self._every = every
        self._pace: Pace | None = None
        self._last: CheckpointRecord | None = None  # where an interrupted run is resumed
        self._is_last_whole = False
        self._is_rehearsed = False
        self._after: Path | None = (
            None  # where a finished loop led to, whose last epoch is gone through again
        )

    def begin(self, num_epochs: int | None = None) -> None:
        """The loop comes next."""
        past = self._recorder.past
        if past is None or not past.is_over(self.loop):  # the row of one that was over tells how it went
            self._add_row(num_epochs)
        with self._recorder.shielded("Checkpointing a custom loop"):
            self._pace = Pace(self._recorder, self.loop, self._every, DEFAULT_OVERHEAD)
        if (why := self.state.why_redone) is not None:
            redone = f"{self._name}: a replay makes it again from its first epoch: {why}"
            self._recorder.redone_loops.append(redone)
            self._recorder.note(redone)
        self.move(Position(self.loop))
        self._last = self._find_last()
        if self._last is None:
            self._take(Kind.START, self.state.about)
        else:
            self._resume(self._last)
        self.state.iterators.begin_loop(
            () if self._last is None else data_in(self._folder(self._last))["main"]
        )

    def _add_row(self, num_epochs: int | None) -> None:
        record = LoopRecord(
            run=self._recorder.run,
            loop=self.loop,
            kind="custom",
            name=self._name,
            initial_epoch=0,
            epochs=num_epochs,
            steps=None,
            started_at=time.time(),
        )
        self._recorder.journal.post(lambda store: store.begin_loop(record))

    def visit(self, epoch: int) -> Visit | None:
        """Visit every epoch; of a resumed run those from its last checkpoint on."""
        last = self._last
        if last is None or last.kind is not Kind.EPOCH_END or epoch > last.epoch + self._is_last_whole:
            return _RUN
        if self._is_last_whole:
            if self._is_rehearsed:
                return (
                    None
                    if epoch < last.epoch
                    else Visit(rehearses=self._folder(last))
                    if epoch == last.epoch
                    else Visit()
                )
            return Visit(before=self._folder(last)) if epoch == last.epoch + 1 else None
        if epoch < last.epoch:
            return None
        return Visit(
            end=self._folder(last), is_entered_at_block=bool(self.state.about.get("is_entered_at_block"))
        )

    def epochs(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of the epochs to run: of a run that is not resumed all, at the least cost."""
        return self._all_epochs(iterable) if self._last is None else super().epochs(iterable)

    def _all_epochs(self, iterable: Iterable[Any]) -> Iterator[Any]:
        move, loop, iterators = self.move, self.loop, self.state.iterators
        for self.epoch, item in enumerate(iterable):
            self.is_in_block = self.is_left = False
            self.num_steps = 0
            move(Position(loop, self.epoch))
            iterators.begin_epoch()
            yield item
            if not self.is_left:
                self.epoch_done()
        self._exhaust()

    def is_over(self, epoch: int) -> bool:
        """Only a loop that was over when the run was interrupted has no epoch left."""
        return self._last is not None and self._last.kind is Kind.AFTER

    def trained(self) -> None:
        """Checkpoint the end of the epoch's training, if that is due."""
        self._take_if_due({})

    def epoch_done(self) -> None:
        """Checkpoint the end of an epoch that has no block, if that is due."""
        if not self.is_left:
            self._take_if_due({"is_whole": True})

    def _take_if_due(self, manifest: dict[str, Any]) -> None:
        pace = self._pace
        if pace is None:
            return
        pace.schedule.note_steps(max(1, self.num_steps))
        if not pace.is_too_early():
            with self._recorder.shielded("Checkpointing a custom loop"), pace.counted():
                if pace.is_due_at_end(self.epoch, self.state.native):
                    self._take(Kind.EPOCH_END, manifest)
                    self._keep_model(is_needed=False)
                    return
        self.state.iterators.leave(self.epoch)

    def exhausted(self) -> None:
        """After a loop that is not run again, have the state it led to."""
        if self.is_over(0):
            assert self._last is not None
            self._restore_after(self._folder(self._last))

    def end(self, error: BaseException | None) -> None:
        """The loop is over, by ``error`` if any."""
        self.state.iterators.end()
        if error is None:
            self._recorder.ending.succeed()
        else:
            self._recorder.ending.fail(error)
        if self._after is not None:
            self._restore_after(self._after)
        elif error is not None and self.epoch >= 0:  # the program may catch it, and go on
            self._take(Kind.AFTER, {"is_left_early": True, "error": type(error).__name__})
            self.move(Position(self.loop))
        if error is not None or self._after is not None or self.is_over(0):
            return
        if not self.is_exhausted and not self.is_left and not self.is_in_block and self.epoch >= 0:
            self._take(Kind.EPOCH_END, {"is_whole": True})
        self.move(Position(self.loop))
        self._take(Kind.AFTER, {"is_left_early": not self.is_exhausted})
        self._keep_model(is_needed=True)
        with self._recorder.shielded("Finishing a loop"):
            self._recorder.checkpoints.finish()
            if self._pace is not None:
                self._pace.finish()
        run, loop, now = self._recorder.run, self.loop, time.time()
        self._recorder.journal.post(lambda store: store.finish_loop(run, loop, None, now))

    def _keep_model(self, is_needed: bool) -> None:
        """Keep the model's graph, for export, if it ``is_needed`` or recording may cost that now."""
        if self._pace is not None:
            with self._recorder.shielded("Keeping the graph of the model"):
                self._pace.keep_model(self.state.native, is_needed)

    # -- resuming and checkpoints ---------------------------------------------------------------------------------

    def _find_last(self) -> CheckpointRecord | None:
        """Return the checkpoint of an interrupted run to go on from; of a loop that was over it is the last, as a rule.

        Where the code after it cannot be reached by passing the loop over, its last epoch is gone through again: one that
        builds what is built late, or that the program left in a way of its own (`return`).
        """
        past = self._recorder.past
        last: CheckpointRecord | None = None if past is None else past.last(self.loop)
        if last is None or last.kind is not Kind.AFTER:
            return last
        folder = self._folder(last)
        manifest = bundle.read_manifest(folder)
        if self.state.is_built(folder) and not self.is_left_another_way(manifest):
            return last
        self._after = folder
        left = last.epoch if manifest.get("is_left_early") else None
        before: CheckpointRecord = past.before_end(self.loop, left)
        return before

    def _resume(self, last: CheckpointRecord) -> None:
        """Begin where the run was interrupted. Not shielded: wrong numbers are worse than none."""
        folder = self._folder(last)
        self._is_last_whole = bool(bundle.read_manifest(folder).get("is_whole"))
        if last.kind is Kind.START:
            self.restore(folder, is_fresh=True)
            self.state.pass_over(folder)
        if self._is_last_whole:
            self._is_rehearsed = not self.goes_to(folder)
            if not self._is_rehearsed:
                self.state.pass_over(folder)

    def _restore_after(self, folder: Path) -> None:
        self.restore(folder)
        self.state.pass_over(folder)

    def _folder(self, checkpoint: CheckpointRecord) -> Path:
        folder: Path = self._recorder.past.folder(checkpoint)
        return folder

    def _take(self, kind: Kind, manifest: dict[str, Any] | None = None) -> None:
        if self._after is not None:
            return
        with self._recorder.shielded("Checkpointing a custom loop"):
            python, described = self.state.capture()
            position = Position(self.loop, max(self.epoch, 0), self.num_steps)
            self._recorder.checkpoints.take(
                position, kind, self.state.native, python, {**described, **(manifest or {})}
            )
            if self._pace is not None:
                self._pace.took()
