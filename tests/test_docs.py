"""README.md and docs/ are held to the code: blocks run, commands parse, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import pytest

from flor_keras import cli
from flor_keras.instrument.levels import Level
from flor_keras.store.schema import MIGRATIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DEMO = ROOT / "examples" / "demo.py"

PRELUDE = """
import keras
import numpy as np
import flor_keras as flor

keras.utils.set_random_seed(1)
random = np.random.default_rng(1)
x, x_val = random.random((32, 4), np.float32), random.random((16, 4), np.float32)
y, y_val = random.integers(0, 3, 32), random.integers(0, 3, 16)


def build_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.1), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


model = build_model()
"""
RECORDED = """
class Look(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        flor.log("weight_norm", np.linalg.norm(self.model.layers[-1].kernel))


callbacks = [Look(), flor.FlorKeras(name="digits")]
model.fit(x, y, epochs=2, validation_data=(x_val, y_val), callbacks=callbacks, verbose=0)
"""


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def commands(page: Path) -> list[str]:
    """Return the command lines of a page's console blocks."""
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def names(paths: list[Path]) -> list[str]:
    """Return what pytest is to call pages."""
    return [path.name for path in paths]


WITH_CODE = [page for page in PAGES if blocks(page, "python")]


@pytest.fixture(scope="module")
def recorded(shared_project):
    """A project with a recorded run named digits, as the pages about reading suppose."""
    shared_project.succeed(shared_project.write("recorded.py", PRELUDE, RECORDED))
    return shared_project


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=names(WITH_CODE))
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, recorded):
    program = recorded.write(f"{page.stem}.py", "\n".join([PRELUDE, *blocks(page, "python")]))
    ended = recorded.succeed(program)
    assert ended.stderr == ""


def test_blocks_that_are_only_shown_are_valid_python_too():
    for page in PAGES:
        for block in blocks(page, "py"):
            ast.parse(block)


def targets() -> set[str]:
    """Return the words the Makefile knows."""
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony is not None
    return set(phony[1].split())


@pytest.mark.parametrize(("page", "line"), [(page.name, line) for page in PAGES for line in commands(page)])
def test_every_command_shown_exists(page, line):
    program, *words = shlex.split(line)
    if program == "flor-keras":
        parse(words)
    elif program == "make":
        assert set(words) <= targets()
    else:
        assert program in ("python", ".venv/bin/python"), f"{page} shows a command nobody checks: {line}"


def parse(words: list[str]) -> None:
    """Parse a command line of flor-keras as it would be, without running it."""
    own, script_args = cli.split_argv(words)
    context = cli.cli.make_context("flor-keras", own, obj=cli.Invocation(script_args))
    with context:
        rest = [*context._protected_args, *context.args]
        _, command, arguments = cli.cli.resolve_command(context, rest)
        assert command is not None
        command.make_context(command.name, arguments, parent=context)


def test_a_command_that_does_not_parse_would_be_found():
    with pytest.raises(click.UsageError, match="No such option"):
        parse(["logs", "loss", "--everything"])


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_to_files_of_the_project(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            assert (page.parent / link).exists(), link


def test_the_readme_links_every_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text] == []


@pytest.mark.parametrize("page", ["README.md", "docs/concepts.md"])
def test_the_tables_of_levels_have_every_level(page):
    rows = re.findall(r"^\| (\w+) \| ", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert {level.value for level in Level} <= set(rows)


def test_the_page_about_the_store_has_every_table():
    created = set(re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS)))
    page = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")
    shown = {
        word for row in re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE) for word in re.findall(r"\w+", row)
    }
    assert created <= shown


def test_the_promised_keys_of_json_are_in_the_pages():
    promised = {
        "runs": "id name status script started_at args",
        "replay": "run level epochs names values verified unchecked max_abs_diff held_back seconds",
    }
    for page in ("README.md", "docs/reading.md"):
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
            for command, keys in promised.items():
                if line.startswith(f"| `flor-keras {command} ") and "--json" in line:
                    assert set(keys.split()) <= set(re.findall(r"\w+", line)), f"{page}: {line}"


# -- messages --------------------------------------------------------------------------------------


@cache
def texts_of_the_code() -> list[str]:
    """Return every text in the package, `…` for what is put in."""
    found = []
    for path in (ROOT / "flor_keras").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
                found.append("".join(parts(node)))
    return found


def parts(node: ast.expr) -> Iterator[str]:
    """Yield the pieces of a text expression."""
    if isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from parts(value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from parts(node.left)
        yield from parts(node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        yield "…"


def messages() -> list[str]:
    """Return the messages the page about trouble speaks of."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"\*\*`(.+?)`\*\*", page)


@pytest.mark.parametrize("message", messages())
def test_the_messages_that_are_explained_exist(message):
    pieces = [re.escape(piece.strip()) for piece in message.split("…") if piece.strip()]
    pattern = re.compile(".*".join(pieces), re.DOTALL)
    assert any(pattern.search(text) for text in texts_of_the_code()), message


# -- the story -------------------------------------------------------------------------------------


def load_demo() -> ModuleType:
    """Import the demo without telling its story."""
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_the_example_and_the_quickstart_tell_the_same_story():
    demo, script = load_demo(), (ROOT / "examples" / "digits_fit.py").read_text(encoding="utf-8")
    quickstart = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert demo.CALLBACKS in script
    assert demo.CALLBACKS_WITH_LOG_LINES.strip() in quickstart
    assert f"$ flor-keras replay digits_fit.py {' '.join(demo.NAMES)}\n" in quickstart


@pytest.mark.slow
def test_the_example_shrunk_gives_hindsight_values_for_every_epoch(project):
    demo, example = load_demo(), (ROOT / "examples" / "digits_fit.py").read_text(encoding="utf-8")
    script = project.write("digits_fit.py", example)
    project.succeed(script, "--arg", "epochs=2", "--arg", "filters=4")
    project.write("digits_fit.py", example.replace(demo.CALLBACKS, demo.CALLBACKS_WITH_LOG_LINES))
    found = project.replay(script, *demo.NAMES)
    assert found["verified"] == "exact"
    assert [row["epoch"] for row in found["values"]] == [0, 1]
    assert all(len(row["class_accuracy"]) == 10 and row["weight_norm"] > 0 for row in found["values"])
    assert json.loads(project.flor("runs", "--json").stdout)[0]["args"]["filters"] == 4
