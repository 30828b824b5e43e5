"""How deep in a run code stands, and the rules that say so: tables, from which the docs are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from flor_keras.instrument import keras_words as words
from flor_keras.instrument.scopes import ClassKind


class Level(StrEnum):
    """What a replay has to redo for a line to run again."""

    SETUP = "setup"
    EPOCH = "epoch"
    EVAL = "eval"
    STEP = "step"
    AFTER = "after"


CHEAPEST_FIRST = (Level.SETUP, Level.AFTER, Level.EPOCH, Level.EVAL, Level.STEP)


def dearest(first: Level, second: Level) -> Level:
    """Pick the level that costs more: code reached from several places needs the dearest of them."""
    return max(first, second, key=CHEAPEST_FIRST.index)


@dataclass(frozen=True)
class MethodRule:
    """A method (by glob) that Keras calls on a class of this kind stands at this level."""

    kind: ClassKind
    method: str
    level: Level


@dataclass(frozen=True)
class ArgumentRule:
    """A function handed to a call (by glob), under this keyword (by glob; ``*`` is any, also by position)."""

    called: str
    argument: str
    level: Level
    only_generators: bool = False


# The first rule that matches holds.
METHOD_RULES = (
    MethodRule(ClassKind.CALLBACK, "on_train_begin", Level.SETUP),
    MethodRule(ClassKind.CALLBACK, "on_train_end", Level.AFTER),
    MethodRule(ClassKind.CALLBACK, "on_epoch_*", Level.EPOCH),
    MethodRule(ClassKind.CALLBACK, "on_test_*", Level.EVAL),
    MethodRule(ClassKind.CALLBACK, "on_predict_*", Level.EVAL),
    MethodRule(ClassKind.CALLBACK, "on_train_batch_*", Level.STEP),
    MethodRule(ClassKind.CALLBACK, "on_batch_*", Level.STEP),
    MethodRule(ClassKind.OBJECT, "test_step", Level.EVAL),
    MethodRule(ClassKind.OBJECT, "predict_step", Level.EVAL),
    *(MethodRule(ClassKind.OBJECT, method, Level.STEP) for method in words.STEP_METHODS),
    MethodRule(ClassKind.DATASET, "__getitem__", Level.STEP),
    MethodRule(ClassKind.DATASET, "__len__", Level.STEP),
    MethodRule(ClassKind.DATASET, "on_epoch_*", Level.EPOCH),
)

ARGUMENT_RULES = (
    *(ArgumentRule("LambdaCallback", rule.method, rule.level) for rule in METHOD_RULES[:7]),
    *(ArgumentRule(name, "*", Level.EPOCH) for name in sorted(words.CALLBACK_CLASSES - {"LambdaCallback"})),
    *(
        ArgumentRule("compile", name, Level.STEP)
        for name in ("loss", "metrics", "weighted_metrics", "optimizer")
    ),
    *(ArgumentRule(name, "*", Level.STEP) for name in words.STEP_TAKERS),
    *(
        ArgumentRule("*", name, Level.STEP)
        for name in ("activation", "*_regularizer", "*_constraint", "*_initializer", "loss", "loss_fn")
    ),
    ArgumentRule("fit", "*", Level.STEP, only_generators=True),
)

# What decides where no rule above applies, in the order the program runs.
PLACE_RULES = (
    ("before the first fit or main loop of the program", Level.SETUP),
    ("after a fit or main loop", Level.AFTER),
    ("in the body of a flor.loop, or of the main loop of a function under @flor.record", Level.EPOCH),
    ("in a loop inside that body, or inside a function called from there", Level.STEP),
    ("in code nothing is seen to call", Level.STEP),
)


def rules() -> Iterator[tuple[str, Level]]:
    """List all rules in words, for the docs."""
    for method in METHOD_RULES:
        yield f"{method.method} of a {method.kind}", method.level
    for rule in ARGUMENT_RULES:
        what = "generator" if rule.only_generators else "function"
        yield f"a {what} passed to {rule.called}({rule.argument}=)", rule.level
    yield from PLACE_RULES


def method_level(kinds: set[ClassKind], method: str) -> Level | None:
    """Say at what level Keras calls a method of a class; ``None`` when Keras does not call it by itself."""
    for rule in METHOD_RULES:
        is_kind = rule.kind in kinds or ClassKind.UNKNOWN in kinds
        if is_kind and fnmatchcase(method, rule.method):
            return rule.level
    return None


def argument_rule(called: str, argument: str | None) -> ArgumentRule | None:
    """Find the rule for a function passed to a call; ``argument`` is ``None`` when passed by position."""
    for rule in ARGUMENT_RULES:
        is_argument = rule.argument == "*" or (argument is not None and fnmatchcase(argument, rule.argument))
        if fnmatchcase(called, rule.called) and is_argument:
            return rule
    return None
