"""Iterators of `tf.data`: seen when they are made, their state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def is_data_iterator(value: Any) -> bool:
    """Whether ``value`` is an iterator of `tf.data` whose state can be read and put back."""
    return hasattr(value, "_iterator_resource")


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


def make_iterator(dataset: Any) -> Any:
    """Make an iterator of a data set that `watch_iterators` does not see."""
    import tensorflow as tf

    iterate = tf.data.Dataset.__iter__
    return getattr(iterate, "__wrapped__", iterate)(dataset)


def deserialize_iterator(iterator: Any, state: bytes) -> None:
    """Give a `tf.data` iterator the state of another one of the same pipeline."""
    import tensorflow as tf
    from tensorflow.python.ops import gen_dataset_ops

    gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, tf.io.parse_tensor(state, tf.variant))


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
