"""Which epochs a person asked for: ``0,3,10:20:2`` as text, Python's slice rules, counted from 0 as in Keras."""

from __future__ import annotations

from collections.abc import Sequence

from flor_keras.errors import UsageError


def parse_epochs(text: str | None, available: Sequence[int], word: str = "epoch") -> list[int]:
    """Return the asked epochs (or steps: ``word``) in order; all available ones where nothing was asked.

    Raises:
      UsageError: the text is no such list, or names an epoch the run has not.
    """
    if text is None or text.strip() in ("", "all"):
        return list(available)
    asked = {epoch for part in text.split(",") for epoch in _part(part.strip(), available, word)}
    return sorted(asked)


def _part(part: str, available: Sequence[int], word: str) -> list[int]:
    words = part.split(":")
    try:
        numbers = [int(word) if word else None for word in words]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2, 3) or numbers == [None] or numbers[2:] == [0]:
        raise UsageError(
            f"--{word}s has {part!r}; expected {word}s such as 3, ranges such as 10:20 or 10:20:2, or a list of "
            f"them separated by commas. Type, for example: --{word}s 0:10"
        )
    if len(numbers) > 1:
        known = set(available)
        return [epoch for epoch in _range(numbers, available) if epoch in known]
    return [_one(numbers[0], available, word)]


def _range(numbers: list[int | None], available: Sequence[int]) -> list[int]:
    end = (available[-1] + 1) if available else 0
    return list(range(end))[slice(*numbers)]


def _one(epoch: int | None, available: Sequence[int], word: str) -> int:
    assert epoch is not None
    counted = epoch if epoch >= 0 else (available[-1] + 1 + epoch if available else epoch)
    if counted not in set(available):
        raise UsageError(
            f"The run has no {word} {epoch} to replay; it has {spelled(available)}. Give one of those."
        )
    return counted


def spelled(epochs: Sequence[int]) -> str:
    """Return epochs as short text: ``0-9, 12``; ``none``."""
    parts: list[str] = []
    begin = previous = None
    for epoch in [*epochs, None]:
        if begin is None:
            begin = previous = epoch
        elif epoch is not None and previous is not None and epoch == previous + 1:
            previous = epoch
        else:
            parts.append(str(begin) if begin == previous else f"{begin}-{previous}")
            begin = previous = epoch
    return ", ".join(parts) or "none"
