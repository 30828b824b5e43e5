"""Which files belong to a program."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from flor_keras.errors import UsageError
from flor_keras.instrument.sources import project_root, project_sources, read_sources


def write(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def module(file: Path | None) -> ModuleType:
    made = ModuleType("m")
    made.__file__ = None if file is None else str(file)
    return made


def test_the_root_is_the_top_of_the_git_tree(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert project_root(write(tmp_path / "a" / "b" / "train.py")) == tmp_path


def test_without_git_the_root_is_the_script_s_folder(tmp_path: Path) -> None:
    assert project_root(write(tmp_path / "a" / "train.py")) == tmp_path / "a"


def test_only_the_project_s_own_modules_are_sources(tmp_path: Path) -> None:
    (tmp_path / "p" / ".git").mkdir(parents=True)
    script = write(tmp_path / "p" / "jobs" / "train.py", "import tools\n")
    write(tmp_path / "p" / "env" / "pyvenv.cfg", "")
    modules = [
        module(write(tmp_path / "p" / "lib" / "tools.py", "y = 2\n")),
        module(write(tmp_path / "p" / "env" / "lib" / "dep.py")),
        module(write(tmp_path / "p" / "x" / "site-packages" / "dep.py")),
        module(write(tmp_path / "p" / ".flor" / "old.py")),
        module(write(tmp_path / "elsewhere.py")),
        module(write(tmp_path / "p" / "ext.so")),
        module(tmp_path / "p" / "gone.py"),
        module(script),
        module(None),
        ModuleType("builtin"),
    ]
    assert project_sources(script, modules) == {"jobs/train.py": "import tools\n", "lib/tools.py": "y = 2\n"}


def test_a_project_inside_a_virtual_environment_s_folder_is_still_read(tmp_path: Path) -> None:
    write(tmp_path / "pyvenv.cfg", "")
    script = write(tmp_path / "train.py")
    assert "tools.py" in project_sources(script, [module(write(tmp_path / "tools.py"))])


def test_the_coding_line_and_the_byte_order_mark_are_obeyed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    (tmp_path / "b.py").write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    (tmp_path / "c.py").write_bytes(b"x = '\xff'\n")
    texts = read_sources(tmp_path, ["a.py", "b.py", "c.py", "missing.py"])
    assert texts == {"a.py": "# coding: latin-1\nx = 'é'\n", "b.py": "x = 1\n"}


def test_an_unreadable_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.py cannot be read"):
        project_sources(tmp_path / "train.py", [])
