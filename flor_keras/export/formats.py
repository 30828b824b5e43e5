"""Exporting one checkpoint in one of the formats."""

from __future__ import annotations

from pathlib import Path

from flor_keras.errors import UsageError
from flor_keras.export import FORMATS, checkpoint, keras_archive, saved_model, weights_h5
from flor_keras.export.folders import check_free, written_beside
from flor_keras.export.kept import Which, graph_for

_WRITERS = {
    "saved_model": saved_model.write,
    "keras": keras_archive.write,
    "weights.h5": weights_h5.write,
    "checkpoint": checkpoint.write,
}
_SUFFIXES = {"keras": ".keras", "weights.h5": ".weights.h5"}


def suffix(form: str) -> str:
    """Return how the name of a file in a format ends; empty where it is a folder."""
    return _SUFFIXES.get(form, "")


def check_name(out: Path, form: str) -> None:
    """Make sure that whoever loads ``out`` will take it for what it is.

    Raises:
      UsageError: the format is unknown, or the name does not end as Keras wants it to.
    """
    if form not in FORMATS:
        raise UsageError(f"There is no format {form!r}. Choose one of: {', '.join(FORMATS)}.")
    if not out.name.endswith(suffix(form)):
        raise UsageError(
            f"Keras reads {form} only from a file named *{suffix(form)}; {out.name} is not. Add {suffix(form)}."
        )


def export(checkpoint: Path, which: Which, form: str, out: Path, is_replacing: bool = False) -> str | None:
    """Write one checkpoint as a model.

    Args:
      checkpoint: the checkpoint's folder.
      which: the model.
      form: one of FORMATS.
      out: the file or folder to write.
      is_replacing: whether what is there may be replaced.

    Returns:
      what loading the file needs beyond the file itself, and what the format leaves out; None where nothing.

    Raises:
      UsageError: the format is unknown or not possible for this model, or ``out`` exists or cannot be written.
      CheckpointError: the checkpoint is damaged.
    """
    check_name(out, form)
    check_free(out, is_replacing)
    found = graph_for(which, checkpoint, form)
    try:
        with written_beside(out, is_replacing) as temporary:
            _WRITERS[form](found, checkpoint, temporary)
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written: {error}. Nothing of it is left. Give a place that has room and that you may write to."
        ) from error
    needs = [keras_archive.needed_to_load(found)] if form == "keras" else []
    left_out = found.described.get("left_out") if form in ("keras", "weights.h5") else None
    if left_out:
        needs.append(
            f"Keras's format does not keep {', '.join(left_out)}: {form} holds them as the program creates them."
        )
    return " ".join(filter(None, needs)) or None
