"""h5py under the guard: HDF5 opens files in C, so paths are diverted where h5py takes them."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from flor_keras.replay.guard.files import Files
from flor_keras.replay.guard.overlay import Overlay
from flor_keras.replay.guard.patches import ImportHook, Patches

_MODES = {"w-": "x"}


def patch_h5py(patches: Patches, hook: ImportHook, overlay: Overlay) -> None:
    """Divert `h5py.File` when h5py gets imported."""
    hook.add("h5py._hl.files", lambda module: _patch_file(patches, module, Files(overlay)))


def _patch_file(patches: Patches, module: ModuleType, files: Files) -> None:
    real = module.File.__init__

    @functools.wraps(real)
    def init(self: Any, name: Any, mode: str = "r", *args: Any, **options: Any) -> None:
        driver = args[0] if args else options.get("driver")
        is_in_memory = driver == "core" and not options.get("backing_store", True)
        if isinstance(name, (str, bytes, os.PathLike)) and not is_in_memory:
            name = files.place(os.fsdecode(name), _MODES.get(mode, mode))
        real(self, name, mode, *args, **options)

    patches.set(module.File, "__init__", init)
