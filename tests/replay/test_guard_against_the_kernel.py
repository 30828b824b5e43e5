"""The overlay against the real thing: the same random calls on a real folder and on a guarded one."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flor_keras.replay.guard import diverting

MODULES = {"os": os, "shutil": shutil}
NAMES = ["a", "b", "d", "d/a", "d/e", "d/e/a", "link", "link/a", "new", "d/../b"]
paths = st.sampled_from(NAMES)


def _make(folder):
    (folder / "d" / "e").mkdir(parents=True)
    for name in ("a", "b", "d/a", "d/e/a"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to("d")


def _write(path, mode):
    with open(path, mode) as file:
        file.write("new")


def _read(path):
    with open(path) as file:
        return file.read()


def _status(path):
    status = os.stat(path)
    return status.st_mode, os.path.isdir(path) or status.st_size


def _list(path):
    return sorted(os.listdir(path))


# Calls by name, looked up when made: a function kept in a tuple would be the one from before the guard.
READING = ["_read", "_status", "_list", "os.readlink"]
REMOVING = ["os.remove", "os.rmdir", "shutil.rmtree", "os.mkdir", "os.makedirs"]
PAIRING = ["os.rename", "os.symlink", "shutil.copyfile", "shutil.move"]
calls = st.one_of(
    st.tuples(st.just("_write"), paths, st.sampled_from(["w", "a", "r+", "x"])),
    st.tuples(st.sampled_from(READING + REMOVING), paths),
    st.tuples(st.sampled_from(PAIRING), paths, paths),
    st.tuples(st.just("os.truncate"), paths, st.just(1)),
)


def _outcome(name, *arguments):
    module, _, attribute = name.rpartition(".")
    call = getattr(MODULES[module], attribute) if module else globals()[name]
    try:
        found = call(*arguments)
    except (OSError, shutil.Error) as error:
        if name in PAIRING:
            return OSError  # which of two bad paths is named first is the kernel's affair
        return type(error), error.errno
    return None if name in PAIRING else found


def _tree(folder):
    found = {}
    for root, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(root, name)
            content = os.readlink(path) if os.path.islink(path) else os.path.isdir(path) or _read(path)
            found[os.path.relpath(path, folder)] = content
    return found


def _replay(folder, sequence):
    before = os.getcwd()
    os.chdir(folder)
    try:
        return [_outcome(*call) for call in sequence], _tree(folder)
    finally:
        os.chdir(before)


@settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@example(sequence=[("os.remove", "a"), ("os.mkdir", "a"), ("os.rmdir", "a"), ("_write", "a", "w")])
@example(sequence=[("os.rename", "d", "new"), ("os.symlink", "new", "d"), ("_write", "d/a", "a")])
@example(sequence=[("os.rename", "d", "d/a"), ("os.rename", "d/e", "d")])
@given(sequence=st.lists(calls, max_size=12))
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_guarded_folder_behaves_as_a_real_one_and_stays_untouched(sequence, monkeypatch):
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # the two ways of rmtree raise different errors
    with tempfile.TemporaryDirectory() as root:
        real, guarded, pristine = (Path(root, name) for name in ("real", "guarded", "pristine"))
        for folder in (real, guarded, pristine):
            _make(folder)
        expected = _replay(real, sequence)
        with diverting(Path(root, "scratch"), []):
            found = _replay(guarded, sequence)
        assert found == expected
        assert _tree(guarded) == _tree(pristine)
