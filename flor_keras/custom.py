"""The expert's way to custom loops: `flor.loop` and `flor.checkpointing`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from flor_keras import session
from flor_keras.errors import UsageError

T = TypeVar("T")


def loop(name: str, iterable: Iterable[T]) -> Iterator[T]:
    """Iterate, and record. The outermost loop is the run's loop and its items are epochs; one inside it has the steps.

    A replay visits the asked epochs only, and skips the inner loop of each where its steps need not be made again. State
    that changes in the loop must be named to `checkpointing` around it.

    Args:
      name: what the loop is called in tables.
      iterable: anything that can be iterated; of a `tf.data.Dataset` the order of each epoch is kept too.
    """
    return session.ensure().loop(name, iterable)


def checkpointing(**objects: Any) -> AbstractContextManager[None]:
    """Name the objects whose state the loops in this context change.

    Keras models, optimizers, metrics and layers, `tf.Variable`, `tf.Module` and `tf.random.Generator` are kept natively;
    anything else is pickled and restored in place.

    Raises:
      UsageError: an object that cannot change, such as a number, was named.
    """
    for name, value in objects.items():
        if isinstance(value, str | bytes | int | float | tuple | type(None)):
            raise UsageError(
                f"checkpointing got {name}={value!r}, which cannot be restored in place. Put it into a list, a dict or an "
                f"object that the loop changes, and name that."
            )
    return session.ensure().checkpointing(objects)
