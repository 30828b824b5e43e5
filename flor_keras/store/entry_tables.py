"""The tables of logged values. Recorded entries never change; hindsight ones join them, marked by replay."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from flor_keras.records import Entry, Position, Verdict
from flor_keras.store import layout
from flor_keras.store.connection import Connection
from flor_keras.store.values import ValueKind, decode, encode, is_number_column

# What belongs to no loop comes first, what belongs to an epoch as a whole after its steps.
POSITION_ORDER = "loop NULLS FIRST, epoch NULLS LAST, step NULLS LAST"
NO_LOOP, NO_EPOCH, NO_STEP = -1, 2**63 - 1, 2**63 - 1
# Rows of one INSERT. Python gives its lock away for each statement and waits up to 5 ms for it beside a busy thread:
# a statement per row would write 200 rows a second there. Preparing takes time with the square of the rows.
_ROWS_AT_ONCE = (1024, 64, 8, 1)
_VARYING = 7  # columns of a row that are not the same for all rows of an INSERT

# An entry as one plain tuple, which costs a loop that logs every step least: name, value, loop, epoch, step.
FlatEntry = tuple[str, Any, int | None, int | None, int | None]


class Column(NamedTuple):
    """The entries of one name in one run, column by column, in order of insertion.

    A missing loop is NO_LOOP, a missing epoch NO_EPOCH, a missing step NO_STEP: integers sort as positions.
    """

    loops: list[int]
    epochs: list[int]
    steps: list[int]
    kinds: list[int]
    values: list[Any]  # as stored; `values.decode` reads them
    replays: list[int | None]  # None where recorded


class EntryTables(Connection):
    """Reads and writes entries."""

    def add_entries(
        self,
        run: str,
        entries: Iterable[Entry],
        replay: int | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """Add entries like `add_flat_entries`."""
        self.add_flat_entries(run, [(name, value, *at) for name, value, at in entries], replay, verdict)

    def add_flat_entries(
        self,
        run: str,
        entries: Sequence[FlatEntry],
        replay: int | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """Add all `entries` or, if one cannot be stored, none.

        With `replay` they are hindsight entries: they take the place of those that earlier replays gave for
        the same name and position, never of recorded ones.

        Raises:
            UsageError: a value is of a type that cannot be stored.
        """
        if not entries:
            return
        number = self._number(run)
        # Not zip(*entries), which makes an iterator per entry and takes as long as writing.
        names, values, loops, epochs, steps = (list(map(itemgetter(at), entries)) for at in range(5))
        kinds, columns = _encoded(values, layout.arrays_folder(self.path, run))
        with self._transaction() as connection:
            new = set(names) - self._name_numbers.keys()
            numbers = self._name_numbers | _name_numbers(connection, new)
            if replay is not None:
                places = set(zip(map(numbers.__getitem__, names), loops, epochs, steps, strict=True))
                _drop_earlier(connection, number, replay, places)
            first = _take_numbers(connection, number, len(entries))
            rows = zip(
                map(numbers.__getitem__, names),
                range(first, first + len(entries)),
                loops,
                epochs,
                steps,
                kinds,
                columns,
                strict=True,
            )
            shared = (number, replay, None if verdict is None else verdict.value)
            _insert(connection, shared, list(chain.from_iterable(rows)))
        self._name_numbers = numbers  # not before: what is rolled back has no numbers

    def drop_entries_after(self, run: str, loop: int, epoch: int | None) -> None:
        """Drop what was recorded after an epoch of a loop (None: from its beginning on) and outside of the loop's epochs.

        A run that is resumed there logs all of that again. In a loop of the program's own, what was logged in that epoch
        outside of its steps, too.
        """
        number = self._number(run)
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM entries WHERE run = ? AND replay IS NULL AND "
                "(loop > ? OR (loop = ? AND (epoch IS NULL OR epoch > ?)))",
                (number, loop, loop, -1 if epoch is None else epoch),
            )
            connection.execute(
                "DELETE FROM entries WHERE run = ? AND replay IS NULL AND loop = ? AND epoch = ? AND step IS NULL AND "
                "EXISTS (SELECT 1 FROM loops WHERE loops.run = ? AND loops.loop = ? AND kind = 'custom')",
                (number, loop, epoch, number, loop),
            )

    def drop_entries_within(self, run: str, position: Position, num_outside_steps: int) -> None:
        """Drop what was recorded in an epoch after so many steps of it (``position``).

        Of what belongs to none of its steps the first ``num_outside_steps`` stay.
        """
        loop, epoch, step = position
        of_epoch = "run = ? AND replay IS NULL AND loop = ? AND epoch = ?"
        at = (self._number(run), loop, epoch)
        with self._transaction() as connection:
            connection.execute(f"DELETE FROM entries WHERE {of_epoch} AND step >= ?", (*at, step))
            connection.execute(
                f"DELETE FROM entries WHERE {of_epoch} AND step IS NULL AND number NOT IN "
                f"(SELECT number FROM entries WHERE {of_epoch} AND step IS NULL ORDER BY number LIMIT ?)",
                (*at, *at, num_outside_steps),
            )

    def entries(
        self, run: str, names: Iterable[str] | None = None, recorded: bool | None = None
    ) -> list[Entry]:
        """Return entries by position, then by insertion.

        `recorded` True gives recorded ones only, False hindsight ones only.
        """
        wanted = self.names(run) if names is None else list(dict.fromkeys(names))
        origin = {None: "", True: "AND replay IS NULL", False: "AND replay IS NOT NULL"}[recorded]
        marks = ", ".join("?" * len(wanted))
        rows = self._rows(
            "SELECT names.name, kind, value, loop, epoch, step "
            "FROM entries JOIN names ON names.number = entries.name "
            f"WHERE run = ? AND entries.name IN (SELECT number FROM names WHERE name IN ({marks})) {origin} "
            f"ORDER BY {POSITION_ORDER}, entries.number",
            self._number(run),
            *wanted,
        )
        arrays = layout.arrays_folder(self.path, run)
        return [Entry(name, decode(kind, column, arrays), Position(*at)) for name, kind, column, *at in rows]

    def hindsight_places(
        self, run: str, names: Iterable[str], replays: Iterable[int]
    ) -> dict[tuple[int, int], set[Verdict]]:
        """Return the (loop, epoch) pairs at which ``replays`` gave values of ``names``, with their verdicts."""
        rows = self._hindsight("DISTINCT loop, epoch, verdict", run, names, replays)
        found: dict[tuple[int, int], set[Verdict]] = {}
        for loop, epoch, verdict in rows:
            if loop is not None and epoch is not None:
                found.setdefault((loop, epoch), set()).add(Verdict(verdict or Verdict.UNCHECKED))
        return found

    def hindsight_verdicts(
        self, run: str, names: Iterable[str], replays: Iterable[int]
    ) -> dict[Verdict, int]:
        """Return how many values of ``names`` that ``replays`` gave have which verdict."""
        rows = self._hindsight("verdict, count(*)", run, names, replays, "GROUP BY verdict")
        return {Verdict(verdict or Verdict.UNCHECKED): count for verdict, count in rows}

    def _hindsight(
        self, columns: str, run: str, names: Iterable[str], replays: Iterable[int], end: str = ""
    ) -> list[tuple[Any, ...]]:
        wanted, numbers = list(names), list(replays)
        return self._rows(
            f"SELECT {columns} FROM entries WHERE run = ? "
            f"AND name IN (SELECT number FROM names WHERE name IN ({', '.join('?' * len(wanted))})) "
            f"AND replay IN ({', '.join('?' * len(numbers))}) {end}",
            *(self._number(run), *wanted, *numbers),
        )

    def drop_hindsight(
        self, run: str, replay: int, places: Iterable[tuple[int, int]], is_outside: bool
    ) -> None:
        """Drop what a replay gave at (loop, epoch) pairs and, with ``is_outside``, outside of any epoch."""
        number = self._number(run)
        with self._transaction() as connection:
            connection.executemany(
                "DELETE FROM entries WHERE run = ? AND replay = ? AND loop = ? AND epoch = ?",
                [(number, replay, *place) for place in places],
            )
            if is_outside:
                connection.execute(
                    "DELETE FROM entries WHERE run = ? AND replay = ? AND (loop IS NULL OR epoch IS NULL)",
                    (number, replay),
                )

    def names(self, run: str) -> list[str]:
        """Return the names logged in a run in the order they first came."""
        return list(self.name_counts(run, is_counting=False))

    def name_counts(self, run: str, is_counting: bool = True) -> dict[str, tuple[int, int]]:
        """Return {name: (num recorded, num hindsight)} of a run in the order the names first came.

        Counting reads every entry of the run; without it the numbers are 0.
        """
        same = "FROM entries WHERE run = ? AND name = names.number"
        first = f"(SELECT number {same} ORDER BY number LIMIT 1)"
        if not is_counting:
            sql = f"SELECT name, 0, 0 FROM (SELECT name, {first} AS first FROM names)"
            values = [self._number(run)]
        else:
            hindsight = f"(SELECT count(*) {same} AND replay IS NOT NULL)"
            sql = (
                f"SELECT name, total - hindsight, hindsight FROM (SELECT name, {first} AS first, "
                f"(SELECT count(*) {same}) AS total, {hindsight} AS hindsight FROM names)"
            )
            values = [self._number(run)] * 3
        rows = self._rows(f"{sql} WHERE first IS NOT NULL ORDER BY first", *values)
        return {name: (recorded, hindsight) for name, recorded, hindsight in rows}

    def column(self, run: str, name: str) -> Column | None:
        """Return all entries of one name in one run for bulk reading; None if there are none."""
        rows = self._rows(
            "SELECT ifnull(loop, ?), ifnull(epoch, ?), ifnull(step, ?), kind, value, replay FROM entries "
            "WHERE run = ? AND name = (SELECT number FROM names WHERE name = ?) ORDER BY number",
            *(NO_LOOP, NO_EPOCH, NO_STEP, self._number(run), name),
        )
        # Not zip(*rows), which makes an iterator per row and takes as long as the query.
        return Column(*([*map(itemgetter(at), rows)] for at in range(6))) if rows else None


def _encoded(values: list[Any], arrays: Path) -> tuple[Iterable[int], Iterable[Any]]:
    """Return the columns `kind` and `value`."""
    if is_number_column(values):
        return repeat(ValueKind.NUMBER.value, len(values)), values
    encoded = [encode(value, arrays) for value in values]
    return map(itemgetter(0), encoded), map(itemgetter(1), encoded)


def _insert(connection: sqlite3.Connection, shared: tuple[Any, ...], cells: list[Any]) -> None:
    """Insert rows given one after the other, _VARYING cells each, and what they have in common."""
    at = 0
    for num_rows in _ROWS_AT_ONCE:
        size = num_rows * _VARYING
        while len(cells) - at >= size:
            connection.execute(_insertion(num_rows), (*shared, *cells[at : at + size]))
            at += size


@cache
def _insertion(num_rows: int) -> str:
    row = "(?1, ?{}, ?{}, ?{}, ?{}, ?{}, ?{}, ?{}, ?2, ?3)"
    firsts = range(4, 4 + num_rows * _VARYING, _VARYING)
    return "INSERT INTO entries VALUES " + ", ".join(
        row.format(*range(first, first + _VARYING)) for first in firsts
    )


def _name_numbers(connection: sqlite3.Connection, names: set[str]) -> dict[str, int]:
    """Return the number of each name, new ones added."""
    connection.executemany(
        "INSERT OR IGNORE INTO names (name) VALUES (?)", [(name,) for name in sorted(names)]
    )
    sql = "SELECT number FROM names WHERE name = ?"
    return {name: connection.execute(sql, (name,)).fetchone()[0] for name in names}


def _take_numbers(connection: sqlite3.Connection, run: int, count: int) -> int:
    """Reserve `count` consecutive entry numbers of a run and return the first."""
    sql = "UPDATE runs SET num_entries = num_entries + ? WHERE number = ? RETURNING num_entries"
    return int(connection.execute(sql, (count, run)).fetchone()[0]) - count


def _drop_earlier(
    connection: sqlite3.Connection, run: int, replay: int, places: set[tuple[Any, ...]]
) -> None:
    connection.executemany(
        "DELETE FROM entries INDEXED BY hindsight_entries "
        "WHERE run = ? AND name = ? AND loop IS ? AND epoch IS ? AND step IS ? "
        "AND replay IS NOT NULL AND replay <> ?",
        [(run, *place, replay) for place in places],
    )
