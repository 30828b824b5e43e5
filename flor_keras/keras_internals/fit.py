"""Calls of `Model.fit`: seen before they are made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


class FitCall:
    """A call of `Model.fit` that has not been made yet. ``arguments`` may be changed before it is."""

    def __init__(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> None:
        self._original = original
        self._bound = bound
        self.arguments: dict[str, Any] = bound.arguments
        self.model: Any = bound.arguments["self"]

    def make(self) -> Any:
        """Make the call and return its History."""
        return self._original(*self._bound.args, **self._bound.kwargs)


FitHook = Callable[[FitCall], Any]


_fit_hooks: list[FitHook] = []


def hook_fit(hook: FitHook) -> None:
    """Have ``hook`` called with each `Model.fit` call, in place of it.

    A callback alone cannot see the state after `fit` returned, nor choose its place among the other callbacks.
    Replacing the method is too late for ``model.fit(…, callbacks=[FlorKeras()])``: Python looks the method up before it
    makes the argument. So the function inside Keras's traceback filter is replaced, which that method calls.
    """
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    _fit_hooks[:] = [hook]
    filtered = TensorFlowTrainer.fit
    cell = dict(zip(filtered.__code__.co_freevars, filtered.__closure__, strict=True))["fn"]
    original = cell.cell_contents
    if getattr(original, "_is_hooked", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _fit_hooks:
            return original(self, *args, **kwargs)
        return _fit_hooks[0](FitCall(original, signature.bind(self, *args, **kwargs)))

    fit._is_hooked = True  # type: ignore[attr-defined]
    cell.cell_contents = fit


def unhook_fit() -> None:
    """Let `Model.fit` be Keras's own again."""
    _fit_hooks.clear()


def initial_epoch(model: Any) -> int | None:
    """Return the epoch a callback (BackupAndRestore) told `fit` to go on from, None if none did."""
    epoch = getattr(model, "_initial_epoch", None)
    return epoch if isinstance(epoch, int) else None


def pythonify_logs(logs: Any) -> dict[str, Any]:
    """Return logs as Keras gives them to callbacks: plain numbers."""
    from keras.src.utils.python_utils import pythonify_logs as pythonify

    return dict(pythonify(logs))
