"""Checkpoints that share values: what training leaves alone is stored once, and stays for as long as anything needs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
from project import Project

from flor_keras import reading
from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.sealed import seal
from flor_keras.keeping.prune import Policy, plan_prune, prune
from flor_keras.keeping.usage import usage
from flor_keras.keeping.verify import verify
from flor_keras.records import Kind

pytestmark = pytest.mark.slow

# 95 % of the state is a backbone that is frozen; the head and its two Adam slots are the rest.
FINE_TUNING = """
import json, sys
import keras, numpy as np, xxhash
from keras import layers
import flor_keras as flor

def built():
    keras.utils.set_random_seed(1)
    backbone = keras.Sequential([keras.Input((16,)), layers.Dense(1000, "relu"), layers.Dense(1000, "relu")])
    backbone.trainable = False
    model = keras.Sequential([keras.Input((16,)), backbone, layers.Dense(16)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model

def digest(model):
    found = xxhash.xxh3_64()
    for variable in [*model.variables, *model.optimizer.variables]:
        found.update(np.ascontiguousarray(variable))
    return found.hexdigest()

class Live(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        live[epoch] = digest(self.model)

live = {}
if __name__ == "__main__":
    model = built()
    x, y = np.random.rand(16, 16).astype("float32"), np.random.rand(16, 16).astype("float32")
    model.fit(x, y, epochs=80, verbose=0, callbacks=[Live(), flor.FlorKeras()])
    json.dump(live, open("live.json", "w"))
"""
RESTORED = """
import json, sys
import flor_keras as flor
from train import built, digest

model, found = built(), {}
for checkpoint in flor.run().checkpoints:
    if checkpoint.kind == "epoch_end":
        checkpoint.restore(model)
        found[checkpoint.epoch] = digest(model)
json.dump(found, open("found.json", "w"))
"""


def restored(project: Project) -> dict[str, str]:
    """Return the hash of the whole state at every epoch that has a checkpoint, restored into a new model."""
    project.succeed(project.write("restored.py", RESTORED))
    return json.loads((project.folder / "found.json").read_text())


def test_fine_tuning_a_frozen_backbone_stores_a_fifteenth_and_restores_bit_for_bit_after_pruning(project):
    project.succeed(project.write("train.py", FINE_TUNING))
    live = json.loads((project.folder / "live.json").read_text())
    full = max(at.num_bytes for at in project.latest().checkpoints)
    (used,) = usage(project.store)
    num_epochs = sum(at.kind is Kind.EPOCH_END for at in project.latest().checkpoints)
    assert num_epochs == 80
    assert used.checkpoint_bytes * 15 <= full * used.num_checkpoints
    assert used.logical_bytes == pytest.approx(full * used.num_checkpoints, rel=0.05)
    prune(project.store, plan_prune(project.store, "latest", Policy(last=2, every=10)))
    found = restored(project)
    assert sorted(map(int, found)) == [0, 10, 20, 30, 40, 50, 60, 70, 78, 79]
    assert found == {epoch: live[epoch] for epoch in found}
    assert verify(project.store).problems == []


# Everything is trained, then the first layer is frozen, then the second too: later checkpoints refer to the ends of the
# loops before, which refer to one another.
PHASES = """
import keras, numpy as np
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
x, y = np.random.rand(16, 40).astype("float32"), np.random.rand(16, 40).astype("float32")
model = keras.Sequential([keras.Input((40,)), *(layers.Dense(40) for _ in range(3))])
for phase in range(3):
    for layer in model.layers[:phase]:
        layer.trainable = False
    model.compile("adam", "mse")
    model.fit(x, y, epochs=3, verbose=0, callbacks=[flor.FlorKeras()])
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, fork_server) -> Path:
    """The store of a run of three loops."""
    project = Project(tmp_path_factory.mktemp("recorded"), fork_server)
    project.succeed(project.write("train.py", PHASES))
    return project.store


@pytest.fixture
def store(recorded, tmp_path) -> Path:
    """A copy of the store."""
    return Path(shutil.copytree(recorded, tmp_path / "kept" / ".flor"))


def contents(store: Path) -> dict[str, dict]:
    """Return all tensors of all checkpoints by the checkpoints' folder."""
    return {at.path.name: bundle.read_tensors(at.path) for at in reading.run("latest", store).checkpoints}


def references(store: Path) -> dict[str, set[str]]:
    """Return which other checkpoints each has values in."""
    found = {}
    for at in reading.run("latest", store).checkpoints:
        tensors = bundle.read_manifest(at.path)["tensors"].values()
        found[at.path.name] = {described["bundle"].removeprefix("../") for described in tensors} - {"."}
    return found


def check_whole(store: Path, before: dict[str, dict]) -> None:
    """Make sure that every checkpoint there is restores to the bits it had, and that nothing else is there."""
    after = contents(store)
    for folder, tensors in after.items():
        assert tensors.keys() == before[folder].keys()
        assert all(np.array_equal(tensors[key], before[folder][key]) for key in tensors)
    found = verify(store)
    assert (found.problems, found.leftovers) == ([], [])


POLICIES = {  # and whether something stays only because what is kept refers to it
    "the last": (Policy(last=1), False),
    "every second": (Policy(every=2), False),
    "start and end": (Policy(last=0), True),
    "the best": (Policy(best=({(1, 1): 0.1, (2, 0): 0.2}, False)), True),
    "as little as can be": (Policy(max_bytes=1), True),
    "the last and the best in a budget": (
        Policy(last=2, best=({(0, 0): 1.0}, True), max_bytes=300_000),
        True,
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_what_remains_restores_bit_for_bit_and_so_does_what_it_refers_to(store, name):
    policy, is_referring = POLICIES[name]
    before, referring = contents(store), references(store)
    assert sum(map(bool, referring.values())) > 6
    plan = plan_prune(store, "latest", policy)
    assert plan.removed
    assert bool(plan.referred) == is_referring
    prune(store, plan)
    check_whole(store, before)
    left = contents(store).keys()
    assert all(referring[name] <= left for name in left)
    assert usage(store)[0].checkpoint_bytes < usage(store)[0].logical_bytes
    again = plan_prune(store, "latest", policy)
    assert again.removed == []


@pytest.mark.parametrize("damage", ["gone", "another", "elsewhere"])
def test_a_reference_that_leads_to_nothing_is_found(store, damage):
    holder = next(iter(references(store)["2-2-after"]))
    folder = next(at.path for at in reading.run("latest", store).checkpoints if at.path.name == holder)
    if damage == "gone":
        shutil.rmtree(folder)
    else:
        manifest = bundle.read_manifest(folder)
        for described in manifest["tensors"].values():
            described.update({"bundle": "../0-0-0"} if damage == "elsewhere" else {"xxh3": "0" * 16})
        (folder / "manifest.json").write_text(seal(manifest))
    problems = verify(store).problems
    assert any("2-2-after is damaged" in problem and holder in problem for problem in problems)
    assert all("another epoch" in problem for problem in problems)


# Every opening, renaming and removing of a file is a moment at which a prune may be killed.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from flor_keras.keeping.prune import Policy, plan_prune, prune
from flor_keras.keeping.verify import verify

recorded, moment, is_over = Path(sys.argv[1]), 0, False

def killed_at(store, moment):
    left = [moment]
    def count(event, args):
        if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.scandir", "sqlite3.connect", "os.mkdir"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    plan = plan_prune(store, "latest", Policy(last=1))
    sys.addaudithook(count)
    prune(store, plan)
    os._exit(0)

children = []
while len(children) < 400:
    store = Path(f"copy-{len(children)}")
    shutil.copytree(recorded, store)
    pid = os.fork()
    if pid == 0:
        killed_at(store, len(children) + 1)
    status = os.waitpid(pid, 0)[1]
    children.append(store)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
for store in children:
    assert verify(store).problems == [], store
    prune(store, plan_prune(store, "latest", Policy(last=1)))
    found = verify(store)
    assert (found.problems, found.leftovers) == ([], []), (store, found)
print(len(children))
"""


def test_killed_at_any_moment_it_leaves_a_store_that_verifies_and_the_next_prune_finishes(project, recorded):
    before = contents(recorded)
    ended = project.succeed(project.write("killed.py", KILLED), recorded)
    num_moments = int(ended.stdout)
    assert num_moments > 30
    left = [sorted(contents(project.folder / f"copy-{at}")) for at in (0, num_moments // 2, num_moments - 1)]
    assert left[0] == left[1] == left[2]
    check_whole(project.folder / f"copy-{num_moments // 2}", before)
