"""Logged values as SQLite columns and .npy files and back, exact to the last bit. Nothing is unpickled."""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import Any

from flor_keras.errors import StoreError, UsageError
from flor_keras.store import layout

_SUPPORTED = (
    "Supported are numbers, text, bytes, True, False, None, lists and dicts of these with text keys, "
    "NumPy arrays without objects, and tensors; convert it first, e.g. with float(...) or str(...)."
)
SCALARS = frozenset((float, int, str, bool))  # what is logged as it is: nothing of it can change later
# What 64 bit integers of SQLite hold; larger ones are kept as JSON.
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class ValueKind(IntEnum):
    """How the column `value` is to be read."""

    NUMBER = 0  # INTEGER or REAL; NULL is NaN, which SQLite cannot hold
    TEXT = 1
    JSON = 2
    ARRAY = 3  # name of the .npy file, and after a space the dtype where .npy has no word for it
    BYTES = 4


def encode(value: Any, arrays: Path) -> tuple[int, Any]:
    """Return kind and column of `value`; an array is written into the folder `arrays` first."""
    if type(value) is float:
        return 0, value
    if type(value) is int and _SMALLEST <= value <= _LARGEST:
        return 0, value
    value = plain(value)
    if isinstance(value, bool | None | int | list | dict):
        is_number = type(value) is int and _SMALLEST <= value <= _LARGEST
        return (ValueKind.NUMBER, value) if is_number else (ValueKind.JSON, to_json(value))
    if isinstance(value, float):
        return ValueKind.NUMBER, value
    if isinstance(value, str):
        # A lone surrogate has no UTF-8; JSON escapes it.
        return (ValueKind.TEXT, value) if _is_utf8(value) else (ValueKind.JSON, to_json(value))
    if isinstance(value, bytes):
        return ValueKind.BYTES, value
    return ValueKind.ARRAY, _write_array(value, arrays)


def is_number_column(values: list[Any]) -> bool:
    """Tell whether all of many values are numbers that a column holds as they are, at little cost for each."""
    types = set(map(type, values))
    if types == {float}:
        return True
    whole = [value for value in values if type(value) is int] if types == {int, float} else values
    return types <= {int, float} and min(whole) >= _SMALLEST and max(whole) <= _LARGEST


def decode(kind: int, column: Any, arrays: Path) -> Any:
    """Return the value `encode` was given, with tensors as NumPy arrays and 0-d ones as Python scalars."""
    if kind == ValueKind.NUMBER:
        return math.nan if column is None else column
    if kind == ValueKind.JSON:
        return json.loads(column)
    if kind == ValueKind.ARRAY:
        return _read_array(column, arrays)
    return column


def plain(value: Any) -> Any:
    """Return `value` as a Python scalar, text, bytes, list, dict or NumPy array; UsageError if it is none."""
    if value is None or isinstance(value, bool):
        return value
    # Subclasses (enums, np.float64, np.str_) become the type itself.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, list | tuple):
        return [_element(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): _element(item) for key, item in value.items()}
    return _plain_array(value)


def kept(value: Any) -> Any:
    """Return `plain(value)`, out of reach of what the program does to the value later: arrays are copied."""
    own = plain(value)
    return own.copy() if hasattr(own, "tolist") else own


def checked_name(name: Any) -> str:
    """Return the name of an entry as text; UsageError if it is none."""
    if not isinstance(name, str):
        raise UsageError(
            f'The name is {name!r}, of type {type(name).__name__}; expected text. Write flor.log("loss", loss).'
        )
    return str.__str__(name)


def to_json(value: Any) -> str:
    """Return JSON text; NaN and infinities as Python's json writes and reads them."""
    return json.dumps(value, separators=(",", ":"), default=_json_default)


def _json_default(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _element(value: Any) -> Any:
    """Return a member of a list or dict; arrays in there become lists."""
    value = plain(value)
    if isinstance(value, bytes):
        raise _unsupported(value, " inside a list or dict")
    if hasattr(value, "tolist"):
        return _element(value.tolist())
    return value


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise _unsupported(key, " as a key of a dict")
    return str.__str__(key)


def _plain_array(value: Any) -> Any:
    """Return a NumPy array, or a Python scalar for a 0-d one that has a Python scalar of its own."""
    import numpy as np

    if isinstance(value, complex):
        return np.asarray(value)
    if hasattr(value, "numpy"):  # a tensor or a variable, of TensorFlow or another framework
        value = value.numpy()
    if isinstance(value, bool | int | float | str | bytes):
        return plain(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise _unsupported(value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise _unsupported(value, f" of dtype {array.dtype}")
    return _scalar(array) if array.ndim == 0 else array


def _scalar(array: Any) -> Any:
    """Return the Python scalar of a 0-d array, or the array where that would lose something."""
    kind = array.dtype.kind
    has_scalar = kind in "biuUS" or (kind == "f" and array.dtype.itemsize <= 8) or _is_extension(array)
    return array.item() if has_scalar else array


def _is_extension(array: Any) -> bool:
    """Tell bfloat16, float8, int4 and the like, which NumPy has from ml_dtypes and .npy does not know."""
    return bool(array.dtype.isbuiltin == 2)


def _unsupported(value: Any, where: str = "") -> UsageError:
    kind = type(value)
    return UsageError(
        f"Cannot log a value of type {kind.__module__}.{kind.__qualname__}{where}. {_SUPPORTED}"
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _write_array(array: Any, folder: Path) -> str:
    """Write `array` under the name of its content, unless it is there, and return the column."""
    import numpy as np
    import xxhash

    content = io.BytesIO()
    raw = array.view(f"V{array.dtype.itemsize}") if _is_extension(array) else array
    np.save(content, raw, allow_pickle=False)
    name = xxhash.xxh3_128_hexdigest(content.getbuffer())
    path = folder / f"{layout.check_inside(name)}.npy"
    if not path.exists():
        _write_whole(path, content)
    return f"{name} {array.dtype.name}" if _is_extension(array) else name


def _write_whole(path: Path, content: io.BytesIO) -> None:
    """Write under a temporary name and rename, so that a kill never leaves half an array under its name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-", suffix=".npy")
        with os.fdopen(handle, "wb") as file:
            file.write(content.getbuffer())
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(
            f"Cannot write the array {path}: {error}. Free some space or make it writable."
        ) from error


def _read_array(column: str, folder: Path) -> Any:
    import numpy as np

    name, _, extension = column.partition(" ")
    path = folder / f"{name}.npy"
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StoreError(
            f"The logged array {path} cannot be read: {error}. Compute it again: flor-keras replay."
        ) from error
    if extension:
        import ml_dtypes  # NumPy's own dtypes have no bfloat16 or float8

        array = array.view(getattr(ml_dtypes, extension))
    return array if array.ndim else array[()]
