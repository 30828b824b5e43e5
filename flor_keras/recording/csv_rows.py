"""The files of `CSVLogger` where training goes on: what is there stays, but for the rows that are written again.

Keras's logger begins its file anew, unless made with ``append=True``; then nothing here is done.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras


def go_on_with_rows(callbacks: Sequence[Any], epoch: int) -> list[Any]:
    """Have the loggers among ``callbacks`` write after the rows of the epochs before ``epoch``, from which `fit` goes on.

    Returns those it changed for that, for `be_as_made` once they write.
    """
    changed = []
    for logger in callbacks:
        if isinstance(logger, keras.callbacks.CSVLogger) and not logger.append:
            path = Path(logger.filename)
            if path.is_file():
                os.truncate(path, _length_before(path, logger.sep, epoch))
                logger.append = True
                changed.append(logger)
    return changed


def be_as_made(loggers: Sequence[Any]) -> None:
    """Make loggers that write by now what they are in a run that nothing interrupted; `fit` may be called with them again."""
    for logger in loggers:
        logger.append, logger.append_header = False, True


def _length_before(path: Path, separator: str, epoch: int) -> int:
    """Return how many bytes of a file are its header and whole rows of earlier epochs."""
    lines = path.read_bytes().splitlines(keepends=True)
    texts = [line.decode("utf-8", "replace") for line in lines]
    rows = csv.reader(texts, delimiter=separator)
    num_kept = 0
    for row in rows:
        is_earlier = not num_kept or (row and row[0].isdigit() and int(row[0]) < epoch)
        if not is_earlier or not texts[rows.line_num - 1].endswith("\n"):
            break
        num_kept = rows.line_num
    return sum(map(len, lines[:num_kept]))
