"""What the checkpoints of a run already hold, so that a tensor that did not change is not written again.

A manifest says of each tensor which bundle holds its bytes: ``.`` for the checkpoint's own, ``../<folder>`` for an older
checkpoint's. It always names the bundle that really holds them, so there are no chains to follow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flor_keras.checkpoint.contents import Content, content_bytes, content_hash

OWN = "."
_WORTH_REFERRING_BYTES = 4096  # of one tensor; for less, no older checkpoint is kept on the disk


class Held:
    """The tensors that the process which writes a run's checkpoints has committed."""

    def __init__(self) -> None:
        self._tensors: dict[
            str, dict[str, Any]
        ] = {}  # name -> its description, the bundle as seen from beside

    def describe(self, folder: Path, contents: list[Content]) -> dict[str, dict[str, Any]]:
        """Return by name what the manifest of ``folder`` says of each tensor: type, shape, hash and bundle."""
        described = {content.name: _describe(content) for content in contents}
        known = {
            name: bundle for name, found in described.items() if (bundle := self._bundle_with(name, found))
        }
        large = {known[name] for name in known if described[name]["num_bytes"] >= _WORTH_REFERRING_BYTES}
        # The run's older checkpoints may have been pruned meanwhile, and this one may be written over.
        usable = {b for b in large if b != f"../{folder.name}" and (folder.parent / b[3:]).is_dir()}
        for name, bundle in known.items():
            if bundle in usable:
                described[name]["bundle"] = bundle
        return described

    def note(self, folder: Path, described: dict[str, dict[str, Any]]) -> None:
        """Take note of what a committed checkpoint holds or refers to."""
        for name, found in described.items():
            bundle = f"../{folder.name}" if found["bundle"] == OWN else found["bundle"]
            self._tensors[name] = {**found, "bundle": bundle}

    def _bundle_with(self, name: str, described: dict[str, Any]) -> str | None:
        held = self._tensors.get(name)
        if held is None or {**held, "bundle": OWN} != described:
            return None
        return str(held["bundle"])


def _describe(content: Content) -> dict[str, Any]:
    return {
        "dtype": content.dtype,
        "shape": list(content.shape),
        "num_bytes": content_bytes(content),
        "xxh3": content_hash(content),
        "bundle": OWN,
    }
