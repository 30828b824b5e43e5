"""Which models Keras alone can make again: those of nothing but its own layers."""

from __future__ import annotations

import functools
import types
from typing import Any

from flor_keras.export import internals

_FOREIGN = ("FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper")  # code of others
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


def is_of_keras_alone(model: Any) -> bool:
    """Whether Keras alone can make a model again so that it is traced to the same graph.

    Not where a part of it holds code of the program, was changed since it was made (LoRA, quantization), keeps a state
    between calls, or has more to save than variables (a vocabulary); nor a model whose inputs are not known yet.
    """
    return model.built and hasattr(model, "inputs") and all(map(_is_stock, internals.parts_of(model)))


def _is_stock(part: Any) -> bool:
    import keras

    kind = type(part)
    # Of a model the rest is about training: losses, compiled functions.
    attributes = [vars(part).get("call")] if isinstance(part, keras.Model) else list(vars(part).values())
    return (
        _is_of_keras(kind)
        and kind.__name__ not in _FOREIGN
        and _is_of_keras(kind.call)
        and not hasattr(part, "save_assets")
        and not getattr(part, "lora_enabled", False)
        and getattr(part, "quantization_mode", None) is None
        and not getattr(part, "stateful", False)
        and all(map(_is_stock_value, attributes))
    )


def _is_stock_value(value: Any) -> bool:
    """Whether an attribute is no code of others: an activation, an initializer, a method that was set on a layer."""
    return not callable(value) or _is_of_keras(value if isinstance(value, _FUNCTIONS) else type(value))


def _is_of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "keras"


def names_only_keras(config: Any) -> bool:
    """Whether all classes a configuration names are Keras's own; functions it may name by their names in Keras only."""
    if isinstance(config, list):
        return all(map(names_only_keras, config))
    if not isinstance(config, dict):
        return True
    kind = config.get("class_name", "")
    if kind and not kind.startswith("__"):
        module = str(config.get("module")).partition(".")[0]
        if module != "keras" or kind in (*_FOREIGN, "function"):
            return False
    return kind != "__lambda__" and all(map(names_only_keras, config.values()))
