"""Checkpoints on disk: a native TensorFlow bundle, a manifest, and the commit that makes them visible.

    <folder>/bundle.index, bundle.data-…-of-…   the tensors, written by TensorFlow's SaveV2
    <folder>/manifest.json                      dtype, shape, xxh3 hash and bundle of each tensor, the position, its own hash
    <folder>/<other files>                      as given, e.g. python.pkl

Runs in the worker, in a thread of the trainer, and in readers. A folder under its final name is whole:
it was written under a temporary name, synced and renamed. TensorFlow is imported where it is used.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flor_keras.checkpoint.contents import Content, as_tensor, content_hash, content_of
from flor_keras.checkpoint.held import OWN, Held
from flor_keras.checkpoint.sealed import seal, unseal
from flor_keras.errors import CheckpointError

FORMAT = 2
_UNSEALED_FORMAT = 1  # the last whose manifest does not carry the hash of its own text
BUNDLE = "bundle"
MANIFEST = "manifest.json"
TEMPORARY_PREFIX = ".tmp-"
_SHARD_BYTES = 64 << 20
_NEIGHBOUR = re.compile(r"(\.\./)?[^./\\][^/\\]*")  # another checkpoint of the run


class Written(NamedTuple):
    """What a checkpoint takes on disk, and what it has in older checkpoints instead, in bytes."""

    num_bytes: int
    shared_bytes: int


def write(
    folder: Path,
    contents: Iterable[Content],
    manifest: Mapping[str, Any],
    files: Mapping[str, bytes],
    held: Held | None = None,
) -> Written:
    """Write a checkpoint and commit it under ``folder``; return its size.

    Tensors that ``held`` knows to lie in an older checkpoint, unchanged, are referred to and not written. Errors leave
    nothing under the final name. What stood there before (the same position, recorded again after a resume) is
    replaced.
    """
    held = Held() if held is None else held
    temporary = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        tensors = list(contents)
        described = held.describe(folder, tensors)
        _save(temporary, [tensor for tensor in tensors if described[tensor.name]["bundle"] == OWN])
        text = seal({**manifest, "format": FORMAT, "tensors": described})
        for name, content in {MANIFEST: text.encode(), **files}.items():
            (temporary / name).write_bytes(content)
            _sync_file(temporary / name)
        num_bytes = sum(entry.stat().st_size for entry in os.scandir(temporary))
        _commit(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    held.note(folder, described)
    shared_bytes = sum(found["num_bytes"] for found in described.values() if found["bundle"] != OWN)
    return Written(num_bytes, shared_bytes)


def _save(folder: Path, contents: list[Content]) -> None:
    """Write a bundle in shards, each forced to disk and out of the page cache before the next is begun.

    So the next shard takes the pages of the one before, where the cache would get fresh ones (1 GB, measured: 0.5 s
    of CPU instead of up to 2.1 s), and what stood in the cache, such as training data, stays there.
    """
    import tensorflow as tf

    shards = list(_shards(contents))
    prefixes = [str(folder / (BUNDLE if len(shards) == 1 else f"shard-{n}")) for n in range(len(shards))]
    with tf.device("CPU:0"):
        for prefix, shard in zip(prefixes, shards, strict=True):
            tf.raw_ops.SaveV2(
                prefix=np.array(prefix),
                tensor_names=np.array([content.name for content in shard]),
                shape_and_slices=np.array([""] * len(shard)),
                tensors=[as_tensor(content) for content in shard],
            )
            _sync_file(Path(f"{prefix}.data-00000-of-00001"))
        if len(shards) > 1:
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=prefixes, destination_prefix=str(folder / BUNDLE), delete_old_dirs=False
            )
    if shards:
        _sync_file(folder / f"{BUNDLE}.index")


def _shards(contents: list[Content]) -> Iterator[list[Content]]:
    shard, num_bytes = [], 0
    for content in contents:
        shard.append(content)
        num_bytes += content.raw.nbytes
        if num_bytes >= _SHARD_BYTES:
            yield shard
            shard, num_bytes = [], 0
    if shard:
        yield shard


def _sync_file(path: Path) -> None:
    """Force a file to disk, and its pages out of the cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _commit(temporary: Path, folder: Path) -> None:
    _sync_folder(temporary)
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
        manifest, is_sealed = unseal((folder / MANIFEST).read_text(encoding="utf-8"))
        is_known = manifest["format"] <= FORMAT and isinstance(manifest["tensors"], dict)
        bundles = {str(described.get("bundle", OWN)) for described in manifest["tensors"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(folder, f"its manifest cannot be read: {error}") from error
    if not is_known:
        raise CheckpointError(
            f"The checkpoint {folder} has format {manifest['format']}, this flor_keras reads up to {FORMAT}. "
            "Upgrade with: pip install --upgrade flor-keras"
        )
    if manifest["format"] > _UNSEALED_FORMAT and not is_sealed:
        raise damaged(folder, "its manifest does not carry the hash of its text")
    for name in bundles:
        if name != OWN and not _NEIGHBOUR.fullmatch(name):
            raise damaged(folder, f"it refers to {name!r}, which is not beside it")
    return dict(manifest)


def load(folder: Path, is_wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """Read a checkpoint's tensors by name, as TensorFlow tensors, and check each against its recorded hash."""
    described = {name: d for name, d in read_manifest(folder)["tensors"].items() if is_wanted(name)}
    loaded = {}
    for bundle in {str(found.get("bundle", OWN)) for found in described.values()}:
        there = {name: found for name, found in described.items() if found.get("bundle", OWN) == bundle}
        loaded.update(_restore(folder, bundle, there))
    for name, tensor in loaded.items():
        if content_hash(content_of(name, tensor)) != described[name]["xxh3"]:
            raise damaged(folder, f"the bytes of {name!r} are not those that were recorded")
    return {name: loaded[name] for name in described}


def _restore(folder: Path, bundle: str, described: Mapping[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    try:
        with tf.device("CPU:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=str(folder.joinpath(bundle, BUNDLE)),
                tensor_names=list(described),
                shape_and_slices=[""] * len(described),
                dtypes=[found["dtype"] for found in described.values()],
            )
    except (tf.errors.OpError, IndexError, ValueError) as error:
        raise damaged(folder, str(error).splitlines()[0]) from error
    return dict(zip(described, tensors, strict=True))


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Read a checkpoint's tensors by name as NumPy arrays; strings as object arrays of bytes."""
    return {name: tensor.numpy() for name, tensor in load(folder).items()}


def damaged(folder: Path, why: str) -> CheckpointError:
    """Return the error of a checkpoint that is not as it was written."""
    return CheckpointError(
        f"The checkpoint {folder} is damaged: {why}. Use another epoch of the run; "
        "`flor-keras show RUN` lists them."
    )
