"""Where the positions of runs lie on one line: in epochs for plots, in steps for TensorBoard. Never goes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flor_keras.reading import Run
from flor_keras.records import Entry, Position


@dataclass(frozen=True)
class _Stretch:
    """One loop on the line."""

    first_epoch: int
    num_epochs: int
    num_steps: int  # per epoch
    epochs_before: int  # trained in the loops before
    steps_before: int


class Timeline:
    """The line of one run: its loops one after the other, each epoch as long as its loop's epochs have steps."""

    def __init__(self, run: Run, entries: Iterable[Entry]) -> None:
        last_step: dict[int, int] = {}
        last_epoch: dict[int, int] = {}
        for entry in entries:
            loop, epoch, step = entry.position
            if loop is not None:
                last_step[loop] = max(last_step.get(loop, 0), 0 if step is None else step)
                last_epoch[loop] = max(last_epoch.get(loop, 0), 0 if epoch is None else epoch)
        for checkpoint in run.checkpoints:
            last_epoch[checkpoint.loop] = max(last_epoch.get(checkpoint.loop, 0), checkpoint.epoch)
        self._stretches: dict[int, _Stretch] = {}
        epochs = steps = 0
        for record in run.loops:
            first = record.initial_epoch if record.initial_epoch <= last_epoch.get(record.loop, 0) else 0
            num_epochs = last_epoch.get(record.loop, first) + 1 - first
            num_steps = max(record.steps or 1, last_step.get(record.loop, 0) + 1)
            self._stretches[record.loop] = _Stretch(first, num_epochs, num_steps, epochs, steps)
            epochs, steps = epochs + num_epochs, steps + num_epochs * num_steps
        self.borders = [stretch.epochs_before - 0.5 for stretch in list(self._stretches.values())[1:]]
        self._end = epochs, steps

    def epoch(self, position: Position) -> float:
        """Return a place in epochs: the end of an epoch is its number, its steps come before it."""
        stretch = self._stretches.get(position.loop) if position.loop is not None else None
        if stretch is None:
            return -1.0
        if position.epoch is None:
            return float(stretch.epochs_before + stretch.num_epochs - 1)
        at = stretch.epochs_before + position.epoch - stretch.first_epoch
        return float(at) if position.step is None else at - 1 + (position.step + 1) / stretch.num_steps

    def step(self, position: Position) -> int:
        """Return how many steps of the whole run were done at a position."""
        stretch = self._stretches.get(position.loop) if position.loop is not None else None
        if stretch is None:
            return 0
        if position.epoch is None:
            return stretch.steps_before + stretch.num_epochs * stretch.num_steps
        at = position.epoch - stretch.first_epoch
        done = stretch.num_steps if position.step is None else position.step + 1
        return stretch.steps_before + at * stretch.num_steps + done
