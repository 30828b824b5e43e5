"""Runs as event files for TensorBoard: scalars, histograms of arrays, images. Needs TensorFlow and tensorboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flor_keras.errors import UsageError
from flor_keras.pictures.timeline import Timeline
from flor_keras.reading import Run

_CHANNELS = (1, 3, 4)
_MIN_IMAGE_SIDE = 4


def write_events(run: Run, logdir: Path) -> dict[str, int]:
    """Write a run's entries into ``logdir/<name>-<id>``; return how many values of each name were written.

    The step of a value is the number of training steps of the whole run that were done by then, so curves of several
    `fit` calls or of a resumed run follow one another. Numbers become scalars, arrays that look like images
    (height, width, 1, 3 or 4 channels, or a batch of those; bytes or values from 0 to 1) images, other arrays histograms.
    Text and JSON become texts.

    Raises:
      UsageError: tensorboard is not installed, or the folder has events of this run already.
    """
    tf = _tensorflow()
    folder = logdir / (f"{run.name}-{run.id}" if run.name else run.id)
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"There are events in {folder} already; TensorBoard would show both. Delete it or give another folder."
        )
    entries = run.entries()
    timeline = Timeline(run, entries)
    written: dict[str, int] = {}
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        for entry in sorted(entries, key=lambda e: timeline.step(e.position)):
            _write(tf, entry.name, entry.value, timeline.step(entry.position))
            written[entry.name] = written.get(entry.name, 0) + 1
    writer.close()
    return written


def _tensorflow() -> Any:
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "Event files need tensorboard, which is not installed. Type: pip install tensorboard"
        ) from error
    import tensorflow as tf

    return tf


def _write(tf: Any, name: str, value: Any, step: int) -> None:
    shape = getattr(value, "shape", None)
    if isinstance(value, bool | int | float) or (shape == () and value.dtype.kind in "iufb"):
        tf.summary.scalar(name, float(value), step)
    elif shape is None or value.dtype.kind not in "iufb":
        tf.summary.text(name, str(value), step)
    elif _is_image(value):
        tf.summary.image(name, value if value.ndim == 4 else value[None], step, max_outputs=8)
    elif value.size:
        tf.summary.histogram(name, value.astype("float64").ravel(), step)


def _is_image(value: Any) -> bool:
    """Whether an array has the shape and the values of an image, or of a batch of images."""
    if (
        value.ndim not in (3, 4)
        or value.shape[-1] not in _CHANNELS
        or min(value.shape[-3:-1]) < _MIN_IMAGE_SIDE
    ):
        return False
    is_unit = value.dtype.kind == "f" and value.size and float(value.min()) >= 0 and float(value.max()) <= 1
    return value.dtype == "uint8" or bool(is_unit)
