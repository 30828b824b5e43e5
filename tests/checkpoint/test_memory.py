"""The forked worker shares no page of the training state, so that training pays no copy-on-write for it."""

from __future__ import annotations

import json
import sys

import pytest

from flor_keras.checkpoint import memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="madvise and /proc are Linux's"),
]

TRAINER = """
import json, os, resource, sys
from pathlib import Path
import keras, numpy as np
from flor_keras.checkpoint import memory, worker, writer as writing
from flor_keras.state.capture import Snapshot
from flor_keras.state.variables import gather

WIDTH = 1500
model = keras.Sequential([keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH) for _ in range(4))])
model.compile("adam", "mse")
x = np.zeros((8, WIDTH), "float32")
for _ in range(4):
    model.train_on_batch(x, x)
snapshot = Snapshot(gather({"model": model}), {})
outcomes = []
folder = Path("checkpoints"); folder.mkdir()
writing.FORK_SECS = 0.0  # a worker from the first checkpoint on
writer = writing.Writer(folder, lambda job, done: outcomes.append(done.error), print)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    before = faults()
    model.train_on_batch(x, x)
    return faults() - before

def private(pid):
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[key].split()[0]) for key in ("Private_Dirty", "Private_Clean")) * 1024
"""


def test_the_first_steps_after_the_fork_copy_none_of_the_state(project):
    script = project.write(
        "trainer.py",
        TRAINER,
        """
        usual = [step() for _ in range(5)]
        arena = writer.prepare(snapshot.layout)
        snapshot.copy_into(arena, {})
        writer.submit(writing.job_for(0, folder / "0", snapshot.layout, {}, {}, {}))
        after = [step() for _ in range(2)]
        writer.wait()
        snapshot.copy_into(writer.prepare(snapshot.layout), {})
        writer.submit(writing.job_for(1, folder / "1", snapshot.layout, {}, {}, {}))
        writer.wait()
        print(json.dumps({
            "state_bytes": snapshot.layout.num_bytes, "usual": max(usual), "after": sum(after),
            "regions": len(memory.tensor_regions()), "private": private(writer.worker_pid), "outcomes": outcomes,
        }))
    """,
    )
    found = json.loads(project.succeed(script).stdout)
    assert found["state_bytes"] > 100e6
    assert found["outcomes"] == [None, None]
    assert found["regions"] >= 1
    pages = found["state_bytes"] / memory.PAGE_BYTES
    # What is left are the trainer's Python objects and small allocations, which do not grow with the state.
    assert found["after"] - 2 * found["usual"] < 0.1 * pages
    assert found["private"] < 0.9 * found["state_bytes"]


def test_a_plain_fork_would_copy_the_state(project):
    """The measure itself: without `kept_from_child` it shows what the other test says is absent."""
    script = project.write(
        "trainer.py",
        TRAINER,
        """
        usual = [step() for _ in range(5)]
        pid = os.fork()
        if pid == 0:
            import time
            time.sleep(1000)
        after = [step() for _ in range(2)]
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        print(json.dumps({"state_bytes": snapshot.layout.num_bytes, "after": sum(after) - 2 * max(usual)}))
    """,
    )
    found = json.loads(project.succeed(script).stdout)
    assert found["after"] > 0.5 * found["state_bytes"] / memory.PAGE_BYTES


def test_regions_left_out_of_a_child_read_as_zero_there_and_are_unchanged_here(project):
    project.succeed(
        project.write(
            "trainer.py",
            """
        import ctypes, os
        import numpy as np, tensorflow as tf
        from flor_keras.checkpoint import memory

        variable = tf.Variable(np.ones((64 << 20,), np.uint8))
        array = np.asarray(memoryview(variable.read_value()))
        address = array.__array_interface__["data"][0]
        regions = [r for r in memory.tensor_regions() if r.start <= address + (32 << 20) < r.end]
        assert len(regions) == 1, memory.tensor_regions()
        with memory.kept_from_child(regions):
            pid = os.fork()
            if pid == 0:
                memory.fill_holes(regions)
                os._exit(0 if array[32 << 20] == 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert array.all()
        pid = os.fork()  # and later children, the user's own, see everything again
        if pid == 0:
            os._exit(0 if array[32 << 20] == 1 else 1)
        assert os.waitpid(pid, 0)[1] == 0
    """,
        )
    )


def test_the_memory_of_the_machine_is_known():
    assert memory.available_bytes() > 1 << 20
