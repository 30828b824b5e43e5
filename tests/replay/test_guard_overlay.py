"""The overlay's path logic and file calls, without any patch."""

import os
import stat
from pathlib import Path

import pytest

from flor_keras.replay.guard import Overlay
from flor_keras.replay.guard.files import Files


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    (folder / "sub").mkdir(parents=True)
    (folder / "old.txt").write_text("old")
    (folder / "sub" / "deep.txt").write_text("deep")
    return folder


@pytest.fixture
def files(tmp_path):
    return Files(Overlay(tmp_path / "scratch", [tmp_path / "store"]))


def test_a_path_is_its_own_until_something_is_written(files, home):
    assert files.place(str(home / "old.txt"), "r") == str(home / "old.txt")


def test_what_is_written_is_read_back_from_the_scratch_folder(files, home):
    place = files.place(str(home / "new.txt"), "w")
    Path(place).write_text("new")
    assert place == files.overlay.upper + str(home / "new.txt")
    assert files.place(str(home / "new.txt"), "r") == place
    assert not (home / "new.txt").exists()


def test_appending_copies_the_original_up_first(files, home):
    with open(files.place(str(home / "old.txt"), "a"), "a") as file:
        file.write("er")
    assert Path(files.place(str(home / "old.txt"), "r")).read_text() == "older"
    assert (home / "old.txt").read_text() == "old"


def test_paths_under_the_store_and_devices_pass_untouched(files, tmp_path):
    for path in (str(tmp_path / "store" / "flor.db"), "/dev/null", "/proc/self/comm"):
        assert files.place(path, "w") == path


def test_a_deleted_file_is_missing_and_the_original_stays(files, home):
    files.remove(str(home / "old.txt"))
    assert files.status(str(home / "old.txt")) is None
    assert files.listdir(str(home)) == ["sub"]
    assert (home / "old.txt").exists()


def test_a_file_written_after_its_deletion_is_there_again_and_can_be_deleted_again(files, home):
    path = str(home / "old.txt")
    files.remove(path)
    Path(files.place(path, "w")).write_text("again")
    assert Path(files.place(path, "r")).read_text() == "again"
    files.remove(path)
    assert files.status(path) is None


def test_a_folder_deleted_and_made_again_is_empty(files, home):
    files.remove_tree(str(home / "sub"))
    files.make_tree(str(home / "sub"))
    assert files.listdir(str(home / "sub")) == []
    assert os.listdir(home / "sub") == ["deep.txt"]


def test_renaming_a_folder_takes_its_originals_along(files, home):
    files.rename(str(home / "sub"), str(home / "moved"))
    assert files.listdir(str(home / "moved")) == ["deep.txt"]
    assert files.status(str(home / "sub")) is None
    assert sorted(os.listdir(home)) == ["old.txt", "sub"]


def test_a_folder_that_looks_full_cannot_be_removed(files, home):
    with pytest.raises(OSError, match="not empty"):
        files.rmdir(str(home / "sub"))


def test_a_write_through_a_link_reaches_neither_link_nor_target(files, home):
    (home / "link").symlink_to("sub/deep.txt")
    Path(files.place(str(home / "link"), "w")).write_text("changed")
    assert Path(files.place(str(home / "sub" / "deep.txt"), "r")).read_text() == "changed"
    assert (home / "sub" / "deep.txt").read_text() == "deep"


def test_a_link_inside_an_allowed_folder_does_not_lead_out_of_it(files, home, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "link").symlink_to(home / "old.txt")
    place = files.place(str(tmp_path / "store" / "link"), "w")
    assert place == files.overlay.upper + str(home / "old.txt")


def test_a_new_link_is_followed_by_later_calls(files, home):
    assert files.overlay.resolve(str(home / "way" / "deep.txt")) == str(home / "way" / "deep.txt")
    files.symlink("sub", str(home / "way"))
    assert files.overlay.resolve(str(home / "way" / "deep.txt")) == str(home / "sub" / "deep.txt")


def test_links_in_a_circle_are_an_error(files, home):
    files.symlink("b", str(home / "a"))
    files.symlink("a", str(home / "b"))
    with pytest.raises(OSError, match="symbolic links"):
        files.overlay.resolve(str(home / "a"))


@pytest.mark.parametrize(
    ("path", "mode", "error"),
    [
        ("missing/new.txt", "w", FileNotFoundError),
        ("old.txt/new.txt", "w", NotADirectoryError),
        ("sub", "w", IsADirectoryError),
        ("old.txt", "x", FileExistsError),
        ("missing.txt", "r+", FileNotFoundError),
    ],
)
def test_opening_fails_as_it_would_without_the_overlay(files, home, path, mode, error):
    with pytest.raises(error):
        files.place(str(home / path), mode)


def test_changing_the_mode_changes_only_the_copy(files, home):
    before = (home / "old.txt").stat().st_mode
    files.change(os.chmod)(str(home / "old.txt"), 0o600)
    assert stat.S_IMODE(files.status(str(home / "old.txt")).st_mode) == 0o600
    assert (home / "old.txt").stat().st_mode == before


def test_another_process_sees_deletions_through_the_journal(files, home, tmp_path):
    other = Files(Overlay(tmp_path / "scratch", []))
    other.remove(str(home / "old.txt"))
    assert files.status(str(home / "old.txt")) is None
    assert files.overlay.journal.listed("diverted") == [str(home / "old.txt")]
