"""Random state: Keras's global seed generator, TensorFlow's eager one, where random functions live."""

from __future__ import annotations

from typing import Any


def global_seed_generator() -> Any | None:
    """Return the seed generator behind unseeded `keras.random` functions, None while nothing has used it."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    return global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)


def ensure_global_seed_generator() -> None:
    """Create the seed generator behind unseeded `keras.random` functions, so that its state can be put back."""
    from keras.src.random.seed_generator import global_seed_generator as create

    create()


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


def _eager_context() -> Any:
    """Return TensorFlow's eager context, which holds the global seed and the state behind unseeded eager ops."""
    from tensorflow.python.eager import context

    return context.context()


def global_seed() -> int | None:
    """Return the seed `tf.random.set_seed` was given, None if it was not called."""
    seed: int | None = _eager_context()._seed
    return seed


def eager_random_state() -> Any:
    """Return the state of the generator of eager op seeds, None without a global seed."""
    generator = getattr(_eager_context(), "_rng", None)
    return generator.getstate() if generator is not None and global_seed() is not None else None


def set_eager_random_state(state: Any) -> None:
    """Put back what `eager_random_state` returned."""
    generator = getattr(_eager_context(), "_rng", None)
    if generator is not None and state is not None:
        generator.setstate(state)
