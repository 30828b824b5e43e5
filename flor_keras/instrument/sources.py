"""Which files belong to a program, and their texts. Reads files; changes none."""

from __future__ import annotations

import ast
import os
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from flor_keras.errors import UsageError
from flor_keras.instrument.syntax import parse

_OUTSIDE_FOLDERS = frozenset({"site-packages", "dist-packages", ".flor"})
_INSTALLED = re.compile(r".*?[\\/](?:site|dist)-packages[\\/]?[^\\/]*")  # up to the top folder of a package


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
    for file in sorted(set(_module_files(root, modules))):
        if file != path and is_own_file(root, file) and (text := _read(file)) is not None:
            sources[file.relative_to(root).as_posix()] = text
    return sources


def imported_sources(script: Path) -> dict[str, str]:
    """Read the script and the files of the project it imports, found by the names in its import statements.

    For a program that has not run: a module is looked for beside its importer, the script and at the root.
    Keys and errors are those of ``project_sources``.
    """
    root, path = project_root(script), script.resolve()
    sources = {path: _read_script(path)}
    todo = [path]
    while todo:
        importer = todo.pop()
        for file in _imported_files(sources[importer], importer, (importer.parent, path.parent, root)):
            if file not in sources and is_own_file(root, file) and (text := _read(file)) is not None:
                sources[file] = text
                todo.append(file)
    return {file.relative_to(root).as_posix(): text for file, text in sources.items()}


def _imported_files(text: str, importer: Path, folders: Iterable[Path]) -> Iterator[Path]:
    for node in ast.walk(parse(str(importer), text)):
        if isinstance(node, ast.Import):
            names, places = [alias.name for alias in node.names], tuple(folders)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
            places = (importer.parents[node.level - 1],) if node.level else tuple(folders)
        else:
            continue
        for name in filter(None, names):
            tail = Path(*name.split("."))
            candidates = (
                f
                for folder in places
                for f in (folder / tail.with_suffix(".py"), folder / tail / "__init__.py")
            )
            found = next((candidate for candidate in candidates if candidate.is_file()), None)
            if found is not None:
                yield found.resolve()


def read_sources(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Read the present texts of files named relative to ``root``; what cannot be read is left out."""
    texts = {name: _read(root / name) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def _module_files(root: Path, modules: Iterable[ModuleType]) -> Iterator[Path]:
    """List the source files of modules that are the project's own; built-in, frozen and compiled ones have none.

    A program with TensorFlow has thousands of modules, and resolving a path takes longer than reading a small file:
    so folders are looked at, each once, and of an installed package the top one.
    """
    folders: dict[str, _Folder] = {}
    links: dict[str, bool] = {}
    for module in list(modules):
        file = getattr(module, "__dict__", {}).get("__file__")  # the attribute itself may import what is lazy
        if not (isinstance(file, str) and file.endswith(".py")):
            continue
        name = os.path.dirname(file)
        folder = folders.get(name)
        if folder is None:
            is_installed = _is_installed(name, links)
            is_own = not is_installed and _is_own_folder(root, Path(name).resolve())
            folder = folders[name] = _Folder(is_own, is_installed)
        if folder.is_own or (not folder.is_installed and os.path.islink(file)):
            yield Path(file).resolve()


class _Folder(NamedTuple):
    is_own: bool
    is_installed: bool


def _is_installed(folder: str, links: dict[str, bool]) -> bool:
    """Whether a folder belongs to an installed package that is really there, and no link to another place."""
    found = _INSTALLED.match(folder)
    if found is None:
        return False
    top = found[0]
    if top not in links:
        links[top] = os.path.islink(top)
    return not links[top]


def is_own_file(root: Path, file: Path) -> bool:
    """Tell whether a file is the project's own, and not an installed package's."""
    return _is_own_folder(root, file.parent)


def _is_own_folder(root: Path, folder: Path) -> bool:
    if not folder.is_relative_to(root) or _OUTSIDE_FOLDERS.intersection(folder.relative_to(root).parts):
        return False
    inside = [at for at in (folder, *folder.parents) if at.is_relative_to(root) and at != root]
    return not any((at / "pyvenv.cfg").exists() for at in inside)


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
