"""Running a person's program in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def call(words: Sequence[str], environment: Mapping[str, str], folder: str | None = None) -> int:
    """Run a program to its end; return its exit status, 128 and the signal's number if one killed it, as shells have it."""
    status = subprocess.call(words, env=environment, cwd=folder)
    return status if status >= 0 else 128 - status
