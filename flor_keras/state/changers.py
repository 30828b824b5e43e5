"""Which callbacks may change the model at the end of an epoch, so that what others see depends on their order.

Found from what their code names: Keras's own callbacks are known, of others the hook and the functions of the class
are searched for the calls that change a variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import keras

_HOOK = "on_epoch_end"
_CHANGING = frozenset(
    [
        "assign",
        "assign_add",
        "assign_sub",
        "set_weights",
        "load_weights",
        "set_value",
        "set_state",
        "load_own_variables",
        "trainable",
        "compile",
        "fit",
        "train_on_batch",
        "quantize",
        "enable_lora",
        "adapt",
        "finalize_variable_values",
    ]
)


def change_the_model(callbacks: Iterable[Any]) -> bool:
    """Whether one of the callbacks may change variables in `on_epoch_end`."""
    return any(_changes_the_model(callback) for callback in callbacks)


def _changes_the_model(callback: Any) -> bool:
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        return bool(callback.swap_on_epoch)
    own = [base for base in type(callback).__mro__ if not base.__module__.startswith(("keras.", "builtins"))]
    hook = getattr(callback, _HOOK, None)
    is_given = isinstance(callback, keras.callbacks.LambdaCallback) and _HOOK in vars(callback)
    if not any(_HOOK in vars(base) for base in own) and not is_given:
        return False
    functions = [hook, *(value for base in own for value in vars(base).values())]
    codes = (getattr(getattr(f, "__func__", f), "__code__", None) for f in functions)
    return any(_CHANGING & set(names) for code in codes if code is not None for names in _names(code))


def _names(code: CodeType) -> Iterator[tuple[str, ...]]:
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
