"""Python objects of a checkpoint: pickled, with their arrays taken out so that those go where tensors go.

A pickle can run anything, so it is only loaded where the current user wrote it: each carries a keyed hash, and the
key lies in the user's configuration folder.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import pickle
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from flor_keras import keras_internals
from flor_keras.errors import CheckpointError

FILE = "python.pkl"
_OUT_OF_LINE_BYTES = 1024
_KEY_BYTES = 32


def pack(value: Any, live: Mapping[str, Any] | None = None) -> tuple[bytes, list[np.ndarray]]:
    """Return the pickle of ``value`` and the arrays taken out of it.

    With ``live``, objects of the program by name, those are referred to instead of copied; another Keras object or
    variable is refused, since the program would go on with a copy that nothing trains.

    Classes of the program are pickled by name, so that what comes back is of the very class the program has. Only what
    has no name (a class made inside a function) goes by value, with cloudpickle.
    """
    try:
        return _packed(_Pickler, value, live)
    except Exception:  # noqa: BLE001 - pickling runs code of the value's own class
        return _packed(_CloudPickler, value, live)


def _packed(
    pickler: Callable[..., Any], value: Any, live: Mapping[str, Any] | None
) -> tuple[bytes, list[np.ndarray]]:
    buffer, arrays = io.BytesIO(), _Arrays(live)
    pickler(buffer, arrays).dump(value)
    return buffer.getvalue(), arrays.found


def unpack(data: bytes, arrays: Sequence[np.ndarray], live: Mapping[str, Any] | None = None) -> Any:
    """Return what was packed. ``data`` must have been written by the current user: see `check`."""
    return _Unpickler(io.BytesIO(data), arrays, live or {}).load()


def is_packable(value: Any, live: Mapping[str, Any] | None = None) -> bool:
    """Whether ``value`` can be pickled."""
    try:
        pack(value, live)
    except Exception:  # noqa: BLE001 - pickling runs code of the value's own class
        return False
    return True


class _Arrays:
    """What is taken out of a pickle: arrays (the same array twice is one), and objects of the program."""

    def __init__(self, live: Mapping[str, Any] | None) -> None:
        self.found: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}
        self._names = None if live is None else {id(value): name for name, value in live.items()}

    def reference(self, value: Any) -> int | str | None:
        """Return the number of an array, the name of an object of the program, None for what is pickled in place."""
        if self._names is not None:
            if id(value) in self._names:
                return self._names[id(value)]
            if keras_internals.is_training_class(type(value)):  # type: ignore[arg-type]
                raise pickle.PicklingError(
                    f"this {type(value).__name__} is none of the program's objects by name"
                )
        return self.number(value)

    def number(self, value: Any) -> int | None:
        """Return the number of an array that goes out of line, None for anything else."""
        is_moved = (
            type(value) is np.ndarray and value.dtype.isbuiltin == 1 and value.nbytes >= _OUT_OF_LINE_BYTES
        )
        if not is_moved or value.dtype.kind not in "biufc" or not value.flags.c_contiguous:
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.found)
            self.found.append(value)
        return self._numbers[id(value)]


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, arrays: _Arrays) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self._arrays = arrays

    def persistent_id(self, value: Any) -> int | str | None:
        return self._arrays.reference(value)


class _CloudPickler(cloudpickle.Pickler):
    def __init__(self, buffer: io.BytesIO, arrays: _Arrays) -> None:
        super().__init__(buffer)
        self._arrays = arrays

    def persistent_id(self, value: Any) -> int | str | None:
        return self._arrays.reference(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, arrays: Sequence[np.ndarray], live: Mapping[str, Any]) -> None:
        super().__init__(buffer)
        self._arrays = [np.array(array) for array in arrays]
        self._live = live

    def persistent_load(self, pid: Any) -> Any:
        """Put an array back in, or the program's own object."""
        return self._live[pid] if isinstance(pid, str) else self._arrays[pid]


def signature(data: bytes) -> str:
    """Return the keyed hash of a pickle (BLAKE2b, hexadecimal)."""
    return hashlib.blake2b(data, key=_key()).hexdigest()


def check(path: Path, data: bytes, signed: str | None) -> None:
    """Make sure that the current user wrote a pickle before it is loaded.

    Raises:
      CheckpointError: the file is another user's, or its hash does not match the key of this user.
    """
    is_ours = not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
    if not is_ours or signed is None or not hmac.compare_digest(signed, signature(data)):
        raise CheckpointError(
            f"{path} was not written by you on this machine, and loading it could run anything. If you trust the "
            f"store, copy the key of the user who recorded it to {_key_path()} and try again."
        )


def _key() -> bytes:
    return _read_key(_key_path())


@cache
def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another process was faster
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
    return path.read_bytes()


def _key_path() -> Path:
    return _key_path_below(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))


@cache
def _key_path_below(home: str) -> Path:
    return Path(home) / "flor_keras" / "key"
