"""Putting other functions in the place of a module's own, with a way back.

Owns three things: replacing an attribute, replacing it also where other modules took a copy of it
(``from os import remove``), and doing so when a module is imported later. Knows nothing of files.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Imports stay as fast as they were, and the guard itself keeps the real calls.
_UNTOUCHED = ("posix", "_io", "_frozen_importlib", "_frozen_importlib_external", "zipimport", __package__)

Patch = Callable[[ModuleType], None]


class Patches:
    """Replaced attributes, in order, so that they can be put back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace one attribute."""
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def set_everywhere(self, replacements: Mapping[Any, Any]) -> None:
        """Replace objects (original to new) in every module that holds them under any name."""
        by_id = {id(original): new for original, new in replacements.items()}
        for key, module in list(sys.modules.items()):
            if not isinstance(module, ModuleType) or key in _UNTOUCHED or key.startswith(f"{__package__}."):
                continue
            held = [
                (name, by_id[id(value)]) for name, value in list(vars(module).items()) if id(value) in by_id
            ]
            for name, new in held:
                self.set(module, name, new)

    def undo(self) -> None:
        """Put everything back, the last replaced first."""
        while self._before:
            setattr(*self._before.pop())


class ImportHook(MetaPathFinder):
    """Run a patch right after the module it is for was imported; at once if it is there already."""

    def __init__(self) -> None:
        self._patches: dict[str, Patch] = {}
        self._busy: set[str] = set()

    def add(self, name: str, patch: Patch) -> None:
        """Register `patch` for the module `name`."""
        self._patches[name] = patch
        if name in sys.modules:
            patch(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module with a patch through the other finders, and wrap its loader."""
        if fullname not in self._patches or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader, self._patches[fullname])
        return spec


class _PatchingLoader(Loader):
    def __init__(self, loader: Loader, patch: Patch) -> None:
        self._loader = loader
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)
