"""`flor-keras runs`: the runs of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text

_LIMIT = 20


@click.command()
@text.store_option
@text.json_option
@click.option("--limit", type=click.IntRange(min=1), help=f"Only the newest. [{_LIMIT}; with --json all]")
def runs(store: str | None, is_json: bool, limit: int | None) -> None:
    """List the runs, newest first.

    JSON: a list of {"id", "name", "status", "script", "started_at", "args"}; started_at is ISO 8601 with
    a UTC offset, args what flor.arg gave.
    """
    if is_json:
        text.print_json_rows(_described(run) for run in reading.newest_runs(store, limit))
        return
    limit = limit or _LIMIT
    # One more than shown tells whether there are more.
    found = reading.newest_runs(store, limit + 1)
    text.print_table(("RUN", "NAME", "STATUS", "STARTED", "SCRIPT", "ARGS"), map(_row, found[:limit]))
    if len(found) > limit:
        click.echo(f"… and older ones: flor-keras runs --limit {limit * 5}")


def _described(run: reading.Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status.value,
        "script": run.script,
        "started_at": run.started_at.isoformat(),
        "args": run.args,
    }


def _row(run: reading.Run) -> tuple[str, ...]:
    script = Path(run.script).name if run.script else "-"
    started = text.ago(run.row.started_at)
    return run.id, run.name or "-", run.status.value, started, script, text.brief_args(run.args)
