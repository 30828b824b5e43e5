"""The database of a store: many runs, written by many programs at once, read by anyone.

`Store` is one class in several files, one per group of tables. A Store belongs to the thread that opened it
and must not cross a fork; every process opens its own.
"""

from __future__ import annotations

from flor_keras.store.entry_tables import EntryTables
from flor_keras.store.process import process_identity
from flor_keras.store.replay_tables import ReplayRow, ReplayTables
from flor_keras.store.run_tables import Event, RunRow, RunTables

__all__ = ["Event", "ReplayRow", "RunRow", "Store", "process_identity"]


class Store(RunTables, EntryTables, ReplayTables):
    """An open store: `with Store.open(path) as store: ...`."""
