"""The arena: shared memory that holds one snapshot, a slot per variable.

The trainer copies into it, the forked worker writes from it; both map the same pages, so a snapshot costs one copy.
Slots are aligned to `ALIGNMENT` because TensorFlow only takes aligned memory without copying.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

ALIGNMENT = 64
_MADV_POPULATE_WRITE = 23
_HEADROOM = 1.05  # states grow a little (a new metric); a fresh arena costs a page fault per page


class Slot(NamedTuple):
    """Where one tensor lies in the arena. ``dtype`` is TensorFlow's name for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class Layout(NamedTuple):
    """The slots of one snapshot and the bytes they span."""

    slots: tuple[Slot, ...]
    num_bytes: int


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> Layout:
    """Place tensors, given as (name, dtype, shape, bytes), one behind the other."""
    slots, offset = [], 0
    for name, dtype, shape, num_bytes in tensors:
        slots.append(Slot(name, dtype, shape, offset, num_bytes))
        offset += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return Layout(tuple(slots), offset)


class Arena:
    """A shared mapping of at least ``num_bytes``. The descriptor is how another process maps the same pages."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = max(mmap.PAGESIZE, int(num_bytes * _HEADROOM))
        self.descriptor = _shared_file(self.num_bytes)
        self._map(self.descriptor)
        self._touch()

    @classmethod
    def attach(cls, descriptor: int) -> Arena:
        """Map the arena of another process."""
        arena = cls.__new__(cls)
        arena.descriptor = descriptor
        arena.num_bytes = os.fstat(descriptor).st_size
        arena._map(descriptor)
        return arena

    def _map(self, descriptor: int) -> None:
        self._mapping = mmap.mmap(descriptor, self.num_bytes)
        self._bytes = np.frombuffer(self._mapping, dtype=np.uint8)

    def _touch(self) -> None:
        """Get all pages now: a copy into a cold arena costs 4 to 10 times one into a warm arena."""
        with contextlib.suppress(OSError, ValueError):  # before Linux 5.14 the first copy pays page by page
            self._mapping.madvise(_MADV_POPULATE_WRITE)

    def fits(self, layout: Layout) -> bool:
        """Tell whether a snapshot of this layout has room here."""
        return layout.num_bytes <= self.num_bytes

    def view(self, slot: Slot) -> np.ndarray:
        """Return the slot's bytes, shape (num_bytes,), sharing memory with the arena."""
        return self._bytes[slot.offset : slot.offset + slot.num_bytes]

    def close(self) -> None:
        """Give the memory back; views that still exist keep their pages until they go."""
        os.close(self.descriptor)
        self._bytes = np.empty(0, dtype=np.uint8)


def _shared_file(num_bytes: int) -> int:
    """Return the descriptor of a file without a name, in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("flor_keras", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor
