"""Copying by two threads leaves every byte where it belongs, and an error on the way leaves no thread waiting."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from flor_keras.state import copying


@pytest.fixture
def two_threads(monkeypatch):
    """Have small arrays copied as large ones are."""
    monkeypatch.setattr(copying, "_WORTH_A_THREAD_BYTES", 1000)
    monkeypatch.setattr(copying, "SMALL_BYTES", 100)
    monkeypatch.setattr(copying, "_PIECE_BYTES", 256)
    monkeypatch.setattr(copying, "num_cpus", lambda: 2)


@pytest.mark.parametrize(
    "sizes", [[0, 1, 99, 100, 101], [5000], [255, 256, 257, 511, 512, 513], [7] * 200, []]
)
def test_every_byte_arrives(two_threads, sizes):
    random = np.random.default_rng(0)
    sources = [random.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    targets = [np.zeros_like(source) for source in sources]
    copying.copy_all(zip(targets, sources, strict=True), max(1000, sum(sizes)))
    assert all(np.array_equal(target, source) for target, source in zip(targets, sources, strict=True))


def test_an_error_while_reading_is_raised_and_ends_the_other_thread(two_threads):
    def broken():
        yield np.zeros(5000, np.uint8), np.ones(5000, np.uint8)
        raise ValueError("deleted")

    with pytest.raises(ValueError, match="deleted"):
        copying.copy_all(broken(), 5000)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flor_keras-copy")]
