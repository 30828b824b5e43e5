"""The border to the program: failures stay on our side, and the garbage collector is left as the program has it."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest

from flor_keras.recording.recorder import Recorder


@pytest.fixture
def told():
    """Return what was reported; the collector is as it was afterwards."""
    was_enabled = gc.isenabled()
    yield []
    (gc.enable if was_enabled else gc.disable)()


def shielded(told):
    """Return the border of a recorder that only reports."""
    return Recorder.shielded(SimpleNamespace(report=told.append), "Testing")


def test_the_collector_is_paused_and_runs_again_after_a_failure(told):
    gc.enable()
    with shielded(told):
        assert not gc.isenabled()
        raise ValueError("ours")
    assert gc.isenabled()
    assert told == ["Testing failed: ValueError: ours"]


def test_a_collector_that_the_program_has_stopped_stays_stopped(told):
    gc.disable()
    with shielded(told):
        pass
    assert not gc.isenabled()


def test_another_thread_does_not_undo_what_the_program_says_meanwhile(told):
    gc.enable()
    is_inside, may_leave = threading.Event(), threading.Event()

    def work() -> None:
        with shielded(told):
            is_inside.set()
            may_leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_inside.wait(10)
    assert gc.isenabled()
    gc.disable()
    may_leave.set()
    thread.join(10)
    assert not gc.isenabled()
