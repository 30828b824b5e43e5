"""The content of lookup layers and tables, which no variable holds: vocabularies, bins, hash tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flor_keras import keras_internals

VOCABULARY = "vocabulary"
IDF_WEIGHTS = "idf_weights"
BIN_BOUNDARIES = "bin_boundaries"
KEYS, VALUES = "keys", "values"
PARTS = (VOCABULARY, IDF_WEIGHTS, BIN_BOUNDARIES, KEYS, VALUES)


def table_arrays(table: Any) -> dict[str, np.ndarray]:
    """Return the content of a table by part; text as object arrays of bytes, shape (entries,)."""
    if keras_internals.is_mutable_table(table):
        keys, values = (part.numpy() for part in table.export())
        order = np.argsort(keys, kind="stable")
        return {KEYS: keys[order], VALUES: values[order]}
    if keras_internals.is_lookup_layer(table):
        return _vocabulary(table)
    boundaries = table.bin_boundaries
    return {} if boundaries is None else {BIN_BOUNDARIES: np.asarray(boundaries, dtype=np.float64)}


def _vocabulary(layer: Any) -> dict[str, np.ndarray]:
    words = layer.get_vocabulary(include_special_tokens=False)
    if isinstance(words, np.ndarray):
        words = words.tolist()
    is_text = layer.vocabulary_dtype == "string"
    array = (
        np.array([str(w).encode() for w in words], dtype=object)
        if is_text
        else np.array(words, dtype=np.int64)
    )
    parts = {VOCABULARY: array}
    if layer.output_mode == "tf_idf" and hasattr(layer, "idf_weights"):
        special = len(layer.get_vocabulary()) - len(words)
        parts[IDF_WEIGHTS] = layer.idf_weights.numpy()[special : special + len(words)]
    return parts


def restore_table(table: Any, parts: Mapping[str, np.ndarray]) -> None:
    """Give a table the content `table_arrays` returned; what is the same already is left alone."""
    if _is_equal(table_arrays(table), parts):
        return
    if keras_internals.is_mutable_table(table):
        table.remove(table.export()[0])
        table.insert(parts[KEYS], parts[VALUES])
    elif keras_internals.is_lookup_layer(table):
        is_text = table.vocabulary_dtype == "string"
        words = [w.decode() if is_text else int(w) for w in parts.get(VOCABULARY, ())]
        table.set_vocabulary(words, parts.get(IDF_WEIGHTS))
    else:
        table.bin_boundaries = parts[BIN_BOUNDARIES].tolist() if BIN_BOUNDARIES in parts else None


def _is_equal(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[part], right[part]) for part in left)
