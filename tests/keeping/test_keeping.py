"""Pruning leaves every remaining checkpoint whole, also when it is killed; verifying finds any byte that is not."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
from project import Project

from flor_keras import reading
from flor_keras.checkpoint.bundle import read_tensors
from flor_keras.cli.keeping import parse_size
from flor_keras.errors import UsageError
from flor_keras.keeping.prune import PRUNED, Policy, plan_prune, prune
from flor_keras.keeping.usage import usage
from flor_keras.keeping.verify import verify
from flor_keras.records import Kind
from flor_keras.store.database import Store

pytestmark = pytest.mark.slow

PROGRAM = """
import keras, numpy as np
from keras import layers
import flor_keras as flor

keras.utils.set_random_seed(1)
x, y = np.random.rand(32, 6).astype("float32"), np.random.rand(32, 2).astype("float32")
model = keras.Sequential([keras.Input((6,)), layers.Dense(64, "relu"), layers.Dropout(0.3), layers.Dense(2)])
model.compile("adam", "mse")
model.fit(x, y, epochs=6, verbose=0, callbacks=[flor.FlorKeras()])
flor.log("array", np.arange(1000.0))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, fork_server) -> Path:
    """The store of a run of six epochs."""
    project = Project(tmp_path_factory.mktemp("recorded"), fork_server)
    project.succeed(project.write("train.py", PROGRAM))
    return project.store


@pytest.fixture
def store(recorded, tmp_path) -> Path:
    """A copy of the store."""
    return Path(shutil.copytree(recorded, tmp_path / "kept" / ".flor"))


def epochs(store: Path) -> list[int]:
    """Return the epochs whose end has a checkpoint."""
    return [at.epoch for at in reading.run("latest", store).checkpoints if at.kind is Kind.EPOCH_END]


def contents(store: Path) -> dict[str, dict]:
    """Return all tensors of all checkpoints by the checkpoints' folder."""
    return {at.path.name: read_tensors(at.path) for at in reading.run("latest", store).checkpoints}


def values(store: Path) -> dict[tuple[int, int], float]:
    """Return the recorded losses by (loop, epoch)."""
    entries = reading.run("latest", store).entries("loss")
    return {(e.position.loop, e.position.epoch): e.value for e in entries}


POLICIES = {
    "last two": (Policy(last=2), [4, 5]),
    "every third": (Policy(every=3), [0, 3]),
    "every third and the last": (Policy(every=3, last=1), [0, 3, 5]),
    "none but start and end": (Policy(last=0), []),
    "the best": (Policy(best=({(0, 1): 0.5, (0, 2): 0.25, (0, 4): float("nan")}, False)), [2]),
    "the largest": (Policy(best=({(0, 1): 0.5, (0, 2): 0.25}, True)), [1]),
}


@pytest.mark.parametrize("name", POLICIES)
def test_what_remains_restores_bit_for_bit(store, name):
    policy, expected = POLICIES[name]
    before = contents(store)
    plan = plan_prune(store, "latest", policy)
    assert epochs(store) == [0, 1, 2, 3, 4, 5]  # so far it is a plan
    prune(store, plan)
    assert epochs(store) == expected
    after = contents(store)
    assert {"0-0-0", "0-5-after"} <= set(after)
    for folder, tensors in after.items():
        assert tensors.keys() == before[folder].keys()
        assert all(np.array_equal(tensors[key], before[folder][key]) for key in tensors)
    found = verify(store)
    assert (found.problems, found.leftovers) == ([], [])
    assert {
        path.name for path in (next((store / "runs").iterdir()) / "checkpoints").iterdir() if path.is_dir()
    } == set(after)


def test_a_budget_drops_the_oldest_first_and_the_best_last(store):
    sizes = {at.path.name: at.num_bytes for at in reading.run("latest", store).checkpoints}
    fixed = sizes["0-0-0"] + sizes["0-5-after"]
    budget = fixed + 2 * max(sizes.values()) + 10
    plan = plan_prune(
        store, "latest", Policy(best=({(0, 1): 0.1, (0, 3): 0.9}, False), every=1, max_bytes=budget)
    )
    assert plan.kept_bytes <= budget
    prune(store, plan)
    assert epochs(store) == [1, 5]


def test_the_last_epoch_of_a_loop_that_broke_off_stays_for_resuming_it(store):
    with sqlite3.connect(store / "flor.db") as database:
        database.execute("DELETE FROM checkpoints WHERE kind = 'after'")
    for policy, expected in ((Policy(every=3), [0, 3, 5]), (Policy(max_bytes=1), [5])):
        prune(store, plan_prune(store, "latest", policy))
        assert epochs(store) == expected


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from flor_keras.keeping import prune as pruning

store, moment = Path(sys.argv[1]), sys.argv[2]
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
plan = pruning.plan_prune(store, "latest", pruning.Policy(last=1))
if moment == "marked":
    pruning.remove_folder = die
elif moment == "renamed":
    pruning.shutil = type("S", (), {"rmtree": staticmethod(die)})
elif moment == "removed":
    pruning.Store.drop_checkpoint = die
pruning.prune(store, plan, die if moment == "dropped" else lambda row: None)
"""


@pytest.mark.parametrize("moment", ["marked", "renamed", "removed", "dropped"])
def test_killed_in_the_middle_it_leaves_a_store_that_verifies_and_the_next_prune_finishes(
    project, recorded, moment
):
    shutil.copytree(recorded, project.store)
    ended = project.run(project.write("killed.py", KILLED), project.store, moment)
    assert ended.status == -signal.SIGKILL
    assert verify(project.store).problems == []
    assert epochs(project.store) == [5]
    prune(project.store, plan_prune(project.store, "latest", Policy(last=1)))
    found = verify(project.store)
    assert (found.problems, found.leftovers) == ([], [])
    with Store.open(project.store) as opened:
        assert [
            row for row in opened.checkpoints(reading.run("latest", project.store).id) if row.error == PRUNED
        ] == []


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def one(store: Path, pattern: str) -> Path:
    return sorted(store.glob(pattern))[0]


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a byte of a bundle": (
        lambda s: flip(one(s, "runs/*/checkpoints/0-2-end/bundle.data*"), 100),
        "0-2-end is damaged",
    ),
    "a byte of an index": (
        lambda s: flip(one(s, "runs/*/checkpoints/0-2-end/bundle.index"), 40),
        "0-2-end is damaged",
    ),
    "a cut-off bundle": (
        lambda s: one(s, "runs/*/checkpoints/0-2-end/bundle.data*").write_bytes(b"x"),
        "0-2-end is damaged",
    ),
    "a manifest": (
        lambda s: one(s, "runs/*/checkpoints/0-2-end/manifest.json").write_text("{"),
        "its manifest cannot be read",
    ),
    "a value in a manifest": (
        lambda s: edit(one(s, "runs/*/checkpoints/0-2-end/manifest.json"), b'"epoch": 2', b'"epoch": 3'),
        "its manifest cannot be read",
    ),
    "a value in a description": (
        lambda s: edit(one(s, "runs/*/model/0/graph.json"), b'"model": "model"', b'"model": "other"'),
        "was not recorded by you",
    ),
    "a missing folder": (lambda s: shutil.rmtree(one(s, "runs/*/checkpoints/0-2-end")), "0-2-end is missing"),
    "a graph": (lambda s: flip(one(s, "runs/*/model/0/config.json"), 100), "config.json are not those"),
    "a description": (
        lambda s: one(s, "runs/*/model/0/graph.json").write_text("[]"),
        "graph.json cannot be read",
    ),
    "a pickle": (
        lambda s: flip(one(s, "runs/*/checkpoints/0-2-end/python.pkl"), 5),
        "was not written by you",
    ),
    "an array": (lambda s: one(s, "runs/*/arrays/*.npy").write_bytes(b"x"), "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_any_damage_is_found_and_named(store, name):
    damage, expected = DAMAGES[name]
    assert verify(store).problems == []
    damage(store)
    (problem,) = verify(store).problems
    assert expected in problem


def test_what_belongs_to_nothing_is_told_and_is_no_damage(store):
    folder = one(store, "runs/*/checkpoints") / ".tmp-0-9-end-1"
    folder.mkdir()
    found = verify(store)
    assert (found.problems, found.leftovers) == ([], [str(folder)])


def test_a_damaged_database_is_found(store):
    with sqlite3.connect(store / "flor.db") as database:
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("INSERT INTO loops VALUES (99, 0, 'fit', NULL, 0, 1, 1, 0, NULL, NULL, NULL)")
    assert any("belongs to no runs" in problem for problem in verify(store).problems)


def test_usage_adds_up_to_what_is_on_disk(store):
    (used,) = usage(store)
    on_disk = sum(path.stat().st_size for path in (store / "runs").rglob("*") if path.is_file())
    assert used.num_bytes == on_disk
    assert used.num_checkpoints == 8
    assert min(used.checkpoint_bytes, used.model_bytes, used.other_bytes) > 0


@pytest.mark.parametrize(
    ("given", "expected"), [("1000", 1000), ("500MB", 500_000_000), ("1.5 gb", 1_500_000_000), ("2k", 2000)]
)
def test_sizes_are_read_as_people_write_them(given, expected):
    assert parse_size(given) == expected


def test_a_size_that_is_none_is_refused():
    with pytest.raises(UsageError, match="is no size"):
        parse_size("much")


def test_a_run_under_way_is_not_pruned(store, run_record):
    with Store.open(store, create=True) as opened:
        opened.begin_run(run_record("under-way", started_at=9e9))
    with pytest.raises(UsageError, match="still under way"):
        plan_prune(store, "under-way", Policy(last=1))


def test_the_commands_say_what_they_do_and_prune_waits_for_yes(project, recorded):
    shutil.copytree(recorded, project.store)
    dry = project.flor("prune", "latest", "--last", "1", "--best", "loss:min")
    assert "would remove" in dry.stdout
    assert "Do it with --yes" in dry.stdout
    assert epochs(project.store) == [0, 1, 2, 3, 4, 5]
    done = json.loads(project.flor("prune", "latest", "--last", "1", "--json", "--yes").stdout)
    assert done["is_done"]
    assert epochs(project.store) == [5]
    report = project.flor("verify", "--json")
    assert json.loads(report.stdout)["is_whole"]
    assert "3" in project.flor("du").stdout
    flip(one(project.store, "runs/*/checkpoints/0-5-end/bundle.data*"), 100)
    damaged = project.flor("verify")
    assert damaged.status == 1
    assert "Damaged" in damaged.stdout
    assert project.flor("prune", "latest").status == 2
