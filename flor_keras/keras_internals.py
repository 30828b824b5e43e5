"""Everything flor_keras uses of Keras and TensorFlow beyond their public interface, one use per function.

Each says why it is needed; all were checked on Keras 3.15.1 and TensorFlow 2.21.0, and each has a test in
``tests/test_keras_internals.py``, so that a new release breaks this file and no other.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

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


def reader(variables: Sequence[Any]) -> Callable[[], list[Any]]:
    """Return a function that reads all of ``variables``, as eager tensors that share their memory on the CPU.

    The public ``read_value`` also watches gradient tapes and adds an identity op. One op for all takes 1 ms for a thousand
    variables, which is 5 to 9 ms with an op for each; it is TensorFlow's own for compiled functions.
    """
    from tensorflow.python.eager import context, execute
    from tensorflow.python.ops.gen_resource_variable_ops import read_variable_op

    handles, dtypes = [v.handle for v in variables], [v.dtype for v in variables]
    if not handles or not all("CPU" in v.device for v in variables):
        return lambda: [
            read_variable_op(handle, dtype) for handle, dtype in zip(handles, dtypes, strict=True)
        ]
    attributes = ("N", len(handles), "dtypes", [dtype.as_datatype_enum for dtype in dtypes])

    def read() -> list[Any]:
        tensors = execute.execute(
            b"_ReadVariablesOp", len(handles), inputs=handles, attrs=attributes, ctx=context.context()
        )
        return list(tensors)

    return read


def memory_of(tensor: Any) -> Any:
    """Return an eager tensor as a NumPy array that shares its memory where that lies on the CPU.

    The public ``numpy()`` copies into fresh pages each time, which costs 10 times as much as the copy itself.
    """
    return tensor._numpy_internal()


def ensure_global_seed_generator() -> None:
    """Create the seed generator behind unseeded `keras.random` functions, so that its state can be put back."""
    from keras.src.random.seed_generator import global_seed_generator as create

    create()


def pythonify_logs(logs: Any) -> dict[str, Any]:
    """Return logs as Keras gives them to callbacks: plain numbers."""
    from keras.src.utils.python_utils import pythonify_logs as pythonify

    return dict(pythonify(logs))


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


class StepSource(Protocol):
    """What stands between `fit` and its data: sees iterators being created and steps being drawn."""

    def create(self, make: Callable[[], Any]) -> Any:
        """Return the data iterator Keras asks for now; ``make`` makes one as Keras would."""

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Return the steps of an epoch, given Keras's own."""


def has_own_train_step(model: Any) -> bool:
    """Whether a model's training step is the program's own, which may give its optimizer a part of the weights."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    return type(model).train_step is not TensorFlowTrainer.train_step


@contextmanager
def _optimizer_left(model: Any) -> Iterator[None]:
    """Keep Keras from building a model's optimizer: a training step does it in another name scope, if for all weights."""
    optimizer: Any = getattr(model, "optimizer", None)
    is_left = optimizer is not None and not optimizer.built
    if is_left:
        optimizer.built = True
    try:
        yield
    finally:
        if is_left:
            optimizer.built = False


def trainable_flags(model: Any) -> list[bool]:
    """Return which layers of a model, itself first, are trained; callbacks may freeze and unfreeze them."""
    return [bool(layer.trainable) for layer in model._flatten_layers()]


def set_trainable_flags(model: Any, flags: list[bool]) -> None:
    """Freeze and unfreeze layers as recorded; where that changes any, a compiled training step is made anew."""
    if flags == trainable_flags(model):
        return
    for layer, flag in zip(model._flatten_layers(), flags, strict=False):
        layer.trainable = flag  # a layer's flag goes to those inside of it, whose own come later
    if model.train_function is not None:
        model.make_train_function(force=True)


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Create an optimizer's slots under the names they get in a training step; the public ``build`` gives others."""
    from keras.src import backend

    with backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)


class TrainingSteps:
    """The training iterator of a `fit` call, with a `StepSource` in its way once it is armed.

    Unarmed it is Keras's own: under a strategy Keras draws a batch before training to build the model with.
    """

    def __init__(self, source: StepSource) -> None:
        self.source = source
        self.is_armed = False
        self.owner: Any = None  # Keras's TFEpochIterator

    @property
    def adapter_kind(self) -> str:
        """What `fit` was given: ``array``, ``dataset``, ``py_dataset`` or ``generator``."""
        from keras.src.trainers import data_adapters as adapters

        kinds = {
            adapters.ArrayDataAdapter: "array",
            adapters.TFDatasetAdapter: "dataset",
            adapters.PyDatasetAdapter: "py_dataset",
            adapters.GeneratorDataAdapter: "generator",
        }
        return next(
            (kind for cls, kind in kinds.items() if isinstance(self.owner.data_adapter, cls)), "other"
        )

    @property
    def py_dataset(self) -> Any:
        """The program's PyDataset, None where it has none."""
        return getattr(self.owner.data_adapter, "py_dataset", None)

    @property
    def dataset(self) -> Any:
        """The pipeline the training data come from."""
        return self.owner._distributed_dataset

    def make_iterator(self) -> Any:
        """Make a data iterator as Keras would."""
        return iter(self.owner._distributed_dataset)

    @property
    def creates_next(self) -> bool:
        """Whether Keras will ask for a new data iterator when the next epoch begins."""
        return self.owner.steps_per_epoch is None or self.owner._current_iterator is None

    @property
    def counters(self) -> dict[str, Any]:
        """Where Keras is in its data: steps drawn from the iterator, batches there are (None: unknown)."""
        return {"steps_seen": self.owner._steps_seen, "num_batches": self.owner._num_batches}

    def resume(self, counters: Mapping[str, Any], iterator: Any) -> None:
        """Put Keras where ``counters`` say, with ``iterator`` in use; None has Keras ask for a new one."""
        self.owner._steps_seen = counters["steps_seen"]
        self.owner._num_batches = counters["num_batches"]
        self.owner._current_iterator = iterator

    def build(self, model: Any, recorded: Collection[str], known: Callable[[], Collection[str]]) -> None:
        """Create the variables a training step creates, without making one and without drawing data.

        Without steps nothing else does, and Keras asks the metrics for results all the same. A model without a
        `call` of its own (a GAN) cannot be built as Keras does it; where variables are missing after that, a step is
        traced.

        Args:
          model: the model to train.
          recorded: the names of all variables there should be.
          known: returns the names there are.
        """

        batch = self.owner._distributed_dataset.element_spec
        with contextlib.suppress(RuntimeError, NotImplementedError, ValueError), _optimizer_left(model):
            model._symbolic_build(data_batch=batch)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built and model.built and not has_own_train_step(model):
            build_optimizer(optimizer, model.trainable_variables)
        if not set(recorded) <= set(known()):
            self.trace(model)

    def trace(self, model: Any) -> list[Any]:
        """Trace a training step, which creates what it creates and computes nothing; return the variables it uses."""
        import tensorflow as tf

        def step(data: Any) -> None:
            model.distribute_strategy.run(model.train_step, args=(data,))

        traced = tf.function(step).get_concrete_function(self.owner._distributed_dataset.element_spec)
        return list(traced.graph.variables)

    def construct(self, original: type, *args: Any, **kwargs: Any) -> Any:
        """Construct the iterator, as a subclass of Keras's that lets the source have its say."""
        outer = self

        class Steps(original):
            def _get_iterator(self) -> Any:
                return _Request(outer) if outer.is_armed else super()._get_iterator()

            def _enumerate_iterator(self) -> Iterator[Any]:
                steps = super()._enumerate_iterator()
                return outer.source.steps(steps) if outer.is_armed else steps

        self.owner = Steps(*args, **kwargs)
        return self.owner


class _Request:
    """What Keras calls `iter` on; the source answers."""

    def __init__(self, steps: TrainingSteps) -> None:
        self._steps = steps

    def __iter__(self) -> Any:
        return self._steps.source.create(self._steps.make_iterator)


@contextmanager
def training_steps(
    source: StepSource,
    shuffle: Callable[..., Any] | None = None,
    on_refused: Callable[[], None] = lambda: None,
) -> Iterator[TrainingSteps]:
    """Within this context, ``source`` stands between `fit` and its training data, once armed.

    `fit` constructs its training iterator first; later ones are for validation and stay as they are.

    Args:
      source: sees iterators and steps.
      shuffle: takes the place of `tf.random.shuffle` where Keras builds the pipeline that shuffles arrays.
      on_refused: called when the pipeline cannot be built with ``shuffle``; it is then built as Keras does.
    """
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    original, original_shuffle = trainer.TFEpochIterator, tf.random.shuffle
    steps = TrainingSteps(source)

    def construct(*args: Any, **kwargs: Any) -> Any:
        trainer.TFEpochIterator = original
        if shuffle is None:
            return steps.construct(original, *args, **kwargs)
        tf.random.shuffle = shuffle
        try:
            return steps.construct(original, *args, **kwargs)
        except Exception:  # noqa: BLE001 - ours, or the program's: then Keras's own way raises it again
            tf.random.shuffle = original_shuffle
            on_refused()
            return steps.construct(original, *args, **kwargs)
        finally:
            tf.random.shuffle = original_shuffle

    trainer.TFEpochIterator = construct
    try:
        yield steps
    finally:
        trainer.TFEpochIterator = original


_STATEFUL_RANDOM = frozenset(
    [
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "RandomShuffle",
        "Multinomial",
        "RandomGamma",
        "RandomGammaGrad",
        "RandomPoisson",
        "RandomPoissonV2",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
    ]
)


def stateful_random_ops(model: Any) -> list[str]:
    """Return the random ops of a traced training step whose state lies in a kernel, as ``op (file:line)``.

    Such state can be neither read nor put back. Graphs are searched through the functions they call.
    """
    traced = [
        f for function in _traceable(model.train_function) for f in function._list_all_concrete_functions()
    ]
    todo, seen, found = [function.graph for function in traced], set(), []
    while todo:
        graph = todo.pop()
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        for op in graph.get_operations():
            if op.type in _STATEFUL_RANDOM:
                found.append(f"{op.type} ({_place_of(op)})")
        todo += [f.graph for f in getattr(graph, "_functions", {}).values() if getattr(f, "graph", None)]
    return sorted(set(found))


def pipeline_random_ops(dataset: Any) -> list[tuple[str, bool]]:
    """Return the random ops inside a `tf.data` pipeline, and whether each draws in parallel, in no fixed order."""
    found, todo, seen = set(), [dataset], set()
    while todo:
        source = todo.pop()
        if id(source) in seen:
            continue
        seen.add(id(source))
        todo += source._inputs() if hasattr(source, "_inputs") else []
        is_parallel = "Parallel" in type(source).__name__
        for wrapper in source._functions() if hasattr(source, "_functions") else []:
            graph = getattr(getattr(wrapper, "function", None), "graph", None)
            for op in graph.get_operations() if graph is not None else []:
                if op.type in _STATEFUL_RANDOM and (is_parallel or not _is_seeded(op)):
                    found.add((f"{op.type} ({_place_of(op)})", is_parallel))
    return sorted(found)


def _is_seeded(op: Any) -> bool:
    """Whether a random op has a seed, of its own or the global one when it was made."""
    return bool(op.get_attr("seed") or op.get_attr("seed2"))


def step_variables(model: Any) -> list[Any]:
    """Return the variables a traced training step uses, in the order it uses them first."""
    traced = [
        f for function in _traceable(model.train_function) for f in function._list_all_concrete_functions()
    ]
    return list({id(v): v for function in traced for v in function.graph.variables}.values())


def _place_of(op: Any) -> str:
    """Return the line of the program that made an op: the innermost frame outside of installed packages."""
    frames = [frame for frame in op.traceback or () if "site-packages" not in frame.filename]
    ours = [frame for frame in frames if "flor_keras" not in frame.filename.replace("\\", "/").split("/")]
    return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else op.name


def _traceable(function: Any) -> list[Any]:
    """Return the `tf.function` objects a training function is made of: it is a closure over them."""
    todo, seen, found = [function], set(), []
    while todo:
        current = todo.pop()
        if id(current) in seen or current is None:
            continue
        seen.add(id(current))
        if hasattr(current, "_list_all_concrete_functions"):
            found.append(current)
            todo.append(current.python_function)
        for cell in getattr(current, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                if callable(cell.cell_contents):
                    todo.append(cell.cell_contents)
    return found


def source_tensors(dataset: Any) -> list[Any]:
    """Return the tensors a `tf.data` pipeline was made from (`from_tensor_slices`); none where it reads elsewhere."""
    found, todo = [], [dataset]
    while todo:
        source = todo.pop()
        found += [t for t in getattr(source, "_tensors", None) or [] if hasattr(t, "_numpy_internal")]
        todo += source._inputs() if hasattr(source, "_inputs") else []
    return found


def has_shuffle_below_repeat(dataset: Any) -> bool:
    """Whether a pipeline repeats what it shuffles: its fresh iterator then does not know the shuffle's seeds yet."""
    name = type(dataset).__name__
    inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
    if "Repeat" in name:
        return any(_has(source, "Shuffle") for source in inputs)
    return any(has_shuffle_below_repeat(source) for source in inputs)


def _has(dataset: Any, word: str) -> bool:
    inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
    return word in type(dataset).__name__ or any(_has(source, word) for source in inputs)


def homes_of_random(name: str) -> list[tuple[Any, str]]:
    """Return the modules, and the attribute there, where a function of `tf.random` is looked up.

    `tf.nn.dropout`, `tf.image.random_…` and initializers take it from the module that defines it.
    """
    import tensorflow as tf
    from tensorflow.python.ops import random_ops

    inner = {"categorical": name, "shuffle": "random_shuffle", "truncated_normal": name}.get(
        name, f"random_{name}"
    )
    return [(tf.random, name), (random_ops, inner)]


def is_in_tf_data() -> bool:
    """Whether the code that runs is being traced for a `tf.data` transformation, which names its graphs after it."""
    import tensorflow as tf

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith("Dataset_"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def eager_random() -> Any:
    """Return TensorFlow's eager context, which holds the global seed and the state behind unseeded eager ops."""
    from tensorflow.python.eager import context

    return context.context()


def global_seed() -> int | None:
    """Return the seed `tf.random.set_seed` was given, None if it was not called."""
    seed: int | None = eager_random()._seed
    return seed


def eager_random_state() -> Any:
    """Return the state of the generator of eager op seeds, None without a global seed."""
    generator = getattr(eager_random(), "_rng", None)
    return generator.getstate() if generator is not None and global_seed() is not None else None


def set_eager_random_state(state: Any) -> None:
    """Put back what `eager_random_state` returned."""
    generator = getattr(eager_random(), "_rng", None)
    if generator is not None and state is not None:
        generator.setstate(state)


def serialize_iterator(iterator: Any) -> bytes:
    """Return the state of a `tf.data` iterator; state outside of it (tables, Python) is left out.

    The public way writes a checkpoint file and refuses pipelines with such state.
    """
    import tensorflow as tf
    from tensorflow.python.ops import gen_dataset_ops

    ignore = tf.data.experimental.ExternalStatePolicy.IGNORE.value
    state = gen_dataset_ops.serialize_iterator(iterator._iterator_resource, external_state_policy=ignore)
    return bytes(
        tf.io.serialize_tensor(state).numpy()
    )  # part by part, a shuffle buffer of 256 takes 20 times as long


def is_data_iterator(value: Any) -> bool:
    """Whether ``value`` is an iterator of `tf.data` whose state can be read and put back."""
    return hasattr(value, "_iterator_resource")


_iterator_watch: list[Callable[[Any, Callable[[], Any]], Any]] = []


def watch_iterators(watch: Callable[[Any, Callable[[], Any]], Any] | None) -> None:
    """Have ``watch`` called with each data set that is iterated, and with what makes an iterator; None ends it.

    ``for x, y in enumerate(dataset)`` and the like hand the data set on to Python, so nothing public sees its iterator.
    """
    import tensorflow as tf

    _iterator_watch[:] = [] if watch is None else [watch]
    original = tf.data.Dataset.__iter__
    if getattr(original, "_is_watched", False):
        return

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        if not _iterator_watch or not tf.executing_eagerly():
            return original(self)
        return _iterator_watch[0](self, lambda: original(self))

    iterate._is_watched = True  # type: ignore[attr-defined]
    tf.data.Dataset.__iter__ = iterate


def deserialize_iterator(iterator: Any, state: bytes) -> None:
    """Give a `tf.data` iterator the state of another one of the same pipeline."""
    import tensorflow as tf
    from tensorflow.python.ops import gen_dataset_ops

    gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, tf.io.parse_tensor(state, tf.variant))
