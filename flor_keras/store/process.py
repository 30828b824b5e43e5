"""Which process records a run, how old it is, and whether it still lives. A pid alone would lie once it is used again."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path


def process_identity() -> tuple[int, str, str]:
    """Return pid, host and start time of this process, as a `RunRecord` wants them."""
    pid = os.getpid()
    return pid, socket.gethostname(), _started(pid) or ""


def age_secs() -> float:
    """Return how long ago this process started, its interpreter's start included; 0 where the system does not tell."""
    started = _started(os.getpid())
    if started is None:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")


def is_gone(pid: int, host: str, process_started: str) -> bool:
    """Tell whether the process is certainly gone. Of another host nothing is certain."""
    return host == socket.gethostname() and _started(pid) != process_started


def _started(pid: int) -> str | None:
    """Return the start in clock ticks since boot (field 22, proc_pid_stat(5)); None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Field 2 is the program's name in parentheses and may hold spaces and parentheses itself.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in ("Z", "X") else fields[18]
