"""A plain TensorFlow checkpoint of one checkpoint: what `tf.train.Checkpoint(model=model)` would have written."""

from __future__ import annotations

from pathlib import Path

from flor_keras.export.kept import Graph
from flor_keras.export.saved_model import write_values

PREFIX = "ckpt"


def write(found: Graph, checkpoint: Path, out: Path) -> None:
    """Write the folder ``out``: `tf.train.latest_checkpoint` finds the checkpoint in it."""
    out.mkdir(parents=True)
    write_values(found, checkpoint, out / PREFIX, "checkpoint")
    (out / "checkpoint").write_text(
        f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n', encoding="utf-8"
    )
