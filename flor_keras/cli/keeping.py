"""`flor-keras prune`, `verify` and `du`: looking after a store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text
from flor_keras.errors import UsageError
from flor_keras.store.layout import find_store, given_store

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def _located(store: str | None) -> Path:
    return given_store(store) if store else find_store(Path.cwd())


def parse_size(given: str) -> int:
    """Return a size such as 500MB, 1.5 GB or 1000 in bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", given.lower())
    if found is None:
        raise UsageError(f"{given!r} is no size. Write something like 500MB or 2GB.")
    return round(float(found[1]) * _UNITS[found[2]])


@click.command()
@click.argument("ref", metavar="RUN")
@click.option("--last", type=click.IntRange(min=0), help="Keep the newest so many epochs of each loop.")
@click.option("--every", type=click.IntRange(min=1), help="Keep every so-many-th epoch, counted from 0.")
@click.option("--best", metavar="NAME[:min|max]", help="Keep the epoch with the best recorded value of NAME.")
@click.option(
    "--max-bytes", "size", metavar="SIZE", help="Keep at most SIZE, such as 2GB; the oldest epochs go first."
)
@click.option("--yes", is_flag=True, help="Do it. Without this it only says what it would do.")
@text.store_option
@text.json_option
def prune(
    ref: str,
    last: int | None,
    every: int | None,
    best: str | None,
    size: str | None,
    yes: bool,
    store: str | None,
    is_json: bool,
) -> None:
    """Remove checkpoints of RUN, keeping what any of the rules keeps. Logged values stay.

    The start and end of each loop always stay, the last epoch of one that broke off, and what other checkpoints refer to. Without --yes nothing is removed.

    JSON: {"run", "is_done", "removed", "kept", "referred", "freed_bytes", "kept_bytes"}; lists of {"loop", "epoch", "path"}.
    """
    from flor_keras.cli.export import best_epochs
    from flor_keras.keeping import prune as pruning

    if last is None and every is None and best is None and size is None:
        raise UsageError(
            "Nothing says which checkpoints to keep. Give --last N, --every K, --best NAME or --max-bytes SIZE."
        )
    location = _located(store)
    run = reading.run(ref, str(location))
    policy = pruning.Policy(
        last, every, best_epochs(run, best) if best else None, parse_size(size) if size else None
    )
    plan = pruning.plan_prune(location, run.id, policy)
    if yes:
        pruning.prune(location, plan)
    if is_json:
        lists = {
            name: [_place(row) for row in getattr(plan, name)] for name in ("removed", "kept", "referred")
        }
        sizes = {"freed_bytes": plan.freed_bytes, "kept_bytes": plan.kept_bytes}
        click.echo(text.to_strict_json({"run": run.id, "is_done": yes, **lists, **sizes}))
        return
    for row in plan.removed:
        click.echo(f"{'removed' if yes else 'would remove'} {row.path} ({text.size(row.num_bytes)})")
    for row in plan.referred:
        click.echo(f"kept {row.path}: other checkpoints refer to it")
    click.echo(
        f"{'Removed' if yes else 'Would remove'} {len(plan.removed)} checkpoints ({text.size(plan.freed_bytes)}); "
        f"{len(plan.kept) + len(plan.referred)} stay ({text.size(plan.kept_bytes)})."
    )
    if not yes and plan.removed:
        click.echo("Nothing is removed yet. Do it with --yes.")


def _place(row: Any) -> dict[str, Any]:
    return {"loop": row.loop, "epoch": row.epoch, "path": row.path}


@click.command()
@click.argument("refs", metavar="[RUN]...", nargs=-1)
@text.store_option
@text.json_option
def verify(refs: tuple[str, ...], store: str | None, is_json: bool) -> int:
    """Check a store to the last byte: database, manifests, every tensor's checksum and hash, graphs, logged arrays.

    Exit status 1 where something is damaged. Nothing is changed.

    JSON: {"is_whole", "num_runs", "num_checkpoints", "num_tensors", "num_graphs", "num_bytes", "problems", "leftovers"}.
    """
    from dataclasses import asdict

    from flor_keras.keeping.verify import verify

    report = verify(_located(store), list(refs) or None)
    if is_json:
        click.echo(text.to_strict_json({"is_whole": not report.problems, **asdict(report)}))
        return 1 if report.problems else 0
    for problem in report.problems:
        click.echo(problem)
    for path in report.leftovers:
        click.echo(f"belongs to nothing: {path}")
    counted = f"{report.num_runs} runs, {report.num_checkpoints} checkpoints, {report.num_tensors} tensors, {report.num_graphs} graphs"
    click.echo(
        f"{'Damaged' if report.problems else 'Whole'}: {counted}, {text.size(report.num_bytes)} checked."
    )
    return 1 if report.problems else 0


@click.command()
@click.argument("refs", metavar="[RUN]...", nargs=-1)
@text.store_option
@text.json_option
def du(refs: tuple[str, ...], store: str | None, is_json: bool) -> None:
    """Show what runs take on disk, the largest first.

    Values that did not change since an older checkpoint are stored once; IN FULL is what the checkpoints would take otherwise.

    JSON: a list of {"run", "name", "num_checkpoints", "checkpoint_bytes", "logical_bytes", "model_bytes", "other_bytes", "num_bytes"}.
    """
    from dataclasses import asdict

    from flor_keras.keeping.usage import database_bytes, usage

    location = _located(store)
    found = usage(location, list(refs) or None)
    if is_json:
        text.print_json_rows({**asdict(at), "num_bytes": at.num_bytes} for at in found)
        return
    sizes = ("num_bytes", "checkpoint_bytes", "logical_bytes", "model_bytes", "other_bytes")
    rows = [
        [at.run, at.name or "-", str(at.num_checkpoints), *(text.size(getattr(at, key)) for key in sizes)]
        for at in found
    ]
    text.print_columns(
        ("RUN", "NAME", "CHECKPOINTS", "SIZE", "CHECKPOINTS'", "IN FULL", "MODEL", "OTHER"), rows
    )
    total = sum(at.num_bytes for at in found)
    click.echo(f"{text.size(total)} in all, and the database {text.size(database_bytes(location))}.")
