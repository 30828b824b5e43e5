"""The benchmarks run at small sizes and print every row; what they measure is for people to read."""

from __future__ import annotations

import os
from importlib import util
from pathlib import Path

import pytest
from forked import BENCHMARKS

from flor_keras.export import FORMATS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ORBAX = "OrbaxCheckpoint"
WAYS = [
    "FlorKeras",
    "tf.train.Checkpoint.write",
    "fork per checkpoint",
    "BackupAndRestore",
    "ModelCheckpoint",
    "one memcpy",
]


@pytest.fixture
def section(fork_server, tmp_path):
    """Return a runner of a benchmark, which returns the page it wrote; it and the processes it starts are forks."""
    starter = tmp_path / "starter.py"
    starter.write_text(
        f"import runpy, sys\nsys.executable = {str(fork_server.launcher_path)!r}\ndel sys.argv[0]\n"
        f"sys.path[0] = {str(BENCHMARKS)!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )

    def run(program: str, page: Path, *words: str) -> str:
        command = [str(starter), str(BENCHMARKS / program), *words, "--page", str(page)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        outputs = (tmp_path / "out", tmp_path / "err")
        ended = fork_server.start(command, page.parent, environment, outputs).wait(300)
        assert ended.status == 0, ended.stderr[-3000:]
        return page.read_text(encoding="utf-8")

    return run


def rows(page: str) -> list[str]:
    """Return the first cells of all table rows."""
    return [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]


def test_snapshot_compares_every_way_to_save(section, tmp_path):
    ways = [*WAYS, ORBAX] if util.find_spec("orbax") else WAYS
    page = section(
        "snapshot.py", tmp_path / "page.md", "--sizes", "2", "--rounds", "1", "--folder", str(tmp_path)
    )
    assert sorted(filter(None, rows(page))) == sorted(ways)
    assert page.count("2 MB: stall at most 1/5 of the in-line write") == 1


def test_recording_parts_the_listing_and_exports_join_the_same_page(section, tmp_path):
    page = tmp_path / "page.md"
    section("store_listing.py", page, "--runs", "10", "--entries", "500", "--rounds", "1")
    section("recording_parts.py", page, "--megabytes", "2", "--epochs", "4")
    section("store_listing.py", page, "--runs", "10", "--entries", "500", "--rounds", "1")
    text = section("export_cost.py", page, "--megabytes", "1", "--rounds", "1", "--folder", str(tmp_path))
    assert text.count("# Benchmarks\n") == 1
    cases = ["arrays", "tf.data", "tf.data, shuffle(256)", "tf.data, shuffle(256) and repeat()"]
    commands = ["flor-keras runs", "flor-keras runs --json", "flor-keras show latest", "flor-keras logs loss"]
    assert list(filter(None, rows(text))) == ["an empty Python program", *commands, *cases, *FORMATS]


def test_whole_programs_and_logged_scalars_are_measured(section, tmp_path):
    page, kept = tmp_path / "page.md", tmp_path / "kept.json"
    tiny = ["--seconds", "0.2", "--rounds", "1", "--ways", "--workloads", "tiny model, very short epochs"]
    first = section("overhead.py", page, *tiny, "--kept", str(kept))
    again = section("overhead.py", page, *tiny, "--kept", str(kept))
    assert rows(first) == rows(again) == ["", "tiny model, very short epochs"] * 2
    assert first.count("no workload above 1/15") == 1
    quick = ["--entries", "500", "--rounds", "1", "--ways", "flor_keras flor.log"]
    frames = ["Run.dataframe()", "pandas.read_sql + pivot", "pandas.read_sql alone"]
    text = section("logged_scalars.py", page, *quick)
    assert list(filter(None, rows(text)))[2:] == ["flor_keras flor.log", *frames]
    assert text.count("not measured: at least 50 times cheaper than") == 3


def test_a_short_fit_is_compared_with_plain_ones(section, tmp_path):
    page = section("short_fit.py", tmp_path / "page.md", "--seconds", "0.2", "--rounds", "1")
    assert rows(page) == ["", "plain", "recorded"]
    assert page.count("is slowed by less than 10%") == 1


def test_loop_overhead_compares_every_kind_of_loop(section, tmp_path):
    words = ("--steps", "50", "--rounds", "1", "--repeats", "1")
    page = section("loop_overhead.py", tmp_path / "page.md", *words)
    loops = ["epochs-of-steps", "steps-alone", "while-loops"]
    assert rows(page) == ["loop", *loops]
    assert all(page.count(f"{loop}: under 5 µs a step more") == 1 for loop in loops)
