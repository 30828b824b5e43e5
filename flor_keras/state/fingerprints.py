"""Hashes of training data: of all that `fit` was given, and of what a data set of the program's own holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from flor_keras import keras_internals
from flor_keras.state.pickles import is_packable, pack

_LARGE_BYTES = 64 << 20
_LARGE_PICKLE_BYTES = 1 << 20


def fingerprint(value: Any) -> str | None:
    """Return a hash of a value; None where it is too large, or of a kind, to be kept with every checkpoint."""
    if isinstance(value, np.ndarray):
        if value.nbytes > _LARGE_BYTES or value.dtype.hasobject:
            return None
        return str(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(value).data))
    if not is_packable(value):
        return None
    data, arrays = pack(value)
    return (
        data.hex() + "".join(fingerprint(array) or "" for array in arrays)
        if len(data) < _LARGE_PICKLE_BYTES
        else None
    )


def data_fingerprint(call: keras_internals.FitCall) -> str | None:
    """Return one hash over the arrays a `fit` call was given, None where there are none to hash.

    Of a `tf.data` pipeline, the tensors it was made from count.
    """
    import keras
    import tensorflow as tf

    given = [call.arguments.get(name) for name in ("x", "y", "sample_weight", "validation_data")]
    arrays = []
    for value in keras.tree.flatten(given):
        if isinstance(value, tf.data.Dataset):
            arrays += [keras_internals.memory_of(t) for t in keras_internals.source_tensors(value)]
        elif isinstance(value, np.ndarray):
            arrays.append(value)
    arrays = [np.asarray(array) for array in arrays]
    if not arrays or any(array.dtype.hasobject for array in arrays):
        return None
    digest = xxhash.xxh3_64()
    for array in arrays:
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
