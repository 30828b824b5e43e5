"""What tests of several parts share."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import ForkServer
from project import Project

from flor_keras.records import RunRecord
from flor_keras.store.process import process_identity


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests, keep those of a file together that share a fixture of it."""
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        is_shared = any(fixture.scope == "module" for defined in fixtures for fixture in defined)
        if is_shared and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


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


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One process that has imported TensorFlow, in forks of which programs run."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def project(tmp_path: Path, fork_server: ForkServer) -> Project:
    """A scratch project: write programs into it and run them, with a store of their own."""
    return Project(tmp_path, fork_server)


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Project:
    """A scratch project that the tests of a file share, for what is dear to record and cheap to look at."""
    return Project(tmp_path_factory.mktemp("project"), fork_server)
