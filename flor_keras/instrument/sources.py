"""Which files belong to a program, and their texts. Reads files; changes none."""

from __future__ import annotations

import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from flor_keras.errors import UsageError

_OUTSIDE_FOLDERS = frozenset({"site-packages", "dist-packages", ".flor"})


def project_root(script: Path) -> Path:
    """Find the folder a program's files are named from: the top of the git work tree, else the script's."""
    folder = script.resolve().parent
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return candidate
    return folder


def project_sources(script: Path, modules: Iterable[ModuleType]) -> dict[str, str]:
    """Read the script and those of the imported modules that lie under its project root.

    Keys are paths relative to the root with forward slashes. Installed packages, virtual environments and
    ``.flor`` are left out. Raises ``UsageError`` when the script cannot be read; a module that cannot be read
    is left out.
    """
    root = project_root(script)
    path = script.resolve()
    sources = {path.relative_to(root).as_posix(): _read_script(path)}
    for file in sorted(set(_module_files(modules))):
        if file != path and _is_inside(root, file) and (text := _read(file)) is not None:
            sources[file.relative_to(root).as_posix()] = text
    return sources


def read_sources(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Read the present texts of files named relative to ``root``; what cannot be read is left out."""
    texts = {name: _read(root / name) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def _module_files(modules: Iterable[ModuleType]) -> Iterator[Path]:
    """List the source files of modules; built-in, frozen and compiled ones have none."""
    for module in list(modules):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            yield Path(file).resolve()


def _is_inside(root: Path, file: Path) -> bool:
    """Tell whether a file is the project's own."""
    if not file.is_relative_to(root):
        return False
    if _OUTSIDE_FOLDERS.intersection(file.relative_to(root).parts):
        return False
    folders = [folder for folder in file.parents if folder.is_relative_to(root) and folder != root]
    return not any((folder / "pyvenv.cfg").exists() for folder in folders)


def _read(file: Path) -> str | None:
    """Read a file as Python reads it, by its coding line; ``None`` when it cannot be."""
    try:
        with tokenize.open(file) as stream:
            return stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _read_script(script: Path) -> str:
    text = _read(script)
    if text is None:
        raise UsageError(
            f"The script {script} cannot be read as Python source. Expected a text file in the encoding its "
            f"first lines declare, UTF-8 by default. Check the path with: ls -l {script}"
        )
    return text
