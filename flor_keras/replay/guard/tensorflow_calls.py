"""TensorFlow's file calls under the guard: `tf.io.gfile` and the C++ classes that open files themselves.

`tf.io.gfile`, checkpoints, SavedModel and Keras go through one extension module, ``_pywrap_file_io``; its
functions are replaced by ones that map the paths and then call the real one, so errors stay TensorFlow's own
(checked on TensorFlow 2.21). Operations are in `tensorflow_ops`. Importing this does not import TensorFlow.
"""

from __future__ import annotations

import functools
import os
import posix
from collections.abc import Callable
from types import ModuleType
from typing import Any

from flor_keras.replay.guard.overlay import Overlay
from flor_keras.replay.guard.patches import ImportHook, Patches
from flor_keras.replay.guard.places import Places
from flor_keras.replay.guard.refusal import Refusals, WriteRefused
from flor_keras.replay.guard.tensorflow_ops import patch_operations

_Call = Callable[..., Any]
_FINGERPRINTS = (
    "CreateFingerprintDef",
    "ReadSavedModelFingerprint",
    "SingleprintFromFP",
    "SingleprintFromSM",
)


def patch_tensorflow(patches: Patches, hook: ImportHook, overlay: Overlay, refusals: Refusals) -> None:
    """Register the patches of all modules of TensorFlow that open files."""
    places = Places(overlay, refusals)
    patch_operations(patches, hook, places)

    def add(name: str, patch: Callable[[Patches, ModuleType, Places], None]) -> None:
        hook.add(f"tensorflow.python.{name}", lambda module: patch(patches, module, places))

    add("lib.io._pywrap_file_io", _patch_gfile)
    add("lib.io._pywrap_record_io", _patch_record_readers)
    add("lib.io.tf_record", _patch_record_writer)
    add("client._pywrap_events_writer", _patch_events_writer)
    add("training.py_checkpoint_reader", _patch_checkpoint_reader)
    add("saved_model.save", _patch_saved_model)
    add("saved_model.fingerprinting", _patch_fingerprints)
    add("profiler.internal._pywrap_profiler", _patch_profiler)
    add("debug.lib.debug_events_writer", _patch_debug_writer)
    add("debug.lib.dumping_callback", _patch_debug_callback)


def _mapping_first(place: Callable[[str], str], real: _Call, places: Places, at: int = 0) -> _Call:
    """Map the argument at `at`, then call the real one."""

    @functools.wraps(real)
    def call(*args: Any, **options: Any) -> Any:
        mapped = _as_tensorflow_error(places.using)(place, args[at])
        return real(*args[:at], mapped, *args[at + 1 :], **options)

    return call


def _as_tensorflow_error(call: _Call) -> _Call:
    """Raise TensorFlow's error for what the kernel would say; a refusal stays a refusal."""

    @functools.wraps(call)
    def translated(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except WriteRefused:
            raise
        except OSError as error:
            raise _tensorflow_error(error) from None

    return translated


def _tensorflow_error(error: OSError) -> Exception:
    from tensorflow.python.framework import errors

    kinds = {
        FileNotFoundError: errors.NotFoundError,
        FileExistsError: errors.AlreadyExistsError,
        PermissionError: errors.PermissionDeniedError,
    }
    kind = kinds.get(type(error), errors.FailedPreconditionError)
    found: Exception = kind(None, None, f"{error.filename}; {error.strerror}")
    return found


def _patch_gfile(patches: Patches, module: ModuleType, places: Places) -> None:
    for name in ("BufferedInputStream", "FileExists", "IsDirectory", "Stat", "ReadFileToString"):
        patches.set(module, name, _mapping_first(places.read, getattr(module, name), places))
    write = _mapping_first(places.write, module.WriteStringToFile, places)
    patches.set(module, "WriteStringToFile", write)
    for name, call in _GFile(module, places).calls().items():
        patches.set(module, name, _as_tensorflow_error(call))


class _GFile:
    """The calls of ``_pywrap_file_io`` that change files or list folders. Remote ones are not ours."""

    def __init__(self, module: ModuleType, places: Places) -> None:
        self._real = dict(vars(module))
        self._places = places
        self._files = places.files

    def calls(self) -> dict[str, _Call]:
        files = self._files
        return {
            "WritableFile": self.writable,
            "CopyFile": self.copy,
            "RenameFile": self.rename,
            "GetChildren": self.children,
            "GetMatchingFiles": self.matching,
            "DeleteFile": self._local("DeleteFile", files.remove),
            "CreateDir": self._local("CreateDir", lambda path: files.create(posix.mkdir)(path)),
            "RecursivelyCreateDir": self._local("RecursivelyCreateDir", files.make_tree),
            "DeleteRecursively": self._local("DeleteRecursively", files.remove_tree),
        }

    def writable(self, path: Any, mode: Any, *rest: Any) -> Any:
        text, is_kept = os.fsdecode(path), set(os.fsdecode(mode)) & set("a+")
        place = functools.partial(self._files.place, mode="a" if is_kept else "w")
        if "://" in text and not text.startswith("file://"):
            place = self._places.write  # type: ignore[assignment]
        return self._real["WritableFile"](self._places.using(place, path), mode, *rest)

    def copy(self, source: Any, target: Any, overwrite: bool, *rest: Any) -> None:
        self._check_absent(target, overwrite)
        places = self._places
        read, write = places.using(places.read, source), places.using(places.write, target)
        self._real["CopyFile"](read, write, True if write != target else overwrite, *rest)

    def rename(self, source: Any, target: Any, overwrite: bool, *rest: Any) -> Any:
        old, new = _local_path(source), _local_path(target)
        if old is None or new is None:
            self._places.using(self._places.write, target)
            self._places.using(self._places.write, source)
            return self._real["RenameFile"](source, target, overwrite, *rest)
        self._check_absent(target, overwrite)
        return self._files.rename(old, new)

    def children(self, path: Any, *rest: Any) -> Any:
        text = _local_path(path)
        if text is None or self._places.overlay.is_pristine or not self._files.is_folder(text):
            return self._real["GetChildren"](self._places.using(self._places.read, path), *rest)
        return self._files.listdir(text)

    def matching(self, pattern: Any, *rest: Any) -> Any:
        text, overlay = _local_path(pattern), self._places.overlay
        if text is None or overlay.is_pristine:
            return self._real["GetMatchingFiles"](pattern, *rest)
        asked = overlay.absolute(text)
        above = [overlay.original(path) for path in self._real["GetMatchingFiles"](overlay.upper + asked)]
        below = [path for path in self._real["GetMatchingFiles"](asked) if not overlay.is_hidden(path)]
        start = "" if text.startswith("/") else overlay.cwd() + "/"
        return sorted({path.removeprefix(start) for path in above + below})

    def _check_absent(self, target: Any, overwrite: bool) -> None:
        text = _local_path(target)
        if not overwrite and text is not None and self._files.status(text) is not None:
            raise FileExistsError(17, "file already exists", text)

    def _local(self, name: str, call: Callable[[str], None]) -> _Call:
        def changed(path: Any, *rest: Any) -> Any:
            text = _local_path(path)
            if text is not None:
                return call(text)
            self._places.using(self._places.write, path)
            return self._real[name](path, *rest)

        return changed


def _local_path(path: Any) -> str | None:
    """Return a path of this machine as text, None for a remote one."""
    text = os.fsdecode(path).removeprefix("file://")
    return None if "://" in text else text


def _patch_record_readers(patches: Patches, module: ModuleType, places: Places) -> None:
    for name in ("RecordIterator", "RandomRecordReader"):
        patches.set(module, name, _mapping_first(places.read, getattr(module, name), places))


def _patch_init(patches: Patches, owner: type, places: Places) -> None:
    """Map the first argument of a constructor, by position or by whatever name it has."""
    real = owner.__init__  # type: ignore[misc]
    name = real.__code__.co_varnames[1]

    @functools.wraps(real)
    def init(self: Any, *args: Any, **options: Any) -> None:
        if name in options:
            args = (options.pop(name), *args)
        real(self, _as_tensorflow_error(places.using)(places.write, args[0]), *args[1:], **options)

    patches.set(owner, "__init__", init)


def _patch_record_writer(patches: Patches, module: ModuleType, places: Places) -> None:
    _patch_init(patches, module.TFRecordWriter, places)


def _patch_debug_writer(patches: Patches, module: ModuleType, places: Places) -> None:
    _patch_init(patches, module.DebugEventsWriter, places)


def _patch_debug_callback(patches: Patches, module: ModuleType, places: Places) -> None:
    """Map the folder where it is set: once more after the constructor."""
    owner = module._DumpingCallback
    real = owner.dump_root

    def set_root(self: Any, path: Any) -> None:
        real.fset(self, _as_tensorflow_error(places.using)(places.write, path))

    patches.set(owner, "dump_root", property(real.fget, set_root))
    _patch_init(patches, owner, places)


def _patch_events_writer(patches: Patches, module: ModuleType, places: Places) -> None:
    patches.set(module, "EventsWriter", _mapping_first(places.write, module.EventsWriter, places))


def _patch_checkpoint_reader(patches: Patches, module: ModuleType, places: Places) -> None:
    reader = _mapping_first(places.read_prefix, module.CheckpointReader, places)
    patches.set(module, "CheckpointReader", reader)


def _patch_saved_model(patches: Patches, module: ModuleType, places: Places) -> None:
    native = module.pywrap_saved_model
    patches.set(native, "Save", _mapping_first(places.write, native.Save, places))  # makes the folder


def _patch_fingerprints(patches: Patches, module: ModuleType, places: Places) -> None:
    native = module.fingerprinting_pywrap
    for name in _FINGERPRINTS:
        patches.set(native, name, _mapping_first(places.read_tree, getattr(native, name), places))


def _patch_profiler(patches: Patches, module: ModuleType, places: Places) -> None:
    class ProfilerSession(module.ProfilerSession):  # type: ignore[name-defined]
        def start(self, logdir: Any, options: Any) -> None:
            super().start(places.using(places.write, logdir), options)

    patches.set(module, "ProfilerSession", ProfilerSession)
