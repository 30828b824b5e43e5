"""`flor-keras logs`: logged values, one row per position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--run", "refs", multiple=True, metavar="REF", help="Run to read; repeatable. [latest]")
@click.option("--all-runs", "is_all", is_flag=True, help="Read every run of the store, newest first.")
@text.store_option
@text.json_option
def logs(
    names: tuple[str, ...], refs: tuple[str, ...], is_all: bool, store: str | None, is_json: bool
) -> None:
    """Print what was logged under NAMEs (all without any), recorded or computed in hindsight.

    JSON: a list of {"run", "loop", "epoch", "step", NAME: value, ...} in order of position; null where
    there is none; "NaN", "Infinity" and "-Infinity" as text; arrays as nested lists.
    """
    if refs and is_all:
        raise click.UsageError("Give --run or --all-runs, not both.")
    found = reading.runs(store) if is_all else [reading.run(ref, store) for ref in refs or ("latest",)]
    if not found:
        text.print_json_rows([]) if is_json else click.echo("No runs yet.")
        return
    rows = table_rows(found, names)
    if is_json:
        text.print_json_rows(rows)
    else:
        print_rows(list(rows))


def table_rows(runs: list[reading.Run], names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the JSON contract: position, then a value or None for each name."""
    from flor_keras.store.pivot import position_or_none

    ids = list(dict.fromkeys(run.id for run in runs))
    table = reading.table(runs[0].store, ids, names)
    columns = [cells.values.tolist() for cells in table.columns.values()]
    presence = [cells.is_present.tolist() for cells in table.columns.values()]
    positions = zip(
        table.runs.tolist(), table.loops.tolist(), table.epochs.tolist(), table.steps.tolist(), strict=True
    )
    for at, (run, *position) in enumerate(positions):
        row = dict(zip(("loop", "epoch", "step"), position_or_none(*position), strict=True))
        values = (
            column[at] if is_there[at] else None for column, is_there in zip(columns, presence, strict=True)
        )
        yield {"run": ids[run], **row, **dict(zip(table.columns, values, strict=True))}


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print columns for people; the position columns that say nothing are left out."""
    if not rows:
        click.echo("Nothing is logged there.")
        return
    is_single = len({row["run"] for row in rows}) == 1
    unused = {"run"} if is_single else set()
    unused |= {level for level in ("loop", "step") if len({row[level] for row in rows}) == 1}
    headings = [heading for heading in rows[0] if heading not in unused]
    if is_single:
        click.echo(f"run {rows[0]['run']}")
    text.print_columns(headings, [[_cell(row[heading]) for heading in headings] for row in rows])


def _cell(value: Any) -> str:
    return "-" if value is None else text.brief(value)
