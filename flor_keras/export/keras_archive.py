"""A `.keras` archive of one checkpoint: configuration, weights, optimizer, vocabularies. Needs no user code to write."""

from __future__ import annotations

import json
import time
import zipfile
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from flor_keras.checkpoint.mapped import write_all
from flor_keras.export import graph, weights_h5
from flor_keras.export.kept import Graph

_WEIGHTS = "model.weights.h5"
_CHUNK_BYTES = 1 << 20


def write(found: Graph, checkpoint: Path, out: Path) -> None:
    """Write a file that `keras.models.load_model` reads."""
    metadata = {
        "keras_version": found.described["versions"]["keras"],
        "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S"),
    }
    with (
        out.open("wb", buffering=0) as file,
        _Behind(file) as behind,
        zipfile.ZipFile(cast(IO[bytes], behind), "w") as archive,
    ):
        archive.writestr("metadata.json", json.dumps(metadata))
        archive.writestr("config.json", found.file(graph.CONFIG).read_bytes())
        _store(archive, behind, _WEIGHTS, weights_h5.pieces(found, checkpoint))
        for name, path in found.files_below(graph.KERAS_ASSETS).items():
            archive.write(path, f"assets/{name}")


def _store(archive: zipfile.ZipFile, file: _Behind, name: str, pieces: Iterable[memoryview]) -> None:
    """Put a file into an archive, uncompressed.

    What `ZipFile.open` gives computes the checksum with zlib, which takes longer than writing the file. ISA-L does it six
    times as fast, so here zipfile places an empty file, and its header is written again when the content is there.
    """
    from isal import isal_zlib

    info = zipfile.ZipInfo(name)
    archive.open(info, "w", force_zip64=True).close()
    for piece in pieces:
        for at in range(0, len(piece), _CHUNK_BYTES):
            chunk = piece[at : at + _CHUNK_BYTES]
            info.CRC = isal_zlib.crc32(chunk, info.CRC)
            info.file_size += file.write(chunk)
    info.compress_size = info.file_size
    end = file.tell()
    file.seek(info.header_offset)
    file.write(info.FileHeader(zip64=True))
    archive.start_dir = file.seek(end)


class _Behind:
    """An unbuffered file that a thread writes, while an archive computes the checksum of what comes next."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1)
        self._writes: deque[Future[int]] = deque()
        self._at = 0

    def write(self, content: Any) -> int:
        """Have bytes written, which must stay as they are; an error of an earlier write is raised here."""
        while self._writes and self._writes[0].done():
            self._writes.popleft().result()
        self._writes.append(self._thread.submit(write_all, self._file, memoryview(content)))
        self._at += len(content)
        return len(content)

    def flush(self) -> None:
        """Wait until all is written."""
        while self._writes:
            self._writes.popleft().result()

    def tell(self) -> int:
        """Return where the next write goes."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Have the next write go elsewhere."""
        self.flush()
        self._at = self._file.seek(offset, whence)
        return self._at

    def __enter__(self) -> _Behind:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self.flush()


def needed_to_load(found: Graph) -> str | None:
    """Return what `keras.models.load_model` must be given for this model; None where nothing."""
    config = json.loads((found.folder / graph.CONFIG).read_text(encoding="utf-8"))
    classes, has_lambda = set(), False
    todo: list[Any] = [config]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            has_lambda = has_lambda or at.get("class_name") == "__lambda__"
            if is_foreign(at):
                classes.add(str(at["class_name"]))
            todo += at.values()
        elif isinstance(at, list):
            todo += at
    needs = []
    if classes:
        needs.append(
            f"custom_objects= with {', '.join(sorted(classes))} (or their classes imported and registered)"
        )
    if has_lambda:
        needs.append("safe_mode=False, because it holds a Python lambda, which can run anything")
    return "keras.models.load_model needs " + " and ".join(needs) if needs else None


def is_foreign(described: dict[str, Any]) -> bool:
    """Whether a serialized object is of a class or function outside of Keras."""
    if (
        "class_name" not in described
        or "config" not in described
        or described["class_name"] in ("__lambda__", "__tuple__")
    ):
        return False
    module = described.get("module")
    if module is None:
        return described.get("registered_name") is not None
    return str(module).partition(".")[0] not in ("keras", "builtins")
