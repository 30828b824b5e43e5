"""TensorFlow's own operations that take file names, at the three places where Python makes an operation.

Eager code makes one through ``TFE_Py_FastPathExecute`` or ``TFE_Py_Execute``, graph code through
``_apply_op_helper`` (checked on TensorFlow 2.21; so `tf.raw_ops` is covered too). A name that is known is
mapped at once. A name known only when a graph runs is mapped by a Python call put into the graph, except
where that would end up in an exported graph.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any, NamedTuple

from flor_keras.replay.guard.patches import ImportHook, Patches
from flor_keras.replay.guard.places import Places


class PathInput(NamedTuple):
    """Which input of an operation is a path, and what is done there: a method of `Places`."""

    position: int
    name: str
    use: str


_WRITE_INPUTS = {
    "SaveV2": (PathInput(0, "prefix", "write"),),
    "Save": (PathInput(0, "filename", "write"),),
    "SaveSlices": (PathInput(0, "filename", "write"),),
    "MergeV2Checkpoints": (
        PathInput(0, "checkpoint_prefixes", "read_prefix"),
        PathInput(1, "destination_prefix", "write"),
    ),
    "WriteFile": (PathInput(0, "filename", "write"),),
    "CreateSummaryFileWriter": (PathInput(1, "logdir", "write"),),
    "CreateSummaryDbWriter": (PathInput(1, "db_uri", "write"),),
    "DatasetToTFRecord": (PathInput(1, "filename", "write"),),
    "ExperimentalDatasetToTFRecord": (PathInput(1, "filename", "write"),),
    "SaveDataset": (PathInput(1, "path", "grow"),),
    "SaveDatasetV2": (PathInput(1, "path", "grow"),),
    "DistributedSave": (PathInput(1, "directory", "grow"),),
    "SnapshotDataset": (PathInput(1, "path", "grow"),),
    "SnapshotDatasetV2": (PathInput(1, "path", "grow"),),
    "CacheDataset": (PathInput(1, "filename", "cache"),),
    "CacheDatasetV2": (PathInput(1, "filename", "cache"),),
}
_READ_INPUTS = {
    "RestoreV2": (PathInput(0, "prefix", "read_prefix"),),
    "Restore": (PathInput(0, "file_pattern", "read"),),
    "RestoreSlice": (PathInput(0, "file_pattern", "read"),),
    "LoadAndRemapMatrix": (PathInput(0, "ckpt_path", "read_prefix"),),
    "GenerateVocabRemapping": (
        PathInput(0, "new_vocab_file", "read"),
        PathInput(1, "old_vocab_file", "read"),
    ),
    "ReadFile": (PathInput(0, "filename", "read"),),
    "InitializeTableFromTextFileV2": (PathInput(1, "filename", "read"),),
    "LoadDataset": (PathInput(0, "path", "read_tree"),),
    "ListSnapshotChunksDataset": (PathInput(0, "snapshot_path", "read_tree"),),
    "SnapshotDatasetReader": (PathInput(0, "shard_dir", "read_tree"),),
    "SnapshotChunkDataset": (PathInput(0, "chunk_file", "read"),),
    **{
        name: (PathInput(0, "filenames", "read"),)
        for name in (
            "TFRecordDataset",
            "TFRecordDatasetV2",
            "TextLineDataset",
            "FixedLengthRecordDataset",
            "FixedLengthRecordDatasetV2",
            "CSVDataset",
            "CSVDatasetV2",
            "ExperimentalCSVDataset",
        )
    },
}
_INPUTS = _WRITE_INPUTS | _READ_INPUTS
_MAY_BE_EXPORTED = ("InitializeTableFromTextFileV2",)
_EXPORTED_GRAPHS = ("traced_save", "traced_restore")  # checkpoint/functional_saver.py, for a SavedModel
_PRINTS = "PrintV2"
_GLOB = "MatchingFiles"


def patch_operations(patches: Patches, hook: ImportHook, places: Places) -> None:
    """Map the file names of operations when TensorFlow gets imported."""
    seam = _Seam(places)
    hook.add("tensorflow.python.pywrap_tfe", lambda module: seam.patch_eager(patches, module))
    hook.add("tensorflow.python.framework.op_def_library", lambda module: seam.patch_graph(patches, module))


class _Seam:
    def __init__(self, places: Places) -> None:
        self._places = places

    def patch_eager(self, patches: Patches, module: ModuleType) -> None:
        fast, plain = module.TFE_Py_FastPathExecute, module.TFE_Py_Execute

        @functools.wraps(fast)
        def fast_execute(context: Any, op: Any, name: Any, *arguments: Any) -> Any:
            if op == _GLOB and not self._places.overlay.is_pristine:
                return _glob(arguments[0])
            if op in _INPUTS or op == _PRINTS:
                arguments = self._map_arguments(op, arguments)
            return fast(context, op, name, *arguments)

        @functools.wraps(plain)
        def execute(context: Any, device: Any, op: Any, inputs: Any, attrs: Any, *rest: Any) -> Any:
            text = op.decode() if isinstance(op, bytes) else op
            if text == _GLOB and not self._places.overlay.is_pristine:
                return [_glob(inputs[0])]
            if text in _INPUTS:
                inputs = list(self._map_arguments(text, tuple(inputs)))
            elif text == _PRINTS:
                attrs = self._map_stream(attrs)
            return plain(context, device, op, inputs, attrs, *rest)

        patches.set(module, "TFE_Py_FastPathExecute", fast_execute)
        patches.set(module, "TFE_Py_Execute", execute)

    def patch_graph(self, patches: Patches, module: ModuleType) -> None:
        real = module._apply_op_helper

        @functools.wraps(real)
        def apply(op_type_name: str, name: Any = None, **keywords: Any) -> Any:
            for path in _INPUTS.get(op_type_name, ()):
                keywords[path.name] = self._map_in_graph(op_type_name, path.use, keywords[path.name])
            if op_type_name == _PRINTS:
                stream = ("output_stream", keywords.get("output_stream"))
                keywords["output_stream"] = self._map_stream(stream)[1]
            return real(op_type_name, name, **keywords)

        patches.set(module, "_apply_op_helper", apply)

    def _map_arguments(self, op: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if op == _PRINTS:
            return self._map_stream(arguments)
        mapped = list(arguments)
        for path in _INPUTS[op]:
            known = _known(mapped[path.position])
            if known is not None:
                mapped[path.position] = self._map(path.use, mapped[path.position], known)
        return tuple(mapped)

    def _map_stream(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Map the file that `tf.print` appends to, an attribute: its value follows its name."""
        names = list(arguments)
        if "output_stream" in names[-4:]:
            at = len(names) - names[::-1].index("output_stream")
            stream = os.fsdecode(names[at] or "")
            if stream.startswith("file://"):
                place = self._places.files.place(stream.removeprefix("file://"), "a")
                names[at] = f"file://{place}"
        return tuple(names)

    def _map(self, use: str, value: Any, known: Any) -> Any:
        place = getattr(self._places, use)
        mapped = [self._places.using(place, path) for path in known.ravel().tolist()]
        if mapped == known.ravel().tolist():
            return value
        if isinstance(value, (str, bytes, os.PathLike)):
            return mapped[0]
        return _string_tensor(mapped, known.shape)

    def _map_in_graph(self, op: str, use: str, value: Any) -> Any:
        known = _known(value)
        if known is not None:
            return self._map(use, value, known)
        if op in _MAY_BE_EXPORTED or _is_exported_graph():
            return value
        if op in _READ_INPUTS and self._places.overlay.is_pristine:
            return value
        return self._map_when_run(use, value)

    def _map_when_run(self, use: str, value: Any) -> Any:
        import numpy as np
        import tensorflow as tf

        def place(paths: Any) -> Any:
            known = np.asarray(paths, dtype=object)
            method = getattr(self._places, use)
            mapped = [self._places.using(method, path) for path in known.ravel().tolist()]
            return np.array(mapped, dtype=object).reshape(known.shape)

        tensor = tf.convert_to_tensor(value)
        mapped = tf.numpy_function(place, [tensor], tf.string)
        mapped.set_shape(tensor.shape)
        return mapped


def _known(value: Any) -> Any:
    """Return the paths as an array when they are known now, else None."""
    import numpy as np

    if isinstance(value, (str, bytes, os.PathLike)):
        return np.array(os.fspath(value), dtype=object)
    if isinstance(value, (list, tuple)) and all(isinstance(path, (str, bytes)) for path in value):
        return np.array(value, dtype=object)
    from tensorflow.python.framework import tensor_util

    if not tensor_util.is_tf_type(value):
        return None
    found = tensor_util.constant_value(value)
    return None if found is None else np.asarray(found, dtype=object)


def _glob(patterns: Any) -> Any:
    """Match in the overlay, in the operation's place."""
    from tensorflow.python.lib.io import file_io

    texts = [os.fsdecode(pattern) for pattern in _known(patterns).ravel().tolist()]
    found = [name for text in texts for name in file_io.get_matching_files_v2(text)]
    return _string_tensor(found, (len(found),))


def _string_tensor(paths: list[Any], shape: tuple[int, ...]) -> Any:
    from tensorflow.python.framework import constant_op, dtypes

    return constant_op.constant(paths, dtype=dtypes.string, shape=shape)


def _is_exported_graph() -> bool:
    from tensorflow.python.framework import ops

    return str(getattr(ops.get_default_graph(), "name", "")).lstrip("_").startswith(_EXPORTED_GRAPHS)
