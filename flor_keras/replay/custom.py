"""Replaying a custom loop: the block of an epoch is skipped or made again, the rest of its code always runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.instrument.levels import Level
from flor_keras.records import CheckpointRecord, Kind, Position
from flor_keras.replay.replayer import ReplayDone, Replayer
from flor_keras.replay.states import compare_variables
from flor_keras.state.loops import LoopState, data_in
from flor_keras.state.mainloop import MainLoop, Visit


class CustomVisit(MainLoop):
    """Visits the asked epochs of a recorded main loop, and those that lead to them.

    Args:
      replayer: the replay.
      loop: the number of the loop.
      state: what its epochs begin and end with.
    """

    def __init__(self, replayer: Replayer, loop: int, state: LoopState) -> None:
        super().__init__(loop, state, replayer.move)
        self._replayer = replayer
        self._asked = replayer.plan.epochs.get(str(loop), [])
        self._is_redone = Level.STEP.value in replayer.plan.levels.values()
        self._visits: dict[int, Visit] = {}
        self._open: list[int] = []  # asked epochs that were made again, with nothing compared since
        self._lost: list[int] = []  # of these, those whose outcome was put aside
        self._is_done = False

    def begin(self, num_epochs: int | None = None) -> None:
        """Put everything where the loop began, and plan which epochs to visit."""
        self._replayer.tell({"event": "loop", "loop": self.loop})
        self.move(Position(self.loop))
        start = self._replayer.checkpoint(self.loop, Kind.START)
        self._visits = self._planned(self._manifest(start))
        if start is not None:
            self.restore(self._folder(start), is_fresh=True)
        last = self._last()
        self.state.iterators.begin_loop(() if last is None else data_in(self._folder(last))["main"])

    # -- which epochs, and how ------------------------------------------------------------------------------------

    def _planned(self, recorded: dict[str, Any]) -> dict[int, Visit]:
        about = self.state.about
        known = {*recorded.get("kept", ()), *recorded.get("changed", ()), *recorded.get("native", ())}
        missing = {*about.get("kept", ()), *about.get("changed_by_block", ())} - known
        is_redone = self._is_redone or bool(missing & set(about.get("changed_by_block", ())))
        why = recorded.get("refused") or self.state.why_redone
        if why is not None and (self._asked or not self._replayer.is_finished(self.loop)):
            self._replayer.note_redone(self.loop, why)
        planner = _Planner(
            whole={e: self._folder(c) for e, c in self._ends().items() if self._manifest(c).get("is_whole")},
            blocks={e: self._folder(c) for e, c in self._ends().items() if self._is_skippable(c)},
            is_from_start=why is not None or not about.get("is_jumpable", True),
            is_skipping=why is None,
            is_entered_at_block=bool(about.get("is_entered_at_block")) and not missing,
            is_begun=bool(missing),
        )
        if not self._is_built_at_first():
            planner.add(0, False)
        for epoch in self._asked:
            planner.add(epoch, is_redone)
        after = self._replayer.checkpoint(self.loop, Kind.AFTER)
        if after is not None and not self._replayer.is_finished(self.loop):
            is_short = bool(missing & set(about.get("needed_after", ())))
            if is_short or self.is_left_another_way(self._manifest(after)):
                planner.add(after.epoch, is_short)
        return planner.visits

    def _is_built_at_first(self) -> bool:
        """Whether the program has built all that the loop's last checkpoint holds; else its first step does."""
        last = self._last()
        return last is None or self.state.is_built(self._folder(last))

    def _last(self) -> CheckpointRecord | None:
        ends = self._ends()
        return self._replayer.checkpoint(self.loop, Kind.AFTER) or (ends[max(ends)] if ends else None)

    def _ends(self) -> dict[int, CheckpointRecord]:
        return self._replayer.epoch_ends(self.loop)

    def _is_skippable(self, end: CheckpointRecord) -> bool:
        manifest = self._manifest(end)
        return not manifest.get("is_whole") and not set(manifest.get("lost", ())) & set(
            self.state.about.get("kept", ())
        )

    def visit(self, epoch: int) -> Visit | None:
        """Visit what was planned."""
        visit = self._visits.get(epoch)
        is_unsettled = (
            epoch > 0 and epoch - 1 not in self._visits and visit is not None and visit.before is None
        )
        self._replayer.is_unsettled = is_unsettled
        return visit

    def is_over(self, epoch: int) -> bool:
        """Stop after the last planned epoch."""
        return epoch > max(self._visits, default=-1)

    # -- what happens in them -------------------------------------------------------------------------------------

    def counted(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield steps; end the program after the last that is asked."""
        asked = self._replayer.plan.steps
        is_last = self.epoch == max(self._visits) and self._replayer.is_finished(self.loop)
        for item in super().counted(iterable):
            if asked is not None and is_last and self.num_steps - 1 > asked[-1]:
                raise ReplayDone
            yield item

    def recorded_order(self) -> Any:
        """Return the order the data of an epoch had."""
        end = self._ends().get(self.epoch)
        after = self._replayer.checkpoint(self.loop, Kind.AFTER)
        if end is None and after is not None and after.epoch == self.epoch:
            end = after  # the program left the loop in the middle of this epoch
        if end is not None:
            return data_in(self._folder(end))["states"]
        later = [c for e, c in sorted(self._ends().items()) if e > self.epoch] + ([after] if after else [])
        return data_in(self._folder(later[0]))["left"].get(self.epoch, ()) if later else ()

    def passed(self) -> None:
        """From here on everything is as it was."""
        self._replayer.is_unsettled = False

    def trained(self) -> None:
        """Compare what the block led to."""
        end = self._ends().get(self.epoch)
        if end is not None and not self._manifest(end).get("is_whole"):
            self._compare(end)

    def epoch_done(self) -> None:
        """Compare an epoch that has no block; keep what was logged."""
        end = self._ends().get(self.epoch)
        if end is not None and not self.is_left and self._manifest(end).get("is_whole"):
            self._compare(end)
        after = self._replayer.checkpoint(self.loop, Kind.AFTER)
        error = self._manifest(after).get("error")
        if after is not None and after.epoch == self.epoch and error is not None:  # which has not come again
            self._replayer.compare("what ended the loop", Position(self.loop, self.epoch), error, None)
        self._note_unchecked()
        self._replayer.flush()
        if self.epoch in self._asked:
            self._replayer.tell({"event": "epoch", "loop": self.loop, "epoch": self.epoch})

    def exhausted(self) -> None:
        """End the program, or leave everything as it was after the loop."""
        end = self._replayer.checkpoint(self.loop, Kind.AFTER)
        if self._open[-1:] == [self.epoch] and end is not None and end.epoch == self.epoch:
            self._compare(end)
        if self._replayer.is_finished(self.loop):
            self._replayer.flush()
            raise ReplayDone
        self.move(Position(self.loop))
        after = self._folder(self._replayer.required(self.loop, Kind.AFTER))
        self.restore(after)
        self.state.pass_over(after)

    def end(self, error: BaseException | None) -> None:
        """The loop is over, by ``error`` if any; the program may have left it itself."""
        self.state.iterators.end()
        self._replayer.is_unsettled = False
        after = self._replayer.checkpoint(self.loop, Kind.AFTER)
        is_recorded = error is None or type(error).__name__ == self._manifest(after).get("error")
        if is_recorded and not self.is_exhausted:
            if after is not None:
                self._compare(after)
            self._replayer.flush()
            self._is_done = self._replayer.is_finished(self.loop)
        self.move(Position(self.loop))
        if error is not None and self._is_done:
            raise ReplayDone

    def restores(self) -> bool:
        """End the program where it has left the last asked loop."""
        if self._is_done:
            raise ReplayDone
        return super().restores()

    # -- states ---------------------------------------------------------------------------------------------------

    def restore(self, folder: Path, *, is_fresh: bool = False) -> None:
        """Put everything into a recorded state."""
        super().restore(folder, is_fresh=is_fresh)
        manifest = bundle.read_manifest(folder)
        for cause in manifest.get("inexact", ()):
            self._replayer.suspect(cause)
        self._lost, self._open = [*self._lost, *self._open], []
        visit, after = self._visits.get(self.epoch), self._replayer.checkpoint(self.loop, Kind.AFTER)
        if folder in (
            visit and visit.end,
            after and self._folder(after),
        ):  # what is asked is computed from it as it is
            self._replayer.note_exact(len(manifest["tensors"]))

    def _note_unchecked(self) -> None:
        """Keep in mind an epoch that was made again and compared with nothing; what it leads to may be compared later."""
        is_made_again = self.epoch in self._asked and self._visits[self.epoch].end is None
        if is_made_again and not self._replayer.has_compared_here:
            self._open.append(self.epoch)
        self._replayer.unchecked[self.loop] = [*self._lost, *self._open]

    def _compare(self, checkpoint: CheckpointRecord) -> None:
        compare_variables(self._replayer, checkpoint, self.state.native, Position(self.loop, self.epoch))
        self._open = []
        self._replayer.unchecked[self.loop] = list(self._lost)

    def _folder(self, checkpoint: CheckpointRecord) -> Path:
        return self._replayer.folder(checkpoint)

    def _manifest(self, checkpoint: CheckpointRecord | None) -> dict[str, Any]:
        return {} if checkpoint is None else bundle.read_manifest(self._folder(checkpoint))


class _Planner:
    """Decides how to get to epochs.

    Args:
      whole: the checkpoints at the end of epochs without a block.
      blocks: those at the end of blocks.
      is_from_start: an epoch can only be reached by going through all before it.
      is_skipping: blocks may be skipped.
      is_entered_at_block: code before a block that is skipped need not run to get to what follows.
      is_begun: the first step of a block that is skipped on the way is made, since code after it was given names to read.
    """

    def __init__(
        self,
        *,
        whole: dict[int, Path],
        blocks: dict[int, Path],
        is_from_start: bool,
        is_skipping: bool,
        is_entered_at_block: bool,
        is_begun: bool,
    ) -> None:
        self.visits: dict[int, Visit] = {}
        self._whole = whole
        self._blocks = blocks if is_skipping else {}
        self._is_from_start = is_from_start
        self._is_entered_at_block = is_entered_at_block
        self._is_begun = is_begun

    def add(self, epoch: int, is_redone: bool) -> None:
        """Visit an epoch, after those added before it; ``is_redone`` where its block must run."""
        before = self._lead_to(epoch)
        end = None if is_redone else self._blocks.get(epoch)
        if epoch not in self.visits or (is_redone and self.visits[epoch].end is not None):
            self.visits[epoch] = Visit(before=before, end=end)

    def _lead_to(self, epoch: int) -> Path | None:
        """Visit what comes before an epoch; return the checkpoint to restore before it, if that is all there is to do."""
        if epoch == 0 or epoch - 1 in self.visits:
            return None
        if self._is_from_start:
            for earlier in range(epoch):
                self.visits.setdefault(earlier, Visit(end=self._blocks.get(earlier), is_begun=self._is_begun))
            return None
        known = max((e for e in {**self._whole, **self._blocks, **self.visits} if e < epoch), default=-1)
        before = None
        if known in self.visits:
            pass
        elif known in self._whole:
            before = self._whole[known]
        elif known >= 0:
            end = self._blocks[known]
            self.visits[known] = Visit(None, end, self._is_entered_at_block, self._is_begun)
        for earlier in range(known + 1, epoch):
            self.visits[earlier] = Visit(before=before)
            before = None
        return before
