"""Python's own calls under the guard, in this process."""

import bz2
import codecs
import csv
import glob
import gzip
import io
import json
import logging
import multiprocessing
import os
import pathlib
import pickle
import posix
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import pytest

from flor_keras.replay.guard import WriteRefused, diverting
from flor_keras.replay.guard.refusal import only_reads


def read(path):
    """The builtin `open`, closed again."""
    with open(path) as file:
        return file.read()


def snapshot(folder):
    """Everything that can be told about the files of a folder from outside."""
    found = {}
    for root, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(root, name)
            status = os.lstat(path)
            content = None if os.path.isdir(path) else pathlib.Path(path).read_bytes()
            found[path] = (status.st_mode, status.st_mtime_ns, status.st_size, content)
    return found


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    (folder / "sub" / "deeper").mkdir(parents=True)
    (folder / "input.txt").write_text("input")
    (folder / "log.txt").write_text("first\n")
    (folder / "sub" / "deep.txt").write_text("deep")
    with sqlite3.connect(folder / "old.db") as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (1)")
    database.close()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def guard(home, tmp_path):
    before = snapshot(home)
    with diverting(tmp_path / "scratch", [tmp_path / "store"]) as guard:
        yield guard
    assert snapshot(home) == before, "the user's folder was touched"


def test_a_written_file_is_read_back_and_listed_under_its_own_name(guard, home):
    with open("new.txt", "w") as file:
        file.write("new")
    assert file.name == "new.txt"
    assert read("new.txt") == pathlib.Path("new.txt").read_text() == "new"
    assert os.path.exists(home / "new.txt")
    assert os.path.getsize(b"new.txt") == 3
    assert guard.diverted == [str(home / "new.txt")]


def test_appending_continues_the_original(guard):
    with open("log.txt", "a") as file:
        file.write("second\n")
    assert read("log.txt") == "first\nsecond\n"


def test_updating_in_place_changes_the_copy(guard):
    with open("input.txt", "r+b") as file:
        file.write(b"IN")
    assert pathlib.Path("input.txt").read_bytes() == b"INput"


def test_creating_an_existing_file_exclusively_fails(guard):
    with pytest.raises(FileExistsError):
        open("input.txt", "x").close()
    with pytest.raises(FileExistsError):
        os.open("input.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_a_deleted_input_is_gone_for_every_way_of_asking(guard, home):
    os.remove("input.txt")
    assert not os.path.exists("input.txt")
    assert not os.access(home / "input.txt", os.R_OK)
    assert "input.txt" not in os.listdir()
    assert "input.txt" not in [entry.name for entry in os.scandir()]
    assert glob.glob("input*") == []
    for call in (open, os.stat, os.remove):
        with pytest.raises(FileNotFoundError, match=r"input\.txt") as caught:
            call("input.txt")
        assert "scratch" not in str(caught.value)


def test_renaming_moves_a_copy(guard):
    os.replace("input.txt", "renamed.txt")
    pathlib.Path("sub").rename("moved")
    shutil.move("log.txt", "moved/log.txt")
    assert sorted(os.listdir()) == ["moved", "old.db", "renamed.txt"]
    assert sorted(os.listdir("moved")) == ["deep.txt", "deeper", "log.txt"]


def test_folders_are_made_listed_walked_and_removed_in_the_overlay(guard):
    os.makedirs("sub/a/b", exist_ok=True)
    pathlib.Path("sub/a/b/c.txt").write_text("c")
    assert sorted(os.listdir("sub")) == ["a", "deep.txt", "deeper"]
    assert sorted(path.as_posix() for path in pathlib.Path("sub").rglob("*.txt")) == [
        "sub/a/b/c.txt",
        "sub/deep.txt",
    ]
    assert {name for _, _, names in os.walk("sub") for name in names} == {"c.txt", "deep.txt"}
    assert sorted(glob.glob("sub/**/*.txt", recursive=True)) == ["sub/a/b/c.txt", "sub/deep.txt"]
    shutil.rmtree("sub")
    assert not os.path.isdir("sub")
    with pytest.raises(FileNotFoundError):
        pathlib.Path("sub/new.txt").write_text("new")


def test_copying_files_and_trees_works_inside_and_into_the_overlay(guard):
    shutil.copy2("input.txt", "copy.txt")
    shutil.copytree("sub", "sub2")
    shutil.copytree("sub", "sub2", dirs_exist_ok=True)
    assert pathlib.Path("copy.txt").read_text() == "input"
    assert pathlib.Path("sub2/deep.txt").read_text() == "deep"


def test_times_modes_links_and_lengths_change_only_in_the_overlay(guard):
    os.utime("input.txt", (1, 1))
    os.chmod("log.txt", 0o600)
    os.truncate("sub/deep.txt", 2)
    os.symlink("input.txt", "link")
    os.link("log.txt", "hard")
    os.mkfifo("pipe")
    assert os.stat("input.txt").st_mtime == 1
    assert os.readlink("link") == "input.txt"
    assert os.path.realpath("link") == os.path.abspath("input.txt")
    assert read("link") == "input"
    assert pathlib.Path("sub/deep.txt").read_text() == "de"
    with open("hard", "a") as file:
        file.write("x")
    assert read("log.txt") == "first\nx"


def test_changing_the_folder_is_followed(guard, home):
    os.mkdir("fresh")
    os.chdir("fresh")
    assert os.getcwd() == str(home / "fresh")
    pathlib.Path("here.txt").write_text("here")
    os.chdir("..")
    assert pathlib.Path("fresh/here.txt").read_text() == "here"
    os.chdir("sub")
    pathlib.Path("there.txt").write_text("there")
    assert sorted(os.listdir(home / "sub")) == ["deep.txt", "deeper", "there.txt"]
    os.chdir(home)


def test_folder_descriptors_lead_to_the_overlay(guard, home):
    folder = os.open(home, os.O_RDONLY)
    os.close(os.open("by_fd.txt", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.mkdir("made", dir_fd=folder)
    os.unlink("input.txt", dir_fd=folder)
    os.close(folder)
    assert sorted(os.listdir()) == ["by_fd.txt", "log.txt", "made", "old.db", "sub"]


def test_a_descriptor_of_an_original_cannot_change_it(guard):
    with open("input.txt") as file, pytest.raises(WriteRefused, match=r"change the mode of .*input"):
        os.fchmod(file.fileno(), 0o600)


def test_the_standard_library_writers_are_diverted(guard):
    with open("a.csv", "w", newline="") as file:
        csv.writer(file).writerow([1, 2])
    with open("a.json", "w") as file:
        json.dump({"a": 1}, file)
    with open("a.pkl", "wb") as file:
        pickle.dump([1], file)
    for opener, path in ((gzip.open, "a.gz"), (bz2.open, "a.bz2"), (codecs.open, "a.codec")):
        with opener(path, "wb") as file:
            file.write(b"x")
        with opener(path, "rb") as file:
            assert file.read() == b"x"
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.write("input.txt")
    with zipfile.ZipFile("a.zip") as archive:
        assert archive.read("input.txt") == b"input"
    with io.FileIO("a.raw", "w") as raw:
        raw.write(b"raw")
    with io.FileIO("a.raw") as raw, open("a.raw", "rb", buffering=0) as plain:
        assert raw.read() == plain.read() == b"raw"
        assert isinstance(plain, io.FileIO)
    handler = logging.FileHandler("a.log")
    handler.emit(logging.makeLogRecord({"msg": "hello"}))
    handler.close()
    assert read("a.log") == "hello\n"
    assert len(guard.diverted) == 9


def test_numpy_writers_are_diverted(guard):
    array = np.arange(6.0)
    np.save("a.npy", array)
    np.savez("a.npz", array=array)
    np.savetxt("a.txt", array)
    array.tofile("a.bin")
    mapped = np.memmap("a.map", dtype=float, mode="w+", shape=6)
    mapped[:] = array
    mapped.flush()
    with np.load("a.npz") as archive:
        found = [archive["array"], np.load("a.npy"), np.loadtxt("a.txt"), np.fromfile("a.bin")]
    for copy in found:
        np.testing.assert_array_equal(copy, array)
    np.testing.assert_array_equal(np.memmap("a.map", dtype=float, mode="r+"), array)


def test_pandas_and_pillow_and_joblib_writers_are_diverted(guard):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"a": [1]}).to_csv("a.csv", index=False)
    assert pandas.read_csv("a.csv").a[0] == 1
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (2, 2)).save("a.png")
    with image.open("a.png") as picture:
        assert picture.size == (2, 2)
    joblib = pytest.importorskip("joblib")
    joblib.dump([1], "a.joblib")
    assert joblib.load("a.joblib") == [1]
    assert len(guard.diverted) == 3


def test_matplotlib_saves_into_the_overlay(guard):
    figure = pytest.importorskip("matplotlib.figure")
    figure.Figure(figsize=(1, 1)).savefig("a.png")
    assert os.path.getsize("a.png") > 0


def test_databases_are_diverted_with_what_they_hold(guard):
    database = sqlite3.connect("old.db")
    with database:
        database.execute("insert into t values (2)")
    database.close()
    reader = sqlite3.connect(f"file:{os.getcwd()}/old.db?mode=ro", uri=True)
    assert reader.execute("select count(*) from t").fetchone() == (2,)
    reader.close()
    sqlite3.connect(":memory:").close()


def test_temporary_files_lie_in_the_scratch_folder_and_are_not_listed(guard, tmp_path):
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
        assert file.name.startswith(str(tmp_path / "scratch"))
        assert folder.startswith(str(tmp_path / "scratch"))
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(b"x")
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("whole")
    os.replace(file.name, "input.txt")
    assert read("input.txt") == "whole"


def test_the_store_is_written_as_ever(guard, tmp_path):
    os.makedirs(tmp_path / "store" / "runs")
    (tmp_path / "store" / "runs" / "a").write_text("a")
    os.rename(tmp_path / "store" / "runs" / "a", tmp_path / "store" / "runs" / "b")
    assert posix.listdir(tmp_path / "store" / "runs") == ["b"]
    assert guard.diverted == []


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: posix.open("new.txt", os.O_WRONLY | os.O_CREAT),
        lambda: posix.remove("input.txt"),
        lambda: posix.rename("input.txt", "x"),
        lambda: posix.mkdir("x"),
        lambda: posix.rmdir("sub/deeper"),
        lambda: posix.symlink("a", "x"),
        lambda: posix.truncate("input.txt", 0),
        lambda: posix.chmod("input.txt", 0),
        lambda: posix.utime("input.txt"),
        lambda: sys.modules["_io"].open("new.txt", "w"),
        lambda: sqlite3.Connection("new.db"),
    ],
)
def test_what_gets_past_the_patches_is_refused_by_the_audit_hook(guard, attempt):
    with pytest.raises(WriteRefused, match="--allow-writes"):
        attempt()
    assert len(guard.refused) == 1


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["touch", "x"]),
        lambda: subprocess.run("touch x", shell=True),
        lambda: os.system("touch x"),
        lambda: os.popen("touch x"),
        lambda: os.posix_spawn("/bin/touch", ["touch", "x"], {}),
        lambda: os.spawnv(os.P_WAIT, "/bin/touch", ["touch", "x"]),
        lambda: os.execv("/bin/touch", ["touch", "x"]),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    ],
)
def test_other_programs_are_refused_and_listed(guard, start):
    with pytest.raises(WriteRefused, match=r"refused to run .*--allow-writes"):
        start()
    assert guard.refused[0].startswith("run ")


def test_programs_that_only_read_may_run(guard):
    assert subprocess.run(["uname", "-s"], capture_output=True, text=True).stdout == "Linux\n"


@pytest.mark.parametrize(
    "command",
    [
        "git rev-parse HEAD",
        "git -C /x status --short",
        "git config --get user.name",
        "sh -c 'git describe'",
        "nvidia-smi",
    ],
)
def test_reading_commands_are_known(command):
    assert only_reads(shlex.split(command))


@pytest.mark.parametrize(
    "command",
    [
        "git commit",
        "git diff --output=x",
        "git -c core.pager=rm log",
        "git config a b",
        "sh -c 'git log > x'",
        "hostname new",
        "",
    ],
)
def test_writing_commands_are_not_taken_for_reading_ones(command):
    assert not only_reads(shlex.split(command))


def test_a_signal_to_a_process_the_program_did_not_start_is_refused(guard):
    with pytest.raises(WriteRefused, match="send signal 15"):
        os.kill(os.getppid(), signal.SIGTERM)
    os.kill(os.getppid(), 0)


def test_a_socket_file_in_the_users_folder_is_refused(guard):
    with socket.socket(socket.AF_UNIX) as server, pytest.raises(WriteRefused, match="socket"):
        server.bind("sock")


def _load(number):
    with open(f"worker{number}.txt", "w") as file:
        file.write("x")
    return read("input.txt")


def test_forked_data_loaders_work_and_what_they_write_is_seen(guard):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_load, range(3)) == ["input"] * 3
    assert sorted(glob.glob("worker*")) == ["worker0.txt", "worker1.txt", "worker2.txt"]
    assert len(guard.diverted) == 3


def test_nothing_stays_patched_after_the_block(home, tmp_path):
    before = (open, io.open, io.FileIO, os.stat, os.remove, sqlite3.connect, os.environ.get("TMPDIR"))
    with diverting(tmp_path / "scratch", []):
        assert open is not before[0]
    after = (open, io.open, io.FileIO, os.stat, os.remove, sqlite3.connect, os.environ.get("TMPDIR"))
    assert after == before
    pathlib.Path("really.txt").write_text("there")
    assert posix.access(home / "really.txt", os.R_OK)


_QUIET = """
import os, sys, webbrowser
from flor_keras.replay.guard import quiet_program
quiet_program()
import matplotlib
matplotlib.use("TkAgg")
import matplotlib.pyplot as plt
plt.switch_backend("TkAgg")
plt.plot([1]); plt.show(); plt.pause(9)
assert matplotlib.get_backend().lower() == "agg", matplotlib.get_backend()
assert sys.stdin.read() == "" and os.read(0, 1) == b""
assert not webbrowser.open("http://example.org")
assert sys.dont_write_bytecode
try: input()
except EOFError: print("quiet")
"""


def test_a_quiet_program_asks_nobody_and_shows_nothing():
    pytest.importorskip("matplotlib")
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _QUIET],
        input="typed",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout == "quiet\n", run.stderr


_CONFINED = """
import ctypes, os, pathlib, sys
from flor_keras.replay.guard import confine_writes
home, store = map(pathlib.Path, sys.argv[1:])
if not confine_writes([store]):
    print("no landlock"); sys.exit()
(store / "x").write_text("x")
libc = ctypes.CDLL(None)
assert libc.creat(os.fsencode(home / "new"), 0o600) == -1
assert libc.unlink(os.fsencode(home / "old")) == -1
assert libc.open(os.fsencode(home / "old"), os.O_WRONLY) == -1
assert libc.open(os.fsencode(home / "old"), os.O_RDONLY) > 0
print("confined")
"""


def test_the_kernel_stops_writers_in_c_where_it_can(tmp_path):
    for name in ("home", "store"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "old").write_text("old")
    command = [sys.executable, "-c", _CONFINED, tmp_path / "home", tmp_path / "store"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if run.stdout == "no landlock\n":
        pytest.skip("this kernel has no Landlock")
    assert run.stdout == "confined\n", run.stderr
