"""A main loop of the program's own, driven epoch by epoch: what recording and replaying it have in common.

An epoch is code before its training, the training (the *block*), and code after it. The block is entered, left, or
skipped by restoring the state it led to; so is the whole epoch where it has no block. What is built late, a model at its
first call, is built by doing the first step of a block that is skipped, before the state is restored.

`flor.loop` makes the calls itself; `@flor.record` puts them into the program's code, in the order of the methods here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flor_keras.errors import StateError
from flor_keras.records import Position
from flor_keras.state.loops import LoopState


@dataclass(frozen=True)
class Visit:
    """How an epoch is gone through.

    Attributes:
      before: the checkpoint that is restored before it; None to go on from where the program stands.
      end: the checkpoint its block is skipped to; None where it is run.
      is_entered_at_block: the code before the block need not run.
      is_begun: the first step of a block that is skipped is made all the same, for the names it binds.
      rehearses: the checkpoint that is restored after it, all of it having run only to build what is built late.
    """

    before: Path | None = None
    end: Path | None = None
    is_entered_at_block: bool = False
    is_begun: bool = False
    rehearses: Path | None = None


class MainLoop(ABC):
    """One main loop under way; subclasses say which epochs are visited, and what is done where the training ends.

    Args:
      loop: its number in the run.
      state: what its epochs begin and end with.
      move: takes note of where the program is.

    Attributes:
      runs_all: whether the code of this epoch before its block is to run.
      is_entered: whether this epoch is entered in a state it was not led to, so that conditions must not be asked.
    """

    def __init__(self, loop: int, state: LoopState, move: Callable[[Position], None]) -> None:
        self.move = move
        self.loop = loop
        self.state = state
        self.epoch = -1
        self.num_steps = 0
        self.runs_all = True
        self.is_entered = False
        self.is_exhausted = False
        self.is_in_block = False
        self.is_left = False
        self._names: dict[str, Any] | None = None
        self._visit = Visit()
        self._is_first_step_only = False

    # -- what subclasses say --------------------------------------------------------------------------------------

    @abstractmethod
    def visit(self, epoch: int) -> Visit | None:
        """Say how an epoch is gone through; None passes it over."""

    @abstractmethod
    def is_over(self, epoch: int) -> bool:
        """Whether no epoch from this one on is visited."""

    def trained(self) -> None:
        """The block of an epoch has run."""

    def epoch_done(self) -> None:
        """All of an epoch has run."""

    def exhausted(self) -> None:
        """No epoch is left; what follows the loop comes next."""

    # -- what the program calls -----------------------------------------------------------------------------------

    def epochs(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of the visited epochs."""
        for item in iterable:
            if self.is_over(self.epoch + 1):
                break
            if self._begin_epoch():
                yield item
                self._end_epoch()
        self._exhaust()

    def next_epoch(self) -> bool:
        """Begin an epoch of a ``while`` loop; False where none is visited, whatever the condition says."""
        if self.epoch >= 0:
            self._end_epoch()
        while not self.is_over(self.epoch + 1):
            if self._begin_epoch():
                return True
        self._exhaust()
        return False

    def ends(self) -> bool:
        """A ``while`` loop's condition has become false, and no further epoch was begun."""
        self.epoch -= 1
        self.is_left = True
        self._exhaust()
        return False

    def enters(self) -> bool:
        """Whether the block of this epoch is to run."""
        end = self._visit.end
        self.num_steps = 0
        if end is not None:
            if not self._visit.is_begun and self.goes_to(end):
                self.is_left = True
                self._pass(end)
                return False
            self._is_first_step_only = True
        self.is_in_block = True
        return True

    def steps(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of a loop in the block, a step each."""
        if not self.is_in_block:
            yield from iterable
            return
        if self._is_first_step_only:
            for item in iterable:
                yield item
                if self._is_built():
                    return
            return
        yield from self.counted(iterable)

    def counted(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield items, counting each as a step."""
        move, loop, epoch = self.move, self.loop, self.epoch
        for step, item in enumerate(iterable, self.num_steps):
            self.num_steps = step + 1
            move(Position(loop, epoch, step))
            yield item

    def step(self) -> bool:
        """Begin a step of a ``while`` loop in the block; False where it is not to be done."""
        if self.is_in_block:
            if self._is_first_step_only and self.num_steps and self._is_built():
                return False
            self.move(Position(self.loop, self.epoch, self.num_steps))
            self.num_steps += 1
        return True

    def _is_built(self) -> bool:
        """Whether the steps so far have built what is in the checkpoint the block is skipped to; one does, as a rule."""
        return self._visit.end is None or self.state.is_built(self._visit.end)

    def leave(self) -> None:
        """The block has run."""
        self.is_in_block = False
        self.is_left = True
        self.move(Position(self.loop, self.epoch))
        if self._is_first_step_only:
            assert self._visit.end is not None
            self.restore(self._visit.end)
            self._pass(self._visit.end)
        else:
            self.trained()
        self.state.iterators.end()

    def restores(self) -> bool:
        """Whether locals were restored that the program has not taken yet; `taken` returns them."""
        return self._names is not None

    def take(self) -> dict[str, Any]:
        """Return the restored locals, once."""
        names, self._names = self._names, None
        return names or {}

    # -- epochs ---------------------------------------------------------------------------------------------------

    def _begin_epoch(self) -> bool:
        self.epoch += 1
        visit = self.visit(self.epoch)
        if visit is None:
            return False
        self._visit = visit
        self.is_entered = (visit.before or visit.end or visit.rehearses) is not None
        self._is_first_step_only = self.is_in_block = self.is_left = False
        self.num_steps = 0
        self.move(Position(self.loop, self.epoch))
        if visit.before is not None:
            self.restore(visit.before)
        self.runs_all = not (visit.is_entered_at_block and visit.end is not None and self.goes_to(visit.end))
        self.state.iterators.begin_epoch(self.recorded_order())
        return True

    def recorded_order(self) -> Any:
        """Return the states to give this epoch's data iterators."""
        return ()

    def _end_epoch(self) -> None:
        if self._visit.rehearses is None:
            self.epoch_done()
        else:
            self.restore(self._visit.rehearses)
            self.state.pass_over(self._visit.rehearses)

    def _exhaust(self) -> None:
        self.is_exhausted = True
        self.state.iterators.end()
        self.exhausted()

    # -- states ---------------------------------------------------------------------------------------------------

    def restore(self, folder: Path, *, is_fresh: bool = False) -> None:
        """Put everything into the state of a checkpoint."""
        self._names = self.state.restore(folder, is_fresh=is_fresh)

    def goes_to(self, folder: Path) -> bool:
        """Restore a checkpoint if the program has built all that is in it."""
        try:
            self.restore(folder)
        except StateError:
            return False
        return True

    def is_left_another_way(self, after: Mapping[str, Any]) -> bool:
        """Whether the loop was left so that the code after it is not what follows its end; ``after`` describes where it led to.

        An interrupt of the person does not come again: what follows the end is as near as it gets.
        """
        is_raised = after.get("error") not in (None, KeyboardInterrupt.__name__)
        return bool(after.get("is_left_early")) and (
            is_raised or bool(self.state.about.get("is_way_out_seen"))
        )

    def _pass(self, end: Path) -> None:
        """What the skipped block would have done to the order of later data."""
        self.state.pass_over(end)
        self.state.iterators.end()
        self.passed()

    def passed(self) -> None:
        """The block of an epoch was skipped."""
