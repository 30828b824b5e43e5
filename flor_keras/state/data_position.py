"""Where a `fit` call stands in its training data, and how another process gets to the same place.

Each kind of data has its own way:

- arrays: Keras draws the order of an epoch inside the pipeline. With a seed (`tf.random.set_seed`) the order is the
  same in every process, and stays as Keras makes it. Without one it could never be had again, so it is drawn from a
  recorded seed and the number of the iterator instead, which has the same distribution.
- `tf.data`: the state of the epoch's fresh iterator, before its first element, is small and holds every seed; what
  was drawn since is drawn again.
- PyDataset: its attributes, as far as they change during training.
- generators: what was drawn is drawn again.

Inside an epoch it is the place where the epoch began, and how many batches were drawn since: they are drawn again and no
step is made with them. An epoch that begins without a checkpoint leaves the state of its `tf.data` iterator to the next one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flor_keras import keras_internals
from flor_keras.state.fingerprints import fingerprint
from flor_keras.state.random import capture_random, is_same_random, restore_random
from flor_keras.state.restore import read_python

_WHY_RANDOM = (
    "the data generator draws from the random state of NumPy or Python that the rest of the program has too, "
    "ahead of training; give it a generator of its own: np.random.default_rng(seed)"
)
_LARGE_STATE_BYTES = 16 << 20
_BATCH_STRIDE = (
    1 << 20
)  # tells the batches of one iterator (shuffle="batch") from the orders of the next ones


class OrderSeed:
    """Shuffles arrays from a seed and the number of the iterator, both of which can be recorded."""

    def __init__(self, seed: int) -> None:
        import tensorflow as tf

        self.seed = seed
        self._variable = tf.Variable(self._value(0), trainable=False, dtype=tf.int64)

    def _value(self, number: int) -> list[int]:
        return [self.seed, number]

    def set_number(self, number: int) -> None:
        """The next order drawn is that of iterator ``number``."""
        self._variable.assign(self._value(number))

    def shuffle(self, indices: Any) -> Any:
        """Stand in for `tf.random.shuffle` in Keras's pipeline for arrays; the batches of one epoch differ too."""
        import tensorflow as tf

        batch = tf.cast(indices[0], tf.int64) * _BATCH_STRIDE
        seed = self._variable + tf.stack([tf.constant(0, tf.int64), batch])
        return tf.random.experimental.stateless_shuffle(indices, seed)


def _why_random(dataset: Any, is_unseeded: bool) -> str | None:
    """Return why random ops inside a pipeline draw other values in another process, None if they do not."""
    for op, is_parallel in keras_internals.pipeline_random_ops(dataset):
        if is_parallel:
            return f"{op} draws in a parallel map, in no fixed order"
        if is_unseeded:
            return f"{op} draws without a seed inside the data pipeline; call flor.seed() or seed it"
    return None


@dataclass(frozen=True)
class _Within:
    """A place inside of an epoch that is to be gone to: what is drawn, and the states on both sides of it."""

    step: int
    num_missing: int
    attributes: Mapping[str, Any]
    random_before: Mapping[str, Any] | None
    random: Mapping[str, Any]


class DataSource:
    """Stands between `fit` and its data: counts, and makes the next iterator early enough to keep its state.

    Attributes:
      is_kept_within: places inside of epochs are asked for.
      on_boundary: called between two steps with how many were made at once, and how many of the epoch are done.
      orders: the recorded states of fresh `tf.data` iterators, by the number of the iterator.
    """

    def __init__(self, order: OrderSeed | None) -> None:
        self.order = order
        self.training: keras_internals.TrainingSteps | None = None
        self.why_inexact: str | None = None
        self.why_random: str | None = None  # why the random states may not be those of the record
        self._why_lasting: str | None = None
        self._created = 0
        self._consumed = 0
        self._total = 0
        self._fresh: bytes | None = None
        self._ready: Any = None
        self._current: Any = None
        self._is_midway_large = False
        self._baseline: dict[str, str | None] | None = None
        self.is_kept_within = False
        self.on_boundary: Callable[[int, int], None] | None = None
        self.orders: Mapping[int, bytes] = {}
        self._begun: dict[str, Any] = {}
        self._random_begun: Mapping[str, Any] | None = None
        self._passed: dict[int, bytes] = {}
        self._within: _Within | None = None

    # -- between fit and its data ------------------------------------------------------------------------------

    def leave_order(self) -> None:
        """Leave the order of arrays to Keras, whose pipeline would not take ours; it can then not be had again."""
        self.order = None
        self._why_lasting = self.why_inexact = (
            "the order of the arrays could not be drawn from a recorded seed"
        )

    def create(self, make: Callable[[], Any]) -> Any:
        """Return the iterator Keras asks for: the one made early, else a new one."""
        if self._ready is not None:
            iterator, self._ready = self._ready, None
            return iterator
        return self._new(make)

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Count the batches drawn; those before the place to go to are drawn and not given."""
        first = 0
        for begin, end, iterator in steps:
            count = end - begin + 1
            if begin == 0:
                first = 0 if self._within is None else self._within.step
                self._begin_epoch(iterator, count)
            if begin < first:
                continue
            self._consumed += count
            self._total += count
            yield begin, end, iterator
            if self.on_boundary is not None:
                self.on_boundary(count, end + 1)

    def _begin_epoch(self, iterator: Any, count: int) -> None:
        """Keras has made the epoch's iterator, and nothing was drawn from it in this epoch."""
        training = self.training
        assert training is not None
        if self._within is not None:
            self._go_within(self._within)
        is_unseeded = training.adapter_kind == "dataset" and keras_internals.global_seed() is None
        if is_unseeded and self._fresh is not None and not self._consumed:
            self._passed[self._created] = self._fresh
        if self.is_kept_within:
            counters = training.counters
            counters["steps_seen"] -= count
            self._random_begun = None if training.adapter_kind == "array" else capture_random()
            self._begun = {
                **self._place(training, self._created, self._consumed, self._fresh),
                "is_new": training.creates_next,
                "counters": counters,
                "attributes": copy.deepcopy(self._changed_attributes(training.py_dataset)),
            }
        if self._within is not None:
            within, self._within = self._within, None
            self._draw(within, iterator)

    def _go_within(self, within: _Within) -> None:
        """Undo what the beginning of the epoch changed: Keras lets a PyDataset begin it once more."""
        assert self.training is not None
        for name, value in within.attributes.items():
            setattr(self.training.py_dataset, name, value)
        if within.random_before is not None:
            restore_random(within.random_before)

    def _draw(self, within: _Within, iterator: Any) -> None:
        """Draw what was drawn before a place; see `resume` for random states."""
        before = capture_random()
        for _ in range(within.num_missing):
            next(iterator)
        self._consumed += within.num_missing
        self._total += within.num_missing
        if is_same_random(before, capture_random()):
            restore_random(within.random)
        else:
            self.why_random = _WHY_RANDOM

    def _new(self, make: Callable[[], Any]) -> Any:
        self._created += 1
        self._consumed = 0
        if self.order is not None and self.training is not None and self.training.adapter_kind == "array":
            self.order.set_number(self._created)
        self._current = make()
        if (state := self.orders.get(self._created)) is not None:
            keras_internals.deserialize_iterator(self._current, state)
        self._fresh = state or self._serialized(self._current)
        return self._current

    def _serialized(self, iterator: Any) -> bytes | None:
        assert self.training is not None
        if self.training.adapter_kind != "dataset":
            return None
        try:
            return keras_internals.serialize_iterator(iterator)
        except Exception as error:  # noqa: BLE001 - any pipeline can refuse in its own way
            self._why_lasting = f"the data pipeline's state cannot be saved ({str(error).splitlines()[0]})"
            return None

    # -- positions ---------------------------------------------------------------------------------------------

    def position(self, goes_on: bool) -> dict[str, Any]:
        """Return where the data stand between two epochs.

        Args:
          goes_on: another epoch follows. Its iterator is then made here and now, a moment before Keras would,
            unless nothing of it has to be kept.
        """
        training = self.training
        assert training is not None
        makes_next = goes_on and training.creates_next
        created = self._created
        if makes_next and training.adapter_kind == "array":
            created, self._consumed = created + 1, 0  # its number is all there is to know about the next one
        elif makes_next and self._ready is None:
            self._ready = self._new(training.make_iterator)
            created = self._created
        state, consumed = self._fresh, self._consumed
        self._note_repeat(training)
        if not makes_next and consumed and (midway := self._midway()) is not None:
            state, consumed = midway, 0
        return {
            **self._place(training, created, consumed, state),
            "is_new": makes_next,
            "counters": training.counters,
            "attributes": self._changed_attributes(training.py_dataset),
        }

    def _place(
        self, training: keras_internals.TrainingSteps, created: int, consumed: int, state: bytes | None
    ) -> dict[str, Any]:
        return {
            "kind": training.adapter_kind,
            "order_seed": None if self.order is None else self.order.seed,
            "created": created,
            "consumed": consumed,
            "total": self._total,
            "state": None if state is None else _as_array(state),
        }

    def position_within(self, step: int) -> dict[str, Any]:
        """Return where the data stand inside an epoch of which ``step`` steps are done."""
        assert self.training is not None
        begun, num_missing = self._begun, self._consumed - self._begun["consumed"]
        is_repeated = bool(begun["consumed"]) or keras_internals.has_shuffle_below_repeat(
            self.training.dataset
        )
        self._note_repeat(self.training)
        if is_repeated and (midway := self._midway()) is not None:
            begun = {**begun, "state": _as_array(midway), "consumed": 0, "total": self._total}
            num_missing = 0
        return {"begun": begun, "random": self._random_begun, "step": step, "num_missing": num_missing}

    def take_passed(self) -> dict[int, bytes]:
        """Return the states of the fresh iterators of epochs since the last call, by the number of the iterator."""
        passed, self._passed = self._passed, {}
        return passed

    def resume_within(self, position: Mapping[str, Any], random: Mapping[str, Any]) -> None:
        """Go to a recorded place inside of an epoch, which comes next; the batches before it are drawn when it begins."""
        begun = position["begun"]
        attributes = copy.deepcopy(
            begun["attributes"]
        )  # Keras's beginning of the epoch may change the others
        self.resume(begun, position["random"] or random)
        self._within = _Within(
            position["step"], position["num_missing"], attributes, position["random"], random
        )

    def resume(self, position: Mapping[str, Any], random: Mapping[str, Any]) -> None:
        """Go to a recorded position and random states; the next epoch then draws what it drew when it was recorded.

        The states come first, since the program's code in a pipeline may draw from them as soon as there is an iterator.
        Where such code has to draw again what it drew before, it brings them along; a thread of TensorFlow runs it some
        batches ahead of training, and the recorded states were those ahead of another number of batches.
        """
        training = self.training
        assert training is not None
        is_at_once = not position["consumed"] and not (position["kind"] == "generator" and self._total)
        before = capture_random()
        if is_at_once:
            restore_random(random)
        iterator = self._iterator_at(training, position)
        if not is_at_once and is_same_random(before, capture_random()):
            restore_random(random)
        elif not is_at_once:
            self.why_random = _WHY_RANDOM
        if position["is_new"]:
            self._ready = iterator
            training.resume(position["counters"], None)
        else:
            self._ready = None
            training.resume(position["counters"], iterator)
        for name, value in position["attributes"].items():
            setattr(training.py_dataset, name, value)

    def _iterator_at(self, training: keras_internals.TrainingSteps, position: Mapping[str, Any]) -> Any:
        if position["kind"] == "generator" and self._ready is None and self._total:
            # the one generator there is goes on from where this process has brought it
            iterator, missing = self._current, position["total"] - self._total
        else:
            while (
                position["kind"] == "dataset"
                and position["state"] is None
                and self._created < position["created"] - 1
            ):
                self._new(training.make_iterator)  # seeds inside the pipeline advance with every iterator
            self._created = position["created"] - 1
            iterator, missing = self._new(training.make_iterator), position["consumed"]
            if position["state"] is not None:
                self._fresh = _as_bytes(position["state"])
                keras_internals.deserialize_iterator(iterator, self._fresh)
        for _ in range(missing):
            next(iterator)
        self._current = iterator
        self._created, self._consumed, self._total = (
            position["created"],
            position["consumed"],
            position["total"],
        )
        return iterator

    def _note_repeat(self, training: keras_internals.TrainingSteps) -> None:
        """The orders an unseeded shuffle draws when it is repeated cannot be had again: note that, until the next position."""
        is_unseeded = training.adapter_kind == "dataset" and keras_internals.global_seed() is None
        self.why_inexact = self._why_lasting
        if training.adapter_kind == "dataset" and self._why_lasting is None:
            self._why_lasting = self.why_inexact = _why_random(training.dataset, is_unseeded)
        if is_unseeded and keras_internals.has_shuffle_below_repeat(training.dataset):
            self.why_inexact = "the pipeline repeats an unseeded shuffle, whose next order is lost; call flor.seed() or seed it"

    def _midway(self) -> bytes | None:
        """Return the state of an iterator that goes on across epochs, None where it is not needed or too large.

        Its fresh state does not hold the seeds of a `shuffle` below a `repeat`, which are drawn with the first element.
        With a seed they follow from that; without, the state holds the shuffle buffer, and is kept if that is small.
        """
        assert self.training is not None
        is_needed = self.training.adapter_kind == "dataset" and keras_internals.global_seed() is None
        if not is_needed or self._is_midway_large:
            return None
        state = self._serialized(self._current)
        self._is_midway_large = state is not None and len(state) > _LARGE_STATE_BYTES
        if self._is_midway_large:
            self._why_lasting = "the shuffle buffer of the data pipeline is too large to keep; call flor.seed() or seed the shuffle"
            return None
        return state

    def _changed_attributes(self, dataset: Any) -> dict[str, Any]:
        """Return what of a PyDataset differs from how it was at first; nothing the first time."""
        if dataset is None:
            return {}
        prints = {name: fingerprint(value) for name, value in vars(dataset).items()}
        baseline = self._baseline = self._baseline or prints
        changed = [name for name, p in prints.items() if p is not None and baseline.get(name) != p]
        return {name: getattr(dataset, name) for name in changed}


def _as_array(state: bytes) -> tuple[int, np.ndarray]:
    """Return a pipeline's state as an array, which goes where tensors go, and not through the pickle to the worker.

    Its length differs from epoch to epoch; that of the array hardly does, so that the snapshot keeps its layout.
    """
    array = np.zeros(1 << (len(state) - 1).bit_length(), np.uint8)
    array[: len(state)] = np.frombuffer(state, np.uint8)
    return len(state), array


def _as_bytes(state: tuple[int, np.ndarray]) -> bytes:
    num_bytes, array = state
    return array[:num_bytes].tobytes()


def recorded_order(folder: Path) -> OrderSeed | None:
    """Return what a recorded loop shuffled its arrays from."""
    data = read_python(folder)["data"]
    data = data and data.get("begun", data)
    return OrderSeed(data["order_seed"]) if data and data["order_seed"] is not None else None
