"""The tables, their versions, and opening the SQLite file. The modules of `Store` say what rows mean."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from flor_keras.errors import StoreError

APPLICATION_ID = 0x464C4F52  # "FLOR"
BUSY_TIMEOUT_SECS = 30

# One script per version of the schema; PRAGMA user_version counts how many a file has seen. Never edit one
# that was released: append another.
#
# `entries` is clustered by (run, name): a column of a run is one sequential read and needs no second index.
# `value` has no declared type, so that SQLite converts nothing. It has no foreign keys: a look-up per row.
MIGRATIONS = (
    """
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT, script TEXT, argv TEXT NOT NULL,
        started_at REAL NOT NULL, pid INTEGER NOT NULL, host TEXT NOT NULL, process_started TEXT NOT NULL,
        cwd TEXT NOT NULL, environment TEXT NOT NULL, status TEXT NOT NULL, finished_at REAL, error TEXT,
        num_entries INTEGER NOT NULL DEFAULT 0);
    CREATE INDEX runs_by_start ON runs (started_at);
    CREATE INDEX runs_by_name ON runs (name, started_at);

    CREATE TABLE loops (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, loop INTEGER NOT NULL, kind TEXT NOT NULL,
        name TEXT, initial_epoch INTEGER NOT NULL, epochs INTEGER, steps INTEGER, started_at REAL NOT NULL,
        finished_at REAL, history TEXT, PRIMARY KEY (run, loop)) WITHOUT ROWID;

    CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

    CREATE TABLE entries (
        run INTEGER NOT NULL, name INTEGER NOT NULL, number INTEGER NOT NULL,
        loop INTEGER, epoch INTEGER, step INTEGER, kind INTEGER NOT NULL, value, replay INTEGER, verdict TEXT,
        PRIMARY KEY (run, name, number)) WITHOUT ROWID;
    CREATE INDEX hindsight_entries ON entries (run, name, loop, epoch, step) WHERE replay IS NOT NULL;

    CREATE TABLE checkpoints (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, path TEXT NOT NULL, loop INTEGER NOT NULL,
        epoch INTEGER NOT NULL, step INTEGER NOT NULL, kind TEXT NOT NULL, num_bytes INTEGER NOT NULL,
        stall_secs REAL NOT NULL, worker_cpu_secs REAL NOT NULL, created_at REAL NOT NULL, error TEXT,
        PRIMARY KEY (run, path)) WITHOUT ROWID;

    CREATE TABLE args (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL,
        kind INTEGER NOT NULL, value, default_kind INTEGER NOT NULL, default_value, PRIMARY KEY (run, name));

    CREATE TABLE replays (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, level TEXT NOT NULL,
        names TEXT NOT NULL, epochs TEXT NOT NULL, plan TEXT NOT NULL, started_at REAL NOT NULL,
        status TEXT NOT NULL, seconds REAL, verdict TEXT, max_abs_diff REAL, report TEXT);
    CREATE INDEX replays_by_run ON replays (run);

    CREATE TABLE source_texts (hash TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE sources (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, path TEXT NOT NULL,
        hash TEXT NOT NULL REFERENCES source_texts, PRIMARY KEY (run, path)) WITHOUT ROWID;

    CREATE TABLE events (
        number INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        time REAL NOT NULL, level TEXT NOT NULL, message TEXT NOT NULL);
    CREATE INDEX events_by_run ON events (run);
    """,
    "ALTER TABLE checkpoints ADD COLUMN shared_bytes INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE loops ADD COLUMN recording TEXT",
)


@contextmanager
def explained(database: Path) -> Iterator[None]:
    """Turn what SQLite raises into a StoreError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_explanation(database, error)) from error


def _explanation(database: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"Another program kept {database} locked for {BUSY_TIMEOUT_SECS} s. Try again when it is done."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"Cannot write {database}: {error}. Make it and its folder writable, or use another store."
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return (
            f"{database} is damaged: {error}. Restore it from a copy, or save what can be read with "
            f"`sqlite3 {database.name} .recover`; the checkpoints beside it are not touched."
        )
    if code == sqlite3.SQLITE_FULL:
        return f"No room left on the disk of {database}. Free some and try again."
    return f"The store's database {database} failed: {error}."


def connect(database: Path, is_writable: bool) -> sqlite3.Connection:
    """Open `database`, bring its schema to this version, and refuse what is not a store of ours."""
    with explained(database):
        connection = _connect(database, is_writable)
        try:
            _check_and_migrate(connection, database, is_writable)
        except BaseException:
            connection.close()
            raise
        return connection


def _connect(database: Path, is_writable: bool) -> sqlite3.Connection:
    if is_writable:
        connection = sqlite3.connect(database, timeout=BUSY_TIMEOUT_SECS, isolation_level=None)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection
    uri = f"file:{quote(os.fspath(database))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECS, isolation_level=None)
    try:
        connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:
        # WAL needs a -shm file beside the database, which a read-only folder refuses; nor can others write.
        connection.close()
        connection = sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)
    return connection


def _check_and_migrate(connection: sqlite3.Connection, database: Path, is_writable: bool) -> None:
    if _version(connection, database) == len(MIGRATIONS):
        return
    if not is_writable:
        raise StoreError(
            f"{database} was written by an older flor_keras and cannot be brought up to date read-only. "
            "Open it once where it is writable."
        )
    _use_wal(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Asked again under the lock: another process may have done it meanwhile.
        for script in MIGRATIONS[_version(connection, database) :]:
            for statement in script.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, database: Path) -> int:
    """Return the schema version; 0 for an empty file; StoreError if the file is not ours or too new."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or num_tables):
        raise StoreError(
            f"{database} is the database of another program, not of flor_keras. Use another store."
        )
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{database} has schema {version}, and this flor_keras knows schemas up to {len(MIGRATIONS)}. "
            "Upgrade it: pip install --upgrade flor-keras."
        )
    return int(version)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. SQLite's busy timeout does not cover the switch, so wait here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
