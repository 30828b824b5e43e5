"""`flor.seed`: every random source of a program from one recorded seed."""

from __future__ import annotations

import secrets

from flor_keras import session
from flor_keras.errors import UsageError
from flor_keras.records import SEED_ARGUMENT

_LIMIT = 1 << 31


def seed(value: int | None = None) -> int:
    """Seed everything, record the seed with the run, and return it. Call it once, at the top of the program.

    Python, NumPy (`default_rng()` too) and TensorFlow follow from it, and everything can be replayed exactly, random
    ops inside a `tf.function` too. Unlike with `keras.utils.set_random_seed`, `fit` shuffles arrays differently
    each epoch.

    Args:
      value: the seed, 0 to 2³¹ - 1; drawn by chance if not given. A replay and a resumed run get the recorded one.

    Raises:
      UsageError: the value is no such number.
    """
    drawn = secrets.randbits(31) if value is None else value
    if isinstance(drawn, bool) or not isinstance(drawn, int) or not 0 <= drawn < _LIMIT:
        raise UsageError(f"flor.seed got {value!r}; expected a whole number from 0 to {_LIMIT - 1}.")
    current = session.ensure()
    current.seed = int(session.arg(SEED_ARGUMENT, drawn))
    from flor_keras.state.seeds import seed_everything

    seed_everything(current.seed)
    return current.seed
