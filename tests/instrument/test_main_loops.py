"""The table of docs/custom-loops.md, a test for each line: what is captured of a construct, and when it is refused."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flor_keras.instrument.calls import Calls
from flor_keras.instrument.index import Index
from flor_keras.instrument.main_loops import MainLoops
from flor_keras.instrument.rewriting import rewritten

PAGE = Path(__file__).resolve().parents[2] / "docs" / "custom-loops.md"
PROGRAM = """
import random, library
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import flor_keras as flor

SEEN = []

def note(target, value):
    target.append(value)
    SEEN.append(value)
    return value

def opaque():
    library.work()

def train_epoch(batches, sums):
    for x in batches:
        with tf.GradientTape():
            sums.append(x)

def train(data, obj, p, q, it, f, n):
    for epoch in range(3):
        for x in data:
            with tf.GradientTape() as tape:
                loss = tape
            {}
        {}
    {}
"""
# construct, as the page has it: code in the training, code after it, code after the loop, and what is to be found.
LINES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "`v = f(…)`, f of a library": ("v = np.mean(x)", "print(v)", "", {"kept": {"v"}, "changed": set()}),
    "`v = f(…)`, f of the program": (
        "v = note(p, x)",
        "print(v)",
        "",
        {"kept": {"v"}, "changed": {"p"}, "elsewhere": {"SEEN"}},
    ),
    "`v = obj.m(…)`": ("v = obj.m(x)", "print(v)", "", {"kept": {"v"}, "changed": {"obj"}}),
    "`obj.m(…)`": ("obj.m(x)", "", "", {"changed": {"obj"}, "unknown": set()}),
    "`obj.a = …`, `obj[i] = …`, `del obj[i]`": (
        "obj.a = x; p[0] = x; del q[0]",
        "",
        "",
        {"changed": {"obj", "p", "q"}},
    ),
    "`v += …`": ("n += 1", "print(n)", "", {"kept": {"n"}}),
    "`x = obj.a`, then `x.m(…)`": ("v = obj.a; v.m(1)", "", "", {"changed": {"obj"}, "kept": set()}),
    "`for z in (p, q)`, then `z.m(…)`": ("for z in (p, q): z.m(1)", "", "", {"changed": {"p", "q"}}),
    "`with p as z`, then `z.m(…)`": ("with p as z: z.m(1)", "", "", {"changed": {"p"}}),
    "`next(it)`": ("v = next(it)", "", "", {"changed": {"it"}}),
    "`random.shuffle(p)`, `np.copyto(p, …)`": (
        "random.shuffle(p); np.copyto(q, x)",
        "",
        "",
        {"changed": {"p", "q"}, "unknown": set()},
    ),
    "`f(…)` alone, f of the program": (
        "note(p, x)",
        "",
        "",
        {"changed": {"p"}, "elsewhere": {"SEEN"}, "unknown": set()},
    ),
    "`f(…)` alone, f a variable": ("f(x)", "", "", {"changed": {"f"}, "unknown": {"f(x)"}, "names": {"f"}}),
    "`f(…)` alone, f of another library": (
        "library.work()",
        "",
        "",
        {"unknown": {"library.work()"}, "names": {None}},
    ),
    "`get(…)(…)` alone": ("obj.get(1)(x)", "", "", {"unknown": {"obj.get(1)(x)"}}),
    "`exec(…)`, `eval(…)`": ("exec('n = 1')", "", "", {"unknown": {"exec('n = 1')"}}),
    "`print(…)`, `tf.print(…)`, `plt.plot(…)`": (
        "print(x); tf.print(x); plt.plot(p)",
        "",
        "",
        {"changed": set(), "unknown": set()},
    ),
    "`global n`, `nonlocal n`, then `n = …`": ("global g; g = x", "", "", {"kept": {"g"}}),
    "a name bound and read in the training only": (
        "v = x; v = v * 2",
        "",
        "",
        {"kept": set(), "block_names": set()},
    ),
    "a name read after the training": ("v = x", "", "return v", {"kept": {"v"}, "needed_after": {"v"}}),
    "a name one epoch hands to the next": ("n = n * 2", "", "", {"kept": {"n"}, "needed_after": set()}),
    "`break` out of the training": ("if n: break", "", "", {"block": "for x in data", "way_out": False}),
    "an exception out of the training": (
        "raise ValueError(n)",
        "",
        "",
        {"block": "for x in data", "way_out": False},
    ),
    "an exception that the epoch's own code catches": (
        "try: v = p.work()\n            except ValueError: n += 1",
        "print(n)",
        "",
        {"changed": {"n", "p"}, "kept": {"n"}, "block": "for x in data", "way_out": False},
    ),
    "`return` out of the training": ("if n: return n", "", "", {"block": "for x in data", "way_out": True}),
}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "`continue` in the training, or past it": (
        """
        def train(data, n):
            for epoch in range(3):
                if n == epoch:
                    continue
                for x in data:
                    with tf.GradientTape() as tape: pass
                    if n:
                        continue
        """,
        {"block": "for x in data", "jumpable": True, "way_out": False},
    ),
    "`while` in place of `for`": (
        """
        def train(data, n):
            while n < 3:
                n += 1
                while data.more():
                    with tf.GradientTape() as tape: pass
        """,
        {"kept": {"n"}, "block": "while data.more()", "jumpable": True},
    ),
    "the training inside a `with`, an `if`": (
        """
        def train(data, p):
            for epoch in range(3):
                with p:
                    if epoch:
                        for x in data:
                            with tf.GradientTape() as tape: pass
        """,
        {"block": "for x in data", "jumpable": False},
    ),
    "the training in a function that is called": (
        """
        def train(data, p):
            for epoch in range(3):
                train_epoch(data, p)
        """,
        {"block": "train_epoch(data, p)", "changed": {"p"}, "unknown": set()},
    ),
    "several loops of training in an epoch": (
        """
        def train(data, p):
            for epoch in range(3):
                p.first()
                for x in data:
                    with tf.GradientTape() as tape: pass
                p.second()
                train_epoch(data, p)
                p.third()
        """,
        {"block": "for x in data", "num_block": 3},
    ),
    "no loop of training in an epoch": (
        """
        def train(data, n):
            for x in data:
                with tf.GradientTape() as tape: pass
                n += 1
        """,
        {"block": None, "kept": {"n"}},
    ),
}
REFUSED = {
    "a loop in a generator": (
        "def train(data):\n    for x in data:\n        train_epoch(data, x)\n        yield x",
        "in a generator",
    ),
    "a loop in an `async` function": (
        "async def train(data):\n    for x in data:\n        train_epoch(data, x)",
        "asynchronously",
    ),
    "a loop in a `tf.function`": (
        "@tf.function\ndef train(data):\n    for x in data:\n        train_epoch(data, x)",
        "tf.function",
    ),
    "a loop that calls `fit`": (
        "def train(m):\n    for x in range(3):\n        train_epoch(m, x)\n        m.fit(x, epochs=1)",
        "calls fit",
    ),
    "a loop with `flor.loop`": (
        "def train(data):\n    for x in flor.loop('e', data):\n        train_epoch(data, x)",
        "flor.loop",
    ),
}


def analysed(text: str) -> tuple[MainLoops, list[Any], list[Any]]:
    loops = MainLoops(Calls(Index(None, {"train.py": text})))
    scope = next(s for s in loops.calls.index.scopes if s.name == "train")
    found, refused = loops.training(scope)
    for main in found:
        ast.unparse(rewritten(loops.calls.index.files["train.py"].tree, [main]))
    return loops, found, refused


def check(main: Any, expected: dict[str, Any]) -> None:
    block = [] if main.first is None else main.home[main.first : main.last + 1]
    found = {
        "kept": set(main.kept),
        "changed": set(main.changed),
        "elsewhere": {name for _, name in main.elsewhere},
        "unknown": {unknown.text for unknown in main.unknown},
        "names": {unknown.name for unknown in main.unknown},
        "needed_after": set(main.needed_after),
        "block_names": set(main.changed_by_block) - {"tape"},
        "block": ast.unparse(block[0]).splitlines()[0].rstrip(":") if block else None,
        "num_block": len(block),
        "jumpable": main.is_jumpable,
        "way_out": main.is_way_out_seen,
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("line", LINES)
def test_what_is_captured_of_a_construct(line):
    inside, after, at_the_end, expected = LINES[line]
    text = PROGRAM.format(inside, after or "pass", at_the_end or "pass")
    _, found, refused = analysed(text)
    assert not refused
    check(found[0], expected)


@pytest.mark.parametrize("line", WHOLE)
def test_where_the_training_of_an_epoch_is(line):
    source, expected = WHOLE[line]
    head = PROGRAM.partition("def train(")[0]
    _, found, refused = analysed(head + textwrap.dedent(source))
    assert not refused
    check(found[0], expected)


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_and_why(line):
    source, why = REFUSED[line]
    _, found, refused = analysed(PROGRAM.partition("def train(")[0] + source + "\n")
    assert not found
    assert why in refused[0].why


def test_the_page_has_these_lines_and_no_others():
    rows = re.findall(r"^\| (.+?) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    table = rows[rows.index("in the training, or beside it") + 1 :]
    assert {*LINES, *WHOLE, *REFUSED} == set(table)


def test_a_call_of_the_program_that_may_change_anything_is_told_where_it_stands():
    _, found, _ = analysed(PROGRAM.format("opaque()", "pass", "pass"))
    assert [(u.path, u.text) for u in found[0].unknown] == [("train.py", "library.work()")]


def test_a_loop_that_does_not_train_is_left_alone():
    head = PROGRAM.partition("def train(")[0]
    _, found, refused = analysed(
        head + "def train(files):\n    for f in files:\n        SEEN.append(open(f).read())\n"
    )
    assert not found
    assert not refused


def test_a_rewritten_program_keeps_its_lines():
    text = PROGRAM.format("pass", "pass", "pass")
    loops, found, _ = analysed(text)
    tree = rewritten(loops.calls.index.files["train.py"].tree, found)
    originals = {node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)}
    assert {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)} == originals
