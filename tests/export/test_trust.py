"""A store may have come from anybody: what is wrong with it is refused with a message, and nothing of it is executed."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from models import program
from project import Project

from flor_keras import reading
from flor_keras.checkpoint.bundle import read_manifest
from flor_keras.checkpoint.sealed import seal
from flor_keras.errors import CheckpointError, FlorError, StoreError, UsageError
from flor_keras.export import FORMATS
from flor_keras.export.formats import suffix
from flor_keras.export.kept import check_signature, read_graph
from flor_keras.records import Kind
from flor_keras.state import pickles
from flor_keras.state.restore import read_python
from flor_keras.store import layout

pytestmark = pytest.mark.slow


class Planted:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, fork_server) -> Path:
    """The store of a run with a vocabulary and logged numbers."""
    project = Project(tmp_path_factory.mktemp("recorded"), fork_server)
    project.succeed(project.write("train.py", program("string_lookup")))
    return project.store


@pytest.fixture
def store(recorded, tmp_path) -> Path:
    """A copy of the store to spoil."""
    return Path(shutil.copytree(recorded, tmp_path / "spoilt" / ".flor"))


def end(store: Path, epoch: int = 1) -> reading.Checkpoint:
    """Return the checkpoint of the end of an epoch."""
    checkpoints = reading.run("latest", store).checkpoints
    return next(at for at in checkpoints if at.kind is Kind.EPOCH_END and at.epoch == epoch)


def export_all(store: Path, out: Path) -> None:
    """Export one epoch in every format."""
    for form in FORMATS:
        end(store).export(out / f"{form}{suffix(form)}", form)


def model_folder(store: Path) -> Path:
    """Return the folder of the run's only graph."""
    return layout.model_folder(store, reading.run("latest", store).id) / "0"


def flip(path: Path, at: int = -9) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def test_a_planted_pickle_is_never_loaded_by_opening_or_exporting_and_refused_by_restoring_python(
    store, tmp_path
):
    created = tmp_path / "created"
    for path in store.rglob(pickles.FILE):
        path.write_bytes(pickle.dumps(Planted(created)))
    run = reading.run("latest", store)
    run.dataframe()
    export_all(store, tmp_path / "out")
    with pytest.raises(CheckpointError, match="was not written by you"):
        read_python(end(store).path)
    assert not created.exists()
    pickle.loads(pickle.dumps(Planted(created)))
    assert created.exists()  # it would have been


def test_a_pickle_signed_with_another_key_is_refused_and_the_message_says_how_to_trust_it(
    store, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="If you trust the store, copy the key"):
        read_python(end(store).path)
    assert os.stat(tmp_path / "other" / "flor_keras" / "key").st_mode & 0o777 == 0o600


def test_a_graph_recorded_by_somebody_else_is_not_run(store, monkeypatch, tmp_path):
    graph = read_graph(model_folder(store))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="was not recorded by you"):
        check_signature(graph, pickles.signature)


@pytest.mark.parametrize("name", ["bundle.data-00000-of-00001", "bundle.index"])
def test_a_flipped_byte_in_a_bundle_is_refused_in_every_format(store, tmp_path, name):
    flip(end(store).path / name, at=40)
    for form in FORMATS:
        with pytest.raises(CheckpointError, match="damaged"):
            end(store).export(tmp_path / f"out{suffix(form)}", form)
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("saved_model.pb", "saved_model"),
        ("rest.data-00000-of-00001", "saved_model"),
        ("config.json", "keras"),
    ],
)
def test_a_flipped_byte_in_a_graph_is_refused(store, tmp_path, name, form):
    flip(model_folder(store) / name)
    with pytest.raises(CheckpointError, match="are not those that were recorded"):
        end(store).export(tmp_path / f"out{suffix(form)}", form)
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("bundle", ["/etc", "../../../other", "..", "a/b", "../x/../.."])
def test_a_manifest_that_points_outside_the_store_is_refused(store, tmp_path, bundle):
    manifest = read_manifest(end(store).path)
    next(iter(manifest["tensors"].values()))["bundle"] = bundle
    (end(store).path / "manifest.json").write_text(seal(manifest))
    with pytest.raises(CheckpointError, match="which is not beside it"):
        end(store).export(tmp_path / "out")


@pytest.mark.parametrize(
    "path", ["/etc", "runs/../../../etc", "../other", "", "runs//x", "C:/x", "runs\\..\\x"]
)
def test_a_row_that_points_outside_the_store_is_refused(store, path):
    with sqlite3.connect(store / "flor.db") as database:
        database.execute("UPDATE checkpoints SET path = ? WHERE kind = 'start'", (path,))
    with pytest.raises(StoreError, match="not inside of it"):
        _ = reading.run("latest", store).checkpoints


def test_a_run_whose_id_is_a_path_is_refused(store):
    with sqlite3.connect(store / "flor.db") as database:
        database.execute("UPDATE runs SET id = '../../outside'")
    with pytest.raises(StoreError, match="not inside of it"):
        reading.run("latest", store)


@pytest.mark.parametrize("other", ["../../../x", "/etc", "..", "a/b", 7])
def test_a_graph_that_refers_to_a_folder_elsewhere_is_refused(store, tmp_path, other):
    (model_folder(store) / "graph.json").write_text(json.dumps({"format": 1, "same_as": other}))
    with pytest.raises(CheckpointError, match="which is not beside it"):
        end(store).export(tmp_path / "out")


def test_names_that_would_leave_an_archive_are_refused(store, tmp_path):
    assets = model_folder(store) / "keras_assets"
    assets.mkdir(exist_ok=True)
    (assets / "..\\..\\evil.txt").write_text("x")
    with pytest.raises(CheckpointError, match="another place on another system"):
        end(store).export(tmp_path / "out.keras", "keras")


def test_a_link_among_the_files_of_a_graph_is_refused(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (model_folder(store) / "assets").mkdir(exist_ok=True)
    (model_folder(store) / "assets" / "link").symlink_to(secret)
    with pytest.raises(CheckpointError, match="are not those that were recorded"):
        end(store).export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_nobody_recorded_is_not_exported(store, tmp_path):
    (model_folder(store) / "assets").mkdir(exist_ok=True)
    (model_folder(store) / "assets" / "more.txt").write_text("more")
    with pytest.raises(CheckpointError, match="are not those that were recorded"):
        end(store).export(tmp_path / "out")


def test_the_database_of_another_program_is_refused(store):
    (store / "flor.db").unlink()
    with sqlite3.connect(store / "flor.db") as database:
        database.execute("CREATE TABLE moz_places (id INTEGER)")
    with pytest.raises(StoreError, match="database of another program"):
        reading.runs(store)


def test_a_database_that_only_claims_to_be_ours_is_refused(store):
    with sqlite3.connect(store / "flor.db") as database:
        database.execute("DROP TABLE runs")
    with pytest.raises(StoreError, match="no such table"):
        reading.runs(store)


def test_a_checkpoint_is_not_exported_over_what_is_there(store, tmp_path):
    out = tmp_path / "out"
    end(store, 0).export(out)
    before = (out / "variables" / "variables.data-00000-of-00001").read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        end(store, 2).export(out)
    assert (out / "variables" / "variables.data-00000-of-00001").read_bytes() == before
    end(store, 2).export(out, overwrite=True)
    assert (out / "variables" / "variables.data-00000-of-00001").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp")] == []


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_that_does_not_fit_on_the_disk_leaves_nothing_behind_and_says_so(store, tmp_path, form):
    checkpoint = end(store)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        with pytest.raises(UsageError, match="cannot be written.*Give a place that has room"):
            checkpoint.export(tmp_path / f"out{suffix(form)}", form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [path.name for path in tmp_path.iterdir()] == ["spoilt"]


@pytest.mark.parametrize(("form", "name"), [("keras", "out.h5"), ("weights.h5", "out.h5"), ("onnx", "out")])
def test_a_name_or_format_that_nobody_could_load_is_refused(store, tmp_path, form, name):
    with pytest.raises(UsageError, match=r"Add \.|Choose one of"):
        end(store).export(tmp_path / name, form)


def test_a_run_without_a_graph_says_what_to_do_instead(store, tmp_path):
    shutil.rmtree(model_folder(store))
    with pytest.raises(FlorError, match=r"restore\(model\)"):
        end(store).export(tmp_path / "out")
