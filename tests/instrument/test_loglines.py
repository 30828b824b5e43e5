"""What the source says about log lines: their names, their levels and what leads to them."""

from __future__ import annotations

import textwrap
from types import CodeType

import pytest

from flor_keras.errors import UsageError
from flor_keras.instrument.levels import rules
from flor_keras.instrument.loglines import FunctionId, Level, Program

HEAD = """\
import flor_keras as flor
import keras
import numpy as np
import tensorflow as tf
from functools import partial
"""


def program(body: str, **others: str) -> Program:
    sources = {"train.py": HEAD + textwrap.dedent(body)}
    sources |= {f"{name.replace('__', '/')}.py": textwrap.dedent(text) for name, text in others.items()}
    return Program("train.py", sources)


LEVELS = {
    "a line before fit is setup": ("flor.log('p', 1)\nmodel.fit(x)", Level.SETUP),
    "a line after fit is after": ("model.fit(x)\nflor.log('p', 1)", Level.AFTER),
    "a program without training is setup": ("flor.log('p', 1)", Level.SETUP),
    "a line between two fits is after": ("model.fit(x)\nflor.log('p', 1)\nmodel.fit(x)", Level.AFTER),
    "scikit-learn's fit is no training": (
        "from sklearn.preprocessing import StandardScaler\ns = StandardScaler()\ns.fit(x)\n"
        "flor.log('p', 1)\nmodel.fit(x, epochs=3)",
        Level.SETUP,
    ),
    "chained scikit-learn's fit is no training": (
        "from sklearn.preprocessing import StandardScaler\ns = StandardScaler().fit(x)\nflor.log('p', 1)\nmodel.fit(x)",
        Level.SETUP,
    ),
    "before fit in the loop of fits is setup": (
        "for lr in lrs:\n    flor.log('p', lr)\n    model.fit(x)",
        Level.SETUP,
    ),
    "after fit in the loop of fits is after": (
        "for lr in lrs:\n    model.fit(x)\n    flor.log('p', lr)",
        Level.AFTER,
    ),
    "a helper called before fit is setup": (
        "def f():\n    flor.log('p', 1)\nf()\nmodel.fit(x)",
        Level.SETUP,
    ),
    "a helper called after fit is after": ("def f():\n    flor.log('p', 1)\nmodel.fit(x)\nf()", Level.AFTER),
    "a helper called on both sides of fit takes the dearer": (
        "def f():\n    flor.log('p', 1)\nf()\nmodel.fit(x)\nf()",
        Level.AFTER,
    ),
    "fit inside main counts for main": (
        "def train(m):\n    return m.fit(x)\ndef main():\n    h = train(m)\n    flor.log('p', h)\nmain()",
        Level.AFTER,
    ),
    "fit under a main guard counts": (
        "def main():\n    flor.log('p', 1)\n    m.fit(x)\nif __name__ == '__main__':\n    main()",
        Level.SETUP,
    ),
    "fit in one branch does not make the other branch after": (
        "if a:\n    m.fit(x)\nelse:\n    flor.log('p', 1)\n    m.fit(x)",
        Level.SETUP,
    ),
    "an argument of fit is computed before it": (
        "def data():\n    flor.log('p', 1)\n    return 1\nm.fit(data())",
        Level.SETUP,
    ),
    "a function held in a list runs where the list is used": (
        "def f():\n    flor.log('p', 1)\nfs = [f]\nm.fit(x)\nfor g in fs:\n    g()",
        Level.AFTER,
    ),
    "a partial runs where it is called": (
        "def f(a):\n    flor.log('p', a)\ng = partial(f, 1)\nm.fit(x)\ng()",
        Level.AFTER,
    ),
    "on_epoch_end is epoch": (
        "class C(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n        flor.log('p', 1)",
        Level.EPOCH,
    ),
    "on_train_begin is setup": (
        "class C(keras.callbacks.Callback):\n    def on_train_begin(self, logs=None):\n        flor.log('p', 1)",
        Level.SETUP,
    ),
    "on_train_end is after": (
        "class C(keras.callbacks.Callback):\n    def on_train_end(self, logs=None):\n        flor.log('p', 1)",
        Level.AFTER,
    ),
    "on_test_end is eval": (
        "class C(keras.callbacks.Callback):\n    def on_test_end(self, logs=None):\n        flor.log('p', 1)",
        Level.EVAL,
    ),
    "on_predict_batch_end is eval": (
        "class C(keras.callbacks.Callback):\n    def on_predict_batch_end(self, b, logs=None):\n        flor.log('p', 1)",
        Level.EVAL,
    ),
    "on_train_batch_end is step": (
        "class C(keras.callbacks.Callback):\n    def on_train_batch_end(self, b, logs=None):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "on_batch_end is step": (
        "from keras.callbacks import Callback\nclass C(Callback):\n    def on_batch_end(self, b, logs=None):\n"
        "        flor.log('p', 1)",
        Level.STEP,
    ),
    "a callback derived through another class is a callback": (
        "class A(keras.callbacks.Callback): pass\nclass B(A): pass\n"
        "class C(B):\n    def on_epoch_begin(self, e, logs=None):\n        flor.log('p', 1)",
        Level.EPOCH,
    ),
    "a callback derived from a known one is a callback": (
        "class C(keras.callbacks.EarlyStopping):\n    def on_epoch_end(self, e, logs=None):\n        flor.log('p', 1)",
        Level.EPOCH,
    ),
    "a method of no callback is not epoch": (
        "class C:\n    def on_epoch_end(self):\n        flor.log('p', 1)\nc = C()\nc.on_epoch_end()\nm.fit(x)",
        Level.SETUP,
    ),
    "a mixin of a callback is a callback": (
        "class Mixin:\n    def on_epoch_end(self, e, logs=None):\n        flor.log('p', 1)\n"
        "class C(Mixin, keras.callbacks.Callback): pass",
        Level.EPOCH,
    ),
    "a helper method of a callback takes the level of its hook": (
        "class C(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n        self.note()\n"
        "    def note(self):\n        flor.log('p', 1)",
        Level.EPOCH,
    ),
    "a helper of two hooks takes the dearer": (
        "class C(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n        self.note()\n"
        "    def on_train_batch_end(self, b, logs=None):\n        self.note()\n"
        "    def note(self):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "the constructor of a callback is setup": (
        "class C(keras.callbacks.Callback):\n    def __init__(self):\n        flor.log('p', 1)\nm.fit(x, callbacks=[C()])",
        Level.SETUP,
    ),
    "LambdaCallback(on_epoch_end) is epoch": (
        "m.fit(x, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda e, l: flor.log('p', 1))])",
        Level.EPOCH,
    ),
    "LambdaCallback(on_train_batch_end) is step": (
        "def note(b, logs):\n    flor.log('p', 1)\n"
        "c = keras.callbacks.LambdaCallback(on_train_batch_end=note)\nm.fit(x, callbacks=[c])",
        Level.STEP,
    ),
    "LambdaCallback of a partial is seen": (
        "def note(a, e, logs):\n    flor.log('p', 1)\n"
        "c = keras.callbacks.LambdaCallback(on_epoch_end=partial(note, 1))\nm.fit(x, callbacks=[c])",
        Level.EPOCH,
    ),
    "the function of LearningRateScheduler is epoch": (
        "def rate(e, lr):\n    flor.log('p', lr)\n    return lr\nc = keras.callbacks.LearningRateScheduler(rate)",
        Level.EPOCH,
    ),
    "train_step is step": (
        "class M(keras.Model):\n    def train_step(self, d):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "test_step alone is eval": (
        "class M(keras.Model):\n    def test_step(self, d):\n        flor.log('p', 1)",
        Level.EVAL,
    ),
    "a helper of train_step and test_step is step": (
        "class M(keras.Model):\n    def test_step(self, d):\n        self.f()\n"
        "    def train_step(self, d):\n        self.f()\n    def f(self):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "call of a layer is step": (
        "from keras.layers import Dense\nclass L(Dense):\n    def call(self, x):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "compute_loss is step": (
        "class M(keras.Model):\n    def compute_loss(self, **k):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "a metric's update_state is step": (
        "class M(keras.metrics.Metric):\n    def update_state(self, *a):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "a schedule's __call__ is step": (
        "class S(keras.optimizers.schedules.LearningRateSchedule):\n    def __call__(self, s):\n        flor.log('p', s)",
        Level.STEP,
    ),
    "a loss function is step": (
        "def loss(y, p):\n    flor.log('p', 1)\nm.compile(loss=loss)\nm.fit(x)",
        Level.STEP,
    ),
    "a loss function made by a factory is step": (
        "def make(a):\n    def loss(y, p):\n        flor.log('p', a)\n    return loss\nm.compile(loss=make(1))",
        Level.STEP,
    ),
    "a metric function in a named list is step": (
        "def acc(y, p):\n    flor.log('p', 1)\nmetrics = [acc]\nm.compile(metrics=metrics)",
        Level.STEP,
    ),
    "a loss passed through a parameter is step": (
        "def my(y, p):\n    flor.log('p', 1)\ndef build(how):\n    m.compile(loss=how)\nbuild(my)\nm.fit(x)",
        Level.STEP,
    ),
    "Dataset.map is step": (
        "def prep(a):\n    flor.log('p', 1)\n    return a\nds = tf.data.Dataset.from_tensor_slices(x).map(prep)\nm.fit(ds)",
        Level.STEP,
    ),
    "a generator given to fit is step": (
        "def batches():\n    while True:\n        flor.log('p', 1)\n        yield x\nm.fit(batches(), epochs=2)",
        Level.STEP,
    ),
    "an item of a PyDataset is step": (
        "class D(keras.utils.PyDataset):\n    def __getitem__(self, i):\n        flor.log('p', i)",
        Level.STEP,
    ),
    "a Lambda layer is step": ("l = keras.layers.Lambda(lambda a: flor.log('p', a))", Level.STEP),
    "a model of an unknown library has Keras's methods": (
        "from library import Base\nclass M(Base):\n    def train_step(self, d):\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "code nothing calls is step": ("def f():\n    flor.log('p', 1)\nm.fit(x)", Level.STEP),
    "a decorator's wrapper takes the level of what it decorates": (
        "def deco(f):\n    def wrapper(*a):\n        flor.log('p', 1)\n        return f(*a)\n    return wrapper\n"
        "class C(keras.callbacks.Callback):\n    @deco\n    def on_epoch_end(self, e, logs=None): pass",
        Level.EPOCH,
    ),
    "the body of flor.loop is epoch": (
        "for e in flor.loop('epoch', range(3)):\n    flor.log('p', 1)",
        Level.EPOCH,
    ),
    "a loop inside flor.loop is step": (
        "for e in flor.loop('epoch', range(3)):\n    for b in ds:\n        flor.log('p', 1)",
        Level.STEP,
    ),
    "after flor.loop is after": (
        "for e in flor.loop('epoch', range(3)):\n    pass\nflor.log('p', 1)",
        Level.AFTER,
    ),
    "before flor.loop is setup": (
        "for l in layers:\n    flor.log('p', 1)\nfor e in flor.loop('epoch', range(3)):\n    pass",
        Level.SETUP,
    ),
    "a function called in flor.loop is epoch": (
        "def f():\n    flor.log('p', 1)\nfor e in flor.loop('epoch', range(3)):\n    f()",
        Level.EPOCH,
    ),
    "a loop in a function called in flor.loop is step": (
        "def f():\n    for b in ds:\n        flor.log('p', 1)\nfor e in flor.loop('epoch', range(3)):\n    f()",
        Level.STEP,
    ),
    "the main loop of a recorded function is epoch": (
        "@flor.record\ndef train():\n    for e in range(3):\n        for b in ds:\n            pass\n"
        "        flor.log('p', 1)\ntrain()",
        Level.EPOCH,
    ),
    "the inner loop of a recorded function is step": (
        "@flor.record\ndef train():\n    for e in range(3):\n        for b in ds:\n            flor.log('p', 1)\ntrain()",
        Level.STEP,
    ),
    "a flat loop beside the main loop of a recorded function is setup": (
        "@flor.record\ndef train():\n    for l in layers:\n        flor.log('p', 1)\n"
        "    for e in range(3):\n        for b in ds:\n            pass\ntrain()",
        Level.SETUP,
    ),
    "after the recorded function is after": (
        "@flor.record\ndef train():\n    while more():\n        pass\ntrain()\nflor.log('p', 1)",
        Level.AFTER,
    ),
    "a recursive helper ends": ("def f(n):\n    flor.log('p', n)\n    f(n - 1)\nf(3)\nm.fit(x)", Level.SETUP),
}


@pytest.mark.parametrize(("body", "level"), LEVELS.values(), ids=LEVELS.keys())
def test_a_line_has_the_level_of_the_place_it_runs_at(body: str, level: Level) -> None:
    assert program(body).level_of("p") == level


@pytest.mark.parametrize(
    "source",
    [
        "import flor_keras as flor\nflor.log('p', 1)",
        "import flor_keras\nflor_keras.log('p', 1)",
        "from flor_keras import log\nlog('p', 1)",
        "from flor_keras import log as note\nnote('p', 1)",
        "import flor_keras as flor\nlog = flor.log\nlog('p', 1)",
        "import flor_keras as flor\nflor.log(value=1, name='p')",
        "import flor_keras as flor\nNAME = 'p'\nflor.log(NAME, 1)",
        "import flor_keras as flor\nx = [flor.log('p', i) for i in y]",
        "def f():\n    import flor_keras as flor\n    flor.log('p', 1)",
    ],
)
def test_a_log_call_is_found_under_every_name_it_can_have(source: str) -> None:
    assert [line.name for line in Program("t.py", {"t.py": source}).log_lines("p")] == ["p"]


@pytest.mark.parametrize("source", ["import math\nmath.log('p')", "logger.log('p', 1)", "log('p', 1)"])
def test_a_log_call_of_something_else_is_no_log_line(source: str) -> None:
    assert Program("t.py", {"t.py": source}).all_log_lines == []


@pytest.mark.parametrize(
    ("argument", "matching", "other"),
    [
        ("f'norm/{layer.name}'", "norm/dense_1", "loss/dense_1"),
        ("'norm/' + layer.name", "norm/dense_1", "dense_1"),
        ("'norm_%d' % i", "norm_3", "norm3"),
        ("'{}_norm'.format(i)", "3_norm", "3_norms"),
        ("'a' if c else 'b'", "b", "c"),
        ("f'{x}.y'", "a.y", "a_y"),
        ("PREFIX + f'/{x}'", "pre/1", "x/1"),
    ],
)
def test_a_computed_name_matches_what_it_can_become(argument: str, matching: str, other: str) -> None:
    found = program(f"PREFIX = 'pre'\nflor.log({argument}, 1)")
    assert len(found.log_lines(matching)) == 1
    assert found.log_lines(other) == []


def test_an_unknown_name_matches_everything_but_constants_come_first() -> None:
    found = program("flor.log(name, 1)\nflor.log('loss', 2)\nflor.log(*pair)")
    assert [line.line for line in found.log_lines("loss")] == [7]
    assert [line.line for line in found.log_lines("other")] == [6, 8]
    assert program("pass").level_of("loss") is None


REACHING = {
    "the function around the line": ("def f():\n    flor.log('p', 1)", {"f"}),
    "nothing at the top level": ("flor.log('p', 1)", set()),
    "callers of callers": (
        "def a():\n    flor.log('p', 1)\ndef b():\n    a()\ndef c():\n    b()\ndef d(): pass",
        {"a", "b", "c"},
    ),
    "a method through self": (
        "class C:\n    def a(self):\n        flor.log('p', 1)\n    def b(self):\n        self.a()\n"
        "class D:\n    def a(self): pass\n    def c(self):\n        self.a()",
        {"C.a", "C.b"},
    ),
    "a method of some object by its name": (
        "class C:\n    def note(self):\n        flor.log('p', 1)\ndef f(o):\n    o.note()",
        {"C.note", "f"},
    ),
    "a method of a module outside is not meant": (
        "class C:\n    def mean(self):\n        flor.log('p', 1)\ndef f(o):\n    np.mean(o)",
        {"C.mean"},
    ),
    "super leads to the parent only": (
        "class A(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n        flor.log('p', 1)\n"
        "class B(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n"
        "        super().on_epoch_end(e, logs)\n"
        "class C(A):\n    def on_epoch_end(self, e, logs=None):\n        super().on_epoch_end(e, logs)",
        {"A.on_epoch_end", "C.on_epoch_end"},
    ),
    "an overridden method leads to the override": (
        "class A:\n    def run(self):\n        self.note()\n    def note(self): pass\n"
        "class B(A):\n    def note(self):\n        flor.log('p', 1)",
        {"A.run", "B.note"},
    ),
    "a function passed as an argument": (
        "def a():\n    flor.log('p', 1)\ndef b(g):\n    g()\ndef c():\n    b(a)",
        {"a", "b", "c"},
    ),
    "a function in a partial": (
        "def a(x):\n    flor.log('p', x)\ng = partial(a, 1)\ndef b():\n    g()",
        {"a", "b"},
    ),
    "a function kept in an attribute": (
        "def a():\n    flor.log('p', 1)\nclass C:\n    def __init__(self):\n        self.g = a\n"
        "    def run(self):\n        self.g()",
        {"a", "C.__init__", "C.run"},
    ),
    "a lambda and who makes it": (
        "def make():\n    return keras.callbacks.LambdaCallback(on_epoch_end=lambda e, l: flor.log('p', 1))",
        {"make", "make.<locals>.<lambda>"},
    ),
    "a decorated function reaches the wrapper's line": (
        "def deco(f):\n    def wrapper():\n        flor.log('p', 1)\n        return f()\n    return wrapper\n"
        "@deco\ndef a(): pass\ndef b(): pass",
        {"deco", "deco.<locals>.wrapper", "a"},
    ),
    "the wrapper reaches the decorated function's line": (
        "def deco(f):\n    def wrapper():\n        return f()\n    return wrapper\n@deco\ndef a():\n    flor.log('p', 1)",
        {"deco", "deco.<locals>.wrapper", "a"},
    ),
    "evaluate in a callback reaches the model's call": (
        "class M(keras.Model):\n    def call(self, x):\n        flor.log('p', 1)\n"
        "class C(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n        self.model.evaluate(x)\n"
        "class D(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None): pass",
        {"M.call", "C.on_epoch_end"},
    ),
    "calling the model in a callback reaches its call": (
        "class M(keras.Model):\n    def call(self, x):\n        flor.log('p', 1)\n"
        "class C(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n        self.model(x)",
        {"M.call", "C.on_epoch_end"},
    ),
    "a property": (
        "class C:\n    @property\n    def norm(self):\n        flor.log('p', 1)\ndef f(c):\n    return c.norm",
        {"C.norm", "f"},
    ),
    "a context manager": (
        "class C:\n    def __enter__(self):\n        flor.log('p', 1)\n    def __exit__(self, *a): pass\n"
        "def f():\n    with C():\n        pass",
        {"C.__enter__", "f"},
    ),
}


@pytest.mark.parametrize(("body", "names"), REACHING.values(), ids=REACHING.keys())
def test_every_function_that_leads_to_a_line_is_found(body: str, names: set[str]) -> None:
    found = program(body)
    assert {f.qualname for f in found.reaching(found.log_lines("p"))} == names


def test_lines_are_reached_across_files() -> None:
    found = program(
        "import tools\nfrom pkg.probes import note as n, Base\ndef a():\n    tools.t()\ndef b():\n    n()\n"
        "class C(Base):\n    def on_epoch_end(self, e, logs=None):\n        self.hook()",
        tools="from pkg.probes import note\ndef t():\n    note()",
        pkg____init__="",
        pkg__probes="""
            import keras, flor_keras
            from . import other
            class Base(keras.callbacks.Callback):
                def hook(self): note()
            def note(): other.deep()
            """,
        pkg__other="import flor_keras\ndef deep(): flor_keras.log('p', 1)",
    )
    reached = {f"{f.path}:{f.qualname}" for f in found.reaching(found.log_lines("p"))}
    assert reached == {
        "train.py:a",
        "train.py:b",
        "train.py:C.on_epoch_end",
        "tools.py:t",
        "pkg/probes.py:Base.hook",
        "pkg/probes.py:note",
        "pkg/other.py:deep",
    }
    assert found.level_of("p") == Level.STEP  # `a` and `b` are called by nothing


def test_training_in_an_imported_module_counts() -> None:
    found = program("import job\nflor.log('p', 1)", job="model.fit(x)")
    assert found.level_of("p") == Level.AFTER


def test_functions_are_named_as_their_code_objects() -> None:
    source = HEAD + textwrap.dedent("""
        @partial(
            print,
        )
        @property
        def a(x=lambda: flor.log('p', 1)):
            flor.log('p', 1)
            class B:
                y = lambda self: flor.log('p', 1)
                @staticmethod
                def c():
                    return [lambda: flor.log('p', 1) for _ in [lambda: flor.log('p', 1)]]
            return {(lambda: flor.log('p', 1)): lambda z=(lambda: flor.log('p', 1)): flor.log('p', z) for i in x}
        async def d():
            return (lambda: flor.log('p', i) for i in x)
        """)

    def codes(code: CodeType) -> set[FunctionId]:
        inner = [const for const in code.co_consts if isinstance(const, CodeType)]
        own = {FunctionId("t.py", code.co_firstlineno, code.co_qualname)} if "log" in code.co_names else set()
        return own.union(*(codes(const) for const in inner))

    lines = Program("t.py", {"t.py": source}).log_lines("p")
    assert {line.function for line in lines} == codes(compile(source, "t.py", "exec"))
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("m.compile(metrics=['accuracy', 'mse'])", {"accuracy", "mse"}),
        ("m.compile(metrics=[keras.metrics.AUC(name='area'), keras.metrics.AUC()])", {"area", "auc"}),
        ("M = ['a']\nM.append('b')\nm.compile(metrics=M)", {"a", "b"}),
        ("def make():\n    return [keras.metrics.TopKCategoricalAccuracy()]\nm.compile(metrics=make())",
         {"top_k_categorical_accuracy"}),
        ("def err(y, p): pass\nm.compile(weighted_metrics=[err])", {"err"}),
        ("m.compile(metrics={'out': ['acc']})", {"acc", "out_acc"}),
        ("m.compile(metrics=[keras.metrics.mean_squared_error])", {"mean_squared_error"}),
        ("x = [x]\nm.compile(metrics=x + [unknown])", set()),
    ],
)  # fmt: skip
def test_compiled_metrics_have_the_names_keras_logs(body: str, names: set[str]) -> None:
    assert set(program(body).compiled_metrics()) == names


def test_a_syntax_error_names_file_and_line() -> None:
    with pytest.raises(UsageError, match=r"tools\.py:2 is not valid Python"):
        program("import tools", tools="x = 1\ndef f(:\n")


def test_a_script_that_is_no_source_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'a\.py' is not among the sources \(b\.py\)"):
        Program("a.py", {"b.py": ""})


def test_every_level_has_a_rule_in_words() -> None:
    found = list(rules())
    assert {level for _, level in found} == set(Level)
    assert ("on_epoch_* of a callback", Level.EPOCH) in found
    assert ("a function passed to compile(loss=)", Level.STEP) in found
