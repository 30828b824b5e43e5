"""Everything flor_keras uses of Keras and TensorFlow beyond their public interface, one use per function.

Each says why it is needed; all were checked on Keras 3.15.1 and TensorFlow 2.21.0, and each has a test in
``tests/keras_internals``, so that a new release breaks this package and no other. The rest of the code says
``keras_internals.NAME``, so that each private use shows where it is made.
"""

from flor_keras.keras_internals.fit import (
    FitCall,
    hook_fit,
    initial_epoch,
    pythonify_logs,
    unhook_fit,
)
from flor_keras.keras_internals.iterators import (
    deserialize_iterator,
    is_data_iterator,
    make_iterator,
    serialize_iterator,
    watch_iterators,
)
from flor_keras.keras_internals.kinds import (
    DEFERRED_ATTRIBUTES,
    SKIPPED_ATTRIBUTES,
    is_eager_tensor,
    is_keras_object,
    is_lookup_layer,
    is_mutable_table,
    is_opaque,
    is_traced_function,
    is_training_class,
)
from flor_keras.keras_internals.models import (
    build_optimizer,
    has_own_train_step,
    made_anew,
    set_trainable_flags,
    trainable_flags,
    trained_layers,
)
from flor_keras.keras_internals.pipelines import (
    has_shuffle_below_repeat,
    next_number,
    number_of,
    pipeline_random_ops,
    seeded_parts,
    seeds_of,
    source_tensors,
)
from flor_keras.keras_internals.seeds import (
    eager_random_state,
    ensure_global_seed_generator,
    global_seed,
    global_seed_generator,
    homes_of_random,
    set_eager_random_state,
)
from flor_keras.keras_internals.steps import TrainingSteps, training_steps
from flor_keras.keras_internals.traced import (
    graphs_under_way,
    is_in_tf_data,
    is_in_xla,
    live_random_ops,
    stateful_random_ops,
    step_variables,
)
from flor_keras.keras_internals.variables import (
    is_distributed,
    is_sync_on_read,
    memory_of,
    native_variable,
    native_variables,
    reader,
)

__all__ = [
    "DEFERRED_ATTRIBUTES",
    "SKIPPED_ATTRIBUTES",
    "FitCall",
    "TrainingSteps",
    "build_optimizer",
    "deserialize_iterator",
    "eager_random_state",
    "ensure_global_seed_generator",
    "global_seed",
    "global_seed_generator",
    "graphs_under_way",
    "has_own_train_step",
    "has_shuffle_below_repeat",
    "homes_of_random",
    "hook_fit",
    "initial_epoch",
    "is_data_iterator",
    "is_distributed",
    "is_eager_tensor",
    "is_in_tf_data",
    "is_in_xla",
    "is_keras_object",
    "is_lookup_layer",
    "is_mutable_table",
    "is_opaque",
    "is_sync_on_read",
    "is_traced_function",
    "is_training_class",
    "live_random_ops",
    "made_anew",
    "make_iterator",
    "memory_of",
    "native_variable",
    "native_variables",
    "next_number",
    "number_of",
    "pipeline_random_ops",
    "pythonify_logs",
    "reader",
    "seeded_parts",
    "seeds_of",
    "serialize_iterator",
    "set_eager_random_state",
    "set_trainable_flags",
    "source_tensors",
    "stateful_random_ops",
    "step_variables",
    "trainable_flags",
    "trained_layers",
    "training_steps",
    "unhook_fit",
    "watch_iterators",
]
