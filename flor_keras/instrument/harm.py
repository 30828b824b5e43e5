"""Tell whether an expression, run in addition, could change what the program computes. Tables, and no proof.

Values may be computed by any call: the replay compares its numbers with the recorded ones anyway. What is
refused here is what people write by mistake: training inside a probe, assigning a weight, drawing the next
batch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from flor_keras.instrument.keras_words import words
from flor_keras.instrument.syntax import last_name, root_name

# Called on something the recorded program has, these change it.
CHANGING_METHODS = words(
    """fit train_on_batch compile build assign assign_add assign_sub set_weights load_weights apply_gradients
    apply minimize update_state update_step reset_state reset_states add_loss add_weight add append extend
    insert pop remove clear update setdefault popitem sort reverse write"""
)
# Whatever they are called on.
CHANGING_EVERYTHING = frozenset({"seed", "set_seed", "set_random_seed", "exit", "_exit"})
CHANGING_FUNCTIONS = frozenset({"next", "setattr", "delattr", "exec", "eval", "exit", "quit", "globals"})


def is_harmless(node: ast.AST, is_foreign: Callable[[str], bool]) -> bool:
    """Tell whether nothing in ``node`` binds a name, suspends the function or changes a foreign object.

    ``is_foreign`` says of a name whether it holds something the recorded program may use.
    """
    return not any(_harms(part, is_foreign) for part in ast.walk(node))


def _harms(node: ast.AST, is_foreign: Callable[[str], bool]) -> bool:
    if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await):
        return True
    return isinstance(node, ast.Call) and is_changing_call(node, is_foreign)


def is_changing_call(call: ast.Call, is_foreign: Callable[[str], bool]) -> bool:
    """Tell whether a call is known to change something that is not its own."""
    name = last_name(call.func)
    if isinstance(call.func, ast.Name):
        return name in CHANGING_FUNCTIONS
    root = root_name(call.func)
    is_method = name in CHANGING_METHODS and root is not None and is_foreign(root)
    return is_method or name in CHANGING_EVERYTHING
