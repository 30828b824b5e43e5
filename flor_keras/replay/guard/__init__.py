"""Nothing of the user's is touched while their program is replayed.

Runs in a replay worker. What the program writes, renames or deletes goes to a scratch folder and is read
back from there (`overlay`, `files`); what cannot be diverted is refused (`refusal`); both are listed.
Python's calls (`python_calls`) are replaced at once, TensorFlow's (`tensorflow_calls`) and h5py's
(`h5py_calls`) when they are imported; Keras writes through these three. Where it can, the kernel stops the
rest (`kernel`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flor_keras.replay.guard.h5py_calls import patch_h5py
from flor_keras.replay.guard.kernel import confine_writes
from flor_keras.replay.guard.overlay import Overlay
from flor_keras.replay.guard.patches import ImportHook, Patches
from flor_keras.replay.guard.python_calls import patch_python
from flor_keras.replay.guard.quiet import quiet_program
from flor_keras.replay.guard.refusal import Refusals, WriteRefused, unwatch, watch
from flor_keras.replay.guard.tensorflow_calls import patch_tensorflow

__all__ = ["Guard", "Overlay", "WriteRefused", "confine_writes", "diverting", "install", "quiet_program"]

_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0"}  # `git status` then leaves the index alone


class Guard:
    """The patches of one process and what they caught, also in the processes it forks."""

    def __init__(self, scratch: Path, allowed: Sequence[Path]) -> None:
        self.overlay = Overlay(scratch, allowed)
        self._refusals = Refusals(self.overlay)
        self._patches = Patches()
        self._hook = ImportHook()
        self._environment: dict[str, str | None] = {}
        self._wrote_bytecode = not sys.dont_write_bytecode

    @property
    def diverted(self) -> list[str]:
        """Paths the program wrote, renamed or deleted, in order, without doubles."""
        return self.overlay.journal.listed("diverted")

    @property
    def refused(self) -> list[str]:
        """Actions that were refused, in order, without doubles."""
        return self.overlay.journal.listed("refused")

    def begin(self) -> None:
        """Put the patches in place; importing none of the libraries they are for."""
        sys.dont_write_bytecode = True
        for name, value in {**_ENVIRONMENT, "TMPDIR": self.overlay.temporary}.items():
            self._environment[name] = os.environ.get(name)
            os.environ[name] = value
        patch_python(self._patches, self._hook, self.overlay, self._refusals)
        patch_h5py(self._patches, self._hook, self.overlay)
        patch_tensorflow(self._patches, self._hook, self.overlay, self._refusals)
        sys.meta_path.insert(0, self._hook)
        watch(self._refusals)

    def end(self) -> None:
        """Take the patches away again."""
        unwatch(self._refusals)
        sys.meta_path.remove(self._hook)
        self._patches.undo()
        for name, before in self._environment.items():
            os.environ.pop(name) if before is None else os.environ.update({name: before})
        sys.dont_write_bytecode = not self._wrote_bytecode


def install(scratch: Path, allowed: Sequence[Path]) -> Guard:
    """Guard this process until it ends. Paths under `allowed` (the store) are written as ever."""
    guard = Guard(scratch, allowed)
    guard.begin()
    return guard


@contextmanager
def diverting(scratch: Path, allowed: Sequence[Path]) -> Iterator[Guard]:
    """Guard a block, for tests."""
    guard = install(scratch, allowed)
    try:
        yield guard
    finally:
        guard.end()
