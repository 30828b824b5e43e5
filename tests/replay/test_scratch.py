"""Scratch folders of replays: gone afterwards, whatever ended the replay, and never one that is in use."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import flor_keras
from flor_keras.replay.scratch import PREFIX, scratch_folder

KILLED = """
import os, signal
from flor_keras.replay.scratch import scratch_folder
with scratch_folder() as scratch:
    (scratch / "1").mkdir()
    (scratch / "1" / "file").write_text("left")
    print(scratch, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def make_old(path: Path) -> None:
    os.utime(path, (1, 1))


def test_the_folder_of_a_killed_replay_is_swept_by_the_next_and_those_in_use_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(Path(flor_keras.__file__).parents[1]),
    }
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True)
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9
    assert (left / "1" / "file").is_file()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    with scratch_folder() as young:
        assert left.exists()  # it might have been made this moment
        make_old(left)
        make_old(young)
        with scratch_folder() as second:
            assert not left.exists()
            assert young.is_dir()
            assert second.is_dir()
    assert elsewhere.is_dir()
    assert list(tmp_path.glob(f"{PREFIX}*")) == [tmp_path / f"{PREFIX}link"]
