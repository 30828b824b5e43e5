"""The state of a custom loop: the objects it changes, the locals it needs, its data iterators, the random states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.state.iterators import Iterators
from flor_keras.state.objects import Objects, holds_variables
from flor_keras.state.random import capture_random, restore_random
from flor_keras.state.restore import read_python, restore_objects
from flor_keras.state.variables import gather


class LoopState:
    """What a loop's epochs begin and end with.

    Args:
      roots: the objects that the loop changes, by name.
      read_names: returns the program's locals that are to be kept, those that are bound.
      about: what the start checkpoint says of the loop, as plain data.
      native: objects whose variables the loop may change; ``roots`` too if not given.
      others: further objects, which those the loop changes may come to hold.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        read_names: Callable[[], Mapping[str, Any]] = dict,
        about: Mapping[str, Any] | None = None,
        native: Mapping[str, Any] | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        every = roots if native is None else native
        self.native = {name: value for name, value in every.items() if holds_variables(name, value)}
        self.about = dict(about or {})
        self.iterators = Iterators()
        self._objects = Objects({**roots, **self.native}, others)
        self._read_names = read_names
        self._unkept = [f"{path} ({kind}) cannot be kept" for path, kind in self._objects.unkept()]
        if self._unkept and not self.about.get("refused"):
            self.about["refused"] = self._unkept[0]

    @property
    def why_redone(self) -> str | None:
        """Why the training of an epoch cannot be skipped, whatever is kept of it."""
        why = self.about.get("refused")
        return None if why is None else str(why)

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what to pickle, and what the checkpoint is to say of what is missing."""
        kept = self._objects.keep(self._read_names())
        python = {"objects": kept, "data": self.iterators.position(), "random": capture_random()}
        inexact = [*self._unkept, *(f"{name} cannot be pickled and was not kept" for name in kept.lost)]
        return python, {"inexact": inexact, "lost": kept.lost}

    def is_built(self, folder: Path) -> bool:
        """Whether the program has all variables of a checkpoint, those apart that restoring it creates."""
        manifest = bundle.read_manifest(folder)
        known = {*gather(self.native).variables, *manifest.get("metrics", ())}
        created = tuple(f"{name}/" for key in ("optimizers", "tables") for name in manifest.get(key, ()))
        recorded = [name for name in manifest["tensors"] if name.partition("/")[0] in self.native]
        return all(name in known or name.startswith(created) for name in recorded)

    def restore(self, folder: Path, *, is_fresh: bool = False) -> dict[str, Any]:
        """Put everything into the state of the checkpoint in ``folder``; return the locals it holds.

        See `restore_objects` for ``is_fresh``.
        """
        restore_objects(folder, self.native, is_fresh=is_fresh)
        python = read_python(folder)
        names = self._objects.put_back(python["objects"])
        restore_random(python["random"])
        return names

    def pass_over(self, folder: Path) -> None:
        """What is skipped up to a checkpoint has made data iterators, too."""
        self.iterators.owe(data_in(folder))


def data_in(folder: Path) -> dict[str, Any]:
    """Return the states and counts of the data iterators in a checkpoint."""
    position: dict[str, Any] = read_python(folder)["data"]
    return position
