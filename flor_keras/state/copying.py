"""Copying many arrays at once, by two threads: one alone does not use all of the memory's bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np

from flor_keras.environment import num_cpus

_WORTH_A_THREAD_BYTES = 16 << 20
_PIECE_BYTES = 4 << 20
SMALL_BYTES = 64 << 10

Pair = tuple[np.ndarray, np.ndarray]  # where to, where from; both of bytes, shape (num_bytes,)


def copy_all(pairs: Iterable[Pair], num_bytes: int) -> None:
    """Copy each source into its target; ``num_bytes`` is what they take together.

    The second thread begins with the first large pair, while this one still asks ``pairs`` for more and copies small ones.
    """
    if num_bytes < _WORTH_A_THREAD_BYTES or num_cpus() == 1:
        for target, source in pairs:
            np.copyto(target, source)
        return
    pieces: SimpleQueue[Pair | None] = SimpleQueue()
    with ThreadPoolExecutor(1, thread_name_prefix="flor_keras-copy") as pool:
        other = pool.submit(_copy_from, pieces)
        try:
            for target, source in pairs:
                if source.nbytes <= SMALL_BYTES:
                    np.copyto(target, source)
                else:
                    _put(pieces, target, source)
        finally:
            pieces.put(None)
        _copy_from(pieces)
        other.result()


def _put(pieces: SimpleQueue[Pair | None], target: np.ndarray, source: np.ndarray) -> None:
    for at in range(0, source.nbytes, _PIECE_BYTES):
        pieces.put((target[at : at + _PIECE_BYTES], source[at : at + _PIECE_BYTES]))


def _copy_from(pieces: SimpleQueue[Pair | None]) -> None:
    """Copy what is waiting, up to the end; None is left for the other thread to see."""
    while (pair := pieces.get()) is not None:
        np.copyto(*pair)
    pieces.put(None)
