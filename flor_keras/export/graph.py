"""A model's graph, kept once per loop: what turns any checkpoint of it into a model others can load.

    <folder>/signature          the keyed hash of graph.json, which holds hashes of all other files
    <folder>/graph.json         the mapping from variables to where each format has them; why a format is missing
    <folder>/saved_model.pb, assets/    the SavedModel without its variables; not where the configuration is enough to make it
    <folder>/rest.index, …      what of the SavedModel's bundle is not in a checkpoint: object graph, vocabularies
    <folder>/checkpoint_rest.index, …   the same of `tf.train.Checkpoint(model=…)`
    <folder>/config.json        the configuration as the `.keras` format has it
    <folder>/keras_assets/      the vocabularies as the `.keras` format has them

Written by the trainer, which has the model; read without it. A loop whose model is one of an earlier loop, unchanged,
has a graph.json that names the earlier folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import xxhash

from flor_keras import keras_internals
from flor_keras.checkpoint.contents import Content, as_tensor, content_hash, content_of
from flor_keras.export import internals, stock
from flor_keras.export.folders import written_beside

FORMAT = 1
FILE = "graph.json"
SIGNATURE = "signature"
REST = "rest"
CHECKPOINT_REST = "checkpoint_rest"
CONFIG = "config.json"
KERAS_ASSETS = "keras_assets"
_SHOWN = 4
MODEL = "model"  # the name of what `fit` trains
OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


class NotExportable(Exception):
    """Why a model has no export in some format; the message is told to the person."""


class Subject(NamedTuple):
    """A model and what a checkpoint of it holds.

    Attributes:
      model: a Keras model.
      root: the name under which it is recorded.
      variables: the `tf.Variable` of every name of a checkpoint.
      tables: the mutable tables of a checkpoint by name.
      baked: hashes, by name, of values that become part of the graph.
    """

    model: Any
    root: str
    variables: Mapping[str, Any]
    tables: Mapping[str, Any]
    baked: Mapping[str, str]


def write_graph(
    subject: Subject, folder: Path, sign: Callable[[bytes], str], is_rebuildable: bool = False
) -> dict[str, str]:
    """Write all that export needs of a model beside its values.

    Args:
      subject: the model.
      folder: where to; it must not exist.
      is_rebuildable: whether the SavedModel may be traced later, from the model's configuration.
      sign: returns the keyed hash of the person who records. A graph is a program: it is run for who wrote it only.

    Returns:
      for each format that is not possible, why.
    """
    import keras
    import tensorflow as tf

    model = subject.model
    names = Names(subject.variables, subject.tables)
    described: dict[str, Any] = {
        "format": FORMAT,
        "model": subject.root,
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        "jit_compile": bool(getattr(model, "jit_compile", False)),
        "baked": dict(subject.baked),
        "compile_config": _compile_config(model),
        "why_not": {},
    }
    with written_beside(folder) as temporary, internals.untouched(model), internals.names_put_back():
        described["has_own_losses"] = internals.has_own_losses(model)
        temporary.mkdir(parents=True)
        why_not = described["why_not"]
        _attempt(
            "checkpoint", lambda: described.update(_write_checkpoint_keys(model, names, temporary)), why_not
        )
        _attempt("weights.h5", lambda: described.update(groups=_weight_groups(model, names)), why_not)
        _attempt("keras", lambda: _write_config(model, temporary, not is_rebuildable), why_not)
        described["rebuilt"] = _rebuilt_from(model, names, temporary) if is_rebuildable else None
        described["named"] = described["rebuilt"] and internals.named_parts(model)
        if described["rebuilt"] is None:
            _attempt(
                "saved_model", lambda: described.update(write_saved_model(model, names, temporary)), why_not
            )
        if "weights.h5" in why_not:
            why_not.setdefault("keras", why_not["weights.h5"])
        described["left_out"] = _left_out(described.get("groups", []), subject)
        described["variables"] = names.used
        described["files"] = hashes_below(temporary)
        text = json.dumps(described).encode()
        (temporary / FILE).write_bytes(text)
        (temporary / SIGNATURE).write_text(sign(text), encoding="ascii")
    return dict(why_not)


def write_reference(folder: Path, other: str) -> None:
    """Say that the graph of a loop is that of an earlier one: the folder ``other`` beside it."""
    with written_beside(folder) as temporary:
        temporary.mkdir(parents=True)
        (temporary / FILE).write_text(json.dumps({"format": FORMAT, "same_as": other}), encoding="utf-8")


def file_hash(path: Path) -> str:
    """Return the xxh3 hash (64 bit, hexadecimal) of a file's bytes."""
    return xxhash.xxh3_64_hexdigest(path.read_bytes())


def hashes_below(folder: Path) -> dict[str, str]:
    """Return the hash of each file in a folder by its path there."""
    return {str(at.relative_to(folder)): file_hash(at) for at in folder.rglob("*") if at.is_file()}


def _attempt(name: str, write: Callable[[], Any], why_not: dict[str, str]) -> None:
    """Write what a format needs; a failure is a reason, tracing and describing run the program's own code."""
    try:
        write()
    except NotExportable as reason:
        why_not[name] = str(reason)
    except Exception as error:  # noqa: BLE001 - see above
        why_not[name] = (
            f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        )


class Names:
    """Finds the name a checkpoint has for a variable or table. ``used``: dtype and shape of those asked for."""

    def __init__(self, variables: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
        self._names = {id(variable): name for name, variable in variables.items()}
        self._tables = {id(table): name for name, table in tables.items()}
        self.used: dict[str, Any] = {}

    def of(self, value: Any) -> str | None:
        """Return the name of a Keras or TensorFlow variable; None where it is another value."""
        import keras

        native = keras_internals.native_variable(value) if isinstance(value, keras.Variable) else value
        if (
            native is not None
            and keras_internals.is_distributed(native)
            and not keras_internals.is_sync_on_read(native)
        ):
            native = native.values[0]
        name = self._names.get(id(native))
        if name is not None:
            self.used[name] = [native.dtype.base_dtype.name, list(native.shape)]
        return name

    def of_table(self, table: Any) -> str | None:
        """Return the name of a table whose content a checkpoint has."""
        return self._tables.get(id(table)) if keras_internals.is_mutable_table(table) else None


def _rebuilt_from(model: Any, names: Names, folder: Path) -> list[str] | None:
    """Return the names of a model's variables in Keras's order; None where one has none, or the configuration is not enough."""
    found = [names.of(variable) for variable in model.variables]
    config = folder / CONFIG
    is_enough = config.exists() and stock.names_only_keras(json.loads(config.read_text(encoding="utf-8")))
    return cast(list[str], found) if is_enough and None not in found else None


def write_saved_model(model: Any, names: Names, folder: Path) -> dict[str, Any]:
    """Write the SavedModel without its variables; return the name behind each key of its bundle."""
    saved = internals.write_saved_model(model, folder)
    return {"keys": _write_rest(saved, names, folder / REST)}


def _write_checkpoint_keys(model: Any, names: Names, folder: Path) -> dict[str, Any]:
    keys = _write_rest(internals.checkpoint_owners(model), names, folder / CHECKPOINT_REST)
    training = internals.state_of_training(model)
    own = [v for v in model.variables if id(keras_internals.native_variable(v)) not in training]
    lost = sorted({name for name in map(names.of, own) if name is not None} - set(keys.values()))
    if lost:
        raise NotExportable(
            f"tf.train.Checkpoint does not reach {_listed(lost)}, which lie in plain Python containers"
        )
    return {"checkpoint_keys": keys}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _write_rest(saved: internals.SavedGraph, names: Names, prefix: Path) -> dict[str, str]:
    """Return the name behind each key of a bundle; what has none is written under ``prefix``, for good."""
    import tensorflow as tf

    keys: dict[str, str] = {}
    rest = {
        OBJECT_GRAPH_KEY: Content(
            OBJECT_GRAPH_KEY, "string", (), np.array([saved.object_graph], dtype=object)
        )
    }
    for key, owner, given in saved.owners:
        name, table = names.of(owner), names.of_table(owner)
        if name is not None:
            keys[key] = name
        elif table is not None:
            keys[key] = f"{table}/{'keys' if key.endswith('-keys') else 'values'}"
        elif isinstance(owner, tf.Variable) and not key.startswith("save_counter"):
            raise NotExportable(f"its variable {owner.name} is not part of the recorded state")
        else:
            rest[key] = content_of(key, tf.convert_to_tensor(internals.value_of(given)))
    write_bundle(prefix, rest)
    return keys


def write_bundle(prefix: Path, contents: Mapping[str, Content]) -> None:
    """Write tensors under their keys as a native TensorFlow bundle."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(contents),
            shape_and_slices=[""] * len(contents),
            tensors=[as_tensor(content) for content in contents.values()],
        )


def _weight_groups(model: Any, names: Names) -> list[dict[str, Any]]:
    if not model.built:
        raise NotExportable("the model has not been built")
    return [
        {
            "path": group.path,
            "name": group.name,
            "values": {key: _place(group, key, value, names) for key, value in group.values.items()},
        }
        for group in internals.weight_groups(model)
    ]


def _left_out(groups: list[dict[str, Any]], subject: Subject) -> list[str]:
    """Return the variables of the model's own that Keras's formats do not keep: raw `tf.Variable`, states of RNNs."""
    kept = {name for group in groups for place in group["values"].values() for name in _names_in(place)}
    others = internals.state_of_training(subject.model)
    own = f"{subject.root}/"
    left = [
        name
        for name, variable in subject.variables.items()
        if id(variable) not in others and name.startswith(own)
    ]
    return sorted(name for name in left if name not in kept) if groups else []


def _compile_config(model: Any) -> dict[str, Any] | None:
    """Return how a model was compiled, None where that cannot be written down."""
    try:
        config: dict[str, Any] = json.loads(json.dumps(model.get_compile_config()))
    except Exception:  # noqa: BLE001 - runs the `get_config` of the program's own losses and metrics
        return None
    return config


def _names_in(place: Any) -> list[str]:
    return [place] if isinstance(place, str) else place["lora"]


def _place(group: internals.Group, key: str, value: Any, names: Names) -> Any:
    """Return where a value of a weights file comes from: a variable's name, or names to compute it of."""
    name = names.of(value)
    if name is not None:
        return name
    lora = internals.lora_parts(group.owner)
    if lora is not None:
        base = getattr(group.owner, "_kernel", None)
        base = group.owner._embeddings if base is None else base
        parts = [names.of(part) for part in (base, *lora[:2])]
        kernel, lora_a, lora_b = (
            keras_internals.native_variable(part).read_value() for part in (base, *lora[:2])
        )
        found = merged(kernel, lora_a, lora_b, lora[2])
        if None not in parts and np.array_equal(found, value):
            return {"lora": parts, "scale": lora[2]}
    raise NotExportable(
        f"{type(group.owner).__name__} at {group.path or 'the top'} saves a value of its own making "
        f"({key!r} in save_own_variables), which is no variable"
    )


def merged(kernel: Any, lora_a: Any, lora_b: Any, scale: float) -> Any:
    """Return a kernel with its low-rank update in it, computed as Keras does when it saves one."""
    import tensorflow as tf

    return tf.add(kernel, scale * tf.matmul(lora_a, lora_b)).numpy()


def _write_config(model: Any, folder: Path, has_assets: bool) -> None:
    config = internals.config_of(model)
    if (
        not config.get("build_config")
        and not hasattr(model, "_functional")
        and not hasattr(model, "operations")
    ):
        raise NotExportable(
            "Keras does not know the shapes of its inputs (its call cannot be traced), so load_model would leave it unbuilt"
        )
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    if has_assets:
        internals.write_assets(model, folder / KERAS_ASSETS)


def baked_hashes(contents: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the hashes of values that become part of a graph, as a checkpoint's manifest has them."""
    return {name: content_hash(content_of_array(name, array)) for name, array in contents.items()}


def content_of_array(name: str, array: np.ndarray) -> Content:
    """Return an array's content; text as object arrays of bytes."""
    if array.dtype == object:
        return Content(name, "string", tuple(array.shape), array.reshape(-1))
    return Content(
        name, array.dtype.name, tuple(array.shape), np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    )
