"""Takes one piece of state out of a checkpoint: ``python tamper.py FOLDER PIECE``. Runs in a process of its own."""

import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.contents import content_of
from flor_keras.state import pickles
from flor_keras.state.callbacks import Captured
from flor_keras.state.restore import ARRAYS, read_python

TENSORS = {
    "seeds": "seed_generator_state",
    "slots": "_velocit",
    "statistics": "moving_variance",
    "weights": "_kernel",
    "steps": "optimizer/_iterations",
    "learning rate": "optimizer/_learning_rate",
}


def main(name: str, piece: str) -> None:
    """Write the checkpoint anew without the piece."""
    folder = Path(name)
    manifest, python = bundle.read_manifest(folder), read_python(folder)
    tensors = {n: t for n, t in bundle.load(folder).items() if not n.startswith(f"{ARRAYS}/")}
    changed = 0
    for tensor, value in tensors.items():
        if TENSORS.get(piece, "\0") in tensor.replace("/state", "/seed_generator_state"):
            tensors[tensor] = tf.zeros_like(value)
            changed += 1
    changed += _change(python, piece)
    assert changed or piece == "nothing", f"no {piece} among {sorted(tensors)}"
    pickled, arrays = pickles.pack(python)
    tensors |= {f"{ARRAYS}/{at}": tf.constant(array) for at, array in enumerate(arrays)}
    contents = [content_of(n, t) for n, t in tensors.items()]
    shutil.rmtree(folder)
    bundle.write(
        folder, contents, {**manifest, "signature": pickles.signature(pickled)}, {pickles.FILE: pickled}
    )


def _change(python: dict, piece: str) -> int:
    if piece == "callbacks":
        python["callbacks"] = Captured(*pickles.pack({}))
    elif piece == "data order":
        python["data"]["created"] += 1
    elif piece == "random states":
        python["random"]["numpy"] = np.random.RandomState(99).get_state()
    else:
        return 0
    return 1


if __name__ == "__main__":
    main(*sys.argv[1:])
