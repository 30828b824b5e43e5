"""Imports go down only (design, Layers), and reading never starts TensorFlow."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import flor_keras
from flor_keras.store.database import Store

PACKAGE = Path(flor_keras.__file__).parent

# From the bottom up. A module may import from its own line and from lines above it in this table.
LAYERS = [
    ("errors", "records", "origin", "environment", "progress", "epochs"),
    ("store",),
    ("keras_internals",),
    ("checkpoint",),
    ("instrument",),
    ("export",),
    ("state",),
    ("recording",),
    ("session",),
    ("seeding",),
    ("custom", "callback", "recorded", "probes"),
    ("hands_free",),
    ("reading",),
    ("replay", "resuming"),
    ("evaluation", "keeping"),
    ("pictures",),
    ("cli",),
    ("__init__",),
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """Return the part of the package a dotted name below flor_keras lies in; `__version__` lies in none."""
    first = module.split(".")[0]
    return first if first in LEVEL else "errors"


def imports_of(path: Path) -> set[str]:
    """Return the parts a module imports, in functions too; what only type checkers read does not count."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{name.name}" for name in node.names]
            found |= set(names) if node.module == "flor_keras" else {f"{node.module}."}
    return {part_of(name.removeprefix("flor_keras.")) for name in found if name.startswith("flor_keras.")}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_only_from_its_own_layer_and_below(path):
    part = path.parts[0].removesuffix(".py")
    assert part in LEVEL, f"{path}: give {part} a place in LAYERS"
    too_high = {other for other in imports_of(path) if LEVEL[other] > LEVEL[part]}
    assert not too_high, f"{path} imports upwards: {too_high}"


def loaded_by(code: str, *argv: str) -> set[str]:
    """Return the top-level modules a new Python process has loaded after `code`."""
    report = "\nimport sys; print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code + report, *argv], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_but_numpy_whose_random_state_it_reads():
    code = "import flor_keras; dir(flor_keras); flor_keras.__version__"
    assert not loaded_by(code) & {"tensorflow", "keras", "pandas", "click", "sqlite3"}


@pytest.mark.parametrize(
    "argv",
    [("runs",), ("runs", "--json"), ("show",), ("logs",), ("logs", "--json", "loss"), ("--help",)],
    ids=" ".join,
)
def test_commands_that_read_never_import_tensorflow(argv, tmp_path, run_record, monkeypatch):
    from flor_keras.records import Entry, Position

    monkeypatch.setenv("FLOR_STORE", str(tmp_path))
    with Store.open(tmp_path, create=True) as store:
        store.begin_run(run_record())
        store.add_entries("run-1", [Entry("loss", 0.5, Position(0, 0))])
    loaded = loaded_by(
        "import sys; sys.argv[0] = 'flor-keras'\nfrom flor_keras.cli import main\nassert main() == 0", *argv
    )
    assert not loaded & {"tensorflow", "keras", "pandas"}
    if argv[0] == "runs":
        assert "numpy" not in loaded


def test_reading_frames_never_imports_tensorflow(tmp_path, run_record):
    with Store.open(tmp_path, create=True) as store:
        store.begin_run(run_record())
    loaded = loaded_by("import sys, flor_keras\nflor_keras.run(store=sys.argv[1]).dataframe()", str(tmp_path))
    assert "pandas" in loaded
    assert not loaded & {"tensorflow", "keras"}


def test_every_public_name_has_a_home_that_defines_it():
    """Looked up in the source, so that this test needs no TensorFlow either."""
    assert sorted(flor_keras.__all__) == sorted([*flor_keras._HOME_BY_NAME, "__version__"])
    for home, names in flor_keras._HOMES.items():
        if home == f"flor_keras.{names[0]}":  # a package that can be called
            assert callable(importlib.import_module(home))
            continue
        path = PACKAGE.joinpath(*home.split(".")[1:]).with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert set(names) <= defined, home


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'runz'"):
        flor_keras.runz  # noqa: B018
    assert flor_keras.runs is flor_keras.__getattr__("runs")
