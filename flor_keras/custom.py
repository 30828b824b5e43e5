"""The expert's way to custom loops: `flor.loop` and `flor.checkpointing`."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from flor_keras import session
from flor_keras.checkpoint.schedule import Every, asked_every
from flor_keras.errors import UsageError

T = TypeVar("T")
_PACKAGE = str(Path(__file__).parent)
_LEAVING = ("POP_TOP", "POP_ITER", "END_FOR")  # how `break` and `return` drop an iterator


def loop(
    name: str, iterable: Iterable[T], checkpoint_every: str | int | dict[str, float] = "auto"
) -> Iterator[T]:
    """Iterate, and record. The outermost loop is the run's loop and its items are epochs; one inside it has the steps.

    A replay visits the asked epochs only, and skips the inner loop of each where its steps need not be made again. State
    that changes in the loop must be named to `checkpointing` around it.

    Args:
      name: what the loop is called in tables.
      iterable: anything that can be iterated; of a `tf.data.Dataset` the order of each epoch is kept too.
      checkpoint_every: how often to checkpoint, as in `FlorKeras`; at the ends of epochs. Of the outermost loop it counts.

    Raises:
      UsageError: ``checkpoint_every`` cannot be read.
    """
    every = asked_every(checkpoint_every)
    current = session.ensure()
    main = current.main_loop
    if main is None:
        return _epochs(current, name, iterable, every)
    return _steps(main, iterable)


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


def _epochs(current: session.Session, name: str, iterable: Iterable[Any], every: Every) -> Iterator[Any]:
    from flor_keras.state.loops import LoopState

    main = current.begin_loop(name, LoopState(current.objects), every)
    try:
        main.begin(len(iterable) if isinstance(iterable, Sized) else None)
        yield from main.epochs(iterable)
    except GeneratorExit:
        if _is_left_on_purpose():
            main.end(None)
        raise
    except BaseException as error:
        main.end(error)
        raise
    else:
        main.end(None)
    finally:
        current.end_loop(main)


def _steps(main: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    """Iterate inside a main loop: the first loop of an epoch is its training, one after or inside that is like any other."""
    if main.is_left or main.is_in_block:
        yield from iterable
        return
    if not main.enters():
        return
    try:
        yield from main.steps(iterable)
    except GeneratorExit:
        if _is_left_on_purpose():
            main.leave()
        raise
    main.leave()


def _is_left_on_purpose() -> bool:
    """Whether an iterator is dropped by `break` or `return`, and not because an exception passes through the loop.

    Python closes a generator in both cases, and shows it the exception in neither. What differs is the instruction the
    program is at: the one that drops the iterator, or the one that raised.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_ours(frame) or frame.f_code.co_flags & inspect.CO_GENERATOR):
        frame = frame.f_back
    return frame is not None and dis.opname[frame.f_code.co_code[frame.f_lasti]] in _LEAVING


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)
