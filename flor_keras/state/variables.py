"""Finding and naming the variables and tables of a training program. Runs in any process that has the program.

The objects are walked breadth first from named roots, through the attributes of Keras, TensorFlow and user objects
and through plain containers, which is what `tf.train.Checkpoint` and `model.variables` each do in part only. A name is the path by
which a variable was first reached (``model/_layers/0/_kernel``). An optimizer's slots are named by the variable
they belong to, never by position, so that a program that unfreezes a layer finds each slot where it was.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flor_keras import keras_internals
from flor_keras.state import seeds

FLOR_SEED = "flor/seed"
STEP = "step"  # the name of the variables a training step uses from outside of its model
GLOBAL_SEED = "keras/global_seed_generator"
_LIBRARIES = (
    "keras",
    "tensorflow",
    "numpy",
    "builtins",
    "collections",
    "wrapt",
    "h5py",
    "pandas",
    "matplotlib",
)


@dataclass
class State:
    """What a walk found.

    Attributes:
      variables: `tf.Variable` by name; a replica's own where a strategy keeps one per replica.
      mirrors: further copies of a variable of that name, which a restore must also set.
      tables: lookup layers and tables by name, whose content is not in any variable.
      derived: layers that computed constants from their variables (Normalization).
      optimizers: optimizers by name.
      metric_names: those of ``variables`` that belong to metrics.
    """

    variables: dict[str, Any] = field(default_factory=dict)
    mirrors: dict[str, list[Any]] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    derived: list[Any] = field(default_factory=list)
    optimizers: dict[str, Any] = field(default_factory=dict)
    metric_names: set[str] = field(default_factory=set)


def outside_of(model: Any, variables: Iterable[Any]) -> dict[str, Any]:
    """Return those of ``variables`` that do not belong to ``model``, by name; equal names are numbered in order."""
    state = gather({"model": model})
    copies = [copy for mirrors in state.mirrors.values() for copy in mirrors]
    known = {id(variable) for variable in [*state.variables.values(), *copies]}
    seen: Counter[str] = Counter()
    found = {}
    for variable in variables:
        if id(variable) not in known:
            seen[variable.name] += 1
            found[f"{variable.name}#{seen[variable.name]}"] = variable
    return found


def gather(roots: Mapping[str, Any]) -> State:
    """Walk from ``roots`` (name to object) and return every variable and table that can be reached."""
    return Walk(roots).state


def generators() -> dict[str, Any]:
    """Return the global seed generators by name, None where nothing has used them."""
    return {GLOBAL_SEED: keras_internals.global_seed_generator(), FLOR_SEED: seeds.generator()}


def reported(root: Any) -> list[Any]:
    """Return the variables Keras itself lists of a layer or model; none of another object."""
    import keras

    if not isinstance(root, keras.layers.Layer):
        return []
    return [*root.variables, *getattr(root, "metrics_variables", ())]


class Walk:
    """One walk from ``roots`` (name to object).

    Attributes:
      state: what it found.
      visited: the objects whose attributes, items or value it looked at.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.state = State()
        self.visited: list[Any] = []
        self._queue: deque[tuple[str, Any, bool]] = deque()
        self._late: deque[tuple[str, Any, bool]] = deque()
        self._seen: dict[int, Any] = {}  # keeps what was seen alive, ids are reused otherwise
        self._name_of: dict[int, str] = {}  # native variable -> name
        for name, root in roots.items():
            self._add(name, root, is_metric=False)
        self._run()
        for name, root in roots.items():
            self._add_reported(name, root)
        for name, generator in generators().items():
            if generator is not None:
                self._add(name, generator, is_metric=False)
        self._run()

    def _add(self, name: str, value: Any, is_metric: bool) -> None:
        if id(value) in self._seen or is_plain(value):
            return
        self._seen[id(value)] = value
        self._queue.append((name, value, is_metric))

    def _run(self) -> None:
        while self._queue or self._late:
            name, value, is_metric = (self._queue or self._late).popleft()
            self._visit(name, value, is_metric)

    def _add_reported(self, name: str, root: Any) -> None:
        """Add what Keras itself lists and the walk did not reach, so that nothing Keras knows is ever lost."""
        for variable in reported(root):
            self._add(f"{name}/variables/{variable.path}", variable, is_metric=False)
        self._run()

    def _visit(self, name: str, value: Any, is_metric: bool) -> None:
        import keras
        import tensorflow as tf

        self.visited.append(value)
        if isinstance(value, keras.Variable):
            native = keras_internals.native_variable(value)
            if native is not None:
                self._found(name, native, is_metric)
        elif isinstance(value, tf.Variable):
            self._found(name, value, is_metric)
        elif isinstance(value, keras.optimizers.Optimizer):
            self._visit_optimizer(name, value)
        else:
            self._note_table(name, value)
            is_metric = is_metric or isinstance(value, keras.metrics.Metric)
            for key, child in _children(value):
                self._add(f"{name}/{key}", child, is_metric)

    def _found(self, name: str, variable: Any, is_metric: bool) -> None:
        if id(variable) in self._name_of:
            return
        self._seen[id(variable)] = variable
        self._name_of[id(variable)] = name
        if is_metric:
            self.state.metric_names.add(name)
        if keras_internals.is_sync_on_read(variable):
            for replica, own in enumerate(variable.values):
                self.state.variables[f"{name}@{replica}"] = own
                if is_metric:
                    self.state.metric_names.add(f"{name}@{replica}")
        elif keras_internals.is_distributed(variable):
            self.state.variables[name] = variable.values[0]
            self.state.mirrors[name] = list(variable.values[1:])
        else:
            self.state.variables[name] = variable

    def _visit_optimizer(self, name: str, optimizer: Any) -> None:
        """Name slots by their variable; wait until the rest of the walk has named those."""
        if self._queue:
            self._late.append((name, optimizer, False))
            return
        self.state.optimizers[name] = optimizer
        targets = list(getattr(optimizer, "_trainable_variables", []))
        for key, child in _children(optimizer):
            if key != "_trainable_variables" and _is_slot_list(child, targets):
                self.visited.append(child)
                for target, slot in zip(targets, child, strict=True):
                    if slot is not None:
                        owner = self._name_of.get(id(keras_internals.native_variable(target)), target.path)
                        self._add(f"{name}/{key}/{owner}", slot, is_metric=False)
                self._drainslots_of()
            else:
                self._add(f"{name}/{key}", child, is_metric=False)

    def _drainslots_of(self) -> None:
        while self._queue:
            self._visit(*self._queue.popleft())

    def _note_table(self, name: str, value: Any) -> None:
        import keras

        if isinstance(value, keras.layers.Normalization):
            self.state.derived.append(value)
        elif (
            keras_internals.is_lookup_layer(value)
            or isinstance(value, keras.layers.Discretization)
            or keras_internals.is_mutable_table(value)
        ):
            self.state.tables[name] = value
            idf_weights = getattr(value, "idf_weights", None)
            self._seen[id(idf_weights)] = idf_weights  # a variable that is part of the table


def is_plain(value: Any) -> bool:
    """Whether a walk ends at ``value`` without a look at it."""
    return (
        value is None
        or isinstance(value, str | bytes | int | float | complex | bool | type)
        or callable_only(value)
    )


def callable_only(value: Any) -> bool:
    """Whether a value is a function or method: those lead to state only through names the walk reaches anyway."""
    return type(value).__name__ in ("function", "method", "builtin_function_or_method", "module")


def _is_slot_list(value: Any, targets: list[Any]) -> bool:
    import keras

    if not isinstance(value, list) or not targets or len(value) != len(targets):
        return False
    return all(slot is None or isinstance(slot, keras.Variable) for slot in value)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a walk goes on to from ``value``, with a key that is stable from run to run."""
    if isinstance(value, Mapping):
        yield from ((_escaped(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | deque):
        yield from _items(value)
    elif isinstance(value, set | frozenset):
        yield from _items(
            sorted(value, key=lambda item: str(getattr(item, "path", getattr(item, "name", item))))
        )
    elif is_walked(value):
        yield from _attributes(value)


def _items(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield items by index, metrics by name: a metric added in hindsight must not rename the others.

    Input layers do not count: a Sequential gets one in front when it is built.
    """
    import keras

    seen: Counter[str] = Counter()
    index = 0
    for item in values:
        if isinstance(item, keras.metrics.Metric):
            seen[item.name] += 1
            yield f"{_escaped(item.name)}" + (f"#{seen[item.name]}" if seen[item.name] > 1 else ""), item
        elif not isinstance(item, keras.layers.InputLayer):
            yield str(index), item
            index += 1


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    late = []
    for key, child in attributes_of(value).items():
        if key in keras_internals.DEFERRED_ATTRIBUTES:
            late.append((key, child))
        elif key not in keras_internals.SKIPPED_ATTRIBUTES:
            yield _escaped(key), child
    yield from late


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots included."""
    attributes = dict(getattr(value, "__dict__", None) or {})
    for slot in slots_of(type(value)):
        if hasattr(value, slot):
            attributes.setdefault(slot, getattr(value, slot))
    return attributes


def slots_of(cls: type) -> list[str]:
    """Return the names of the slots of a class and its bases."""
    declared = [base.__dict__.get("__slots__", ()) for base in cls.__mro__]
    return [name for names in declared for name in ((names,) if isinstance(names, str) else names)]


def is_walked(value: Any) -> bool:
    """Keras and TensorFlow objects that can hold state, and objects of the program's own classes."""
    import tensorflow as tf

    if keras_internals.is_opaque(value):
        return False
    if keras_internals.is_keras_object(value) or isinstance(value, tf.Module):
        return True
    if isinstance(value, tf.__internal__.tracking.Trackable):
        return True
    return is_of_the_program(type(value))


def is_of_the_program(cls: type) -> bool:
    """Whether a class is the program's own: of no library."""
    top = cls.__module__.partition(".")[0]
    if top in _LIBRARIES or top in sys.stdlib_module_names - {"__main__"}:
        return False
    module = sys.modules.get(cls.__module__)
    path = getattr(module, "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path and top != "flor_keras"


def _escaped(key: Any) -> str:
    return str(key).replace("%", "%25").replace("/", "%2F")
