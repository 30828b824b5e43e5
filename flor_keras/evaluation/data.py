"""Data to evaluate on: an .npz or .csv file, or what a Python file calls its dataset."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np

from flor_keras.errors import UsageError

_PARTS = ("x", "y", "sample_weight")


def read_data(text: str, target: str | None = None) -> tuple[Any, Any, Any]:
    """Return (x, y, sample_weight) as `model.evaluate` takes them; y and sample_weight None where they are in x.

    Args:
      text: ``FILE.npz`` with arrays x, y and perhaps sample_weight (``x/NAME`` for an input with a name); ``FILE.csv``
        with one column per feature and the target; or ``FILE.py:NAME``, where NAME is a `tf.data.Dataset`, a
        tuple of arrays, or a function that returns one. The file is run.
      target: the column of a CSV file that is y; the last one by default.

    Raises:
      UsageError: there is no such file, or it holds something else.
    """
    path, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    if not Path(path).is_file():
        raise UsageError(f"There is no file {path}. Give --data FILE.npz, FILE.csv or FILE.py:NAME.")
    if name:
        return _of_python(Path(path), name)
    if path.endswith(".npz"):
        return _of_npz(Path(path))
    if path.endswith(".csv"):
        return _of_csv(Path(path), target)
    raise UsageError(
        f"{path} is of no kind that is read here. Give --data FILE.npz, FILE.csv or FILE.py:NAME."
    )


def _of_npz(path: Path) -> tuple[Any, Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}. Expected arrays x and y, saved with np.savez."
        ) from error
    unknown = [name for name in arrays if name.partition("/")[0] not in _PARTS]
    if unknown or not any(name.partition("/")[0] == "x" for name in arrays):
        raise UsageError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; expected x and y (or x/NAME for an input with a name). "
            "Save them with np.savez(FILE, x=..., y=...)."
        )
    x, y, weights = (_part(arrays, part) for part in _PARTS)
    return x, y, weights


def _part(arrays: dict[str, Any], part: str) -> Any:
    """Return an array, a dict of arrays by name, or None."""
    named = {
        name.partition("/")[2]: _text(value) for name, value in arrays.items() if name.startswith(f"{part}/")
    }
    return named or (_text(arrays[part]) if part in arrays else None)


def _text(array: np.ndarray) -> Any:
    """Return text as TensorFlow takes it."""
    return np.char.encode(array, "utf-8").astype(object) if array.dtype.kind == "U" else array


def _of_csv(path: Path, target: str | None) -> tuple[Any, Any, Any]:
    import pandas as pd

    frame = pd.read_csv(path)
    target = frame.columns[-1] if target is None else target
    if target not in frame.columns:
        raise UsageError(
            f"{path} has no column {target!r}; it has {', '.join(frame.columns)}. Give --target one of these."
        )
    features = frame.drop(columns=target)
    is_numeric = all(kind.kind in "biuf" for kind in features.dtypes)
    x: Any = (
        features.to_numpy()
        if is_numeric
        else {name: features[[name]].to_numpy() for name in features.columns}
    )
    if isinstance(x, dict) and len(x) == 1:
        x = next(iter(x.values()))
    return x, frame[target].to_numpy(), None


def _of_python(path: Path, name: str) -> tuple[Any, Any, Any]:
    found = runpy.run_path(str(path), run_name="flor_keras_data").get(name)
    found = found() if callable(found) and not hasattr(found, "element_spec") else found
    if found is None:
        raise UsageError(
            f"{path} defines no {name}, or makes it None. Expected a tf.data.Dataset, a tuple of arrays, or a function that "
            f"returns one. Give its name after the colon: --data {path}:NAME."
        )
    if isinstance(found, tuple) and len(found) in (2, 3):
        return found[0], found[1], found[2] if len(found) == 3 else None
    return found, None, None
