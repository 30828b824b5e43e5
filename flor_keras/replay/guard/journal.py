"""What the guard did, one JSON line each, in a file of the scratch folder.

The file is shared with the processes the program forks (data loaders): whoever changes something appends a
line, and everybody else sees that the file grew. Owns the order and the absence of doubles.
"""

from __future__ import annotations

import json
import posix

_KINDS = ("diverted", "refused", "hidden")


class Journal:
    """Ordered sets of what was diverted, refused and hidden, kept in step over forks."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = 0
        self._seen: dict[str, dict[str, None]] = {kind: {} for kind in _KINDS}
        self._append(b"")

    def listed(self, kind: str) -> list[str]:
        """Return what was noted under `kind`, oldest first."""
        self.has_grown()
        return list(self._seen[kind])

    @property
    def num_bytes(self) -> int:
        """How much was noted so far; grows with every change of any process."""
        self.has_grown()
        return self._size

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever noted, by this process or a forked one."""
        return self._size == 0 and not self.has_grown()

    @property
    def hidden(self) -> dict[str, None]:
        """Originals that the program deleted or moved away; all below them is hidden too."""
        return self._seen["hidden"]

    def note(self, kind: str, text: str) -> None:
        """Append one line, unless it is there already. The kind ``changed`` is always written."""
        if text in self._seen.get(kind, ()):
            return
        self._append(json.dumps([kind, text]).encode() + b"\n")
        self.has_grown()

    def has_grown(self) -> bool:
        """Take in the lines added since the last look; say whether there were any."""
        size = posix.stat(self._path).st_size
        if size == self._size:
            return False
        self._read(size)
        return True

    def _read(self, size: int) -> None:
        start = self._size
        file = posix.open(self._path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            text = posix.pread(file, size - start, start)
        finally:
            posix.close(file)
        whole = text[: text.rfind(b"\n") + 1]
        self._size = start + len(whole)
        for line in whole.splitlines():
            kind, name = json.loads(line)
            if kind in self._seen:
                self._seen[kind][name] = None

    def _append(self, line: bytes) -> None:
        flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC
        file = posix.open(self._path, flags, 0o600)
        try:
            posix.write(file, line)
        finally:
            posix.close(file)
