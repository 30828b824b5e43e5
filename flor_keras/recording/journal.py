"""The journal: the one thread that writes a run's rows to the store, so that training never waits for the disk.

Entries and other rows are handed over in memory and written a few times a second. When the store cannot be
written (a full disk), rows are kept and tried again; what is lost in the end is counted and told. An entry that no
store can hold is told and keeps no other from being written.

Beside a program that gives Python's lock away often and shortly (small reads and writes) a waiting thread never gets
it: each time the lock has been taken back before the thread wakes, and its five milliseconds begin again. So the
program's own thread looks at the clock when it logs or moves on, and lets the journal go first when that is overdue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from flor_keras.errors import StoreError
from flor_keras.store.database import Store
from flor_keras.store.entry_tables import FlatEntry

FLUSH_SECS = 0.25
_OVERDUE_SECS = 2 * FLUSH_SECS
_GIVE_WAY_SECS = 0.002  # giving way takes 0.05 ms, so it costs a program beside a slow disk little
_CLOSE_SECS = 30.0
_KEPT_ENTRIES = 5_000_000  # what a store that cannot be written may cost in memory
_BATCH_ENTRIES = 50_000  # of one transaction

Write = Callable[[Store], None]


class Journal:
    """Writes rows of one run in the background.

    Args:
      store: the store's folder; it exists and is writable.
      run: the run's id.
      on_tick: called by the thread each time round.
      on_event: called with a sentence when rows cannot be written.
    """

    def __init__(
        self, store: Path, run: str, on_tick: Callable[[], None], on_event: Callable[[str], None]
    ) -> None:
        self._store_path = store
        self._run = run
        self._on_tick = on_tick
        self._on_event = on_event
        # Append to it, from any thread; the journal's takes from the left. A full one drops its oldest entries.
        self.entries: deque[FlatEntry] = deque(maxlen=_KEPT_ENTRIES)
        self._writes: deque[Write] = deque()
        self._batch: list[FlatEntry] = []
        self._num_taken = 0
        self.overdue_at = time.monotonic() + _OVERDUE_SECS  # when to call `give_way`
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="flor_keras journal", daemon=True)
        self._thread.start()

    def post(self, write: Write) -> None:
        """Have ``write`` called with the store by the journal's thread, in the order posted."""
        self._writes.append(write)

    def give_way(self) -> None:
        """Let the journal's thread have Python's lock if it waits for it; for the program's threads, when overdue."""
        self.overdue_at = time.monotonic() + _GIVE_WAY_SECS
        time.sleep(0)  # unlike a short write, it lasts until the thread is awake

    def settle(self) -> None:
        """Wait until what was handed over before is in the store; gives up after a deadline."""
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            is_written = threading.Event()
            self.post(lambda store: is_written.set())
            is_written.wait(_CLOSE_SECS)

    @property
    def num_entries(self) -> int:
        """How many entries were appended so far; while the thread takes some, those may be counted twice."""
        return self._num_taken + len(self.entries)

    def close(self) -> None:
        """Write what is left and end the thread; gives up after a deadline."""
        self._is_closing.set()
        self._thread.join(_CLOSE_SECS)
        lost = len(self.entries) + len(self._batch) + len(self._writes)
        if lost:
            self._on_event(f"{lost} rows could not be written to {self._store_path} and are lost.")

    def _run_thread(self) -> None:
        store: Store | None = None
        has_told = False
        is_last = False
        while not is_last:
            self.overdue_at = time.monotonic() + _OVERDUE_SECS
            is_last = self._is_closing.wait(FLUSH_SECS)
            try:
                store = store or Store.open(self._store_path)
                self._flush(store)
                self._on_tick()
                self._flush(store)
                has_told = False
            except (StoreError, OSError) as error:
                if not has_told:
                    self._on_event(f"Rows cannot be written for now and are kept in memory: {error}")
                has_told = True
                self._tell_if_full()
                time.sleep(FLUSH_SECS)
        if store is not None:
            store.close()

    def _flush(self, store: Store) -> None:
        while self.entries or self._batch or self._writes:
            self._take_batch()
            if self._batch:
                self._write_entries(store)
            elif self._writes:
                self._attempt(self._writes[0], store)
                self._writes.popleft()

    def _attempt(self, write: Write, store: Store) -> None:
        """Write; what can be written later is kept by the caller, what never can is told and given up."""
        try:
            write(store)
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - one bad row must not keep the others from the store
            self._on_event(f"A row could not be written: {type(error).__name__}: {error}")

    def _take_batch(self) -> None:
        if not self._batch:
            take, count = self.entries.popleft, min(len(self.entries), _BATCH_ENTRIES)
            self._num_taken += count
            self._batch = [take() for _ in range(count)]

    def _write_entries(self, store: Store) -> None:
        """Write the batch; of one that cannot be written, half is put back, until what is at fault stands alone."""
        try:
            store.add_flat_entries(self._run, self._batch)
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            middle = len(self._batch) // 2
            if middle:
                self.entries.extendleft(reversed(self._batch[middle:]))
                self._num_taken -= len(self._batch) - middle
                self._batch = self._batch[:middle]
                return
            name = self._batch[0][0]
            self._on_event(f"flor.log({name!r}) was not recorded: {type(error).__name__}: {error}")
        self._batch = []

    def _tell_if_full(self) -> None:
        if len(self.entries) == _KEPT_ENTRIES:
            self._on_event(f"More than {_KEPT_ENTRIES} entries wait to be written: the oldest are dropped.")
