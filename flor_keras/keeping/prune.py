"""Choosing which checkpoints of a run stay, and removing the others so that a kill at any moment leaves a whole store.

Rows are marked first, then folders removed, then rows dropped: a marked row is no checkpoint any more for anyone who
reads, and the next prune finishes what was begun. The start and the end of each loop always stay, and the last epoch
of a loop that broke off: a replay and a resume need them. So does what others refer to, because their values lie in its bundle.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.held import OWN
from flor_keras.errors import CheckpointError, UsageError
from flor_keras.records import CheckpointRecord, Kind, Status
from flor_keras.store.database import RunRow, Store

PRUNED = "pruned"
_ALWAYS_KEPT = (Kind.START, Kind.AFTER)

Epoch = tuple[int, int]  # loop, epoch


@dataclass(frozen=True)
class Policy:
    """Which epochs keep their checkpoints; what any of the rules keeps is kept, and then thinned to fit ``max_bytes``.

    Attributes:
      last: so many newest epochs of each loop.
      every: every so-many-th epoch, counted from 0.
      best: the best epoch by this, as `(values by (loop, epoch), whether larger is better)`.
      max_bytes: what the checkpoints of the run may take; the oldest go first, the best last.
    """

    last: int | None = None
    every: int | None = None
    best: tuple[Mapping[Epoch, float], bool] | None = None
    max_bytes: int | None = None

    def keeps(self, epochs: Iterable[Epoch]) -> set[Epoch]:
        """Return the epochs that stay, sizes apart."""
        ordered = sorted(epochs)
        if self.last is None and self.every is None and self.best is None:
            return set(ordered)
        kept = {at for at in ordered if self.every and at[1] % self.every == 0}
        for loop in {loop for loop, _ in ordered}:
            kept |= set([at for at in ordered if at[0] == loop][-self.last :] if self.last else [])
        best = self.best_of(ordered)
        return kept | ({best} if best is not None else set())

    def best_of(self, epochs: Iterable[Epoch]) -> Epoch | None:
        """Return the best epoch, None without values."""
        if self.best is None:
            return None
        values, is_max = self.best
        known = [at for at in epochs if at in values and values[at] == values[at]]
        return (max if is_max else min)(known, key=values.__getitem__) if known else None


@dataclass
class Plan:
    """What a prune does.

    Attributes:
      run: the run.
      removed: the checkpoints that go.
      kept: those that stay.
      referred: those that stay only because others refer to them.
    """

    run: RunRow
    removed: list[CheckpointRecord] = field(default_factory=list)
    kept: list[CheckpointRecord] = field(default_factory=list)
    referred: list[CheckpointRecord] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        """How much room it gives back."""
        return sum(at.num_bytes for at in self.removed)

    @property
    def kept_bytes(self) -> int:
        """How much room is still taken."""
        return sum(at.num_bytes for at in (*self.kept, *self.referred))


def plan_prune(store: Path, ref: str, policy: Policy) -> Plan:
    """Choose what goes; nothing is changed.

    Raises:
      UsageError: there is no such run, or it is still under way.
      CheckpointError: a manifest cannot be read, so nobody can tell what it refers to.
    """
    with Store.open(store) as opened:
        run = opened.run(ref)
        rows = [row for row in opened.checkpoints(run.id) if row.error is None]
    if run.status is Status.RUNNING:
        raise UsageError(f"Run {run.id} is still under way (process {run.pid}). Prune it when it has ended.")
    epochs = {(row.loop, row.epoch) for row in rows if row.kind not in _ALWAYS_KEPT}
    keeps = policy.keeps(epochs)
    references = {row.path: referred_to(row.path, bundle.read_manifest(store / row.path)) for row in rows}
    plan = _divided(run, rows, references, keeps)
    if policy.max_bytes is not None:
        best = policy.best_of(epochs)
        for epoch in sorted(keeps, key=lambda at: (at == best, at)):
            if plan.kept_bytes <= policy.max_bytes:
                break
            keeps = keeps - {epoch}
            plan = _divided(run, rows, references, keeps)
    return plan


def _last_of_broken_loops(rows: list[CheckpointRecord]) -> set[Epoch]:
    """Return the last epoch of each loop that has no end: where the run would be resumed."""
    ended = {row.loop for row in rows if row.kind is Kind.AFTER}
    found: dict[int, int] = {}
    for row in rows:
        if row.loop not in ended:
            found[row.loop] = max(row.epoch, found.get(row.loop, 0))
    return set(found.items())


def _divided(
    run: RunRow, rows: list[CheckpointRecord], references: Mapping[str, set[str]], keeps: set[Epoch]
) -> Plan:
    plan = Plan(run)
    keeps = keeps | _last_of_broken_loops(rows)
    plan.kept = [row for row in rows if row.kind in _ALWAYS_KEPT or (row.loop, row.epoch) in keeps]
    kept = {row.path for row in plan.kept}
    needed = _needed(references, kept)
    for row in rows:
        if row.path not in kept:
            (plan.referred if row.path in needed else plan.removed).append(row)
    return plan


def _needed(references: Mapping[str, set[str]], kept: Iterable[str]) -> set[str]:
    """Return the checkpoints that must stay for those that are kept: what stays must itself be whole."""
    needed: set[str] = set()
    todo = list(kept)
    while todo:
        new = references.get(todo.pop(), set()) - needed
        needed |= new
        todo += new
    return needed


def referred_to(path: str, manifest: Mapping[str, Any]) -> set[str]:
    """Return the paths of other checkpoints whose bundles hold values of the one at ``path``."""
    names = {str(described.get("bundle", OWN)) for described in manifest["tensors"].values()} - {OWN}
    parent = path.rpartition("/")[0]
    return {f"{parent}/{Path(name).name}" for name in names} - {path}


def prune(store: Path, plan: Plan, on_removed: Callable[[CheckpointRecord], None] = lambda row: None) -> None:
    """Do what a plan says, and finish what an earlier prune of the run left undone."""
    with Store.open(store, create=True) as opened:
        opened.mark_checkpoints(plan.run.id, [row.path for row in plan.removed], PRUNED)
        marked = [row for row in opened.checkpoints(plan.run.id) if row.error == PRUNED]
        for row in marked:
            remove_folder(store / row.path)
            opened.drop_checkpoint(plan.run.id, row.path)
            on_removed(row)


def remove_folder(folder: Path) -> None:
    """Remove a checkpoint's folder; half of it is never seen under its name."""
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a link, which flor_keras does not make; it was left alone.")
    doomed = folder.with_name(f"{bundle.TEMPORARY_PREFIX}{PRUNED}-{folder.name}")
    if doomed.exists():
        shutil.rmtree(doomed)
    if folder.exists():
        folder.rename(doomed)
        shutil.rmtree(doomed)
