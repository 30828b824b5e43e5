"""`flor-keras logs`: logged values, one row per position."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text
from flor_keras.errors import UsageError


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--run", "refs", multiple=True, metavar="REF", help="Run to read; repeatable. [latest]")
@click.option("--all-runs", "is_all", is_flag=True, help="Read every run of the store, newest first.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="parquet needs pyarrow, and --out or a pipe. [table]",
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write. [the terminal]"
)
@text.store_option
@text.json_option
def logs(
    names: tuple[str, ...],
    refs: tuple[str, ...],
    is_all: bool,
    form: str | None,
    out: Path | None,
    store: str | None,
    is_json: bool,
) -> None:
    """Print what was logged under NAMEs (all without any), recorded or computed in hindsight.

    JSON: a list of {"run", "loop", "epoch", "step", NAME: value, ...} in order of position; null where
    there is none; "NaN", "Infinity" and "-Infinity" as text; arrays as nested lists. CSV has the same
    columns; what is missing is empty, arrays are JSON. Parquet has the types of `Run.dataframe`.
    """
    if refs and is_all:
        raise click.UsageError("Give --run or --all-runs, not both.")
    if is_json and form not in (None, "json"):
        raise click.UsageError(f"Give --json or --format {form}, not both.")
    form = "json" if is_json else form or "table"
    found = reading.runs(store) if is_all else [reading.run(ref, store) for ref in refs or ("latest",)]
    with text.written_to(out):
        if form == "parquet":
            _write_parquet(found, names, out)
        elif form == "csv":
            text.print_csv_rows(table_rows(found, names) if found else [])
        elif form == "json":
            text.print_json_rows(table_rows(found, names) if found else [])
        elif found:
            print_rows(list(table_rows(found, names)))
        else:
            click.echo("No runs yet.")


def _write_parquet(runs: list[reading.Run], names: tuple[str, ...], out: Path | None) -> None:
    if out is None and sys.stdout.isatty():
        raise UsageError("Parquet is not text. Give a file: flor-keras logs --format parquet -o logs.parquet")
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed. Type: pip install pyarrow, or take --format csv."
        )
    if not runs:
        raise UsageError("There are no runs yet, and a parquet file without columns is of no use.")
    frame = reading.frame_of(runs, names)
    arrays = {
        str(name): [value.tolist() if hasattr(value, "tolist") else value for value in frame[name]]
        for name in frame
        if frame[name].dtype == object
    }
    frame.assign(**arrays).to_parquet(sys.stdout.buffer, engine="pyarrow", index=False)


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
