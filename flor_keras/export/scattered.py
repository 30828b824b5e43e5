"""A file in memory of which only the pages that were written take room, for a library that lays out a large file.

HDF5 ends the process (a segmentation fault in 1.14) where it closes a file on a full disk, so it is not given one.
"""

from __future__ import annotations

import io
from typing import Any

_PAGE_BYTES = 4096


class Scattered(io.RawIOBase):
    """A file in memory; what was not written reads as zeros."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._at = 0
        self.num_bytes = 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def writable(self) -> bool:
        """Return that it can be written."""
        return True

    def seekable(self) -> bool:
        """Return that any place can be gone to."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.num_bytes}[whence]
        return self._at

    def tell(self) -> int:
        """Return the place where the next read or write begins."""
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Make the file so long."""
        self.num_bytes = self._at if size is None else size
        return self.num_bytes

    def write(self, content: Any) -> int:
        """Write bytes."""
        left = memoryview(content).cast("B")
        num_written = len(left)
        while left:
            number, offset = divmod(self._at, _PAGE_BYTES)
            part = left[: _PAGE_BYTES - offset]
            page = self._pages.setdefault(number, bytearray(_PAGE_BYTES))
            page[offset : offset + len(part)] = part
            left = left[len(part) :]
            self._at += len(part)
        self.num_bytes = max(self.num_bytes, self._at)
        return num_written

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return how many bytes there were."""
        left = memoryview(buffer).cast("B")
        left = left[: max(0, self.num_bytes - self._at)]
        num_read = len(left)
        while left:
            number, offset = divmod(self._at, _PAGE_BYTES)
            num_part = min(len(left), _PAGE_BYTES - offset)
            page = self._pages.get(number)
            left[:num_part] = page[offset : offset + num_part] if page is not None else bytes(num_part)
            left = left[num_part:]
            self._at += num_part
        return num_read
