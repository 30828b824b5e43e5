"""What the doctor finds in a program, and what it leaves alone: for each rule programs of both kinds."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from flor_keras.errors import UsageError
from flor_keras.instrument.doctor import EXACT, NOT_EXACT, Part, Surroundings, diagnose
from flor_keras.instrument.doctor.code import Code
from flor_keras.instrument.doctor.randomness import is_covered_op
from flor_keras.instrument.doctor.rules import FLOR_SEED, PROGRAM_SEED, RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"
HEAD = """\
import glob, os, queue, random, threading, time
import flor_keras as flor
import keras
import numpy as np
import tensorflow as tf
"""
FIT = "model.fit(x, y, callbacks=[flor.FlorKeras()])\n"
LAYER = "class Noise(keras.layers.Layer):\n    def call(self, x):\n        return x + {}\n"
CALLBACK = "class Look(keras.callbacks.Callback):\n    def __init__(self):\n        self.kept = {}\n"
HOOK = "class Look(keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None):\n        {}\n"
PY_DATASET = """\
class Data(keras.utils.PyDataset):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rng = np.random.default_rng(0)
    def __getitem__(self, at):
        return {}
model.fit(Data({}))
"""

OWN_LOOP = """\
for epoch in range(3):
    for batch in data:
        with tf.GradientTape() as tape:
            loss = step(batch)
        optimizer.apply(tape.gradient(loss, weights))
"""
IN_A_GENERATOR = "def train():\n" + textwrap.indent(OWN_LOOP, "    ") + "        yield loss\n"

# name of the rule -> (programs it finds something in, programs it leaves alone)
PAIRS = {
    "no-loop": (
        ["print(1)", "from sklearn.linear_model import Ridge\nRidge().fit(a, b)", IN_A_GENERATOR],
        [
            FIT,
            OWN_LOOP,
            "for epoch in flor.loop('epoch', range(3)):\n    pass",
            "@flor.record\ndef train():\n    pass\ntrain()",
        ],
    ),
    "variable-outside-model": (
        ["count = tf.Variable(0)\n" + LAYER.format("count.assign_add(1)") + FIT],
        [
            "class Count(keras.layers.Layer):\n    def build(self, shape):\n        self.count = tf.Variable(0)\n    def call(self, x):\n        return x + self.count.assign_add(1)\n"
            + FIT,
            "count = tf.Variable(0)\n" + HOOK.format("count.assign_add(1)") + FIT,
        ],
    ),
    "clock-logged": (
        [
            "began = time.time()\n" + FIT + "flor.log('secs', time.time() - began)",
            "class Look(keras.callbacks.Callback):\n    def on_epoch_begin(self, epoch, logs=None):\n        self.began = time.perf_counter()\n    def on_epoch_end(self, epoch, logs=None):\n        flor.log('began', self.began)\n"
            + FIT,
        ],
        [
            "began = time.time()\n" + FIT + "print(time.time() - began)",
            HOOK.format("flor.log('norm', np.linalg.norm(self.model.layers[0].kernel)); print(time.time())")
            + FIT,
        ],
    ),
    "log-under-xla": (
        [LAYER.format("flor.log('x', x)") + "model.compile('sgd', 'mse', jit_compile=True)\n" + FIT],
        [
            LAYER.format("flor.log('x', x)") + "model.compile('sgd', 'mse', jit_compile=False)\n" + FIT,
            HOOK.format("flor.log('x', epoch)") + "model.compile('sgd', 'mse', jit_compile=True)\n" + FIT,
        ],
    ),
    "seed-of-chance": (
        [
            "np.random.seed()\n" + FIT,
            "np.random.seed(None)\n" + FIT,
            "random.seed()\n" + FIT,
            "now = int(time.time())\nkeras.utils.set_random_seed(now)\n" + FIT,
        ],
        [
            "np.random.seed(0)\n" + FIT,
            "random.seed(a=3)\n" + FIT,
            "seed = flor.arg('seed', 1)\nkeras.utils.set_random_seed(seed)\n" + FIT,
        ],
    ),
    "unseeded-default-rng": (
        [
            "rng = np.random.default_rng()\n" + FIT,
            "rng = np.random.default_rng(None)\n" + FIT,
            "from numpy.random import default_rng\nrng = default_rng()\n" + FIT,
        ],
        ["rng = np.random.default_rng(0)\n" + FIT, "flor.seed()\nrng = np.random.default_rng()\n" + FIT],
    ),
    "unseeded-generator": (
        [
            "rng = np.random.RandomState()\n" + FIT,
            "flor.seed()\nrng = random.Random()\n" + FIT,
            "from numpy.random import default_rng\nflor.seed()\nrng = default_rng()\n" + FIT,
        ],
        [
            "rng = np.random.RandomState(1)\n" + FIT,
            "rng = random.Random(seed)\n" + FIT,
            "flor.seed()\nrng = np.random.default_rng()\n" + FIT,
        ],
    ),
    "generator-outside-model": (
        [
            "rng = tf.random.Generator.from_seed(1)\n" + LAYER.format("rng.normal((4,))") + FIT,
            "seeds = keras.random.SeedGenerator(1)\n"
            + LAYER.format("keras.random.normal((4,), seed=seeds)")
            + FIT,
        ],
        [
            "class Noise(keras.layers.Layer):\n    def __init__(self):\n        self.rng = keras.random.SeedGenerator(1)\n    def call(self, x):\n        return keras.random.normal((4,), seed=self.rng)\n"
            + FIT,
            "rng = tf.random.Generator.from_seed(1)\nx = rng.normal((4,))\n" + FIT,
        ],
    ),
    "repeated-shuffle": (
        [
            "ds = tf.data.Dataset.range(9).shuffle(9).repeat().batch(3)\n" + FIT,
            "ds = tf.data.Dataset.range(9)\nds = ds.shuffle(9)\nds = ds.batch(3)\nds = ds.repeat()\n" + FIT,
        ],
        [
            "ds = tf.data.Dataset.range(9).shuffle(9, seed=1).repeat()\n" + FIT,
            "ds = tf.data.Dataset.range(9).shuffle(9)\n" + FIT,
            "ds = tf.data.Dataset.range(9).repeat().shuffle(9)\n" + FIT,
            "ds = tf.data.Dataset.range(9)\nds = ds.repeat()\nds = ds.shuffle(9)\n" + FIT,
            "flor.seed()\nds = tf.data.Dataset.range(9).shuffle(9).repeat()\n" + FIT,
            "x = np.repeat(random.shuffle(rows), 2)\n" + FIT,
        ],
    ),
    "unordered-pipeline": (
        [
            "ds = ds.map(f, num_parallel_calls=4, deterministic=False)\n" + FIT,
            "options = tf.data.Options()\noptions.deterministic = False\n" + FIT,
        ],
        ["ds = ds.map(f, num_parallel_calls=4)\n" + FIT, "options.deterministic = True\n" + FIT],
    ),
    "outside-in-generator": (
        [
            "def batches():\n    while True:\n        yield time.time(), 1\nmodel.fit(batches())",
            "def batches():\n    rows = queue.Queue()\n    yield rows.get()\nds = tf.data.Dataset.from_generator(batches)\nmodel.fit(ds)",
        ],
        [
            "def batches():\n    began = time.time()\n    yield x, y\n    print(time.time() - began)\nmodel.fit(batches())",
            "def stamps():\n    yield time.time()\n" + FIT,
        ],
    ),
    "parallel-dataset": (
        [
            PY_DATASET.format("np.random.rand(3)", "workers=4"),
            PY_DATASET.format("self.rng.random(3)", "workers=2, use_multiprocessing=True"),
        ],
        [
            PY_DATASET.format("np.random.rand(3)", ""),
            PY_DATASET.format("x[at]", "workers=4"),
            PY_DATASET.format("np.random.default_rng([1, at]).random(3)", "workers=4"),
        ],
    ),
    "unsorted-listing": (
        [
            "x = [load(f) for f in os.listdir('d')]\n" + FIT,
            "x = []\nfor f in glob.glob('d/*'):\n    x.append(load(f))\n" + FIT,
            "from pathlib import Path\nfiles = list(Path('d').iterdir())\nds = tf.data.Dataset.from_tensor_slices(files)\n"
            + FIT,
            "def load_all():\n    rows = []\n    for f in os.listdir('d'):\n        rows.append(f)\n    return rows\nx = load_all()\n"
            + FIT,
        ],
        [
            "x = [load(f) for f in sorted(os.listdir('d'))]\n" + FIT,
            "print(os.listdir('d'))\n" + FIT,
            "files = sorted(glob.glob('d/*'))\nx = [load(f) for f in files]\n" + FIT,
            "x = np.zeros(len(os.listdir('d')))\n" + FIT,
        ],
    ),
    "text-set": (
        [
            "vocabulary = set(text.split())\nindex = {w: i for i, w in enumerate(vocabulary)}\nx = [index[w] for w in words]\n"
            + FIT,
            "classes = list({'cat', 'dog'})\ny = [classes.index(c) for c in names]\n" + FIT,
            "x = [hash(w) % 9 for w in text.split()]\n" + FIT,
        ],
        [
            "vocabulary = sorted(set(text.split()))\nindex = {w: i for i, w in enumerate(vocabulary)}\nx = [index[w] for w in words]\n"
            + FIT,
            "classes = list(set(range(3)))\ny = [classes.index(c) for c in names]\n" + FIT,
            "for w in set(text.split()):\n    print(w)\n" + FIT,
            "x = np.zeros(len(set(text.split())))\n" + FIT,
        ],
    ),
    "eager-draw": (
        [
            "x = tf.random.normal((9, 4))\n" + FIT,
            "ds = tf.data.Dataset.from_tensor_slices(tf.random.uniform((9,)))\nmodel.fit(ds)",
        ],
        [
            "model(tf.random.normal((1, 4)))\n" + FIT,
            "tf.random.set_seed(1)\nx = tf.random.normal((9, 4))\n" + FIT,
            "x = tf.random.stateless_normal((9, 4), (1, 2))\n" + FIT,
            "x = np.random.rand(9, 4)\n" + FIT,
        ],
    ),
    "unpicklable-attribute": (
        [
            CALLBACK.format("open('log', 'w')") + FIT,
            CALLBACK.format("threading.Lock()") + FIT,
            CALLBACK.format("queue.Queue()") + FIT,
            CALLBACK.format("(i for i in x)") + FIT,
        ],
        [
            CALLBACK.format("open('log')") + FIT,
            CALLBACK.format("lambda x: x") + FIT,
            CALLBACK.format("[1]") + FIT,
            CALLBACK.format("threading.Lock()").replace("keras.callbacks.Callback", "object") + FIT,
        ],
    ),
    "state-outside-callback": (
        [
            "seen = []\n"
            + HOOK.format("seen.append(logs['loss']); self.model.stop_training = seen[-1] > min(seen)")
            + FIT,
            "seen = []\nlook = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, l: (seen.append(e), flor.log('n', len(seen))))\n"
            + FIT,
        ],
        [
            "seen = []\n" + HOOK.format("seen.append(logs['loss'])") + FIT + "print(seen)",
            HOOK.format("self.seen.append(epoch); print(self.seen)") + FIT,
            HOOK.format("seen = []; seen.append(epoch); print(seen)") + FIT,
        ],
    ),
    "own-callback-calls": (
        ["callbacks = keras.callbacks.CallbackList([flor.FlorKeras()])\ncallbacks.on_train_begin()\n" + FIT],
        [
            FIT,
            "class Look(keras.callbacks.Callback):\n    def on_train_begin(self, logs=None):\n        super().on_train_begin(logs)\n        self.inner.on_train_begin(logs)\n"
            + FIT,
        ],
    ),
    "op-in-step": (
        [
            LAYER.format("tf.random.normal(tf.shape(x))") + FIT,
            LAYER.format("tf.nn.dropout(x, 0.5)") + FIT,
            LAYER.format("tf.image.random_flip_left_right(x)") + FIT,
            LAYER.format("tf.random.normal((4,), seed=1)") + "keras.utils.set_random_seed(1)\n" + FIT,
            "def noisy(y, p):\n    return tf.random.uniform(())\nmodel.compile('sgd', loss=noisy)\n" + FIT,
            "def sample():\n    return tf.random.normal((4,))\nclass M(keras.Model):\n    def train_step(self, batch):\n        return sample()\n"
            + FIT,
            "@tf.function\ndef step(x):\n    return tf.random.normal((4,))\n" + FIT,
        ],
        [
            "flor.seed(1)\n" + LAYER.format("tf.random.normal(tf.shape(x))") + FIT,
            LAYER.format("keras.random.normal(tf.shape(x), seed=self.seeds)") + FIT,
            LAYER.format("tf.random.stateless_normal((4,), (1, 2))") + FIT,
            HOOK.format("self.model.predict(tf.random.normal((4, 4)))") + FIT,
            "class W(keras.layers.Layer):\n    def build(self, shape):\n        self.w = tf.Variable(tf.random.normal(shape))\n    def call(self, x):\n        return x @ self.w\n"
            + FIT,
            LAYER.format("tf.random.normal((4,))") + "model.compile('sgd', 'mse', run_eagerly=True)\n" + FIT,
        ],
    ),
    "other-op-in-step": (
        [
            "flor.seed(1)\n" + LAYER.format("tf.random.gamma((), 1.0)") + FIT,
            LAYER.format("tf.random.poisson((), 1.0)") + FIT,
        ],
        [
            LAYER.format("tf.random.stateless_gamma((), (1, 2), 1.0)") + FIT,
            "g = tf.random.gamma((), 1.0)\n" + FIT,
        ],
    ),
    "op-in-pipeline": (
        [
            "def add(a, b):\n    return a + tf.random.normal((4,)), b\nds = ds.map(add)\n" + FIT,
            "ds = ds.map(lambda a, b: (tf.image.random_flip_left_right(a), b))\n" + FIT,
        ],
        [
            "def add(a, b):\n    return a + tf.random.normal((4,), seed=3), b\nds = ds.map(add)\n" + FIT,
            "tf.random.set_seed(2)\nds = ds.map(lambda a, b: (a + tf.random.normal((4,)), b))\n" + FIT,
            "flor.seed()\nds = ds.map(lambda a, b: (a + tf.random.normal((4,)), b))\n" + FIT,
            "ds = ds.map(lambda a, b: (a + 1, b))\n" + FIT,
        ],
    ),
    "op-in-parallel-pipeline": (
        [
            "flor.seed()\nds = ds.map(lambda a, b: (a + tf.random.normal((4,)), b), num_parallel_calls=tf.data.AUTOTUNE)\n"
            + FIT
        ],
        [
            "flor.seed()\nds = ds.map(lambda a, b: (a + tf.random.normal((4,)), b), num_parallel_calls=1)\n"
            + FIT,
            "ds = ds.map(lambda a, b: (a + 1, b), num_parallel_calls=4)\n" + FIT,
            "ds = ds.map(lambda a, s: (tf.random.stateless_normal((4,), s), s), num_parallel_calls=4)\n"
            + FIT,
        ],
    ),
}

# Programs of which the head matters: flor_keras is not imported first, or the surroundings count.
NOTHING_AROUND = Surroundings({})
EARLY = "import numpy as np, random\n"
LATE = "\nimport flor_keras as flor\n" + FIT
WHOLE_PAIRS = {
    "draw-before-import": (
        [
            EARLY + "x = np.random.rand(3)" + LATE,
            EARLY + "random.shuffle(rows)" + LATE,
            EARLY + "def make():\n    return np.random.rand(3)\nx = make()" + LATE,
        ],
        [
            EARLY + "np.random.seed(0)\nx = np.random.rand(3)" + LATE,
            EARLY + "import flor_keras as flor\nx = np.random.rand(3)\n" + FIT,
            EARLY + "def make():\n    return np.random.rand(3)" + LATE + "x = make()",
            EARLY + "x = np.random.rand(3)\n" + FIT,  # hands-free: nothing is imported by the program itself
        ],
    ),
}


def found(program: str, around: Surroundings = NOTHING_AROUND, **others: str) -> dict[str, list[str]]:
    """Return the places each rule finds, by the rule's name."""
    sources = {"train.py": textwrap.dedent(program), **{f"{name}.py": text for name, text in others.items()}}
    code = Code("train.py", sources, around)
    places = {rule.name: [finding.where for finding in rule.findings(code)] for rule in RULES}
    return {name: where for name, where in places.items() if where}


def cases(is_found: bool) -> list[tuple[str, str]]:
    whole = {
        name: ([HEAD + p for p in yes], [HEAD + p for p in no]) for name, (yes, no) in PAIRS.items()
    } | WHOLE_PAIRS
    return [(name, program) for name, pair in whole.items() for program in pair[not is_found]]


@pytest.mark.parametrize(("rule", "program"), cases(True))
def test_a_rule_finds_what_it_is_for_and_no_other_rule_speaks_up(rule, program):
    assert list(found(program)) == [rule]


@pytest.mark.parametrize(("rule", "program"), cases(False))
def test_a_rule_leaves_alone_what_only_looks_like_it(rule, program):
    assert rule not in found(program)


def test_every_rule_has_programs_of_both_kinds():
    assert {*PAIRS, *WHOLE_PAIRS, "undetermined-gpu"} == {rule.name for rule in RULES}


def test_a_gpu_is_exact_only_where_it_is_told_to_be():
    gpu = Surroundings({}, num_gpus=1)
    assert list(found(HEAD + FIT, gpu)) == ["undetermined-gpu"]
    assert not found(HEAD + "tf.config.experimental.enable_op_determinism()\n" + FIT, gpu)
    assert not found(HEAD + FIT, Surroundings({"TF_DETERMINISTIC_OPS": "1"}, num_gpus=1))
    assert not found(HEAD + FIT, Surroundings({}))


def test_sets_of_text_have_one_order_where_the_hash_seed_is_set():
    program = HEAD + PAIRS["text-set"][0][0]
    assert not found(program, Surroundings({"PYTHONHASHSEED": "0"}))
    assert found(program, Surroundings({"PYTHONHASHSEED": "random"}))


def test_a_program_without_a_seed_is_fine_and_the_doctor_says_so():
    lines = diagnose("train.py", {"train.py": HEAD + FIT}, Surroundings({}))
    assert [line.part for line in lines] == list(Part)
    assert {line.verdict for line in lines} == {EXACT}
    assert "no seed is set" in lines[list(Part).index(Part.SEEDS)].why


@pytest.mark.parametrize(
    ("seed", "why"), [("keras.utils.set_random_seed(1)", PROGRAM_SEED), ("flor.seed()", FLOR_SEED)]
)
def test_what_a_seed_does_is_told_with_its_line(seed, why):
    lines = diagnose("train.py", {"train.py": f"{HEAD}{seed}\n{FIT}"}, Surroundings({}))
    seeds = next(line for line in lines if line.part is Part.SEEDS)
    assert (seeds.verdict, seeds.where, seeds.why) == (EXACT, "train.py:6", why)


def test_loops_that_flor_keras_record_finds_are_listed_unless_the_program_marks_its_own():
    lines = diagnose("train.py", {"train.py": HEAD + OWN_LOOP}, Surroundings({}))
    assert (lines[0].part, lines[0].verdict, lines[0].where) == (Part.WEIGHTS, EXACT, "train.py:6")
    assert "flor-keras record" in lines[0].why
    for marked in (FIT, "for epoch in flor.loop('epoch', range(3)):\n    pass\n"):
        lines = diagnose("train.py", {"train.py": HEAD + marked + OWN_LOOP}, Surroundings({}))
        assert "flor-keras record" not in lines[0].why


def test_why_the_only_loop_cannot_be_recorded_is_told():
    lines = diagnose("train.py", {"train.py": HEAD + IN_A_GENERATOR}, Surroundings({}))
    assert lines[0].verdict == NOT_EXACT
    assert "train.py:7 is left as it is: it is in a generator" in lines[0].why


def test_several_fits_are_listed():
    lines = diagnose("train.py", {"train.py": HEAD + FIT + FIT}, Surroundings({}))
    assert (lines[0].part, lines[0].where) == (Part.WEIGHTS, "train.py:6, train.py:7")


def test_findings_name_the_file_they_are_in():
    layers = "import keras\nimport tensorflow as tf\n" + LAYER.format("tf.random.normal((4,))")
    program = HEAD + "from layers import Noise\nmodel.add(Noise())\n" + FIT
    assert found(program, layers=layers) == {"op-in-step": ["layers.py:5"]}


def test_findings_of_one_part_are_in_the_order_of_the_source():
    program = (
        HEAD
        + LAYER.format("tf.random.normal((4,)) + tf.random.gamma((), 1.0)")
        + LAYER.format("tf.nn.dropout(x, 1)")
        + FIT
    )
    lines = [
        line
        for line in diagnose("train.py", {"train.py": program}, Surroundings({}))
        if line.part is Part.OPS
    ]
    assert [line.where for line in lines] == ["train.py:8", "train.py:8", "train.py:11"]
    assert {line.verdict for line in lines} >= {NOT_EXACT}


def test_a_program_that_is_no_python_is_named_with_its_line():
    with pytest.raises(UsageError, match=r"train.py:2"):
        diagnose("train.py", {"train.py": "x = 1\ny = = 2"}, Surroundings({}))


@pytest.mark.parametrize("program", PAIRS["unpicklable-attribute"][0])
def test_what_is_called_unpicklable_is(program, tmp_path, monkeypatch):
    from flor_keras.state.pickles import is_packable

    monkeypatch.chdir(tmp_path)
    source = re.search(r"self\.kept = (.*)", program)[1]
    import queue
    import threading

    value = eval(source, {"threading": threading, "queue": queue, "x": [1]})
    assert not is_packable(value)
    if hasattr(value, "close"):
        value.close()


def test_the_ops_that_flor_seed_covers_are_those_it_replaces():
    seeds = (PAGE.parents[1] / "flor_keras" / "state" / "seeds.py").read_text(encoding="utf-8")
    replaced = re.findall(r'^        "(\w+)": _', seeds, re.MULTILINE)
    assert replaced
    assert all(is_covered_op(f"tensorflow.random.{name}") for name in replaced)
    assert not is_covered_op("tensorflow.random.gamma")


def test_the_page_about_the_doctor_has_every_rule():
    rows = [f"| {r.part} | {r.found} | {r.verdict} | {r.change.format('…')} |" for r in RULES]
    page = PAGE.read_text(encoding="utf-8")
    assert page.split("|---|---|---|---|\n")[1].split("\n\n")[0].splitlines() == rows
