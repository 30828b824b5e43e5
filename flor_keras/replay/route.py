"""The way to epochs that are redone: which checkpoint training is taken up at, and what is made again from there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flor_keras.records import CheckpointRecord, Kind

Steps = tuple[int, int | None]  # the first needed of an epoch, and the last; None needs the end of the epoch
At = tuple[int, int]  # epoch, and steps done in it


@dataclass(frozen=True)
class Leg:
    """A stretch of one epoch that is made again.

    Attributes:
      epoch: the epoch.
      first: its first step that is made.
      last: its last step that is made; None for all, and the end of the epoch.
      start: the checkpoint that is restored before; None to go on from the leg before this one.
    """

    epoch: int
    first: int
    last: int | None
    start: CheckpointRecord | None

    @property
    def begin(self) -> At:
        """Where it begins."""
        return self.epoch, self.first

    @property
    def end(self) -> At:
        """Where it leads to."""
        return (self.epoch + 1, 0) if self.last is None else (self.epoch, self.last + 1)


def taken_up_at(checkpoint: CheckpointRecord) -> At | None:
    """Return where training goes on from a checkpoint, None where it cannot."""
    if checkpoint.kind is Kind.EPOCH_END:
        return checkpoint.epoch + 1, 0
    return (checkpoint.epoch, checkpoint.step) if checkpoint.kind in (Kind.START, Kind.STEP) else None


def legs_to(needed: Mapping[int, Steps], checkpoints: Iterable[CheckpointRecord]) -> list[Leg] | None:
    """Return what is made again for the needed steps of epochs, in order; None where there is no way.

    Args:
      needed: by epoch.
      checkpoints: those of the loop that are whole.
    """
    known = list(checkpoints)
    lengths = _lengths(known)
    starts = {at: c for c in known if (at := taken_up_at(c)) is not None and not _is_past(c, lengths)}
    legs: list[Leg] = []
    for epoch, (first, last) in sorted(needed.items()):
        at = max((at for at in starts if at <= (epoch, first)), default=None)
        if legs and (at is None or legs[-1].end > at or legs[-1].epoch == at[0]):
            start = None  # also where the nearest lies in the epoch itself: each is gone through once
            if legs[-1].last is not None:
                legs[-1] = replace(legs[-1], last=None)
            begin = legs[-1].end
        elif at is None:
            return None
        else:
            start, begin = starts[at], at
        for between in range(begin[0], epoch):
            legs.append(Leg(between, begin[1], None, start))
            start, begin = None, (between + 1, 0)
        legs.append(Leg(epoch, begin[1], last, start))
    return legs


def with_checks(legs: Iterable[Leg], checkpoints: Iterable[CheckpointRecord]) -> list[Leg]:
    """Lead legs that are cut on to the next checkpoint, which tells whether they are exact, if it is not farther than they go."""
    known = list(checkpoints)
    lengths = _lengths(known)
    return [leg if leg.last is None else _checked(leg, leg.last, known, lengths) for leg in legs]


def _checked(leg: Leg, last: int, known: Iterable[CheckpointRecord], lengths: Mapping[int, int]) -> Leg:
    made = last - leg.first + 1
    of_epoch = [c for c in known if c.epoch == leg.epoch and not _is_past(c, lengths)]
    steps = [c.step for c in of_epoch if c.kind is Kind.STEP and last < c.step <= last + 1 + made]
    if steps:
        return replace(leg, last=min(steps) - 1)
    is_end_near = any(c.kind is Kind.EPOCH_END and c.step <= last + 1 + made for c in of_epoch)
    return replace(leg, last=None) if is_end_near else leg


def _lengths(checkpoints: Iterable[CheckpointRecord]) -> dict[int, int]:
    """Return how many steps epochs have, as far as checkpoints of their ends say."""
    return {c.epoch: c.step for c in checkpoints if c.kind in (Kind.EPOCH_END, Kind.AFTER)}


def _is_past(checkpoint: CheckpointRecord, lengths: Mapping[int, int]) -> bool:
    """Whether no step follows in the epoch: nobody knew its length, and Keras has no logs of an epoch without steps."""
    if checkpoint.kind is not Kind.STEP or not lengths:
        return False
    return checkpoint.step >= lengths.get(checkpoint.epoch, max(lengths.values()))
