"""What a recorded run says of its own replay, beside its source. TensorFlow is not imported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.environment import HASH_SEED, Difference, differences, read_environment
from flor_keras.epochs import spelled
from flor_keras.errors import CheckpointError
from flor_keras.instrument.doctor import (
    EXACT,
    NOT_EXACT,
    Finding,
    Part,
    Surroundings,
    diagnose,
    with_fine_parts,
)
from flor_keras.records import CheckpointRecord, Kind, LoopRecord
from flor_keras.replay.route import legs_to
from flor_keras.store.database import Store
from flor_keras.store.run_tables import RunRow

_NOT_KEPT = " was not kept"
_NO_FINGERPRINT = "data other than arrays have no fingerprint; other data would show as other logs"
_FINGERPRINT = "where training stands in its data is in every checkpoint; the arrays' fingerprint is recorded"


def diagnose_run(store: Store, run: RunRow) -> list[Finding]:
    """List what stands in the way of replaying a run exactly, from its record and its recorded source."""
    recorded = _Record(store, run)
    found = [
        *_of_source(store, run),
        *recorded.checkpoint_findings(),
        *(
            Finding(Part.ENVIRONMENT, "exact if that makes no difference", "", d.sentence, d.change)
            for d in _differences(run)
        ),
    ]
    if not any(finding.part is Part.DATA for finding in found) and recorded.manifests:
        found.append(
            Finding(Part.DATA, EXACT, "", _FINGERPRINT if recorded.has_fingerprint else _NO_FINGERPRINT)
        )
    return with_fine_parts(found)


def _of_source(store: Store, run: RunRow) -> list[Finding]:
    sources = store.sources(run.id)
    root = run.environment.get("root")
    if run.script is None or not sources or root is None or not Path(run.script).is_relative_to(root):
        return []
    around = Surroundings(
        run.environment.get("variables", {}), run.environment.get("machine", {}).get("num_gpus", 0)
    )
    found = diagnose(Path(run.script).relative_to(root).as_posix(), sources, around, is_of_run=True)
    return [finding for finding in found if finding.verdict != EXACT or finding.where]


def _differences(run: RunRow) -> Iterator[Difference]:
    """A replay sets the recorded variables itself; what is set now and was not then stays."""
    now = read_environment()
    now["variables"] = {**now["variables"], **run.environment.get("variables", {})}
    now["variables"].pop(HASH_SEED, None)
    yield from differences(run.environment, now)


class _Record:
    """The loops and checkpoints of a run."""

    def __init__(self, store: Store, run: RunRow) -> None:
        self._run = run
        self._loops = store.loops(run.id)
        self._checkpoints = store.checkpoints(run.id)
        self._epochs = _recorded_epochs(store, run, self._loops)
        self._damaged: list[tuple[CheckpointRecord, str]] = []
        self.manifests: list[tuple[CheckpointRecord, dict[str, Any]]] = []
        for checkpoint in self._checkpoints:
            if checkpoint.error is None:
                self._read(store.path / checkpoint.path, checkpoint)

    def _read(self, folder: Path, checkpoint: CheckpointRecord) -> None:
        try:
            self.manifests.append((checkpoint, bundle.read_manifest(folder)))
        except CheckpointError as error:
            self._damaged.append((checkpoint, str(error).split(". ")[0]))

    @property
    def has_fingerprint(self) -> bool:
        """Whether every loop's arrays were fingerprinted."""
        starts = [manifest for checkpoint, manifest in self.manifests if checkpoint.kind is Kind.START]
        return bool(starts) and all(manifest.get("fingerprint") for manifest in starts)

    def checkpoint_findings(self) -> Iterator[Finding]:
        """List what checkpoints lack, and which epochs cannot be redone for want of one."""
        if not self._loops:
            yield Finding(
                Part.WEIGHTS,
                NOT_EXACT,
                "",
                "the run has no loop",
                "train with model.fit and flor.FlorKeras(), or record it with flor-keras record",
            )
        yield from self._missing()
        for (loop, why), epochs in self._inexact().items():
            is_callback = why.endswith(_NOT_KEPT)
            yield Finding(
                Part.CALLBACKS if is_callback else Part.OPS if " draws " in why else Part.DATA,
                "exact if training does not depend on it" if is_callback else NOT_EXACT,
                f"loop {loop}, epochs {spelled(sorted(epochs))}",
                f"recorded: {why}",
                "keep plain values in the attributes of callbacks"
                if is_callback
                else "call flor.seed() before recording again",
            )

    def _inexact(self) -> dict[tuple[int, str], set[int]]:
        """Return the reasons checkpoints give, with the epochs that would be redone from those."""
        found: dict[tuple[int, str], set[int]] = defaultdict(set)
        for checkpoint, manifest in self.manifests:
            epoch = checkpoint.epoch + (checkpoint.kind is Kind.EPOCH_END)
            if checkpoint.kind is not Kind.AFTER and epoch in self._epochs.get(checkpoint.loop, ()):
                for why in manifest.get("inexact", ()):
                    found[checkpoint.loop, why].add(epoch)
        return found

    def _missing(self) -> Iterator[Finding]:
        why = {
            (c.loop, c.kind, c.epoch): f"writing it failed: {c.error}" for c in self._checkpoints if c.error
        }
        why |= {(c.loop, c.kind, c.epoch): reason for c, reason in self._damaged}
        whole = {(c.loop, c.kind, c.epoch) for c, _ in self.manifests}
        for loop in self._loops:
            of_loop = [c for c, _ in self.manifests if c.loop == loop.loop]
            for epoch in self._epochs[loop.loop]:
                is_first = epoch == loop.initial_epoch
                before = (
                    (loop.loop, Kind.START, epoch) if is_first else (loop.loop, Kind.EPOCH_END, epoch - 1)
                )
                is_reached = before not in why and legs_to({epoch: (0, None)}, of_loop) is not None
                if before not in whole and not is_reached:
                    reason = why.get(before, "it was not taken")
                    where = f"loop {loop.loop}, epoch {epoch}"
                    lacking = "the loop's start" if is_first else f"the end of epoch {epoch - 1}"
                    yield Finding(
                        *(Part.WEIGHTS, NOT_EXACT, where),
                        f"the checkpoint of {lacking} is missing: {reason}",
                        "ask for other epochs with --epochs",
                    )


def _recorded_epochs(store: Store, run: RunRow, loops: list[LoopRecord]) -> dict[int, list[int]]:
    """Return the epochs of each loop that were trained to their end."""
    found: dict[int, set[int]] = {loop.loop: set((loop.history or {}).get("epoch", ())) for loop in loops}
    for checkpoint in store.checkpoints(run.id):
        if checkpoint.kind is Kind.EPOCH_END:
            found.setdefault(checkpoint.loop, set()).add(checkpoint.epoch)
    return {loop: sorted(epochs) for loop, epochs in found.items()}
