"""Reading a kept graph, and choosing the one that belongs to a checkpoint. Trusts nothing that it reads."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flor_keras.checkpoint import bundle
from flor_keras.errors import CheckpointError, UsageError
from flor_keras.export import FORMATS, graph


class Graph:
    """A graph as it lies in the store.

    Attributes:
      folder: where.
      described: the content of its graph.json.
      rebuilt: the names of the model's variables in Keras's order, where its SavedModel is traced when it is wanted.
    """

    def __init__(self, folder: Path, described: Mapping[str, Any]) -> None:
        self.folder = folder
        self.described = described
        self.variables: dict[str, list[Any]] = described["variables"]
        self.baked: dict[str, str] = described["baked"]
        self.rebuilt: list[str] | None = described.get("rebuilt")

    def why_not(self, form: str) -> str | None:
        """Return why there is no export in a format; None where there is."""
        why: str | None = self.described["why_not"].get(form)
        return why

    def file(self, name: str) -> Path:
        """Return the path of one of its files, which is as it was recorded.

        Raises:
          CheckpointError: it is missing, is no plain file, or its bytes are others.
        """
        path = self.folder / name
        try:
            is_whole = not path.is_symlink() and graph.file_hash(path) == self.described["files"].get(name)
        except OSError as error:
            raise damaged(self.folder, f"{name} cannot be read: {error}") from error
        if not is_whole:
            raise damaged(self.folder, f"the bytes of {name} are not those that were recorded")
        return path

    def files_below(self, name: str) -> dict[str, Path]:
        """Return the files of one of its folders by their path there, with slashes; checked like `file`.

        What is in the folder counts, never names that a file says: those could lead outside.
        """
        top = self.folder / name
        found = (
            [at for at in sorted(top.rglob("*")) if at.is_symlink() or not at.is_dir()]
            if top.is_dir()
            else []
        )
        if top.is_symlink():
            raise damaged(self.folder, f"{name} is a link")
        paths = {at.relative_to(top).as_posix(): at for at in found}
        for inner in paths:
            if "\\" in inner:
                raise damaged(self.folder, f"{inner!r} would be another place on another system")
        return {inner: self.file(f"{name}/{inner}") for inner in paths}

    @property
    def model(self) -> str:
        """The name under which the model is recorded."""
        return str(self.described.get("model", graph.MODEL))

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups of a weights file, in Keras's order."""
        return list(self.described["groups"])

    def keys(self, form: str) -> dict[str, str]:
        """Return the variable behind each key of a bundle, for `saved_model` or `checkpoint`."""
        return dict(self.described["keys" if form == "saved_model" else "checkpoint_keys"])

    def names(self, form: str) -> set[str]:
        """Return the names of the checkpoint that a format needs."""
        if form == "saved_model" and self.rebuilt is not None:
            return set(self.rebuilt)
        if form in ("saved_model", "checkpoint"):
            return set(self.keys(form).values())
        values = [value for group in self.groups for value in group["values"].values()]
        return {name for value in values for name in ([value] if isinstance(value, str) else value["lora"])}


class Which(NamedTuple):
    """Which model of a run.

    Attributes:
      folder: where the graphs of the run lie.
      loop: the loop in which it is trained.
      name: the name under which it is recorded; None where the loop has one model only.
    """

    folder: Path
    loop: int
    name: str | None = None


def graph_for(which: Which, checkpoint: Path, form: str) -> Graph:
    """Return the graph of the model whose state a checkpoint holds.

    Args:
      which: the model.
      checkpoint: its folder.
      form: the format wanted.

    Raises:
      UsageError: there is none, or it has no such format; says why.
      CheckpointError: the checkpoint or the graph is damaged.
    """
    tensors = bundle.read_manifest(checkpoint)["tensors"]
    loop, candidates = which.loop, _candidates(which)
    if not candidates:
        raise UsageError(
            f"The run has no graph of the model of loop {loop}: it ended before one was written, or was recorded by "
            "an older flor_keras. Restore the checkpoint into the model instead: flor.run(RUN).checkpoints[N].restore(model)."
        )
    reasons = []
    for found in candidates:
        why = found.why_not(form) or _misfit(found, form, tensors)
        if why is None:
            return found
        reasons.append(why)
    possible = [other for other in FORMATS if any(not found.why_not(other) for found in candidates)]
    hint = f" Possible are: {', '.join(possible)}." if possible else ""
    raise UsageError(f"The model of loop {loop} cannot be exported as {form}: {reasons[0]}.{hint}")


def _candidates(which: Which) -> list[Graph]:
    """Return the graphs of a model, the newest first.

    Raises:
      UsageError: the loop has several models and none was chosen, or not the one that was.
    """
    found = list(_graphs(which.folder, which.loop))
    names = sorted({graph.model for graph in found})
    if which.name is None and len(names) > 1:
        raise UsageError(
            f"Loop {which.loop} has the models {', '.join(names)}. Choose one: --model {names[0]}, or in Python "
            f"export(path, format, model={names[0]!r})."
        )
    if found and which.name is not None and which.name not in names:
        raise UsageError(
            f"Loop {which.loop} has no model {which.name!r}; it has {', '.join(names)}. Give --model one of these."
        )
    return [graph for graph in found if which.name in (None, graph.model)]


def _graphs(model_folder: Path, loop: int) -> Iterator[Graph]:
    """Yield the graphs of a loop, the newest first."""
    number = 0
    while (model_folder / _name(loop, number)).is_dir():
        number += 1
    for at in reversed(range(number)):
        yield read_graph(model_folder / _name(loop, at))


def _name(loop: int, number: int) -> str:
    return f"{loop}-{number}" if number else str(loop)


def folder_of(model_folder: Path, loop: int, number: int) -> Path:
    """Return the folder of the ``number``-th graph of a loop."""
    return model_folder / _name(loop, number)


def read_graph(folder: Path) -> Graph:
    """Read a graph, following the name of an earlier one once.

    Raises:
      CheckpointError: it cannot be read, or is of a later version.
    """
    described = _read(folder)
    other = described.get("same_as")
    if other is not None:
        if not isinstance(other, str) or Path(other).name != other or other in ("", ".", ".."):
            raise damaged(folder, f"it refers to {other!r}, which is not beside it")
        folder = folder.with_name(other)
        described = _read(folder)
    try:
        return Graph(folder, described)
    except KeyError as error:
        raise damaged(folder, f"{error} is missing in {graph.FILE}") from error


def _read(folder: Path) -> dict[str, Any]:
    try:
        described = json.loads((folder / graph.FILE).read_text(encoding="utf-8"))
        version = described["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder, f"{graph.FILE} cannot be read: {error}") from error
    if version > graph.FORMAT:
        raise CheckpointError(
            f"The model graph {folder} has format {version}, this flor_keras reads up to {graph.FORMAT}. "
            "Upgrade with: pip install --upgrade flor-keras"
        )
    return dict(described)


def check_signature(found: Graph, sign: Callable[[bytes], str]) -> None:
    """Make sure that the current user recorded a graph before it is run: it is a program.

    Raises:
      CheckpointError: it was recorded by somebody else, or changed since.
    """
    try:
        signed = (found.folder / graph.SIGNATURE).read_text(encoding="ascii")
        is_ours = hmac.compare_digest(signed, sign((found.folder / graph.FILE).read_bytes()))
    except (OSError, ValueError):
        is_ours = False
    if not is_ours:
        raise CheckpointError(
            f"The model graph {found.folder} was not recorded by you on this machine, and running it could read and write "
            "your files. If you trust the store, copy the key of the user who recorded it to the flor_keras folder of your "
            "configuration (~/.config/flor_keras/key) and try again."
        )


def damaged(folder: Path, why: str) -> CheckpointError:
    """Return the error of a graph that is not as it was recorded."""
    return CheckpointError(
        f"The model graph {folder} is damaged: {why}. Restore the checkpoint into the model of the program instead."
    )


def _misfit(found: Graph, form: str, tensors: Mapping[str, Any]) -> str | None:
    """Return what a checkpoint has other than the graph expects; None where they fit."""
    for name in sorted(found.names(form)):
        expected = found.variables.get(name)
        if name not in tensors:
            return f"the checkpoint has no value for {name}; its structure was another"
        if expected is not None and expected != [tensors[name]["dtype"], tensors[name]["shape"]]:
            return f"{name} is {tensors[name]['dtype']} {tensors[name]['shape']} in the checkpoint and {expected} in the graph"
    changed = [name for name, digest in found.baked.items() if tensors.get(name, {}).get("xxh3") != digest]
    return f"the graph was made with another content of {changed[0]}" if changed else None
