"""Entries turned into a table: one row per position, one column per name, numbers in NumPy throughout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flor_keras.store import layout
from flor_keras.store.entry_tables import NO_EPOCH, NO_LOOP, NO_STEP, Column, EntryTables
from flor_keras.store.values import ValueKind, decode

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

POSITION_COLUMNS = ("run", "loop", "epoch", "step")
# Up to here a float64 holds every integer exactly.
_LARGEST_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Cells:
    """One column: `values` of dtype int64, float64 or object, valid where `is_present`."""

    values: Array
    is_present: Array


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in order of run and position. A missing loop, epoch or step is NO_LOOP, NO_EPOCH or NO_STEP."""

    runs: Array  # index into the list of runs asked for
    loops: Array
    epochs: Array
    steps: Array
    columns: dict[str, Cells]


def pivot(store: EntryTables, runs: list[str], names: list[str]) -> Table:
    """Return a table of `names` over `runs`; of several values at one position the last recorded one counts.

    A hindsight value counts where nothing was recorded. See `column_name` for names like `step`.
    """
    import numpy as np

    chunks = [
        (name, at, column)
        for name in names
        for at, run in enumerate(runs)
        if (column := store.column(run, name)) is not None
    ]
    sizes = [len(column.kinds) for _, _, column in chunks]
    keys = [
        np.repeat(np.array([at for _, at, _ in chunks], dtype=np.int64), sizes),
        _joined([column.loops for _, _, column in chunks]),
        _joined([column.epochs for _, _, column in chunks]),
        _joined([column.steps for _, _, column in chunks]),
    ]
    rows, firsts = _group(keys)
    columns = {}
    ends = np.cumsum([0, *sizes])
    for name in names:
        mine = [index for index, chunk in enumerate(chunks) if chunk[0] == name]
        parts = [
            (chunks[index][2], layout.arrays_folder(store.path, runs[chunks[index][1]])) for index in mine
        ]
        where = [rows[ends[index] : ends[index + 1]] for index in mine]
        columns[column_name(name)] = _cells(parts, where, len(firsts))
    run, loop, epoch, step = (key[firsts] for key in keys)
    return Table(run, loop, epoch, step, columns)


def column_name(name: str) -> str:
    """Return the column of `name`: itself, or `<name>_logged` where a position column has that name."""
    return f"{name}_logged" if name in POSITION_COLUMNS else name


def position_or_none(loop: int, epoch: int, step: int) -> tuple[int | None, int | None, int | None]:
    """Return a position with None for what is missing."""
    return (
        None if loop == NO_LOOP else loop,
        None if epoch == NO_EPOCH else epoch,
        None if step == NO_STEP else step,
    )


def _joined(columns: list[list[int]]) -> Array:
    import numpy as np

    return np.concatenate([np.empty(0, np.int64), *(np.array(column, dtype=np.int64) for column in columns)])


def _group(keys: list[Array]) -> tuple[Array, Array]:
    """Return the row of each entry, and for each row an entry that lies in it; rows sorted by `keys`."""
    import numpy as np

    order = np.lexsort([key for key in reversed(keys) if key.size and key.min() != key.max()] or [keys[0]])
    is_first = np.zeros(order.size, dtype=bool)
    is_first[:1] = True
    for key in keys:
        is_first[1:] |= np.diff(key[order]) != 0
    rows = np.empty(order.size, dtype=np.int64)
    rows[order] = np.cumsum(is_first) - 1
    return rows, order[is_first]


def _cells(parts: list[tuple[Column, Path]], where: list[Array], num_rows: int) -> Cells:
    import numpy as np

    values = _one_type([_decoded(column, arrays) for column, arrays in parts])
    rows = np.concatenate([np.empty(0, np.int64), *where])
    replays = [replay for column, _ in parts for replay in column.replays]
    cells = Cells(np.zeros(num_rows, dtype=values.dtype), np.zeros(num_rows, dtype=bool))
    if cells.values.dtype == object:
        cells.values[:] = None
    is_recorded = np.fromiter((replay is None for replay in replays), dtype=bool, count=len(replays))
    # NumPy assigns in order, so the last value of a row stays, and recorded ones come after hindsight ones.
    for chosen in (~is_recorded, is_recorded):
        cells.values[rows[chosen]] = values[chosen]
        cells.is_present[rows[chosen]] = True
    return cells


def _decoded(column: Column, arrays: Path) -> Array:
    import numpy as np

    if set(column.kinds) == {ValueKind.NUMBER.value}:
        types = set(map(type, column.values))
        if types == {int}:
            return np.array(column.values, dtype=np.int64)
        if int not in types or not any(type(v) is int and abs(v) > _LARGEST_EXACT for v in column.values):
            return np.array(column.values, dtype=np.float64)  # NULL, None here, becomes NaN
    values = np.empty(len(column.kinds), dtype=object)
    for row, (kind, value) in enumerate(zip(column.kinds, column.values, strict=True)):
        values[row] = decode(kind, value, arrays)
    return values


def _one_type(parts: list[Array]) -> Array:
    """Join the values of several runs without losing digits of large integers to a common float."""
    import numpy as np

    if len({part.dtype for part in parts}) > 1 and any(
        part.dtype == np.int64 and np.abs(part).max() > _LARGEST_EXACT for part in parts
    ):
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts) if parts else np.empty(0)
