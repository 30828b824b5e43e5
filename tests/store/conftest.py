"""Stores and runs to test with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flor_keras.store.database import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a project" / ".flor", create=True) as opened:
        yield opened
