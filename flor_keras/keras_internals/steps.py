"""The training data of a `fit` call, step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from flor_keras.keras_internals.models import build_optimizer, has_own_train_step, optimizer_left


class StepSource(Protocol):
    """What stands between `fit` and its data: sees iterators being created and steps being drawn."""

    def create(self, make: Callable[[], Any]) -> Any:
        """Return the data iterator Keras asks for now; ``make`` makes one as Keras would."""

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Return the steps of an epoch, given Keras's own."""


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
    def runs_ahead(self) -> bool:
        """Whether threads or processes of a PyDataset fetch batches ahead of the steps, in whatever state it is then."""
        workers, has_processes = (
            getattr(self.py_dataset, name, 0) for name in ("workers", "use_multiprocessing")
        )
        return workers > 1 or (workers > 0 and bool(has_processes))

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
    def num_steps(self) -> int | None:
        """How many steps an epoch has, None where Keras does not know."""
        count: int | None = self.owner.num_batches
        return count

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
        # What Keras or the program's code says here is no loss: of a model that is not built by it, a step is traced below.
        with contextlib.suppress(RuntimeError, NotImplementedError, ValueError), optimizer_left(model):
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
