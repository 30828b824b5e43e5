"""Checking a store to the last byte: database, manifests, bundles, graphs, logged arrays. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.held import OWN
from flor_keras.errors import CheckpointError, FlorError
from flor_keras.export.kept import check_signature, read_graph
from flor_keras.keeping.prune import PRUNED, referred_to
from flor_keras.records import CheckpointRecord
from flor_keras.state import pickles
from flor_keras.store import layout
from flor_keras.store.database import RunRow, Store


@dataclass
class Report:
    """What was found.

    Attributes:
      num_checkpoints, num_tensors, num_graphs, num_bytes: what was read and checked.
      problems: what is damaged or missing, in sentences; a store without any is whole.
      leftovers: what is on disk and belongs to nothing; it costs room and nothing else.
    """

    num_runs: int = 0
    num_checkpoints: int = 0
    num_tensors: int = 0
    num_graphs: int = 0
    num_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


def verify(store: Path, refs: list[str] | None = None) -> Report:
    """Check a store, or some runs of it.

    Raises:
      StoreError: the database cannot be opened at all.
    """
    report = Report()
    with Store.open(store) as opened:
        report.problems += [f"The database: {problem}" for problem in opened.integrity_problems()]
        runs = opened.runs() if refs is None else [opened.run(ref) for ref in refs]
        for run in runs:
            report.num_runs += 1
            _verify_run(opened, run, report)
    return report


def _verify_run(opened: Store, run: RunRow, report: Report) -> None:
    try:
        rows = opened.checkpoints(run.id)
        opened.entries(run.id)
        opened.args(run.id)
    except FlorError as error:
        report.problems.append(f"Run {run.id}: {error}")
        return
    whole = [row for row in rows if row.error is None]
    manifests: dict[str, dict[str, Any]] = {}
    for row in whole:
        try:
            manifests[row.path] = _verify_checkpoint(opened.path, row, report)
        except FlorError as error:
            report.problems.append(str(error))
    for row in whole:
        if row.path in manifests:
            report.problems += _broken_references(opened.path / row.path, row.path, manifests)
    _verify_graphs(layout.model_folder(opened.path, run.id), report)
    report.leftovers += [str(path) for path in _leftovers(opened.path, run, rows)]


def _verify_checkpoint(store: Path, row: CheckpointRecord, report: Report) -> dict[str, Any]:
    """Check all that lies in a checkpoint's folder; return its manifest."""
    folder = store / row.path
    if not folder.is_dir():
        raise CheckpointError(f"The checkpoint {folder} is missing. Use another epoch of the run.")
    manifest = bundle.read_manifest(folder)
    own = {name for name, described in manifest["tensors"].items() if described.get("bundle", OWN) == OWN}
    bundle.load(folder, own.__contains__)
    python = folder / pickles.FILE
    if python.is_file():
        pickles.check(python, python.read_bytes(), manifest.get("signature"))
    report.num_tensors += len(manifest["tensors"])
    report.num_checkpoints += 1
    report.num_bytes += row.num_bytes
    return manifest


def _broken_references(folder: Path, path: str, manifests: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with the tensors a checkpoint has in others: each must lie there, in its own bundle, unchanged."""
    found = []
    for name, described in manifests[path]["tensors"].items():
        (holder,) = referred_to(path, {"tensors": {name: described}}) or {path}
        there = manifests.get(holder, {"tensors": {}})["tensors"].get(name)
        if there is None or {**described, "bundle": OWN} != {"bundle": OWN, **there}:
            found.append(
                f"The checkpoint {folder} is damaged: it has {name!r} in {holder}, which is gone, damaged or another by now. "
                "Use another epoch of the run."
            )
    return found[:1]


def _verify_graphs(model_folder: Path, report: Report) -> None:
    for folder in sorted(model_folder.iterdir()) if model_folder.is_dir() else []:
        if folder.name.startswith(bundle.TEMPORARY_PREFIX):
            report.leftovers.append(str(folder))
            continue
        try:
            graph = read_graph(folder)
            check_signature(graph, pickles.signature)
            for name in graph.described.get("files", {}):
                graph.file(layout.check_inside(name))
            report.num_graphs += 1
        except FlorError as error:
            report.problems.append(str(error))


def _leftovers(store: Path, run: RunRow, rows: list[CheckpointRecord]) -> Iterator[Path]:
    entered = {store / row.path for row in rows if row.error != PRUNED}
    folder = layout.run_folder(store, run.id) / "checkpoints"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_dir() and path not in entered:
            yield path
