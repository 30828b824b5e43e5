"""What every program of the matrix does beside training: it logs much, says at the end what all came to, and dies on demand.

Copied beside each program, so that it is a module of the program's own. It finds state by itself, in its own way: what
flor_keras overlooks must show here.
"""

import hashlib
import json
import os
import random
import signal
import time

import flor_keras as flor
import keras
import numpy as np
import tensorflow as tf

KILL = json.loads(os.environ.get("KILL") or "null")  # [loop, epoch, step]
_PATIENCE_SECS = 20.0
_FILE_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore, keras.callbacks.CSVLogger)
_found = {}
_loops = []


class Audit(keras.callbacks.Callback):
    """Logs each step's numbers, and a digest of everything at each epoch's end."""

    def __init__(self, loop):
        super().__init__()
        self.loop = loop
        self.epoch = -1

    def on_train_begin(self, logs=None):
        flor.log("began", self.loop)

    def on_train_end(self, logs=None):
        flor.log("ended", self.epoch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        flor.log("step_logs", np.array([float(value) for _, value in sorted((logs or {}).items())]))
        if KILL is not None and [self.loop, self.epoch] == KILL[:2] and batch >= KILL[2]:
            _die(*KILL[:2])

    def on_epoch_end(self, epoch, logs=None):
        callbacks = [
            c for c in _loops[-1] if not isinstance(c, _FILE_WRITERS)
        ]  # a replay does not call those
        everything = {**variables(self.model), **attributes(callbacks), **random_states()}
        flor.log("digest", {name: _hash(value) for name, value in everything.items()})


def observed(*callbacks):
    """Return what to give `fit`: the program's callbacks, this module's, and FlorKeras."""
    _loops.append(callbacks)
    return [*callbacks, Audit(len(_loops) - 1), flor.FlorKeras()]


def note(model, history, *more):
    """Keep what a `fit` call led to."""
    loop = len(_loops) - 1
    flor.log("noted", loop)
    found = {
        **variables(model),
        **attributes(_loops[-1]),
        **random_states(),
        "history": history.history,
        "epochs": history.epoch,
        "more": more,
    }
    _found.update({f"{loop}/{name}": value for name, value in found.items()})


def finish():
    """Write all that was noted."""
    arrays = {
        name: value if isinstance(value, np.ndarray) else np.array(json.dumps(value, default=_plain))
        for name, value in _found.items()
    }
    np.savez(
        os.environ.get("DIGEST", "digest.npz"), **{name.replace("/", "|"): a for name, a in arrays.items()}
    )


def variables(model):
    """Return every variable and table of a model, its optimizers and its metrics, by a name that says what it is."""
    optimizers = {
        id(o): o for o in vars(model).values() if isinstance(o, keras.optimizers.Optimizer)
    }.values()
    found = list(model.variables) + [v for metric in model.metrics for v in metric.variables]
    found += [v for optimizer in optimizers for v in optimizer.variables]
    by_id = {id(v): v for v in found}
    named = {f"{at} {v.path}": _array(v.value) for at, v in enumerate(by_id.values())}
    for at, layer in enumerate(model._flatten_layers()):
        for name, value in vars(layer).items():
            if isinstance(value, tf.Variable):
                named[f"layer {at}/{name}"] = _array(value)
        if hasattr(layer, "get_vocabulary"):
            named[f"layer {at}/vocabulary"] = [str(word) for word in layer.get_vocabulary()]
    return named


def attributes(callbacks):
    """Return the plain attributes of callbacks."""
    return {
        f"callback {at} {type(callback).__name__}/{name}": value
        for at, callback in enumerate(callbacks)
        for name, value in vars(callback).items()
        if _is_plain(value) and name not in ("params", "_params")
    }


def random_states():
    """Return the states of the global generators."""
    found = {"random/python": random.getstate()[1], "random/numpy": np.random.get_state(legacy=False)}
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute("global_seed_generator")
    if generator is not None:
        found["random/keras"] = _array(generator.state.value)
    found.pop(os.environ.get("UNORDERED"), None)
    return found


def _array(variable):
    return np.array(tf.convert_to_tensor(variable))


def _is_plain(value):
    if isinstance(value, list | tuple | set):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)


def _plain(value):
    """Spell to the last bit what JSON does not know."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), value.tobytes().hex()]
    if isinstance(value, np.generic):
        return [str(value.dtype), value.tobytes().hex()]
    return repr(value)


def _hash(value):
    if isinstance(value, np.ndarray) and value.dtype != object:
        text = str((value.dtype, value.shape)).encode() + value.tobytes()
    else:
        text = json.dumps(value, default=_plain, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=6).hexdigest()


def _die(loop, epoch):
    """End as a machine does that loses power, once the checkpoint before this epoch is entered."""
    deadline = time.monotonic() + _PATIENCE_SECS
    while time.monotonic() < deadline and not _has_checkpoint(loop, epoch):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


def _has_checkpoint(loop, epoch):
    checkpoints = flor.run("latest", os.environ["FLOR_STORE"]).checkpoints
    kinds = [(c.loop, c.epoch) for c in checkpoints if c.kind.value == "epoch_end"]
    return (loop, epoch - 1) in kinds or (epoch == 0 and any(c.loop == loop for c in checkpoints))
