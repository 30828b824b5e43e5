from pathlib import Path

import pytest

from flor_keras.errors import StoreError, UsageError
from flor_keras.records import Kind, Position
from flor_keras.store import layout


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("FLOR_STORE", raising=False)


def test_a_script_in_a_git_work_tree_records_at_its_top(tmp_path):
    (tmp_path / ".git").write_text("gitdir: elsewhere")
    script = tmp_path / "deep" / "er" / "train.py"
    assert layout.default_store(script) == tmp_path / ".flor"


def test_a_script_outside_a_work_tree_records_beside_itself(tmp_path):
    if any((at / ".git").exists() for at in tmp_path.parents):
        pytest.skip("the temporary folder lies in a work tree")
    assert layout.default_store(tmp_path / "train.py") == tmp_path / ".flor"


def test_the_variable_wins_over_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOR_STORE", "my runs")
    assert layout.default_store(Path("/x/train.py")) == tmp_path / "my runs"


def test_the_nearest_store_upwards_is_found(tmp_path):
    (tmp_path / ".flor").mkdir()
    (tmp_path / ".flor" / "flor.db").touch()
    below = tmp_path / "a" / "b"
    (below / ".flor").mkdir(parents=True)  # without a database it is no store
    assert layout.find_store(below) == tmp_path / ".flor"
    assert layout.given_store(tmp_path) == tmp_path / ".flor"


def test_without_a_store_the_error_says_what_to_type(tmp_path):
    with pytest.raises(UsageError, match="--store PATH or FLOR_STORE"):
        layout.find_store(tmp_path)
    with pytest.raises(UsageError, match=r"no flor\.db"):
        layout.given_store(tmp_path)


@pytest.mark.parametrize("url", ["gs://bucket/x", "S3://b", "https://h/x", Path("gs://bucket/x")])
def test_a_url_is_refused(url):
    with pytest.raises(StoreError, match="lies in a folder of this machine"):
        layout.store_path(url)


def test_paths_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert layout.store_path("my store/../x") == tmp_path / "x"


@pytest.mark.parametrize(
    ("kind", "last"), [(Kind.START, "7"), (Kind.STEP, "7"), (Kind.EPOCH_END, "end"), (Kind.AFTER, "after")]
)
def test_the_folder_of_a_checkpoint_tells_its_position(kind, last):
    assert layout.checkpoint_path("r", Position(1, 2, 7), kind) == f"runs/r/checkpoints/1-2-{last}"
