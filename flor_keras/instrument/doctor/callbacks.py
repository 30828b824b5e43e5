"""Finds state of callbacks that checkpoints cannot hold, and callbacks that `fit` does not call."""

from __future__ import annotations

import ast

from flor_keras.instrument.doctor.code import Code, keyword
from flor_keras.instrument.doctor.randomness import Places
from flor_keras.instrument.keras_words import words
from flor_keras.instrument.scopes import Scope, calls_in
from flor_keras.instrument.syntax import own_nodes

_PICKLE_REFUSES = words(
    """threading.Lock threading.RLock threading.Event threading.Condition threading.Semaphore threading.Thread
    threading.Timer threading.local queue.Queue queue.SimpleQueue socket.socket sqlite3.connect
    tempfile.TemporaryFile tempfile.NamedTemporaryFile csv.writer
    concurrent.futures.ThreadPoolExecutor concurrent.futures.ProcessPoolExecutor"""
)
_GROWING = words("append extend insert add update pop remove clear setdefault")


def unpicklable_attributes(code: Code) -> Places:
    """Find attributes of callbacks that no checkpoint can hold: open files, locks, threads, connections."""
    for cls in code.callbacks:
        for method in cls.methods.values():
            for node in own_nodes(method.node):
                match node:
                    case ast.Assign(
                        targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value
                    ):
                        if _is_unpicklable(code, method, value):
                            yield method, node, f"{cls.name}.{name}"


def _is_unpicklable(code: Code, scope: Scope, value: ast.expr) -> bool:
    if isinstance(value, ast.GeneratorExp):
        return True
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Name) and value.func.id == "open":
        mode = value.args[1] if len(value.args) > 1 else keyword(value, "mode")
        return isinstance(mode, ast.Constant) and any(letter in str(mode.value) for letter in "wab+x")
    return code.name_of(scope, value) in _PICKLE_REFUSES


def state_outside_callbacks(code: Code) -> Places:
    """Find collections of the file that a callback both fills and reads back."""
    for scope in code.in_order(code.hooks):
        grown = [
            (c, c.func.value)
            for c in calls_in(scope)
            if isinstance(c.func, ast.Attribute) and c.func.attr in _GROWING
        ]
        for call, holder in grown:
            if isinstance(holder, ast.Name) and code.is_global(scope, holder.id) and _is_read(code, holder):
                yield scope, call, holder.id


def _is_read(code: Code, holder: ast.Name) -> bool:
    """Tell whether a hook uses what a collection holds, apart from filling it."""
    for scope in code.hooks:
        filling = {
            c.func.value
            for c in calls_in(scope)
            if isinstance(c.func, ast.Attribute) and c.func.attr in _GROWING
        }
        names = (n for n in own_nodes(scope.node) if isinstance(n, ast.Name) and n not in filling)
        if any(n.id == holder.id and isinstance(n.ctx, ast.Load) for n in names):
            return True
    return False


def own_callback_calls(code: Code) -> Places:
    """Find a program that calls the hooks of its callbacks itself."""
    for scope, call in code.all_calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in (
            "on_train_begin",
            "on_train_batch_begin",
        ):
            is_super = isinstance(call.func.value, ast.Call)
            if not is_super and (scope.self_class is None or scope.self_class not in code.callbacks):
                yield scope, call, ""
