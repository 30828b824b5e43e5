"""Metrics as a person writes them: a name Keras knows, or an expression such as ``keras.metrics.AUC(num_thresholds=50)``."""

from __future__ import annotations

import ast
from typing import Any

from flor_keras.errors import UsageError

_HOMES = ("metrics", "losses")


def metric(text: str) -> Any:
    """Return what Keras's `compile` takes for ``text``: the name itself, or the object the expression makes.

    Expressions are not run by Python: calls of what is in `keras.metrics` and `keras.losses`, with numbers, text, lists
    and further such calls as arguments, is all there is.

    Raises:
      UsageError: ``text`` is neither.
    """
    if text.isidentifier():
        return text
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, text)
    except SyntaxError as error:
        raise _refused(text, f"it is no expression ({error.msg})") from error


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, text)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, text) for item in node.elts]
    if isinstance(node, ast.Attribute):
        return _member(node, text)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _called(node, _member(node.func, text), text)
    raise _refused(text, f"{ast.unparse(node)} is not allowed in it")


def _called(node: ast.Call, function: Any, text: str) -> Any:
    arguments = [_value(argument, text) for argument in node.args]
    named = {keyword.arg: _value(keyword.value, text) for keyword in node.keywords if keyword.arg}
    if len(named) < len(node.keywords):
        raise _refused(text, "** is not allowed in it")
    try:
        return function(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise _refused(text, str(error)) from error


def _member(node: ast.Attribute, text: str) -> Any:
    """Return keras.metrics.X or keras.losses.X, and nothing else."""
    import keras

    home = node.value
    is_known = (
        isinstance(home, ast.Attribute)
        and home.attr in _HOMES
        and isinstance(home.value, ast.Name)
        and home.value.id == "keras"
        and not node.attr.startswith("_")
    )
    found = (
        getattr(getattr(keras, home.attr), node.attr, None)
        if is_known and isinstance(home, ast.Attribute)
        else None
    )
    if not callable(found) or node.attr in ("deserialize", "get"):
        raise _refused(text, f"there is no {ast.unparse(node)} in keras.metrics or keras.losses")
    return found


def _refused(text: str, why: str) -> UsageError:
    return UsageError(
        f"The metric {text!r} is not understood: {why}. Write a name, such as accuracy, or a call, such as "
        "'keras.metrics.AUC(num_thresholds=50)'."
    )
