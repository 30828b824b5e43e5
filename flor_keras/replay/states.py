"""Comparing the variables a replay has come to with a checkpoint, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.contents import Content, content_hash
from flor_keras.records import CheckpointRecord, Position
from flor_keras.replay.replayer import Replayer
from flor_keras.state.capture import bytes_of
from flor_keras.state.variables import gather


def compare_variables(
    replayer: Replayer, checkpoint: CheckpointRecord, roots: Mapping[str, Any], position: Position
) -> list[str]:
    """Compare every variable reached from ``roots`` with a checkpoint; return the names of those that differ."""
    folder = replayer.folder(checkpoint)
    described = bundle.read_manifest(folder)["tensors"]
    variables = gather(roots).variables
    differing = []
    for name, variable in variables.items():
        if name in described and described[name]["dtype"] != "string":
            content = Content(name, described[name]["dtype"], (), bytes_of(variable))
            if content_hash(content) == described[name]["xxh3"]:
                replayer.note_exact(1)
            else:
                differing.append(name)
    recorded = bundle.load(folder, differing.__contains__) if differing else {}
    for name in differing:
        replayer.compare(name, position, recorded[name].numpy(), variables[name].numpy())
    return differing
