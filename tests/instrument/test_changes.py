"""What may differ between the recorded program and the one replayed, and what may not."""

from __future__ import annotations

import pytest

from flor_keras.errors import UsageError
from flor_keras.instrument.changes import Change, difference, forbidden_changes

BASE = """\
import keras
import tensorflow as tf

def build(width):
    model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(1)])
    return model

def main(lr=0.1):
    model = build(8)
    model.compile(optimizer=keras.optimizers.SGD(lr), loss="mse")
    data = tf.data.Dataset.range(10)
    history = model.fit(data, epochs=5)
    return history

main()
"""
FIT = "history = model.fit(data, epochs=5)"
COMPILE = 'model.compile(optimizer=keras.optimizers.SGD(lr), loss="mse")'
FLOR = "import flor_keras as flor\n"


def changes(recorded: str, current: str) -> list[Change]:
    return forbidden_changes({"t.py": recorded}, {"t.py": current})


def replaced(old: str, new: str) -> tuple[str, str]:
    """The base program before and after a replacement; four spaces in front of later lines of ``new``."""
    assert old in BASE
    return BASE, BASE.replace(old, new.replace("\n", "\n    "))


def both(recorded: str, current: str) -> tuple[str, str]:
    """The base program with two different bodies in front of the fit."""
    return replaced(FIT, recorded)[1], replaced(FIT, current)[1]


ALLOWED = {
    "nothing": (BASE, BASE),
    "comments, blank lines and quotes": (
        BASE,
        BASE.replace('"mse"', "'mse'").replace("\n\n", "\n\n\n# x\n"),
    ),
    "parentheses and folding": replaced(FIT, "history = (\n    model.fit(data,\n        epochs=5)\n)"),
    "a docstring": replaced("model = build(8)", '"""Train."""\nmodel = build(8)'),
    "a log line": (FLOR + BASE, FLOR + replaced(FIT, FIT + "\nflor.log('l', history.history)")[1]),
    "a log line with its import": (BASE, FLOR + replaced(FIT, FIT + "\nflor.log('l', 1)")[1]),
    "a log line less": (FLOR + replaced(FIT, FIT + "\nflor.log('l', 1)")[1], BASE),
    "a changed log line": (FLOR + BASE + "flor.log('a', 1)", FLOR + BASE + "flor.log('b', tf.norm(2))"),
    "an import": (BASE, "import numpy as np\nfrom os import path\n" + BASE),
    "an import once more at the top": (BASE, "import keras\n" + BASE),
    "an import in a function": replaced(FIT, "import math\n" + FIT),
    "a new function": (
        BASE,
        BASE.replace("main()\n", "def probe(m):\n    total = 0\n    return m\n\nmain()\n"),
    ),
    "a call of a new function": (
        BASE,
        "def probe(m):\n    print(m)\n\n" + replaced(FIT, FIT + "\nprobe(model)")[1],
    ),
    "a new class": (BASE, "class Probe:\n    def __init__(self):\n        self.x = 1\n\n" + BASE),
    "a new metric class used in compile": (
        BASE,
        "class Mine(keras.metrics.Metric):\n    def update_state(self, *a):\n        self.t.assign_add(1)\n"
        + BASE.replace('loss="mse"', 'loss="mse", metrics=[Mine()]'),
    ),
    "a statement that binds a new name": replaced(FIT, "norm = tf.linalg.global_norm(model.weights)\n" + FIT),
    "a tuple of new names": replaced(FIT, "a, (b, *c) = model.weights\n" + FIT),
    "an annotated new name": replaced(FIT, "a: float = 1.0\nb: int\n" + FIT),
    "a new name counted up": replaced(FIT, "total = 0\nfor w in model.weights:\n    total += w.size\n" + FIT),
    "a new list that grows": replaced(
        FIT, "norms = []\nfor w in model.weights:\n    norms.append(tf.norm(w))\n" + FIT
    ),
    "a print": replaced(FIT, "print(model.weights)\n" + FIT),
    "an if around a log line": (
        FLOR + BASE,
        FLOR
        + replaced(
            FIT, FIT + "\nif history.epoch[-1] > 3:\n    flor.log('x', 1)\nelse:\n    flor.log('y', 2)"
        )[1],
    ),
    "a for around a log line": (
        FLOR + BASE,
        FLOR + replaced(FIT, FIT + "\nfor w in model.weights:\n    flor.log(w.name, w)")[1],
    ),
    "a for around a log line less": (
        FLOR + replaced(FIT, FIT + "\nfor w in model.weights:\n    flor.log(w.name, w)")[1],
        FLOR + BASE,
    ),
    "two such loops become one": (
        FLOR + BASE + "for w in x():\n    flor.log('a', w)\nfor w in y():\n    flor.log('b', w)",
        FLOR + BASE + "for w in x():\n    flor.log('a', w)",
    ),
    "a with around new names": replaced(FIT, "with tf.device('cpu') as device:\n    norm = 1\n" + FIT),
    "a try around new names": replaced(
        FIT,
        "try:\n    norm = model.norm\nexcept AttributeError as missing:\n    pass\nfinally:\n    print(1)\n"
        + FIT,
    ),
    "a break in a new loop": replaced(FIT, "for w in model.weights:\n    if w.size:\n        break\n" + FIT),
    "an else with new names": both(
        "if lr:\n    lr = 2\n" + FIT, "if lr:\n    lr = 2\nelse:\n    norm = 1\n" + FIT
    ),
    "an addition in a nested block": both(
        "if lr:\n    lr = 2\n" + FIT, "if lr:\n    norm = 1\n    lr = 2\n    print(norm)\n" + FIT
    ),
    "callbacks= added": replaced(
        FIT, "history = model.fit(data, epochs=5, callbacks=[keras.callbacks.CSVLogger('x')])"
    ),
    "callbacks= changed": both(FIT[:-1] + ", callbacks=[a(1)])", FIT[:-1] + ", callbacks=[a(2), b()])"),
    "callbacks= removed": both(FIT[:-1] + ", callbacks=[a(1)])", FIT),
    "verbose= changed": both(FIT[:-1] + ", verbose=0)", FIT[:-1] + ", verbose=2)"),
    "verbose= of evaluate": both(
        "e = model.evaluate(data)\n" + FIT, "e = model.evaluate(data, verbose=0)\n" + FIT
    ),
    "metrics= added": replaced(COMPILE, COMPILE[:-1] + ", metrics=['mae', keras.metrics.AUC(name='a')])"),
    "weighted_metrics= changed": both(
        COMPILE[:-1] + ", weighted_metrics=['a'])", COMPILE[:-1] + ", weighted_metrics=['b'])"
    ),
    "a list of callbacks": replaced(
        FIT, "cbs = [keras.callbacks.CSVLogger('x')]\n" + FIT[:-1] + ", callbacks=cbs)"
    ),
    "a list of callbacks that grows": both(
        "cbs = [a()]\n" + FIT[:-1] + ", callbacks=cbs)",
        "cbs = [b()]\ncbs.append(a(3))\ncbs += [c()]\nif lr:\n    cbs.extend([d()])\n"
        + FIT[:-1]
        + ", callbacks=cbs)",
    ),
    "a list of callbacks less": both("cbs = [a()]\ncbs.append(b())\n" + FIT[:-1] + ", callbacks=cbs)", FIT),
    "a number that only a callback gets": both(
        "patience = 3\n" + FIT[:-1] + ", callbacks=[a(patience)])",
        "patience = 4\n" + FIT[:-1] + ", callbacks=[a(patience)])",
    ),
    "names that lead to callbacks over others": both(
        "p = 3\nstop = a(p)\ncbs = [stop]\n" + FIT[:-1] + ", callbacks=cbs)",
        "p = 4\nstop = b(p)\nother = c()\ncbs = [other, stop]\n" + FIT[:-1] + ", callbacks=cbs)",
    ),
    "metrics in a constant": (
        "METRICS = ['a']\n" + BASE.replace('"mse")', '"mse", metrics=METRICS)'),
        "METRICS = ['b', 'c']\n" + BASE.replace('"mse")', '"mse", metrics=METRICS)'),
    ),
    "a helper that makes callbacks": (
        "def cbs(n):\n    found = [a(n)]\n    return found\n"
        + BASE.replace("epochs=5", "epochs=5, callbacks=cbs(1)"),
        "def cbs(n):\n    found = [b(n)]\n    found.append(c())\n    return found\n"
        + BASE.replace("epochs=5", "epochs=5, callbacks=cbs(2)"),
    ),
    "a new helper that makes callbacks": (
        BASE,
        "def cbs(n):\n    return [a(n)]\n" + BASE.replace("epochs=5", "epochs=5, callbacks=cbs(1)"),
    ),
    "callbacks handed through a parameter": (
        BASE,
        BASE.replace("lr=0.1", "lr=0.1, callbacks=None")
        .replace("epochs=5", "epochs=5, callbacks=callbacks")
        .replace("main()\n", "main(callbacks=[x()])\n"),
    ),
    "callbacks handed through a parameter by position": (
        "def train(m, cbs, n):\n    m.fit(1, epochs=n, callbacks=cbs)\ntrain(model, [a()], 3)",
        "def train(m, cbs, n):\n    m.fit(1, epochs=n, callbacks=cbs)\ntrain(model, [b(), c()], 3)",
    ),
    "a changed callback class": (
        "class C(keras.callbacks.Callback):\n    def on_epoch_end(self, e, l):\n        x = 1\n" + BASE,
        "class C(keras.callbacks.Callback):\n    y = 3\n    def on_epoch_end(self, e, l):\n        self.model.x = 2\n"
        + BASE,
    ),
    "a new callback class": (
        BASE,
        "class C(keras.callbacks.Callback):\n    def on_epoch_end(self, e, l):\n        global x\n" + BASE,
    ),
    "a callback class less": ("class C(keras.callbacks.Callback): pass\n" + BASE, BASE),
    "a log line in train_step": (
        FLOR + "class M(keras.Model):\n    def train_step(self, d):\n        return 1\n",
        FLOR
        + "class M(keras.Model):\n    def train_step(self, d):\n        norm = tf.norm(d)\n        flor.log('n', norm)\n        return 1\n",
    ),
    "a new method that overrides nothing": (
        "class M(keras.Model):\n    def call(self, x):\n        return x\n",
        "class M(keras.Model):\n    def weight_norm(self):\n        return 1\n    def call(self, x):\n        return x\n",
    ),
    "a log line between equal statements": (
        FLOR + "f()\nf()\nif a:\n    f()\nif a:\n    f()\n",
        FLOR + "f()\nn = 1\nf()\nif a:\n    f()\n    flor.log('x', 1)\nif a:\n    o = 2\n    f()\n",
    ),
    "an argument of a library function that has the name of a method that changes things": replaced(
        FIT, "s = tf.add(1, 2)\nt = tf.sort(model.x)\n" + FIT
    ),
    "only a log line in a function that was pass": (
        FLOR + "def f():\n    pass\n",
        FLOR + "def f():\n    flor.log('a', 1)\n",
    ),
}

FORBIDDEN = {
    "another learning rate": (*replaced("lr=0.1", "lr=0.2"), [(8, "changed")]),
    "another number of epochs": (*replaced("epochs=5", "epochs=6"), [(12, "changed")]),
    "another layer": (*replaced("keras.layers.Dense(1)]", "keras.layers.Dense(1), keras.layers.Dropout(0.1)]"), [(5, "changed")]),
    "another loss": (*replaced('"mse"', '"mae"'), [(10, "changed")]),
    "1 instead of 1.0": (*replaced("build(8)", "build(8.0)"), [(9, "changed")]),
    "True instead of 1": ("f(1)", "f(True)", [(1, "changed")]),
    "a statement less": (*replaced("data = tf.data.Dataset.range(10)\n    ", ""), [(11, "removed")]),
    "a function less": (BASE, BASE[: BASE.index("def build")] + BASE[BASE.index("def main") :], [(4, "removed")]),
    "an import less": (BASE, BASE.replace("import tensorflow as tf\n", ""), [(2, "removed")]),
    "statements in another order": ("a()\nb()\n", "b()\na()\n", None),
    "a recorded name bound again": (*replaced(FIT, "data = 1\n" + FIT), [(12, "added")]),
    "a recorded name bound by a loop": (*replaced(FIT, "for data in model.weights:\n    print(data)\n" + FIT), [(12, "added")]),
    "a recorded name bound by a with": (*replaced(FIT, "with f() as data:\n    pass\n" + FIT), [(12, "added")]),
    "a recorded name bound by an import": (*replaced(FIT, "import numpy as data\n" + FIT), [(12, "added")]),
    "a recorded name defined again": (BASE, BASE.replace("main()\n", "def build(w): return 1\nmain()\n"), [(15, "added")]),
    "a star import": (BASE, "from numpy import *\n" + BASE, [(1, "added")]),
    "an import in a function of what the file has": (*replaced(FIT, "import keras\n" + FIT), [(12, "added")]),
    "a builtin bound": (*replaced(FIT, "sum = 1\n" + FIT), [(12, "added")]),
    "an attribute bound": (*replaced(FIT, "model.trainable = False\n" + FIT), [(12, "added")]),
    "an item bound": (*replaced(FIT, "model.x['a'] = 1\n" + FIT), [(12, "added")]),
    "a walrus": (*replaced(FIT, "x = (y := 1)\n" + FIT), [(12, "added")]),
    "a walrus in a log line": (FLOR + BASE, FLOR + replaced(FIT, "flor.log('x', data := 1)\n" + FIT)[1], [(13, "added")]),
    "a del": (*replaced(FIT, "n = 1\ndel n\n" + FIT), [(13, "added")]),
    "a global": (*replaced(FIT, "global n\nn = 1\n" + FIT), [(12, "added")]),
    "a global in a new function": (BASE, "def f():\n    global lr\n    lr = 1\n" + BASE, [(1, "added")]),
    "a return": (*replaced(FIT, "return 1\n" + FIT), [(12, "added")]),
    "a return in a new if": (*replaced(FIT, "if lr:\n    return 1\n" + FIT), [(12, "added")]),
    "a break in a recorded loop": ("for x in y:\n    f(x)\n", "for x in y:\n    if x:\n        break\n    f(x)\n", [(2, "added")]),
    "a while": (*replaced(FIT, "while model.x:\n    pass\n" + FIT), [(12, "added")]),
    "a yield": (*replaced(FIT, "n = yield\n" + FIT), [(12, "added")]),
    "a call of something": (*replaced(FIT, "model.summary()\n" + FIT), [(12, "added")]),
    "a fit for a new name": (*replaced(FIT, "h2 = model.fit(data)\n" + FIT), [(12, "added")]),
    "a fit in a log line": (FLOR + BASE, FLOR + replaced(FIT, "flor.log('x', model.fit(data))\n" + FIT)[1], [(13, "added")]),
    "an assigned weight": (*replaced(FIT, "w = model.weights[0].assign(0)\n" + FIT), [(12, "added")]),
    "a seed": (*replaced(FIT, "n = tf.random.set_seed(1)\n" + FIT), [(12, "added")]),
    "the next batch drawn": (*replaced(FIT, "batch = next(data)\n" + FIT), [(12, "added")]),
    "a recorded list that grows": (*replaced(FIT, "model.layers.append(1)\n" + FIT), [(12, "added")]),
    "a new function that changes its argument": (BASE, "def f(m):\n    m.trainable = False\n" + BASE, [(1, "added")]),
    "a new function that trains": (BASE, "def f(m):\n    return m.fit(1)\n" + BASE, [(1, "added")]),
    "an assertion": (*replaced(FIT, "assert lr\n" + FIT), [(12, "added")]),
    "recorded code put under a new if": (*replaced(FIT, "if lr:\n    " + FIT), None),
    "recorded code put into a new with": (*replaced(FIT, "with s.scope():\n    " + FIT), None),
    "another loop header": ("for i in range(3):\n    f()\n", "for i in range(4):\n    f()\n", [(1, "changed")]),
    "another header and another body": ("for i in range(3):\n    f()\n    g(1)\n", "for i in range(4):\n    f()\n    g(2)\n", [(1, "changed"), (3, "changed")]),
    "a decorator": (BASE, BASE.replace("def main", "@tf.function\ndef main"), [(9, "changed")]),
    "another default of flor.arg": (FLOR + "lr = flor.arg('lr', 0.1)", FLOR + "lr = flor.arg('lr', 0.2)", [(2, "changed")]),
    "a log line's value bound to a recorded name": (FLOR + "x = 1\nf(x)", FLOR + "x = flor.log('x', 1)\nf(x)", [(2, "changed")]),
    "a log call of another library": ("import math\n", "import math\nmath.log(3)\n", [(2, "added")]),
    "a list that leads to callbacks and elsewhere": (
        *both("cbs = [1]\nf(cbs)\n" + FIT[:-1] + ", callbacks=cbs)", "cbs = [2]\nf(cbs)\n" + FIT[:-1] + ", callbacks=cbs)"),
        [(12, "changed")],
    ),
    "a list that leads elsewhere in the recorded version": (
        *both("cbs = [1]\nf(cbs)\n" + FIT, "cbs = [2]\n" + FIT[:-1] + ", callbacks=cbs)"),
        None,
    ),
    "metrics used in a loop of one's own": ("metrics = [a()]\nm.compile(metrics=metrics)\nfor x in metrics:\n    x(1)", "metrics = [b()]\nm.compile(metrics=metrics)\nfor x in metrics:\n    x(1)", [(1, "changed")]),
    "a fit whose result only callbacks get": (
        "h = m.fit(x, epochs=1)\nn.fit(x, callbacks=[c(h)])",
        "h = m.fit(x, epochs=2)\nn.fit(x, callbacks=[c(h)])",
        [(1, "changed")],
    ),
    "a fit whose result is only logged": (
        FLOR + "h = m.fit(x, epochs=1)\nflor.log('h', h)",
        FLOR + "h = m.fit(x, epochs=2)\nflor.log('h', h)",
        [(2, "changed")],
    ),
    "a helper that makes callbacks and is used elsewhere": (
        "def cbs(n):\n    return [a(n)]\nf(cbs(1))\nm.fit(x, callbacks=cbs(1))",
        "def cbs(n):\n    return [b(n)]\nf(cbs(1))\nm.fit(x, callbacks=cbs(1))",
        [(2, "changed")],
    ),
    "callbacks= of something that is no fit": ("f(callbacks=[1])", "f(callbacks=[2])", [(1, "changed")]),
    "another argument beside callbacks": (*replaced("epochs=5)", "epochs=5, callbacks=[a()], shuffle=False)"), [(12, "changed")]),
    "a class that becomes a callback": ("class A:\n    x = 1\nA()", "import keras\nclass A(keras.callbacks.Callback):\n    x = 1\nA()", None),
    "a callback that takes the name of a recorded thing": (BASE, "class build(keras.callbacks.Callback): pass\n" + BASE, [(1, "added")]),
    "a new method that overrides": (
        "class M(keras.Model):\n    def call(self, x):\n        return x\n",
        "class M(keras.Model):\n    def train_step(self, d):\n        return 1\n    def call(self, x):\n        return x\n",
        [(2, "added")],
    ),
    "a new special method": ("class A:\n    x = 1\n", "class A:\n    x = 1\n    def __len__(self): return 0\n", [(3, "added")]),
    "a new class attribute": ("class A(keras.Model):\n    x = 1\n", "class A(keras.Model):\n    x = 1\n    dtype = 2\n", [(3, "added")]),
    "a class attribute with the name of free callbacks": (
        "class A:\n    cbs = 1\nm.fit(callbacks=cbs)",
        "class A:\n    cbs = 2\nm.fit(callbacks=cbs)",
        [(2, "changed")],
    ),
    "a removed print": ("print(1)\n", "", [(1, "removed")]),
    "a changed constant in a nested function": ("def f():\n    def g():\n        return 1\n    return g", "def f():\n    def g():\n        return 2\n    return g", [(3, "changed")]),
    "a changed exception handler": ("try:\n    f()\nexcept A:\n    g(1)", "try:\n    f()\nexcept A:\n    g(2)", [(4, "changed")]),
    "a changed match case": ("match a:\n    case 1:\n        f(1)", "match a:\n    case 1:\n        f(2)", [(3, "changed")]),
    "a changed lambda": ("f = lambda x: x + 1", "f = lambda x: x + 2", [(1, "changed")]),
}  # fmt: skip


@pytest.mark.parametrize(("recorded", "current"), ALLOWED.values(), ids=ALLOWED.keys())
def test_this_may_differ(recorded: str, current: str) -> None:
    assert changes(recorded, current) == []


@pytest.mark.parametrize(("recorded", "current", "expected"), FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_this_may_not_differ(recorded: str, current: str, expected: list[tuple[int, str]] | None) -> None:
    found = changes(recorded, current)
    assert found
    if expected is not None:
        assert [(change.line, change.kind) for change in found] == expected


def test_a_change_shows_the_line_it_stands_on() -> None:
    recorded = "m.fit(\n    x,\n    epochs=5,\n)\n"
    assert changes(recorded, recorded.replace("5", "6")) == [Change("t.py", 3, "changed", "epochs=6,")]


def test_a_file_less_is_a_removal_and_a_new_file_is_allowed() -> None:
    recorded = {"t.py": "import a\n", "a.py": "x = 1\n"}
    assert forbidden_changes(recorded, {"t.py": "import a\n"}) == [
        Change("a.py", 1, "removed", "the whole file")
    ]
    current = recorded | {
        "probes.py": "y = 2\ndef note(m): pass\n",
        "t.py": "import a\nimport probes\nprobes.note(1)\n",
    }
    assert forbidden_changes(recorded, current) == []


def test_a_new_file_must_not_stand_in_for_a_library() -> None:
    found = forbidden_changes({"t.py": "import numpy\n"}, {"t.py": "import numpy\n", "numpy.py": ""})
    assert [(change.path, change.kind) for change in found] == [("numpy.py", "added")]


def test_callbacks_are_followed_across_files() -> None:
    recorded = {
        "t.py": "from conf import CBS, LR\nimport conf\nm.compile(LR, metrics=conf.METRICS)\nm.fit(x, callbacks=CBS)\n",
        "conf.py": "CBS = [a()]\nMETRICS = ['a']\nLR = 1\n",
    }
    free = recorded | {"conf.py": "CBS = [b()]\nMETRICS = ['b']\nLR = 1\n"}
    assert forbidden_changes(recorded, free) == []
    bound = recorded | {"conf.py": "CBS = [b()]\nMETRICS = ['b']\nLR = 2\n"}
    assert forbidden_changes(recorded, bound) == [Change("conf.py", 3, "changed", "LR = 2")]


def test_a_callback_class_is_known_across_files() -> None:
    recorded = {
        "base.py": "import keras\nclass Base(keras.callbacks.Callback): pass\n",
        "t.py": "from base import Base\nclass C(Base):\n    x = 1\n",
    }
    current = recorded | {"t.py": "from base import Base\nclass C(Base):\n    x = 2\n"}
    assert forbidden_changes(recorded, current) == []


def test_a_syntax_error_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"t\.py:1 is not valid Python"):
        changes("x = 1", "x = ")


def test_the_difference_is_a_unified_diff_of_all_files() -> None:
    text = difference({"a.py": "x = 1\n", "b.py": "y = 1\n"}, {"a.py": "x = 2\n", "c.py": "z = 1\n"})
    assert "--- recorded/a.py\n+++ current/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n" in text
    assert "-y = 1\n" in text
    assert "+z = 1\n" in text
    assert difference({"a.py": "x"}, {"a.py": "x"}) == ""
