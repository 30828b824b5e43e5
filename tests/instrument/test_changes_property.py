"""Generated programs: additions are allowed at every place, a changed number is refused at every place."""

from __future__ import annotations

import ast
import textwrap

from hypothesis import given, settings
from hypothesis import strategies as st

from flor_keras.instrument.changes import forbidden_changes

HEAD = "import flor_keras as flor\nimport tensorflow as tf\n"

SIMPLE = [
    "a = f({n})",
    "b = a + {n}",
    "model.compile(lr={n}, metrics=['m', {n}])",
    "h = model.fit(a, epochs={n}, callbacks=[c({n})])",
    "model.layers.append({n})",
    "b[{n}] = a",
    "x, y = g(a, k={n})",
    "f(a)(b)",
]
BLOCKS = [
    "if a > {n}:",
    "for i in range({n}):",
    "with s(a, {n}) as t:",
    "def f(p, q={n}):",
    "while a < {n}:",
    "class K(Base, k={n}):\n    def m(self):",
]
ADDITIONS = [
    "flor.log('p', model.weights)",
    "flor.log(f'p{a}', tf.norm(a))",
    "new_n = tf.linalg.global_norm(model.weights)",
    "new_a, *new_b = a",
    "print(a, b)",
    "import math as new_math",
    "for new_w in model.weights:\n    flor.log(new_w.name, new_w)",
    "if a:\n    flor.log('p', a)\nelse:\n    new_e = [k for k in b]",
    "try:\n    flor.log('p', a)\nexcept KeyError as new_error:\n    print(new_error)",
    "with tf.device('cpu'):\n    new_d = a",
    "def new_f(z):\n    w = z + 1\n    return w",
    "class NewProbe:\n    size = 3",
    "'a text'",
]

numbers = st.integers(10, 99)
simple = st.builds(lambda text, n: text.replace("{n}", str(n)), st.sampled_from(SIMPLE), numbers)


def block(header: str, n: int, body: list[str]) -> str:
    head = header.replace("{n}", str(n))
    depth = "        " if head.startswith("class") else "    "
    return head + "\n" + textwrap.indent("\n".join(body), depth)


statements = st.recursive(
    simple,
    lambda inner: st.builds(block, st.sampled_from(BLOCKS), numbers, st.lists(inner, min_size=1, max_size=4)),
    max_leaves=8,
)
programs = st.lists(statements, min_size=1, max_size=6).map(lambda parts: HEAD + "\n".join(parts) + "\n")


def places(source: str) -> list[tuple[int, str]]:
    """List (line to insert before, indent) of every place for a statement outside class bodies."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
                for statement in body if isinstance(body, list) else []:
                    found.append((statement.lineno, " " * statement.col_offset))
    return sorted(set(found), reverse=True)


def with_additions(source: str, chosen: list[tuple[int, str]]) -> str:
    """Insert each addition at a place of the program."""
    everywhere = places(source)
    wanted = {everywhere[number % len(everywhere)]: text for number, text in chosen}
    lines = source.splitlines()
    for (line, indent), text in sorted(wanted.items(), reverse=True):
        lines[line - 1 : line - 1] = textwrap.indent(text, indent).splitlines()
    return "\n".join(lines)


additions = st.lists(st.tuples(st.integers(0, 99), st.sampled_from(ADDITIONS)), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(programs, additions)
def test_allowed_additions_are_allowed_at_every_place(source: str, chosen: list[tuple[int, str]]) -> None:
    current = with_additions(source, chosen)
    assert forbidden_changes({"t.py": source}, {"t.py": current}) == []


@settings(max_examples=150, deadline=None)
@given(programs, additions, st.integers(0, 99), st.booleans())
def test_a_changed_number_is_refused_at_every_place_but_callbacks_and_metrics(
    source: str, chosen: list[tuple[int, str]], which: int, is_also_extended: bool
) -> None:
    tree = ast.parse(source)
    free = {
        id(part)
        for keyword in ast.walk(tree)
        if isinstance(keyword, ast.keyword) and keyword.arg in ("callbacks", "metrics")
        for part in ast.walk(keyword)
    }
    bound = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, int)]
    number = bound[which % len(bound)] if bound else ast.Constant(0)
    number.value = 1000
    current = ast.unparse(tree)
    current = with_additions(current, chosen) if is_also_extended else current
    is_refused = bool(forbidden_changes({"t.py": source}, {"t.py": current}))
    assert is_refused == (bool(bound) and id(number) not in free)


@settings(max_examples=100, deadline=None)
@given(programs, st.integers(0, 99))
def test_a_statement_less_is_refused(source: str, which: int) -> None:
    tree = ast.parse(source)
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    body = bodies[which % len(bodies)]
    first = 2 if body is tree.body else 0  # the imports stay
    del body[first]
    if not body:
        body.append(ast.Pass())
    assert forbidden_changes({"t.py": source}, {"t.py": ast.unparse(tree)})


@settings(max_examples=50, deadline=None)
@given(programs)
def test_a_program_written_anew_from_its_tree_is_the_same(source: str) -> None:
    assert forbidden_changes({"t.py": source}, {"t.py": ast.unparse(ast.parse(source))}) == []
