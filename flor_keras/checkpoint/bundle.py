"""Checkpoints on disk: a native TensorFlow bundle, a manifest, and the commit that makes them visible.

    <folder>/bundle.index, bundle.data-00000-of-00001   the tensors, written by TensorFlow's SaveV2
    <folder>/manifest.json                              dtype, shape and xxh3 hash of each tensor, and the position
    <folder>/<other files>                              as given, e.g. python.pkl

Runs in the worker (writing), in the trainer (writing in line) and in readers. A folder under its final name is whole:
it was written under a temporary name, synced and renamed. TensorFlow is imported where it is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from flor_keras.errors import CheckpointError

FORMAT = 1
BUNDLE = "bundle"
MANIFEST = "manifest.json"
TEMPORARY_PREFIX = ".tmp-"
_COPIED_BELOW_BYTES = 64  # DLPack has nothing to gain there, and scalars come unaligned
_STRING_DTYPE = "string"
_NEIGHBOUR = re.compile(r"(\.\./)?[^./\\][^/\\]*")  # another checkpoint of the run


class Content(NamedTuple):
    """One tensor to write: TensorFlow's dtype name, the shape, and raw bytes or (for strings) an object array."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: np.ndarray


def write(
    folder: Path, contents: Iterable[Content], manifest: Mapping[str, Any], files: Mapping[str, bytes]
) -> int:
    """Write a checkpoint and commit it under ``folder``; return its size in bytes.

    Errors leave nothing under the final name. What stood there before (the same position, recorded again after a
    resume) is replaced.
    """
    temporary = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        tensors = list(contents)
        _save(temporary / BUNDLE, tensors)
        described = {**manifest, "format": FORMAT, "tensors": {c.name: _describe(c) for c in tensors}}
        (temporary / MANIFEST).write_text(json.dumps(described), encoding="utf-8")
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        num_bytes = _sync(temporary)
        _commit(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return num_bytes


def _save(prefix: Path, contents: list[Content]) -> None:
    import tensorflow as tf

    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=np.array(str(prefix)),
            tensor_names=np.array([content.name for content in contents]),
            shape_and_slices=np.array([""] * len(contents)),
            tensors=[as_tensor(content) for content in contents],
        )


def as_tensor(content: Content) -> Any:
    """Return a TensorFlow tensor over the content's own memory; strings and tiny tensors are copied."""
    import tensorflow as tf

    if content.dtype == _STRING_DTYPE:
        return tf.constant(content.raw.reshape(content.shape), dtype=tf.string)
    dtype = tf.as_dtype(content.dtype)
    native = np.dtype(dtype.as_numpy_dtype)
    is_small = content.raw.nbytes < _COPIED_BELOW_BYTES
    if native.kind in "fciub" and native.isbuiltin == 1 and not is_small:
        return _over_memory(content.raw.view(native).reshape(content.shape))
    if dtype == tf.bfloat16 and not is_small:  # NumPy exports its bytes under another name only
        return tf.bitcast(_over_memory(content.raw.view(np.uint16).reshape(content.shape)), dtype)
    return tf.constant(content.raw.view(native).reshape(content.shape), dtype=dtype)


def _over_memory(array: np.ndarray) -> Any:
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _describe(content: Content) -> dict[str, Any]:
    return {
        "dtype": content.dtype,
        "shape": list(content.shape),
        "num_bytes": int(content.raw.nbytes) if content.dtype != _STRING_DTYPE else None,
        "xxh3": content_hash(content),
        "bundle": ".",
    }


def content_hash(content: Content) -> str:
    """Return the xxh3 hash (64 bit, hexadecimal) of a tensor's bytes; of the lengths and bytes for strings."""
    digest = xxhash.xxh3_64()
    if content.dtype == _STRING_DTYPE:
        for text in content.raw.reshape(-1):
            encoded = text.encode() if isinstance(text, str) else bytes(text)
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
    else:
        digest.update(content.raw.data)
    return digest.hexdigest()


def _sync(folder: Path) -> int:
    """Force everything in ``folder`` to disk and out of the page cache, which is better left to training data.

    Dropping the pages also keeps the worker cheap: the next checkpoint is written into the same pages again,
    where the cache would otherwise take fresh ones (1 GB, measured: 0.5 s of CPU instead of up to 2.5 s).
    """
    num_bytes = 0
    for entry in os.scandir(folder):
        descriptor = os.open(entry.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            num_bytes += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    _sync_folder(folder)
    return num_bytes


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _commit(temporary: Path, folder: Path) -> None:
    if folder.exists():
        replaced = folder.with_name(f"{TEMPORARY_PREFIX}old-{folder.name}-{os.getpid()}")
        os.rename(folder, replaced)
        os.rename(temporary, folder)
        shutil.rmtree(replaced)
    else:
        os.rename(temporary, folder)
    _sync_folder(folder.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a committed checkpoint; CheckpointError where it is missing or damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        is_known = manifest["format"] <= FORMAT and isinstance(manifest["tensors"], dict)
        bundles = {str(described.get("bundle", ".")) for described in manifest["tensors"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, f"its manifest cannot be read: {error}") from error
    if not is_known:
        raise CheckpointError(
            f"The checkpoint {folder} has format {manifest['format']}, this flor_keras reads up to {FORMAT}. "
            "Upgrade with: pip install --upgrade flor-keras"
        )
    for name in bundles:
        if name != "." and not _NEIGHBOUR.fullmatch(name):
            raise _damaged(folder, f"it refers to {name!r}, which is not beside it")
    return dict(manifest)


def load(folder: Path, is_wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """Read a checkpoint's tensors by name, as TensorFlow tensors, and check each against its recorded hash."""
    import tensorflow as tf

    described = {name: d for name, d in read_manifest(folder)["tensors"].items() if is_wanted(name)}
    if not described:
        return {}
    try:
        with tf.device("CPU:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=str(folder / BUNDLE),
                tensor_names=list(described),
                shape_and_slices=[""] * len(described),
                dtypes=[d["dtype"] for d in described.values()],
            )
    except (tf.errors.OpError, IndexError, ValueError) as error:
        raise _damaged(folder, str(error).splitlines()[0]) from error
    loaded = dict(zip(described, tensors, strict=True))
    for name, tensor in loaded.items():
        if content_hash(content_of(name, tensor)) != described[name]["xxh3"]:
            raise _damaged(folder, f"the bytes of {name!r} are not those that were recorded")
    return loaded


def content_of(name: str, tensor: Any) -> Content:
    """Return a tensor's content; its memory is shared where the tensor lies on the CPU."""
    array = tensor._numpy_internal() if hasattr(tensor, "_numpy_internal") else np.asarray(tensor)
    array = np.asarray(array)
    if tensor.dtype.name == _STRING_DTYPE:
        return Content(name, _STRING_DTYPE, tuple(array.shape), array.reshape(-1))
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Content(name, tensor.dtype.name, tuple(array.shape), raw)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Read a checkpoint's tensors by name as NumPy arrays; strings as object arrays of bytes."""
    return {name: tensor.numpy() for name, tensor in load(folder).items()}


def _damaged(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint {folder} is damaged: {why}. Use another epoch of the run; "
        "`flor-keras show RUN` lists them."
    )
