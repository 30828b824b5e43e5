"""What kind of Keras or TensorFlow object a value is, and which of its attributes lead to state."""

from __future__ import annotations

import functools
from typing import Any

# Attributes of Keras objects that lead to state found elsewhere, to the object graph's own plumbing or to
# compiled functions. The deferred ones repeat what attributes with speaking names hold; they are looked at last.
SKIPPED_ATTRIBUTES = frozenset(
    [
        "_tracker",
        "token_counts",
        "lookup_table",
        "_inbound_nodes",
        "_outbound_nodes",
        "_nodes",
        "_nodes_by_depth",
        "_operations",
        "_operations_by_depth",
        "_inputs",
        "_outputs",
        "_inputs_struct",
        "_outputs_struct",
        "train_function",
        "test_function",
        "predict_function",
        "history",
        "_distribute_strategy",
        "_saved_model_inputs_spec",
        "_saved_model_arg_spec",
        "_tracked",
        "_call_signature",
        "_trainable_variables_indices",
        "_layer_checkpoint_dependencies",
        "_eval_epoch_iterator",
        "_self_unconditional_checkpoint_dependencies",
        "_self_unconditional_dependency_names",
        "_self_unconditional_deferred_dependencies",
        "_self_saveable_object_factories",
        "_self_tracked_trackables",
        "_self_update_uid",
        "_self_name_based_restores",
    ]
)


DEFERRED_ATTRIBUTES = frozenset(
    [
        "_functional",
        "_layers",
        "_metrics",
        "_trainable_variables",
        "_non_trainable_variables",
        "_seed_generators",
        "_variables",
    ]
)


def is_keras_object(value: Any) -> bool:
    """Whether ``value`` may hold Keras state: layers, models, metrics, optimizers, losses, seed generators.

    Keras marks most of them with one base class, which is not public; seed generators are not marked.
    """
    import keras
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.src.trainers.compile_utils import MetricsList

    return isinstance(value, KerasSaveable | MetricsList | keras.random.SeedGenerator)


@functools.cache
def is_training_class(cls: Any) -> bool:
    """Whether objects of a class are parts of a training program that a copy cannot stand for."""
    import keras
    import tensorflow as tf
    from keras.src.saving.keras_saveable import KerasSaveable

    parts = keras.Variable, keras.callbacks.Callback, keras.random.SeedGenerator, KerasSaveable
    return issubclass(cls, (*parts, tf.Variable, tf.Module, tf.data.Dataset, tf.data.Iterator))


def is_opaque(value: Any) -> bool:
    """Whether ``value`` is a TensorFlow object whose insides are not training state: functions, data sets."""
    import tensorflow as tf
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    return isinstance(
        value, Function | tf.data.Dataset | tf.data.Iterator | tf.distribute.Strategy | tf.Graph
    )


def is_traced_function(value: Any) -> bool:
    """Whether ``value`` is a `tf.function`; the function it traces is its public ``python_function``."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    return isinstance(value, Function)


def is_eager_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor with a value; `tf.is_tensor` is true of variables, and of symbols too."""
    from tensorflow.python.framework.ops import EagerTensor

    return isinstance(value, EagerTensor)


def is_lookup_layer(layer: Any) -> bool:
    """Whether a layer keeps a vocabulary in a table instead of in variables (StringLookup, IntegerLookup)."""
    from keras.src.layers.preprocessing.index_lookup import IndexLookup

    return isinstance(layer, IndexLookup)


def is_mutable_table(value: Any) -> bool:
    """Whether ``value`` is a lookup table whose content can change."""
    import tensorflow as tf

    return isinstance(value, tf.lookup.experimental.MutableHashTable | tf.lookup.experimental.DenseHashTable)
