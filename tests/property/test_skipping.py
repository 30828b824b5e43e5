"""A loop whose training is skipped ends in the very state it ends in when it runs: values, and what is shared with what."""

from __future__ import annotations

import itertools
import linecache
import os
import pickle
import textwrap
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flor_keras import recorded, session
from flor_keras.state import loops
from flor_keras.state.mainloop import MainLoop, Visit
from flor_keras.state.objects import Kept

PRELUDE = """
class Box:
    def __init__(self):
        self.items, self.n = [], 0
    def put(self, value):
        self.items.append(value)
        self.n += 1
        return self.n

SHARED = []

def add(target, value):
    target.append(value)

def bump(value):
    SHARED.append(value)
    return len(SHARED)
"""
SIMPLE = [
    *("n = (n + 3) % 97", "m += n", "m %= 89", "n = len(p) + m", "n, m = m, n", "k = n"),
    *(
        "p.append(n)",
        "q.extend(p[:2])",
        "p = [n]",
        "p = q",
        "q = p + [m]",
        "p += [m]",
        "p[:] = p[-3:]",
        "del q[1:]",
    ),
    *(
        "t[n % 3] = p",
        "t['n'] = n",
        "t.setdefault('l', []).append(m)",
        "t = dict(t)",
        "t.pop(0, None)",
        "t['o'] = o",
    ),
    *(
        "o.put(n)",
        "m = o.put(m) + o.n",
        "o.items.append(n)",
        "o.items = q",
        "o = Box()",
        "r = o",
        "r.items = p",
    ),
    *(
        "x = o.items; x.append(n)",
        "y = t.get('l') or []; y.append(n)",
        "add(p, n)",
        "add(o.items, m)",
        "bump(n)",
    ),
    *(
        "n = bump(m)",
        "for z in (p, q): z.append(m)",
        "s = {n, *s}",
        "s.add(m)",
        "w = (p, o)",
        "w[0].append(n)",
    ),
]
EXITS = ["break", "continue"]
NAMES = ["k", "m", "n", "o", "p", "q", "r", "s", "t", "w"]


@st.composite
def blocks(draw, depth=0, is_in_loop=False):
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(
            st.sampled_from(
                ["simple"] * 4 + (["if", "for", "while"] if depth < 2 else []) + ["exit"] * is_in_loop
            )
        )
        if kind == "simple":
            lines.append(draw(st.sampled_from(SIMPLE)))
        elif kind == "exit":
            lines += [f"if (n + m) % {draw(st.integers(2, 4))} == 0:", f"    {draw(st.sampled_from(EXITS))}"]
        elif kind == "if":
            lines += [
                f"if (n + len(p)) % {draw(st.integers(2, 3))}:",
                *indented(draw(blocks(depth + 1, is_in_loop))),
            ]
        elif kind == "for":
            lines += [
                f"for i{depth} in range({draw(st.integers(0, 3))}):",
                *indented(draw(blocks(depth + 1, True))),
            ]
        else:
            count = f"c{depth}"
            inner = [f"{count} += 1", *draw(blocks(depth + 1, True))]
            lines += [f"{count} = 0", f"while {count} < {draw(st.integers(1, 3))}:", *indented(inner)]
    return lines


def indented(lines):
    return [f"    {line}" for line in lines]


@st.composite
def programs(draw):
    before, block, after = draw(blocks(1, True)), draw(blocks(0, True)), draw(blocks(1, True))
    head = draw(st.sampled_from(["for step in range({}):", "while (c := c + 1) < {}:"])).format(
        draw(st.integers(0, 4))
    )
    body = ["c = 0", *before, head, *indented(block), *after]
    is_while = draw(st.booleans())
    loop = (
        ["e = 0", "while e < 4:", *indented(["e += 1", *body])]
        if is_while
        else ["for e in range(4):", *indented(body)]
    )
    start = [
        "k, m, n, p, q, s, t, o = 0, 1, 2, [1], [2], {0}, {}, Box()",
        "r, w = o, (q, o)",
        *draw(blocks(2)),
    ]
    first = [f"{name} = {name}" for name in draw(st.lists(st.sampled_from(NAMES[:3]), max_size=1))]
    lines = [*start, *first, *loop, *draw(blocks(2)), f"return SHARED, {', '.join(NAMES)}"]
    return PRELUDE + "\ndef program():\n" + "\n".join(indented(lines)) + "\n"


class Memory(MainLoop):
    """A main loop whose checkpoints are in memory; skips the blocks of the epochs that are not to run."""

    def __init__(self, state: Any, ends: dict[int, Any], skipped: set[int], first: int) -> None:
        super().__init__(0, state, lambda position: None)
        self._ends, self._skipped, self._first = ends, skipped, first
        self.is_recording = not skipped

    def begin(self) -> None: ...

    def is_over(self, epoch: int) -> bool:
        return False

    def visit(self, epoch: int) -> Visit | None:
        if self.is_recording or epoch not in self._ends:
            return Visit() if epoch >= self._first else None
        if epoch < self._first:
            return None
        end = self._ends[epoch] if epoch in self._skipped or epoch == self._first > 0 else None
        return Visit(
            end=end,
            is_entered_at_block=bool(self.state.about["is_entered_at_block"]) and epoch == self._first > 0,
        )

    def trained(self) -> None:
        if self.is_recording:
            self._ends[self.epoch] = self.state.capture()

    def end(self, error: BaseException | None) -> None: ...


class State(loops.LoopState):
    """Keeps objects and locals only, in memory: what variables and random states need, other tests hold."""

    def capture(self) -> Any:
        kept = self._objects.keep(self._read_names())
        assert not kept.lost, kept.lost
        return pickle.dumps((kept.pickled, kept.arrays))

    def restore(self, folder: Any, *, is_fresh: bool = False) -> dict[str, Any]:
        pickled, arrays = pickle.loads(folder)
        return self._objects.put_back(Kept(pickled, arrays))

    def pass_over(self, folder: Any) -> None: ...


class Session:
    """Stands in for a recorder."""

    def __init__(self, ends: dict[int, Any], skipped: set[int], first: int) -> None:
        self._made = ends, skipped, first
        self.main_loop = None
        self.is_jumpable = True

    def about_next_loop(self) -> None:
        return None

    def begin_loop(self, name: str, state: Any, every: Any) -> Memory:
        self.is_jumpable = state.about["is_jumpable"]
        assert state.why_redone is None
        self.main_loop = Memory(state, *self._made)
        return self.main_loop

    def end_loop(self, main: Any) -> None:
        self.main_loop = None


@pytest.fixture(scope="module")
def memory():
    """Loops that keep their checkpoints in memory."""
    before, loops.LoopState = loops.LoopState, State
    yield
    loops.LoopState = before


NUMBERS = itertools.count()
NUM_EXAMPLES = int(os.environ.get("FLOR_EXAMPLES", "120"))


def function_of(text: str) -> Any:
    name = f"<program {next(NUMBERS)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"__name__": "generated"}
    exec(compile(text, name, "exec"), scope)
    return scope["program"]


def run(text: str, ends: dict[int, Any], skipped: set[int], first: int = 0) -> Any:
    function = function_of(text)
    recorded.instrument(function)
    double = Session(ends, skipped, first)
    session.begin(double)  # type: ignore[arg-type]
    try:
        return shape(function()), double.is_jumpable
    finally:
        session.begin(None)


def shape(value: Any) -> Any:
    """Return values with a number for each object: the same object has the same number."""
    numbers: dict[int, int] = {}

    def of(value: Any) -> Any:
        if isinstance(value, int | str | None):
            return value
        if isinstance(value, tuple):
            return tuple(map(of, value))
        if id(value) in numbers:
            return f"#{numbers[id(value)]}"
        numbers[id(value)] = len(numbers)
        if isinstance(value, list):
            return [numbers[id(value)], *map(of, value)]
        if isinstance(value, set):
            return [numbers[id(value)], *sorted(value)]
        entries = value if isinstance(value, dict) else vars(value)
        return [numbers[id(value)], *((key, of(item)) for key, item in entries.items())]

    return of(value)


@settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=programs(), skipped=st.sets(st.integers(0, 3), min_size=1), first=st.integers(0, 3))
def test_skipping_with_restore_ends_where_running_ends(memory, text, skipped, first):
    expected = shape(function_of(text)())
    ends: dict[int, Any] = {}
    recorded_shape, is_jumpable = run(text, ends, set())
    assert recorded_shape == expected, text
    assert run(text, ends, skipped)[0] == expected, text
    if is_jumpable and first in ends:
        assert run(text, ends, skipped, first)[0] == expected, text


def test_the_programs_that_are_generated_do_have_blocks_that_are_skipped(memory):
    text = PRELUDE + textwrap.dedent("""
        def program():
            p = [1]
            for e in range(4):
                for step in range(2):
                    p.append(e)
            return p
    """)
    ends: dict[int, Any] = {}
    run(text, ends, set())
    assert sorted(ends) == [0, 1, 2, 3]
