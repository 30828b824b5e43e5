"""Writing models while training goes on: a thread exports each checkpoint that is asked for, once it is committed.

A thread and not the worker: the worker was forked without what export needs (h5py, the graph), and what the thread does
lies mostly in TensorFlow's and HDF5's own code, outside of Python's lock. It reads the committed checkpoint, never the
variables that are being trained.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from flor_keras.export.formats import export, suffix
from flor_keras.export.kept import Which
from flor_keras.records import CheckpointRecord, Kind
from flor_keras.store import layout

_LONGEST_SECS = 600.0


class Exports:
    """The exports of one run.

    Args:
      store: the store's folder.
      run: the run's id.
      report: called with a sentence when one fails.
    """

    def __init__(self, store: Path, run: str, report: Callable[[str], None]) -> None:
        self._store = store
        self._run = run
        self._report = report
        self._wanted: dict[int, tuple[str, int]] = {}
        self._rows: queue.Queue[CheckpointRecord] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._is_idle = threading.Condition(self._lock)
        self._waiting: list[CheckpointRecord] = []
        self._released: dict[int, int] = {}
        self._num_open = 0

    def want(self, loop: int, form: str, every: int) -> None:
        """Have every so-many-th epoch of a loop exported."""
        self._wanted[loop] = (form, every)

    def consider(self, row: CheckpointRecord) -> None:
        """Export a checkpoint that has been committed, if its epoch is one to export; never waits."""
        form, every = self._wanted.get(row.loop, ("", 0))
        if not form or row.error is not None or row.kind is not Kind.EPOCH_END or (row.epoch + 1) % every:
            return
        with self._lock:
            self._num_open += 1
            self._waiting.append(row)
        self._start_released()

    def release(self, loop: int, epoch: int) -> None:
        """Say that the graph of the model is kept as it was up to an epoch: a checkpoint may be committed before."""
        with self._lock:
            self._released[loop] = epoch
        self._start_released()

    def _start_released(self) -> None:
        with self._lock:
            ready = [row for row in self._waiting if row.epoch <= self._released.get(row.loop, -1)]
            self._waiting = [row for row in self._waiting if row not in ready]
            for row in ready:
                self._rows.put(row)
            if ready and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_thread, name="flor_keras exports", daemon=True
                )
                self._thread.start()

    def finish(self) -> None:
        """Wait until all exports are written or have failed."""
        with self._lock:
            self._num_open -= len(self._waiting)  # epochs that were never released: training failed there
            self._waiting.clear()
            if not self._is_idle.wait_for(lambda: self._num_open == 0, timeout=_LONGEST_SECS):
                self._report(
                    f"Exports: {self._num_open} models were not written within {_LONGEST_SECS:.0f} s."
                )

    def _run_thread(self) -> None:
        while True:
            row = self._rows.get()
            try:
                self._export(row)
            except Exception as error:  # noqa: BLE001 - the border between us and the program
                self._report(f"Exporting a model failed: {error}")
            with self._is_idle:
                self._num_open -= 1
                self._is_idle.notify_all()

    def _export(self, row: CheckpointRecord) -> None:
        form, _ = self._wanted[row.loop]
        folder = layout.run_folder(self._store, self._run) / "export" / str(row.loop)
        name = str(row.epoch + 1) if form == "saved_model" else f"epoch-{row.epoch}{suffix(form)}"
        models = layout.model_folder(self._store, self._run)
        export(self._store / row.path, Which(models, row.loop), form, folder / name, is_replacing=True)
