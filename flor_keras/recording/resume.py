"""Resuming a run that was interrupted or killed: where each of its loops stands, and how to get there.

The program runs again from the top. Loops that were finished are skipped through their final state; the one that was
under way goes on from its last checkpoint, in the same run; later ones have nothing to resume.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.errors import CheckpointError, FlorError, UsageError
from flor_keras.recording.sweep import settle
from flor_keras.records import CheckpointRecord, Entry, Kind, Position, RunRecord, Status
from flor_keras.state import pickles
from flor_keras.store.database import Store

_ORDER = {Kind.START: 0, Kind.STEP: 1, Kind.EPOCH_END: 1, Kind.AFTER: 2}  # nothing goes on from the others
LEFT_BEHIND = "left behind when the run was resumed before it"


class Past:
    """What a run had come to when it ended.

    Attributes:
      num_kept: how many recorded entries stay.
      damaged: newer checkpoints that cannot be gone on from, as (position, why); earlier ones take their place.
    """

    def __init__(self, store: Path, run: str) -> None:
        self.run = run
        self._store = store
        self._last: dict[int, CheckpointRecord] = {}
        self._ends: dict[int, list[CheckpointRecord]] = {}
        self._logs: dict[tuple[int, int], dict[str, Any]] = {}
        self._kept: Counter[tuple[str, Position]] = Counter()
        self.num_kept = 0
        self._starts: dict[int, CheckpointRecord] = {}
        self.damaged: list[tuple[str, str]] = []
        with Store.open(store) as opened:
            known = [c for c in opened.checkpoints(run) if c.error is None and c.kind in _ORDER]
        newest = max((c.loop for c in known), default=0)
        known = [c for c in known if c.loop < newest or not self._is_of_error(c)]
        for checkpoint in sorted(known, key=lambda c: (c.loop, *_rank(c))):
            if (store / checkpoint.path).is_dir():
                self._add(checkpoint)
        self._leave_damaged([c for c in known if c.loop in self._last])

    def _leave_damaged(self, known: list[CheckpointRecord]) -> None:
        """Go back to the newest checkpoint of each loop that is whole; loops after one that is not over have not begun."""
        for loop in sorted(self._last):
            candidates = sorted((c for c in known if c.loop == loop), key=_rank)
            while candidates and (why := self._why_damaged(candidates[-1])) is not None:
                last = candidates.pop()
                self.damaged.append((last.path.rpartition("/")[2], why))
            if not candidates:
                name, why = self.damaged[-1]
                raise CheckpointError(
                    f"No checkpoint of loop {loop} can be gone on from; the oldest, {name}: {why}"
                )
            self._last[loop] = candidates[-1]
            if candidates[-1].kind is not Kind.AFTER:
                self._last = {earlier: last for earlier, last in self._last.items() if earlier <= loop}
                return

    def _is_of_error(self, checkpoint: CheckpointRecord) -> bool:
        """Whether it is of where an exception led, which ended the run unless another loop came after."""
        folder = self.folder(checkpoint)
        return checkpoint.kind is Kind.AFTER and folder.is_dir() and "error" in bundle.read_manifest(folder)

    def _why_damaged(self, checkpoint: CheckpointRecord) -> str | None:
        try:
            folder = self.folder(checkpoint)
            bundle.load(folder)
            path = folder / pickles.FILE  # not unpickled: the program has not made its classes yet
            pickles.check(path, path.read_bytes(), bundle.read_manifest(folder).get("signature"))
        except (FlorError, OSError) as error:
            return str(error).splitlines()[0]
        return None

    def _add(self, checkpoint: CheckpointRecord) -> None:
        if checkpoint.kind is Kind.EPOCH_END:
            self._ends.setdefault(checkpoint.loop, []).append(checkpoint)
        if checkpoint.kind is Kind.START:
            self._starts[checkpoint.loop] = checkpoint
        last = self._last.get(checkpoint.loop)
        if last is None or _rank(checkpoint) > _rank(last):
            self._last[checkpoint.loop] = checkpoint

    def keep(self, entries: Iterable[Entry]) -> None:
        """Note what stays in the store of what was logged outside of epochs, and for epochs as a whole.

        The program logs the former again outside of its loops; what callbacks logged there, in loops that are skipped, it
        does not.
        """
        for name, value, position in entries:
            self.num_kept += 1
            if position.loop is None or position.epoch is None:
                self._kept[name, position] += 1
            elif position.step is None:
                self._logs.setdefault((position.loop, position.epoch), {})[name] = value

    def is_kept(self, name: str, position: Position) -> bool:
        """Whether what the program logs now is in the store already; each entry counts once."""
        self._kept[name, position] -= 1
        return self._kept[name, position] >= 0

    def last(self, loop: int) -> CheckpointRecord | None:
        """Return the newest checkpoint of a loop, None if it had not begun."""
        return self._last.get(loop)

    def is_over(self, loop: int | None) -> bool:
        """Whether a loop was finished."""
        last = None if loop is None else self._last.get(loop)
        return last is not None and last.kind is Kind.AFTER

    def before_end(self, loop: int, left: int | None) -> CheckpointRecord:
        """Return the newest whole checkpoint of a finished loop before its end.

        Args:
          loop: the loop.
          left: the epoch in the middle of which the program left the loop, None if it did not.

        Raises:
          CheckpointError: none is whole.
        """
        candidates = [self._starts[loop], *sorted(self._ends.get(loop, ()), key=_rank)]
        for checkpoint in reversed(candidates):
            if self._why_damaged(checkpoint) is None and not (
                checkpoint.epoch == left and bundle.read_manifest(self.folder(checkpoint)).get("is_whole")
            ):
                return checkpoint
        raise CheckpointError(f"All checkpoints of loop {loop} before its end are damaged")

    def about(self, loop: int) -> dict[str, Any] | None:
        """Return what the start checkpoint of a loop says, None where it has none."""
        start = self._starts.get(loop)
        return None if start is None else bundle.read_manifest(self.folder(start))

    def folder(self, checkpoint: CheckpointRecord) -> Path:
        """Return where a checkpoint lies."""
        return self._store / checkpoint.path

    def history(self, last: CheckpointRecord, names: Iterable[str]) -> list[tuple[int, dict[str, Any]]]:
        """Return (epoch, logs) of the epochs of a loop that were over at a checkpoint, in order.

        ``names`` are those of its epoch logs, in their order; the program may have logged others for epochs, too.
        """
        num_over = last.epoch + (last.kind is Kind.EPOCH_END)
        epochs = sorted(e for loop, e in self._logs if loop == last.loop and e < num_over)
        logs = [
            (e, {n: self._logs[last.loop, e][n] for n in names if n in self._logs[last.loop, e]})
            for e in epochs
        ]
        return [(epoch, of_epoch) for epoch, of_epoch in logs if of_epoch]

    def where(self) -> tuple[int, CheckpointRecord | None]:
        """Return the loop that goes on and the checkpoint it goes on from; None if it has not begun."""
        unfinished = [loop for loop, last in self._last.items() if last.kind is not Kind.AFTER]
        if not unfinished:
            return len(self._last), None
        return min(unfinished), self._last[min(unfinished)]

    def left_behind(self, known: Iterable[CheckpointRecord]) -> list[CheckpointRecord]:
        """Return the checkpoints of what is done again."""
        loop, last = self.where()
        return [
            c
            for c in known
            if c.loop > loop or (c.loop == loop and last is not None and _rank(c) > _rank(last))
        ]


def _rank(checkpoint: CheckpointRecord) -> tuple[int, int, float]:
    is_end = checkpoint.kind in (Kind.EPOCH_HOOKS, Kind.EPOCH_END)
    return _ORDER.get(checkpoint.kind, 1), checkpoint.epoch, float("inf") if is_end else checkpoint.step


def _drop_later(opened: Store, run: str, past: Past) -> str:
    """Drop the rows of what will be done again; return where the run goes on."""
    loop, last = past.where()
    later = past.left_behind(opened.checkpoints(run))
    opened.mark_checkpoints(run, [c.path for c in later], LEFT_BEHIND)
    if last is None or last.kind is Kind.START:
        opened.drop_entries_after(run, loop, None)
        return "its beginning"
    opened.drop_entries_after(run, loop, last.epoch)
    if last.kind is Kind.EPOCH_END:
        return f"the end of epoch {last.epoch}"
    num_outside_steps = bundle.read_manifest(past.folder(last))["num_outside_steps"]
    opened.drop_entries_within(run, last.position, num_outside_steps)
    return f"step {last.step} of epoch {last.epoch}"


def take_up(store: Path, ref: str, record: RunRecord) -> Past:
    """Make a run that had ended one that is under way again, in this process.

    Rows of what will be done again are dropped, so that none is there twice.

    Raises:
      UsageError: there is no such run, it is still under way, or it is finished.
      CheckpointError: all checkpoints of a loop are damaged.
    """
    with Store.open(store, create=True) as opened:
        run = opened.run(ref)
        if run.status is Status.RUNNING:
            raise UsageError(
                f"Run {run.id} is still under way (process {run.pid}). Wait for it, or end it first."
            )
        if run.status is Status.FINISHED:
            raise UsageError(
                f"Run {run.id} is finished; there is nothing to resume. Run the script for a new run."
            )
        settle(opened, run.id)
        past = Past(store, run.id)
        opened.reopen_run(run.id, record)
        where = _drop_later(opened, run.id, past)
        past.keep(opened.entries(run.id, recorded=True))
        opened.add_event(run.id, "info", f"Resumed loop {past.where()[0]} from {where}.")
        for name, why in past.damaged:
            opened.add_event(run.id, "warning", f"Checkpoint {name} was left out: {why}")
            print(f"flor_keras: checkpoint {name} is left out: {why}", file=sys.stderr, flush=True)
    return past
