"""Where C++ code shall read and write: it gets one real path, so all the program sees must lie there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flor_keras.replay.guard.files import Files
from flor_keras.replay.guard.overlay import Overlay
from flor_keras.replay.guard.refusal import Refusals


class Places:
    """Map a path for a native reader or writer: text to text; `using` takes what TensorFlow takes."""

    def __init__(self, overlay: Overlay, refusals: Refusals) -> None:
        self.overlay = overlay
        self.files = Files(overlay)
        self._refusals = refusals

    def using(self, place: Callable[[str], str], path: Any) -> Any:
        """Map text, bytes or a PathLike; empty names (no file) and remote paths to read stay as they are."""
        text = os.fsdecode(path)
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        elif "://" in text:
            if place in (self.write, self.grow):
                self._refusals.check_remote(text)
            return path
        if not text:
            return path
        found = place(text)
        if found == text:
            return path
        return os.fsencode(found) if isinstance(path, bytes) else found

    def read(self, path: str) -> str:
        """Return where a file lies."""
        return self.overlay.seen(path)

    def read_prefix(self, prefix: str) -> str:
        """Return where the files of a checkpoint lie: ``<prefix>.index`` tells for all of them."""
        if self.overlay.is_pristine:
            return prefix
        index = self.overlay.find(self.overlay.resolve(prefix + ".index"))
        if index[1] is None and index[0].startswith(prefix):
            return self.overlay.seen(prefix)  # not a checkpoint of today's format: one file
        return index[0].removesuffix(".index")

    def read_tree(self, path: str) -> str:
        """Return where a folder lies, its originals copied up when some of it is diverted."""
        if self.overlay.is_pristine:
            return path
        here = self.overlay.resolve(path)
        where, status = self.overlay.find(here)
        if status is None or (where == here and not self.overlay.journal.hidden):
            return where
        return self.overlay.copy_up_tree(here)

    def write(self, path: str) -> str:
        """Return where to write a file anew; missing folders are made."""
        return self.overlay.for_write(path, keep=False, parents=True)

    def grow(self, path: str) -> str:
        """Return where to write into a folder; what it holds is copied up first."""
        if self.files.status(path) is not None:
            self.overlay.copy_up_tree(self.overlay.resolve(path))
        return self.write(path)

    def cache(self, path: str) -> str:
        """Return where a dataset's cache file lies: a finished one is read, a new one written."""
        if self.files.status(path + ".index") is not None:
            return self.read_prefix(path)
        return self.write(path)
