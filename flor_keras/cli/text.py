"""How results look: strict JSON for programs, aligned columns and human units for people."""

from __future__ import annotations

import csv
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from flor_keras.errors import UsageError

store_option = click.option(
    "--store",
    metavar="PATH",
    help="The store to read; without it FLOR_STORE, else the nearest .flor upwards.",
)
loop_option = click.option(
    "--loop", type=click.IntRange(min=0), help="Which fit call of the run. [the last that has the epoch]"
)
model_option = click.option(
    "--model", metavar="NAME", help="Which model, where a loop of the program's own trains several."
)
json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def print_json_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Print a JSON list, one row a line."""
    separator = "["
    for row in rows:
        sys.stdout.write(f"{separator}\n{to_strict_json(row)}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def print_csv_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Print rows as CSV under their names; what is missing is empty, what is no number or text is JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for at, row in enumerate(rows):
        if at == 0:
            writer.writerow(row)
        writer.writerow(_csv_cell(value) for value in row.values())


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    return value if isinstance(value, str | int | float) else to_strict_json(value)


@contextmanager
def written_to(path: Path | None) -> Iterator[None]:
    """Have what is printed inside the context go to a file; None is the terminal."""
    if path is None:
        yield
        return
    try:
        with path.open("w", encoding="utf-8", newline="") as file, redirect_stdout(file):
            yield
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}. Give another file with --out.") from error


def to_strict_json(value: Any) -> str:
    """Return JSON any parser reads: NaN and infinities as "NaN", "Infinity", "-Infinity", arrays as lists."""
    return json.dumps(_strict(value), allow_nan=False, ensure_ascii=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, str):
        # A lone surrogate cannot be printed.
        return value.encode(errors="backslashreplace").decode()
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return _strict(value.tolist()) if hasattr(value, "tolist") else str(value)


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def print_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print left-aligned columns, for any number of rows (rich takes about 1 ms a row)."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that wraps to the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(Text, row))
    # Without a terminal rich would cut lines at 80 columns.
    Console(width=None if sys.stdout.isatty() else 1000, soft_wrap=False).print(table)


def brief(value: Any) -> str:
    """Return a value on one short line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "dtype"):
        return f"<{value.dtype} array of shape {value.shape}>"
    text = value if isinstance(value, str) else to_strict_json(value)
    text = text.encode(errors="backslashreplace").decode().replace("\n", "\\n")
    return text if len(text) <= 60 else f"{text[:59]}…"


def brief_args(args: dict[str, Any]) -> str:
    """Return arguments as name=value, in one line."""
    return " ".join(f"{name}={brief(value)}" for name, value in args.items())


def ago(seconds: float, now: Callable[[], float] = time.time) -> str:
    """Return a moment as a person says it: how long ago, or the date when it is more than a week."""
    passed = now() - seconds
    if passed < 60:
        return "just now"
    for limit, unit, word in ((3600, 60, "min"), (86400, 3600, "h"), (7 * 86400, 86400, "days")):
        if passed < limit:
            count = int(passed // unit)
            return f"{count} {'day' if word == 'days' and count == 1 else word} ago"
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def duration(seconds: float) -> str:
    """Return a duration in the unit a person would use."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {secs} s"


def size(num_bytes: int) -> str:
    """Return a size in decimal units."""
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"
