"""What export uses of Keras and TensorFlow beyond their public interface, one use per function.

Checked on Keras 3.15.1 and TensorFlow 2.21.0; each has a test in ``tests/export/test_internals.py``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flor_keras import keras_internals

_EXECUTION_FUNCTIONS = ("train_function", "test_function", "predict_function")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Put back what tracing a model's `call` once more does to its layers.

    Tracing runs the program's Python: a counter would count one call too many. TensorFlow also takes the functions
    `fit` uses off the model while it looks for what to save, and leaves them off where it fails.
    """
    layers = [model, *model._flatten_layers(include_self=False)]
    plain = [{key: value for key, value in vars(at).items() if isinstance(value, _PLAIN)} for at in layers]
    functions = [{key: vars(at)[key] for key in _EXECUTION_FUNCTIONS if key in vars(at)} for at in layers]
    losses = [list(at._losses) for at in layers]
    try:
        yield
    finally:
        for layer, attributes, loss in zip(layers, plain, losses, strict=True):
            for key, value in attributes.items():
                if vars(layer).get(key) is not value:
                    vars(layer)[key] = value
            layer._losses[:] = loss
        for layer, known in zip(layers, functions, strict=True):
            vars(layer).update(known)


def parts_of(model: Any) -> list[Any]:
    """Return a model, all its layers, however deep, and the operations between them."""
    layers = list(model._flatten_layers())
    operations = [op for at in layers for op in getattr(at, "operations", ())]
    return list({id(part): part for part in (*layers, *operations)}.values())


def named_parts(model: Any) -> list[list[Any]]:
    """Return what of a built functional or Sequential model has a name: kind and name of each layer, input and output."""
    layers = [[type(layer).__name__, layer.name] for layer in model._flatten_layers()]
    tensors = [[f"{at.dtype} {at.shape}", at.name] for at in (*model.inputs, *model.outputs)]
    return layers + tensors


def rename_parts(model: Any, named: list[list[Any]]) -> None:
    """Give the parts of a model the names they had; Keras names by counts what nobody else named.

    The names of layers are part of those of operations, in whose order TensorFlow adds.

    Raises:
      ValueError: the model has other parts.
    """
    parts = [*model._flatten_layers(), *model.inputs, *model.outputs]
    for part, (_, name) in zip(parts, named, strict=True):
        part.name = name
    if named_parts(model) != named:
        raise ValueError("it has other layers, inputs or outputs")


@contextmanager
def names_put_back() -> Iterator[None]:
    """Have layers made inside not count for the names of later ones."""
    from keras.src.backend.common import global_state

    key = "object_name_uids"
    names = global_state.get_global_attribute(key)
    kept = None if names is None else names.copy()
    try:
        yield
    finally:
        global_state.set_global_attribute(key, kept)


class SavedGraph(NamedTuple):
    """What a SavedModel needs beside its graph: who stands behind each key of its bundle, and the object graph."""

    owners: list[tuple[str, Any, Any]]  # (key, the object, what gives its value now)
    object_graph: bytes


def write_saved_model(model: Any, folder: Path) -> SavedGraph:
    """Write the SavedModel of a model as `model.export` does, without its variables.

    `tf.saved_model.save` writes the variables too, which for a large model costs more than all the rest, and does not tell
    which key of the bundle is whose. Keras would list each variable twice, as its own and as TensorFlow's, and
    so write it twice; here the lists hold TensorFlow's.

    Raises:
      Exception: whatever the program's `call` raises where it cannot be traced.
    """
    import keras
    import tensorflow as tf
    from keras.src.export.export_utils import get_input_signature
    from tensorflow.core.protobuf import saved_model_pb2
    from tensorflow.python.framework import ops
    from tensorflow.python.saved_model import builder_impl, constants, save

    archive = keras.export.ExportArchive()
    archive.track_and_add_endpoint("serve", model, get_input_signature(model))
    root = archive._tf_trackable
    for name in ("variables", "trainable_variables", "non_trainable_variables"):
        setattr(root, name, [keras_internals.native_variable(variable) for variable in getattr(model, name)])
    with without_default_signature():
        archive._filter_and_track_resources()
    serve = archive._get_concrete_fn("serve")
    saved = saved_model_pb2.SavedModel(saved_model_schema_version=constants.SAVED_MODEL_SCHEMA_VERSION)
    with without_autograph():
        _, graph, saver, assets, _, _ = save._build_meta_graph(
            root,
            {"serve": serve, "serving_default": serve},
            tf.saved_model.SaveOptions(),
            saved.meta_graphs.add(),
        )
    tensors, _, _, object_graph = saver._gather_serialized_tensors()
    with _less_talkative():  # it tells where the assets are written, each time
        builder_impl.copy_assets_to_destination_dir(assets.asset_filename_map, str(folder))
    (folder / constants.SAVED_MODEL_FILENAME_PB).write_bytes(saved.SerializeToString(deterministic=True))
    ops.dismantle_graph(graph)
    return SavedGraph(_owners(tensors), object_graph.SerializeToString())


@contextmanager
def without_default_signature() -> Iterator[None]:
    """Keep TensorFlow from tracing every model once more than need be.

    To find tables it reads every attribute of every layer, and one of them, which `tf.saved_model.save(model)` needs and
    this does not, traces the model when it is read.
    """
    from keras.src.backend.tensorflow.layer import TFLayer

    signature = vars(TFLayer)["_default_save_signature"]
    TFLayer._default_save_signature = None
    try:
        yield
    finally:
        TFLayer._default_save_signature = signature


@contextmanager
def without_autograph() -> Iterator[None]:
    """Keep TensorFlow from rewriting the source of functions this thread traces: of its own, the program's are traced by then.

    For each signature it makes a wrapper of three lines, and rewriting that takes longer than all else about it.
    """
    from tensorflow.python.eager.polymorphic_function import autograph_util

    rewritten, thread = autograph_util.py_func_from_autograph, threading.get_ident()

    def as_it_is(function: Any, options: Any = None) -> Any:
        return function if threading.get_ident() == thread else rewritten(function, options)

    autograph_util.py_func_from_autograph = as_it_is
    try:
        yield
    finally:
        autograph_util.py_func_from_autograph = rewritten


@contextmanager
def _less_talkative() -> Iterator[None]:
    """Keep TensorFlow's messages that are no warnings from the program's output, which in a notebook they would reach."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def write_fingerprint(folder: Path) -> None:
    """Write `fingerprint.pb` of a SavedModel, which loading warns of where it is missing.

    Only once its variables are there: the fingerprint has a hash of them.
    """
    from tensorflow.python.saved_model import fingerprinting_utils

    fingerprinting_utils.write_fingerprint(str(folder))


def checkpoint_owners(model: Any) -> SavedGraph:
    """Return who stands behind each key of `tf.train.Checkpoint(model=model)`, and its object graph."""
    import tensorflow as tf
    from tensorflow.python.checkpoint import checkpoint, graph_view

    root = tf.train.Checkpoint(model=model)  # the view holds it weakly
    saver = checkpoint.TrackableSaver(graph_view.ObjectGraphView(root))
    tensors, _, _, object_graph = saver._gather_serialized_tensors()
    return SavedGraph(_owners(tensors), object_graph.SerializeToString())


def _owners(tensors: dict[Any, dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    return [
        (key, getattr(owner, "obj", owner), value)
        for owner, by_key in tensors.items()
        if owner is not None
        for key, value in by_key.items()
    ]


def value_of(given: Any) -> Any:
    """Return the tensor of a key of a bundle; TensorFlow gives it at once, or as something that reads it."""
    from tensorflow.python.training.saving.saveable_object import SaveSpec

    return given.tensor if isinstance(given, SaveSpec) else given


def config_of(model: Any) -> dict[str, Any]:
    """Return a model's configuration as the `.keras` format keeps it, with how it was built and compiled.

    The public `serialize_keras_object` writes a layer that is used twice as two layers.

    Raises:
      Exception: whatever the program's own `get_config` raises.
    """
    from keras.src.saving.serialization_lib import ObjectSharingScope, serialize_keras_object

    with ObjectSharingScope():
        described: dict[str, Any] = serialize_keras_object(model)
    return described


def state_of_training(model: Any) -> set[int]:
    """Return the ids of the `tf.Variable` of a model that training needs and its outputs do not: optimizer, metrics, seeds."""
    optimizer = getattr(model, "optimizer", None)
    seeds = [
        generator.state
        for layer in model._flatten_layers()
        for generator in getattr(layer, "_seed_generators", ())
    ]
    found = [*getattr(optimizer, "variables", ()), *model.metrics_variables, *seeds]
    return {id(keras_internals.native_variable(variable)) for variable in found}


def has_own_losses(model: Any) -> bool:
    """Whether a model adds to the loss itself: regularizers, `add_loss`."""
    layers = [model, *model._flatten_layers(include_self=False)]
    variables = model.trainable_variables
    return any(layer._losses for layer in layers) or any(
        getattr(v, "regularizer", None) is not None for v in variables
    )


class Group(NamedTuple):
    """One group of a weights file: what a layer, optimizer or metric saves of itself."""

    path: str
    name: str | None  # the object's name, kept as an attribute of the group
    owner: Any
    values: dict[str, Any]  # key in the group -> variable or array


def weight_groups(model: Any) -> list[Group]:
    """Return what Keras would write into a weights file, and where, with the variables themselves as values.

    Follows `saving_lib._save_state`, which copies every value on the way.
    """
    found: list[Group] = []
    with _attributes_left_out_kept():
        _visit(model, "", set(), found)
    return found


@contextmanager
def _attributes_left_out_kept() -> Iterator[None]:
    """Let Keras find the attributes it leaves out of a walk once per kind of object.

    It keeps them under one name and looks for them under another (3.15), so that it makes a layer for every layer.
    """
    from keras.src.saving import saving_lib

    original = saving_lib.get_attr_skipset
    saving_lib.get_attr_skipset = cache(original)
    try:
        yield
    finally:
        saving_lib.get_attr_skipset = original


def _visit(saveable: Any, path: str, visited: set[int], found: list[Group]) -> None:
    from keras.src.saving import saving_lib
    from keras.src.saving.keras_saveable import KerasSaveable

    if id(saveable) in visited:
        return
    if hasattr(saveable, "save_own_variables"):
        name = getattr(saveable, "name", None)
        found.append(Group(path, name if isinstance(name, str) else None, saveable, _own_values(saveable)))
    visited.add(id(saveable))
    for key, child in saving_lib._walk_saveable(saveable):
        below = os.path.join(path, key)
        if isinstance(child, KerasSaveable):
            _visit(child, below, visited, found)
        elif isinstance(child, list | dict | tuple):
            _visit_container(child, below, visited, found, set())


def _visit_container(
    container: Any, path: str, visited: set[int], found: list[Group], seen: set[int]
) -> None:
    from keras.src.saving import saving_lib
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.src.utils import naming

    if id(container) in seen:
        return
    seen.add(id(container))
    used: dict[str, int] = {}
    for item in container.values() if isinstance(container, dict) else container:
        if isinstance(item, KerasSaveable):
            name = saving_lib._get_unique_name(naming.to_snake_case(type(item).__name__), used)
            _visit(item, os.path.join(path, name), visited, found)
        elif isinstance(item, list | dict | tuple):
            name = saving_lib._get_unique_name("container", used)
            _visit_container(item, os.path.join(path, name), visited, found, seen)


def _own_values(saveable: Any) -> dict[str, Any]:
    """Return what an object saves of itself; for an optimizer without the copies it makes on the way."""
    import keras

    optimizer = keras.optimizers.Optimizer
    if isinstance(saveable, optimizer) and type(saveable).save_own_variables is optimizer.save_own_variables:
        return {str(number): variable for number, variable in enumerate(saveable.variables)}
    values: dict[str, Any] = {}
    saveable.save_own_variables(values)
    return values


def write_assets(model: Any, folder: Path) -> None:
    """Write what the `.keras` format keeps beside weights: vocabularies of lookup layers."""
    from keras.src.saving import saving_lib

    class Assets(saving_lib.DiskIOStore):
        def __init__(self) -> None:
            self.mode, self.working_dir, self.archive, self.tmp_dir = "w", str(folder), None, None

    folder.mkdir()
    saving_lib._save_state(model, None, Assets(), "", set())
    for at, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(at):
            os.rmdir(at)


def lora_parts(layer: Any) -> tuple[Any, Any, float] | None:
    """Return the two low-rank variables and the scale a layer adds to its kernel; None where it does not."""
    if not getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None) is not None:
        return None
    names = (
        ("lora_kernel_a", "lora_kernel_b")
        if hasattr(layer, "lora_kernel_a")
        else ("lora_embeddings_a", "lora_embeddings_b")
    )
    scale = layer.lora_alpha / layer.lora_rank
    return getattr(layer, names[0]), getattr(layer, names[1]), scale
