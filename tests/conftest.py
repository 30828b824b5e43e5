"""What tests of several parts share."""

import time
from typing import Any

import pytest

from flor_keras.records import RunRecord
from flor_keras.store.process import process_identity


@pytest.fixture
def run_record():
    """Return a maker of run records that belong to this process, each a second younger than the last."""
    ages = iter(range(1000, 0, -1))

    def make(run: str = "run-1", name: str | None = None, **changes: Any) -> RunRecord:
        pid, host, started = process_identity()
        known: dict[str, Any] = {
            "id": run,
            "name": name,
            "script": "/project/train.py",
            "argv": ["--lr", "0.1"],
            "started_at": time.time() - next(ages),
            "pid": pid,
            "host": host,
            "process_started": started,
            "cwd": "/project",
            "environment": {"versions": {"keras": "3.15"}},
        }
        return RunRecord(**(known | changes))

    return make
