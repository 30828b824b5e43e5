"""The process of a replay worker, apart from what it replays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flor_keras

WORKER = "import os, time; from flor_keras.replay.worker import die_with; die_with(os.getppid()); print('ready', flush=True); time.sleep(60)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a process of its parent's end"
)
def test_a_worker_in_the_middle_of_an_epoch_ends_with_the_process_that_started_it():
    environment = {**os.environ, "PYTHONPATH": str(Path(flor_keras.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        ready, worker = parent.stdout.readline().split()
        parent.send_signal(signal.SIGKILL)
    assert ready == "ready"
    deadline = time.monotonic() + 20
    while is_alive(int(worker)):
        assert time.monotonic() < deadline, "the worker goes on"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
