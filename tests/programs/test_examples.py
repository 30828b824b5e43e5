"""The examples of loops of one's own: values asked for afterwards equal those of a twin run, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NORM = 'flor.log("gradient_norm", tf.linalg.global_norm(GRADIENTS))'
FLOR = "import flor_keras as flor\n"

# Where the lines go: after which line of the example, with what indentation; the name of the gradients; the program's words.
CUSTOM = ("            loss, _gradients = train_step(x, y)\n", "loss", "_gradients", ["--arg", "epochs=3"])
GAN = (
    "            generator_loss, _gradients = generator_step(50)\n",
    "generator_loss",
    "_gradients",
    ["--arg", "epochs=3"],
)
HANDS_FREE = ("        optimizer.apply(gradients, model.trainable_variables)\n", "loss", "gradients", ["3"])


def with_lines(text: str, place: str, loss: str, gradients: str) -> str:
    assert text.count(place) == 1
    indent = place[: len(place) - len(place.lstrip())]
    step = f'{indent}flor.log("step_loss", {loss})\n'
    epoch = f"{indent[4:]}{NORM.replace('GRADIENTS', gradients)}\n"
    text = text.replace(place, place + step + epoch)
    return text if FLOR in text else text.replace("import keras\n", f"import keras\n\n{FLOR}", 1)


def rows(report: str, name: str) -> list:
    found = json.loads(report)
    found = found["values"] if isinstance(found, dict) else found
    return [(r["epoch"], r.get("step"), float(r[name]).hex()) for r in found if r.get(name) is not None]


@pytest.mark.parametrize(
    ("name", "where"), [("custom_loop.py", CUSTOM), ("gan.py", GAN), ("hands_free.py", HANDS_FREE)]
)
def test_a_gradient_norm_of_each_epoch_and_a_loss_of_each_step_of_epoch_2(project, name, where):
    *lines, words = where
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    if name == "hands_free.py":
        env = {"FLOR_ARGS": json.dumps({"flor.seed": 11})}
        run = lambda: project.flor("record", name, *words, env=env)  # noqa: E731
    else:
        run = lambda: project.run(name, *words)  # noqa: E731
    project.write(name, with_lines(text, *lines))
    assert run().status == 0
    live = {n: project.flor("logs", n, "--json").stdout for n in ("gradient_norm", "step_loss")}
    project.write(name, text)
    assert run().status == 0
    project.write(name, with_lines(text, *lines))
    for asked, extra in (("step_loss", ["--epochs", "2"]), ("gradient_norm", [])):
        report = project.flor("replay", name, asked, *extra, "--json")
        assert json.loads(report.stdout)["verified"] == "exact", report
        expected = [row for row in rows(live[asked], asked) if not extra or row[0] == 2]
        assert expected
        assert rows(report.stdout, asked) == expected
