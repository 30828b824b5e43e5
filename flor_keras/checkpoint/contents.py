"""Tensors as raw bytes: what a checkpoint writes, hashes and compares. TensorFlow is imported where it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import xxhash

STRING_DTYPE = "string"
_COPIED_BELOW_BYTES = 64  # DLPack has nothing to gain there, and scalars come unaligned


class Content(NamedTuple):
    """One tensor to write: TensorFlow's dtype name, the shape, and raw bytes or (for strings) an object array."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: np.ndarray


def as_tensor(content: Content) -> Any:
    """Return a TensorFlow tensor over the content's own memory; strings and tiny tensors are copied."""
    import tensorflow as tf

    if content.dtype == STRING_DTYPE:
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


def content_hash(content: Content) -> str:
    """Return the xxh3 hash (64 bit, hexadecimal) of a tensor's bytes; of the lengths and bytes for strings."""
    digest = xxhash.xxh3_64()
    if content.dtype == STRING_DTYPE:
        for text in _texts(content):
            digest.update(len(text).to_bytes(8, "little"))
            digest.update(text)
    else:
        digest.update(content.raw.data)
    return digest.hexdigest()


def content_bytes(content: Content) -> int:
    """Return how many bytes a tensor's values take; the lengths of strings do not count."""
    if content.dtype == STRING_DTYPE:
        return sum(len(text) for text in _texts(content))
    return int(content.raw.nbytes)


def _texts(content: Content) -> Iterator[bytes]:
    for text in content.raw.reshape(-1):
        yield text.encode() if isinstance(text, str) else bytes(text)


def content_of(name: str, tensor: Any) -> Content:
    """Return a tensor's content; its memory is shared where the tensor lies on the CPU."""
    array = tensor._numpy_internal() if hasattr(tensor, "_numpy_internal") else np.asarray(tensor)
    array = np.asarray(array)
    if tensor.dtype.name == STRING_DTYPE:
        return Content(name, STRING_DTYPE, tuple(array.shape), array.reshape(-1))
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Content(name, tensor.dtype.name, tuple(array.shape), raw)
