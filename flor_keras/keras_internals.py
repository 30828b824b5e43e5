"""Everything flor_keras uses of Keras and TensorFlow beyond their public interface, one use per function.

Each says why it is needed; all were checked on Keras 3.15.1 and TensorFlow 2.21.0, and each has a test in
``tests/test_keras_internals.py``, so that a new release breaks this file and no other.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Attributes of Keras objects that lead to state found elsewhere, to the object graph's own plumbing or to
# compiled functions. The deferred ones repeat what attributes with speaking names hold; they are looked at last.
SKIPPED_ATTRIBUTES = frozenset(
    "_tracker token_counts lookup_table _inbound_nodes _outbound_nodes _nodes _nodes_by_depth _operations _operations_by_depth _inputs"
    " _outputs _inputs_struct _outputs_struct train_function test_function predict_function history"
    " _distribute_strategy _saved_model_inputs_spec _saved_model_arg_spec _tracked _call_signature"
    " _trainable_variables_indices _layer_checkpoint_dependencies _eval_epoch_iterator"
    " _self_unconditional_checkpoint_dependencies _self_unconditional_dependency_names"
    " _self_unconditional_deferred_dependencies _self_saveable_object_factories _self_tracked_trackables"
    " _self_update_uid _self_name_based_restores".split()
)
DEFERRED_ATTRIBUTES = frozenset(
    "_functional _layers _metrics _trainable_variables _non_trainable_variables _seed_generators _variables".split()
)


def is_keras_object(value: Any) -> bool:
    """Whether ``value`` may hold Keras state: layers, models, metrics, optimizers, losses, seed generators.

    Keras marks most of them with one base class, which is not public; seed generators are not marked.
    """
    import keras
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.src.trainers.compile_utils import MetricsList

    return isinstance(value, KerasSaveable | MetricsList | keras.random.SeedGenerator)


def is_opaque(value: Any) -> bool:
    """Whether ``value`` is a TensorFlow object whose insides are not training state: functions, data sets."""
    import tensorflow as tf
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    return isinstance(value, Function | tf.data.Dataset | tf.data.Iterator | tf.distribute.Strategy | tf.Graph)


def native_variable(variable: Any) -> Any:
    """Return the `tf.Variable` under a Keras variable, None before it has a value.

    The public ``value`` reads through autocasting and stateless scopes; the variable itself is needed here.
    """
    return variable._value


def is_distributed(variable: Any) -> bool:
    """Whether a `tf.Variable` stands for one variable per replica of a `tf.distribute` strategy."""
    from tensorflow.python.distribute.values import DistributedVariable

    return isinstance(variable, DistributedVariable)


def is_sync_on_read(variable: Any) -> bool:
    """Whether each replica holds a value of its own (metrics under a strategy)."""
    from tensorflow.python.distribute.values import SyncOnReadVariable

    return isinstance(variable, SyncOnReadVariable)


def is_lookup_layer(layer: Any) -> bool:
    """Whether a layer keeps a vocabulary in a table instead of in variables (StringLookup, IntegerLookup)."""
    from keras.src.layers.preprocessing.index_lookup import IndexLookup

    return isinstance(layer, IndexLookup)


def is_mutable_table(value: Any) -> bool:
    """Whether ``value`` is a lookup table whose content can change."""
    import tensorflow as tf

    return isinstance(value, tf.lookup.experimental.MutableHashTable | tf.lookup.experimental.DenseHashTable)


def global_seed_generator() -> Any | None:
    """Return the seed generator behind unseeded `keras.random` functions, None while nothing has used it."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    return global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)


def memory_of(tensor: Any) -> Any:
    """Return an eager tensor as a NumPy array that shares its memory where that lies on the CPU.

    The public ``numpy()`` copies into fresh pages each time, which costs 10 times as much as the copy itself.
    """
    return tensor._numpy_internal()


class FitCall:
    """A call of `Model.fit` that has not been made yet. ``arguments`` may be changed before it is."""

    def __init__(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> None:
        self._original = original
        self._bound = bound
        self.arguments: dict[str, Any] = bound.arguments
        self.model: Any = bound.arguments["self"]

    def make(self) -> Any:
        """Make the call and return its History."""
        return self._original(*self._bound.args, **self._bound.kwargs)


FitHook = Callable[[FitCall], Any]
_fit_hooks: list[FitHook] = []


def hook_fit(hook: FitHook) -> None:
    """Have ``hook`` called with each `Model.fit` call, in place of it.

    A callback alone cannot see the state after `fit` returned, nor choose its place among the other callbacks.
    Replacing the method is too late for ``model.fit(…, callbacks=[FlorKeras()])``: Python looks the method up before it
    makes the argument. So the function inside Keras's traceback filter is replaced, which that method calls.
    """
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    _fit_hooks[:] = [hook]
    filtered = TensorFlowTrainer.fit
    cell = dict(zip(filtered.__code__.co_freevars, filtered.__closure__, strict=True))["fn"]
    original = cell.cell_contents
    if getattr(original, "_is_hooked", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _fit_hooks:
            return original(self, *args, **kwargs)
        return _fit_hooks[0](FitCall(original, signature.bind(self, *args, **kwargs)))

    fit._is_hooked = True  # type: ignore[attr-defined]
    cell.cell_contents = fit


def initial_epoch(model: Any) -> int | None:
    """Return the epoch a callback (BackupAndRestore) told `fit` to go on from, None if none did."""
    epoch = getattr(model, "_initial_epoch", None)
    return epoch if isinstance(epoch, int) else None


def unhook_fit() -> None:
    """Let `Model.fit` be Keras's own again."""
    _fit_hooks.clear()


class TrainingSteps:
    """The training iterator of a `fit` call, in our hands."""

    def __init__(self, enumerate_steps: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._enumerate_steps = enumerate_steps
        self._is_armed = False
        self._iterator: Any = None

    def arm(self) -> None:
        """From here on `fit` gets our steps; before, Keras draws batches of its own to build the model with."""
        self._is_armed = True

    def build(self, model: Any) -> None:
        """Create the variables of model, metrics and optimizer as the first step would, without making one.

        Without steps nothing else does, and Keras asks the metrics for results all the same. A model without a
        `call` of its own (a GAN) cannot be built this way; `trace` can.
        """
        with contextlib.suppress(RuntimeError, NotImplementedError, ValueError):
            model._symbolic_build(iterator=self._iterator)
        self._iterator.reset()

    def trace(self, model: Any) -> None:
        """Create every variable a training step creates, by tracing one; nothing is computed."""
        import tensorflow as tf

        def step(iterator: Any) -> None:
            model.distribute_strategy.run(model.train_step, args=(next(iterator),))

        tf.function(step).get_concrete_function(iter(self._iterator._distributed_dataset))

    def construct(self, original: type, *args: Any, **kwargs: Any) -> Any:
        """Construct the iterator, as a subclass of Keras's that asks for our steps."""
        outer = self

        class Steps(original):  # type: ignore[misc,valid-type]
            def _enumerate_iterator(self) -> Iterator[Any]:
                steps = super()._enumerate_iterator()
                return outer._enumerate_steps(steps) if outer._is_armed else steps

        self._iterator = Steps(*args, **kwargs)
        return self._iterator


@contextmanager
def training_steps(enumerate_steps: Callable[[Iterator[Any]], Iterator[Any]]) -> Iterator[TrainingSteps]:
    """Within this context, `fit` takes its training steps from ``enumerate_steps(keras's own steps)``, once armed.

    `fit` constructs its training iterator first; later ones are for validation and stay as they are.
    """
    from keras.src.backend.tensorflow import trainer

    original = trainer.TFEpochIterator
    steps = TrainingSteps(enumerate_steps)

    def construct(*args: Any, **kwargs: Any) -> Any:
        trainer.TFEpochIterator = original
        return steps.construct(original, *args, **kwargs)

    trainer.TFEpochIterator = construct
    try:
        yield steps
    finally:
        trainer.TFEpochIterator = original
