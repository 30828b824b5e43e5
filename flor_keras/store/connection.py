"""One SQLite connection, its transactions and its errors: what the tables of a `Store` stand on."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flor_keras.errors import StoreError, UsageError
from flor_keras.store import layout, schema


class Connection:
    """An open store. Each object belongs to the thread that opened it, and must not cross a fork."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._numbers: dict[str, int] = {}  # of runs, by id
        self._name_numbers: dict[str, int] = {}  # of names; they are never dropped

    @classmethod
    def open(cls, path: str | Path, create: bool = False) -> Self:
        """Open the store at `path` for reading and, where its folder allows, writing.

        Raises:
            StoreError: there is no store (and `create` is false), or it is damaged, foreign, too new or,
                with `create`, not writable.
        """
        path = layout.store_path(path)
        database = layout.database_path(path)
        if create:
            _create_folder(path)
        elif not database.is_file():
            raise StoreError(
                f"There is no store at {path}: {database.name} is missing. "
                "Name another with --store PATH, or record a run first: flor-keras record SCRIPT."
            )
        is_writable = os.access(path, os.W_OK) and (not database.exists() or os.access(database, os.W_OK))
        if create and not is_writable:
            raise StoreError(f"The store {path} is not writable. Make it so, or set {layout.STORE_VARIABLE}.")
        return cls(path, schema.connect(database, is_writable))

    def close(self) -> None:
        """Close the connection; the last one to close folds the write-ahead log into the database."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def integrity_problems(self) -> list[str]:
        """Return what SQLite finds damaged in the database; nothing if it is whole."""
        found = [str(row[0]) for row in self._rows("PRAGMA integrity_check") if row[0] != "ok"]
        return found + [
            f"a row of {row[0]} belongs to no {row[2]}" for row in self._rows("PRAGMA foreign_key_check")
        ]

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with schema.explained(layout.database_path(self.path)):
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all that happens inside, or nothing of it."""
        with schema.explained(layout.database_path(self.path)):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _number(self, run: str) -> int:
        """Return the row number of the run with exactly this id."""
        if run not in self._numbers:
            rows = self._rows("SELECT number FROM runs WHERE id = ?", run)
            if not rows:
                raise UsageError(f"No run {run!r} in {self.path}. List them with: flor-keras runs.")
            self._numbers[run] = rows[0][0]
        return self._numbers[run]


def from_json(text: str | None) -> Any:
    """Return what `values.to_json` wrote; None for NULL."""
    return None if text is None else json.loads(text)


def _create_folder(path: Path) -> None:
    ignore = path / ".gitignore"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"Cannot create the store {path}: {error}. "
            f"Choose a folder that can be written with {layout.STORE_VARIABLE}=PATH."
        ) from error
