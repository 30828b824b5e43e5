"""Putting a checkpoint back into the objects of a program, by name, completely or with an error that says what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flor_keras import keras_internals
from flor_keras.checkpoint import bundle
from flor_keras.errors import StateError
from flor_keras.records import Kind
from flor_keras.state import pickles
from flor_keras.state.tables import PARTS, restore_table
from flor_keras.state.variables import GLOBAL_SEED, STEP, State, gather, outside_of

ARRAYS = "python"  # the name under which arrays of the pickled state lie among the tensors
_SHOWN = 6


def restore_objects(folder: Path, roots: Mapping[str, Any], *, is_fresh: bool = False) -> None:
    """Restore the objects named as when recorded (``{"model": model}``) from the checkpoint in ``folder``.

    Every variable of the objects gets its recorded value, and every recorded value finds its variable. Metrics are
    the exception in both directions: one that was added or taken away since starts from its initial state. An
    optimizer the program has not (a model that is not compiled) is left out as a whole. Where the checkpoint is from
    before the first step, which creates an optimizer's slots, an optimizer that has some gets them as first created.

    Args:
      folder: the checkpoint.
      roots: the objects by the name they were recorded under.
      is_fresh: variables the checkpoint has no value for are as they were created. That is what a checkpoint from
        before the first step means, which creates optimizer slots and the weights of layers not built before.

    Raises:
      StateError: names the variables without a value, the values without a variable, or those of another shape.
      CheckpointError: the checkpoint is damaged.
    """
    values = bundle.load(folder)
    _build_optimizers(roots, values)
    if any(name.startswith(GLOBAL_SEED) for name in values):
        keras_internals.ensure_global_seed_generator()
    _restore_tables(gather(roots), values)
    state = gather(roots)
    if not is_fresh and _is_of_a_start(folder):
        values |= _slots_of_the_start(state, values)
    _check(folder, state, values, roots, is_fresh)
    for name, variable in state.variables.items():
        if name in values:
            variable.assign(values[name])
            for mirror in state.mirrors.get(name, ()):
                mirror.assign(values[name])
    for layer in state.derived:
        layer.finalize_state()


def build_model(
    training: keras_internals.TrainingSteps, model: Any, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """Create all variables of ``model`` that a checkpoint of it has, as training would have created them.

    Returns:
      what to restore that checkpoint into: the model, and the variables its training step uses from elsewhere.
    """
    metrics = set(manifest.get("metrics", ()))
    recorded = [n for n in manifest.get("tensors", ()) if n.startswith("model/") and n not in metrics]
    tables = tuple(f"{name}/" for name in manifest.get("tables", ()))
    training.build(
        model,
        [name for name in recorded if not name.startswith(tables)],
        lambda: gather({"model": model}).variables,
    )
    roots = {"model": model}
    if any(name.startswith(f"{STEP}/") for name in manifest.get("tensors", ())):
        roots[STEP] = outside_of(model, training.trace(model))
    return roots


def read_python(folder: Path) -> Any:
    """Return the pickled state of a checkpoint, after making sure that the current user wrote it.

    Raises:
      CheckpointError: somebody else wrote it, or it is damaged.
    """
    path = folder / pickles.FILE
    data = path.read_bytes()
    pickles.check(path, data, bundle.read_manifest(folder).get("signature"))
    arrays = bundle.load(folder, lambda name: name.startswith(f"{ARRAYS}/"))
    return pickles.unpack(data, [arrays[f"{ARRAYS}/{number}"].numpy() for number in range(len(arrays))])


def _build_optimizers(roots: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Create the slots of the optimizers the checkpoint has slots of; Keras does it in the first training step.

    A checkpoint from before that step has none; there the optimizer must stay as it is.
    """
    for name, (optimizer, variables) in _unbuilt_optimizers(roots).items():
        known = set(gather({name: optimizer}).variables)
        if any(value.startswith(f"{name}/") and value not in known for value in values):
            keras_internals.build_optimizer(optimizer, variables)
    state = gather(roots)
    for name, optimizer in state.optimizers.items():
        if not optimizer.built and (owners := _slot_owners(name, values, state, roots)):
            # what the program's own training step gives to each, only it knows
            keras_internals.build_optimizer(optimizer, owners)


def _is_of_a_start(folder: Path) -> bool:
    return bool(bundle.read_manifest(folder).get("position", {}).get("kind") == Kind.START.value)


def _slots_of_the_start(state: State, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return as first created, by name, the optimizers' variables that the checkpoint of a beginning has not yet."""
    absent = {id(variable): name for name, variable in state.variables.items() if name not in values}
    slots = {}
    for optimizer in state.optimizers.values():
        natives = [keras_internals.native_variable(variable) for variable in optimizer.variables]
        if any(id(native) in absent for native in natives):
            anew = keras_internals.made_anew(optimizer).variables
            for native, created in zip(natives, anew, strict=True):
                if id(native) in absent:
                    slots[absent[id(native)]] = keras_internals.native_variable(created).read_value()
    return slots


def _slot_owners(name: str, values: Mapping[str, Any], state: State, roots: Mapping[str, Any]) -> list[Any]:
    """Return the Keras variables the checkpoint has slots of an optimizer for, in their order."""
    by_native = {
        id(keras_internals.native_variable(variable)): variable
        for root in roots.values()
        for variable in getattr(root, "variables", ())
    }
    slots = [value.removeprefix(f"{name}/") for value in values if value.startswith(f"{name}/")]
    natives = [state.variables.get(slot.partition("/")[2]) for slot in slots]
    return list({id(native): by_native[id(native)] for native in natives if id(native) in by_native}.values())


def _unbuilt_optimizers(roots: Mapping[str, Any]) -> dict[str, tuple[Any, list[Any]]]:
    """Return compiled optimizers without slots by name, with the variables Keras would build them for."""
    import keras

    found = {}
    for name, root in roots.items():
        optimizer = getattr(root, "optimizer", None)
        is_unbuilt = optimizer is not None and not optimizer.built
        if (
            isinstance(root, keras.Model)
            and is_unbuilt
            and root.built
            and not keras_internals.has_own_train_step(root)
        ):
            found[f"{name}/optimizer"] = (optimizer, root.trainable_variables)
    return found


def _restore_tables(state: State, values: dict[str, Any]) -> None:
    for name, table in state.tables.items():
        parts = {part: f"{name}/{part}" for part in PARTS if f"{name}/{part}" in values}
        if parts:
            restore_table(table, {part: values.pop(key).numpy() for part, key in parts.items()})


def _check(
    folder: Path, state: State, values: Mapping[str, Any], roots: Mapping[str, Any], is_fresh: bool
) -> None:
    manifest = bundle.read_manifest(folder)
    metrics = state.metric_names | set(manifest.get("metrics", ()))
    without_value = [
        name for name in state.variables if name not in values and name not in metrics and not is_fresh
    ]
    absent = _absent_optimizers(manifest, state)
    without_variable = [
        name
        for name in values
        if name not in state.variables
        and name not in metrics
        and not name.startswith(absent)
        and name.partition("/")[0] in roots
    ]
    misshapen = [
        f"{name} {tuple(values[name].shape)} in the checkpoint, {tuple(variable.shape)} in the program"
        for name, variable in state.variables.items()
        if name in values and not _is_same_type(variable, values[name])
    ]
    problems = [
        _listed("variables of the program that the checkpoint has no value for", without_value),
        _listed("values of the checkpoint that the program has no variable for", without_variable),
        _listed("variables of another shape or type", misshapen),
    ]
    if any(problems):
        raise StateError(
            f"The checkpoint {folder.name} does not fit the program: "
            + "; ".join(filter(None, problems))
            + ". "
            "Build the same model as the run did (call it once on a batch if it has no weights yet) and restore again."
        )


def _absent_optimizers(manifest: Mapping[str, Any], state: State) -> tuple[str, ...]:
    """Return the name prefixes of recorded optimizers of which the program has nothing at all."""
    prefixes = tuple(f"{name}/" for name in manifest.get("optimizers", ()))
    return tuple(p for p in prefixes if not any(name.startswith(p) for name in state.variables))


def _is_same_type(variable: Any, value: Any) -> bool:
    return tuple(variable.shape) == tuple(value.shape) and variable.dtype.base_dtype == value.dtype


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what}: {', '.join(sorted(names)[:_SHOWN])}{more}"
