"""Every kind of model × every format: the export gives what the live model gave, bit for bit, or says exactly why there is none.

Loading happens in processes in which flor_keras cannot be imported; SavedModels and `.keras` archives also without the program.
"""

from __future__ import annotations

import json
import zipfile
from functools import cache
from pathlib import Path

import pytest
from models import HEAD, KINDS, program
from project import Project

from flor_keras.export import FORMATS

pytestmark = pytest.mark.slow

# A kind is trained and exported once; where several processes share the tests, its own stay in one.
EACH_KIND = [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS]

# Where a kind has no export in a format: the reason that is given. All others work.
REASONS = {
    ("dynamic", "saved_model"): "never called",
    ("dynamic", "keras"): "leave it unbuilt",
    ("subclassed", "checkpoint"): "tf.train.Checkpoint does not reach",
    ("own_saving", "weights.h5"): "saves a value of its own making",
    ("own_saving", "keras"): "saves a value of its own making",
    ("no_config", "keras"): "this model has no configuration",
}
# What loading the `.keras` archive needs beyond Keras.
NEEDS = {"subclassed": "Model", "lambda": "safe_mode=False"}

EXPORT = """
import json, sys
import flor_keras as flor
from flor_keras.errors import FlorError

told = {}
for form, suffix in {"saved_model": "", "keras": ".keras", "weights.h5": ".weights.h5", "checkpoint": ""}.items():
    for checkpoint in flor.run().checkpoints:
        if checkpoint.kind == "epoch_end":
            try:
                told[form] = {"needs": checkpoint.export(f"out/{form}/{checkpoint.epoch}{suffix}", form)}
            except FlorError as error:
                told[form] = {"why_not": str(error)}
json.dump(told, open("told.json", "w"))
"""
LOAD_HEAD = HEAD.replace(
    "import flor_keras as flor",
    'import json, os, pathlib\nsys.modules["flor_keras"] = None  # cannot be imported',
).replace("set_random_seed(1)", "set_random_seed(7)")
SERVE = """
problems = []
def compare(what, epoch, outputs):
    live = np.load(f"live-{epoch}.npz")
    got = [np.asarray(o, "float32") for o in keras.tree.flatten(outputs)]
    expected = [live[name] for name in live.files]
    if len(got) != len(expected) or not all(np.array_equal(g, e) for g, e in zip(got, expected)):
        worst = max(np.abs(g - e).max() for g, e in zip(got, expected))
        problems.append(f"{what} of epoch {epoch} differs by {worst}")

def check_served():
    tensors = keras.tree.map_structure(tf.constant, inputs)
    for epoch in range(3):
        path = f"out/saved_model/{epoch}"
        if os.path.isdir(path):
            loaded = tf.saved_model.load(path)
            compare("saved_model", epoch, loaded.serve(tensors))
            signature = loaded.signatures["serving_default"]
            names = signature.structured_input_signature[1]
            by_name = {k: tensors[k] if isinstance(tensors, dict) else tensors for k in names}
            compare("signature", epoch, dict(sorted(signature(**by_name).items())))
"""
LOAD = """
if inputs is words:
    inputs = tf.constant(words.astype(str))
check_served()

def predict(model):
    return model.predict(inputs, batch_size=24, verbose=0)

custom = {}
for epoch in range(3):
    path = f"out/keras/{epoch}.keras"
    if os.path.exists(path):
        keras.utils.clear_session()  # TensorFlow orders sums by the names of ops, which are those of layers
        compare("keras", epoch, predict(keras.models.load_model(path, custom_objects=CUSTOM, safe_mode=SAFE)))
def fresh(epoch):
    keras.utils.clear_session()
    space = {"__name__": "__main__", **{k: globals()[k] for k in ("keras", "np", "tf", "layers", "x", "words", "rng")}, "y": rng.random((24, 2), np.float32)}
    exec(DEFINITION, space)
    model = space["model"]
    if not model.compiled:
        model.compile("adam", "mse")
    model(keras.tree.map_structure(tf.convert_to_tensor, inputs))
    return model
for epoch in range(3):
    path = f"out/weights.h5/{epoch}.weights.h5"
    if os.path.exists(path):
        model = fresh(epoch)
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
        compare("weights.h5", epoch, predict(model))
    if os.path.isdir(f"out/checkpoint/{epoch}"):
        model = fresh(epoch)
        model.optimizer.build(model.trainable_variables)
        status = tf.train.Checkpoint(model=model).read(tf.train.latest_checkpoint(f"out/checkpoint/{epoch}"))
        status.assert_nontrivial_match()
        compare("checkpoint", epoch, predict(model))
assert [name for name in sys.modules if name.startswith("flor_keras")] == ["flor_keras"]
json.dump(problems, open("problems.json", "w"))
"""


def loader(kind: str) -> str:
    """Return a program that loads and compares all that was exported of a kind."""
    needs = NEEDS.get(kind, "")
    definition = KINDS[kind]
    data = "\n".join(line for line in definition.splitlines() if line.startswith("inputs"))
    classes = definition.rpartition("model = ")[0] if needs == "Model" else ""
    custom = "{k: v for k, v in globals().items() if isinstance(v, type)}" if classes else "None"
    return "\n".join(
        [
            LOAD_HEAD,
            SERVE,
            data,
            classes,
            f"CUSTOM, SAFE = {custom}, {needs != 'safe_mode=False'}",
            f"DEFINITION = {definition!r}",
            LOAD,
        ]
    )


class Exported:
    """A kind of model: trained, exported in every format, loaded elsewhere."""

    def __init__(self, project: Project, kind: str) -> None:
        project.succeed(project.write("train.py", program(kind)))
        project.succeed(project.write("export.py", EXPORT))
        project.succeed(project.write("load.py", loader(kind)))
        self.told = json.loads((project.folder / "told.json").read_text())
        self.problems = json.loads((project.folder / "problems.json").read_text())
        self.out = project.folder / "out"


@pytest.fixture(scope="module")
def exported(tmp_path_factory, fork_server):
    """Return the exports of a kind, made when first asked for."""

    @cache
    def make(kind: str) -> Exported:
        return Exported(Project(tmp_path_factory.mktemp(kind), fork_server), kind)

    return make


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_format_gives_what_the_live_model_gave_or_says_why_not(exported, kind, form):
    result = exported(kind)
    reason = REASONS.get((kind, form))
    told = result.told[form]
    assert (reason is None) == ("why_not" not in told), told
    if reason is not None:
        assert reason in told["why_not"]
        assert not list(Path(result.out / form).glob("*"))
    else:
        assert sorted(path.name[0] for path in (result.out / form).iterdir()) == ["0", "1", "2"]
        if form == "keras":
            assert [zipfile.ZipFile(at).testzip() for at in (result.out / form).iterdir()] == [None] * 3
        words = ("saved_model", "signature") if form == "saved_model" else (form,)
        assert [p for p in result.problems if p.startswith(words)] == []


@pytest.mark.parametrize("kind", EACH_KIND)
def test_what_loading_a_keras_archive_needs_is_told(exported, kind):
    if (kind, "keras") in REASONS:
        return
    needs = exported(kind).told["keras"].get("needs")
    assert NEEDS.get(kind, "") in (needs or "")
    assert (needs is None) == (kind not in NEEDS)


ROWS = {
    "sequential": "sequential",
    "unbuilt_sequential": "sequential, built by its data",
    "functional": "functional",
    "subclassed": "subclassed, layers in dicts or nested lists",
    "multi": "several inputs and outputs",
    "string_lookup": "StringLookup",
    "text_vectorization": "TextVectorization",
    "normalization": "Normalization",
    "rnn": "recurrent",
    "mixed_precision": "mixed precision",
    "lora": "LoRA",
    "lambda": "Lambda",
    "dynamic": "decides in Python (`run_eagerly`)",
    "own_saving": "a layer with `save_own_variables` of its own",
    "no_config": "`get_config` raises",
}


def test_the_table_of_the_documentation_says_of_each_cell_what_these_tests_show():
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    table = {
        cells[0]: cells[1:]
        for line in page.splitlines()
        if (cells := [c.strip() for c in line.strip("|").split("|")])[1:]
    }
    for kind in KINDS:
        for form, cell in zip(
            ("saved_model", "keras", "weights.h5", "checkpoint"), table[ROWS[kind]], strict=True
        ):
            assert cell.startswith("no: " if (kind, form) in REASONS else "works"), (kind, form, cell)
