"""Tell calls of Keras's `fit` from other things of that name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flor_keras.instrument import keras_words as words
from flor_keras.instrument.calls import Calls
from flor_keras.instrument.index import kind_of_name
from flor_keras.instrument.scopes import ClassKind, Scope
from flor_keras.instrument.syntax import own_nodes


def is_fit(calls: Calls, scope: Scope, call: ast.Call) -> bool:
    """Tell Keras's ``fit`` from another library's, and from a method that calls Keras's itself."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "fit"):
        return False
    if any(keyword.arg in words.FIT_KEYWORDS for keyword in call.keywords):
        return True
    return not _is_other_library(calls, scope, call.func.value) and not _is_plain_method(
        calls, scope, call.func
    )


def _is_plain_method(calls: Calls, scope: Scope, called: ast.Attribute) -> bool:
    found = calls.run_by(scope, called)
    return bool(found) and all(s.owner and ClassKind.OBJECT not in s.owner.kinds for s in found)


def _is_other_library(calls: Calls, scope: Scope, receiver: ast.expr) -> bool:
    """Tell whether an object is made by an import that is not Keras: ``StandardScaler()``."""
    if isinstance(receiver, ast.Name):
        made = [v for t, v in _assigned(scope) if isinstance(t, ast.Name) and t.id == receiver.id]
        return bool(made) and all(
            isinstance(value, ast.Call) and _is_other_library(calls, scope, value) for value in made
        )
    index = calls.index
    name = index.absolute(scope.path, receiver.func) if isinstance(receiver, ast.Call) else None
    if name is None or index.resolve(scope.path, name):
        return False
    is_keras = (
        name.partition(".")[0] in ("keras", "tensorflow", "tf_keras")
        or kind_of_name(name) is ClassKind.OBJECT
    )
    return not is_keras and index.module_path(scope.path, name.rpartition(".")[0]) is None


def _assigned(scope: Scope) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
