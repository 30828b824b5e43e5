"""Every random source of a process from one seed, in such a way that checkpoints can hold and replays put back its state.

Seeding alone leaves three things open, which are seen to here:

- `numpy.random.default_rng()` without a seed draws one from the system; it gets one that follows from ours.
- With `tf.random.set_seed` Keras shuffles arrays into the *same* order every epoch; see `data_position`.
- `tf.random.normal` and the like inside a `tf.function` count in a kernel, where the count can be neither read nor
  put back. They draw from a `tf.random.Generator` instead, whose state is a variable. Not inside `tf.data`: there a
  kernel lives as long as its iterator, and one generator for all would be a race between prefetching and training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flor_keras import keras_internals

_generator: Any = None
_followed: int | None = None  # a seed whose generator is made when it is first needed
_num_default_rngs = 0


def generator() -> Any:
    """Return the generator behind `tf.random`, None unless `seed_everything` or `follow` was called."""
    global _generator
    if _generator is None and _followed is not None:
        import tensorflow as tf

        with tf.init_scope():
            _generator = tf.random.Generator.from_seed(_followed, alg="philox")
    return _generator


def follow(value: int, on_release: Callable[[], None]) -> None:
    """Seed TensorFlow for a program that may not do so itself; once it does, its own seed holds.

    TensorFlow is not started, so that the program can still configure its devices. The seed of Keras is left alone: it
    follows from Python's random state, which the program may have seeded.

    Args:
      value: the seed.
      on_release: called when the program sets a seed of its own.
    """
    global _followed
    import tensorflow as tf

    original = tf.random.set_seed

    @functools.wraps(original)
    def set_seed(seed: Any) -> None:
        if _followed is not None:
            _release()
            on_release()
        original(seed)

    original(value)
    _followed = value
    _patch_tensorflow()
    tf.random.set_seed = set_seed


def _release() -> None:
    """Let the functions of `tf.random` be TensorFlow's own again."""
    global _generator, _followed
    _generator = _followed = None


def follow_numpy(value: int) -> None:
    """Have `numpy.random.default_rng()` without a seed follow from one."""
    _patch_default_rng(value)


def seed_everything(value: int) -> None:
    """Seed Python, NumPy, TensorFlow and what comes of them."""
    global _generator, _followed, _num_default_rngs
    import keras
    import tensorflow as tf

    _followed = None  # this is no seed of the program's own that would have to be told of
    keras.utils.set_random_seed(value)  # Python, NumPy and TensorFlow
    if _generator is None:
        _patch_default_rng(value)
        _patch_tensorflow()
    _num_default_rngs = 0
    _generator = tf.random.Generator.from_seed(value, alg="philox")


def _patch_default_rng(value: int) -> None:
    import numpy as np

    original = np.random.default_rng

    @functools.wraps(original)
    def default_rng(seed: Any = None) -> Any:
        global _num_default_rngs
        if seed is None:
            _num_default_rngs += 1
            seed = np.random.SeedSequence(value, spawn_key=(_num_default_rngs,))
        return original(seed)

    np.random.default_rng = default_rng


def _patch_tensorflow() -> None:
    """Have the random functions of `tf.random` draw from the generator; those given a seed of their own too."""
    import tensorflow as tf

    random = tf.random
    stateless: dict[str, Callable[..., Any]] = {
        "normal": _shaped(random.stateless_normal, ("mean", "stddev", "dtype")),
        "truncated_normal": _shaped(random.stateless_truncated_normal, ("mean", "stddev", "dtype")),
        "uniform": _shaped(random.stateless_uniform, ("minval", "maxval", "dtype")),
        "shuffle": _shuffle,
        "categorical": _categorical,
    }
    for name, drawn in stateless.items():
        for module, attribute in keras_internals.homes_of_random(name):
            setattr(module, attribute, _either(getattr(module, attribute), drawn))


def _either(original: Callable[..., Any], drawn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        is_original = generator() is None or keras_internals.is_in_tf_data()
        return original(*args, **kwargs) if is_original else drawn(*args, **kwargs)

    return function


def _shaped(stateless: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    def function(shape: Any, *args: Any, seed: Any = None, name: Any = None, **kwargs: Any) -> Any:
        return stateless(shape, _next_seed(), **dict(zip(names, args, strict=False)), **kwargs)

    return function


def _shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
    import tensorflow as tf

    return tf.random.experimental.stateless_shuffle(value, _next_seed())


def _categorical(logits: Any, num_samples: Any, dtype: Any = None, seed: Any = None, name: Any = None) -> Any:
    import tensorflow as tf

    return tf.random.stateless_categorical(logits, num_samples, _next_seed(), dtype=dtype or tf.int64)


def _next_seed() -> Any:
    return generator().make_seeds(1)[:, 0]
