"""The writer: snapshots reach the disk whatever happens to the worker, and training never waits for ever."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

# A trainer that owns a Writer: take(size) checkpoints one tensor of `size` bytes.
PRELUDE = """
import os, resource, signal, sys, time
from pathlib import Path
import numpy as np
import tensorflow as tf
from flor_keras.checkpoint import bundle, memory, worker, writer as writing
from flor_keras.checkpoint.contents import Content
from flor_keras.checkpoint.arena import lay_out

tf.reduce_sum(tf.ones((64, 64)) @ tf.ones((64, 64)))
events, outcomes, taken = [], [], []
folder = Path("checkpoints")
folder.mkdir()
writing.FORK_SECS = 0.0  # a worker from the first checkpoint on
writer = writing.Writer(folder, lambda job, done: outcomes.append((job.number, done.error)), events.append)

def take(size=100_000, small=None):
    number = len(taken)
    layout = lay_out([("t", "uint8", (size,), size)])
    job = writing.job_for(number, folder / str(number), layout, small or {}, {}, {})
    arena = writer.prepare(layout)
    if arena is None:
        writer.write_now(job, [Content("t", "uint8", (size,), np.full(size, number, np.uint8))])
    else:
        arena.view(layout.slots[0])[:] = number
        writer.submit(job)
    taken.append(size)

def check():
    writer.close()
    assert outcomes == [(number, None) for number in range(len(taken))], outcomes
    for number, size in enumerate(taken):
        tensor = bundle.read_tensors(folder / str(number))["t"]
        assert tensor.shape == (size,) and (tensor == number).all(), number
    left = {path.name for path in folder.iterdir()} - {str(n) for n in range(len(taken))} - {"worker.log"}
    assert not left, left

def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False
"""
QUICK = {"FLOR_DEADLINE_SCALE": "0.05"}  # a hang is told after 1.5 s


@pytest.fixture
def trainer(project):
    """Return a function that runs a trainer's body, which must end well."""

    def run(*body: str, **env: str):
        return project.succeed(project.write("trainer.py", PRELUDE, *body), env=env)

    return run


def test_one_worker_writes_all_checkpoints_and_leaves_when_it_is_told(trainer):
    trainer("""
        take()
        pid = writer.worker_pid
        for _ in range(20):
            take()
        assert writer.worker_pid == pid and is_alive(pid)
        check()
        assert not is_alive(pid) and not events
    """)


def test_the_worker_comes_when_threads_have_cost_as_much_as_a_fork(trainer):
    trainer("""
        writer._thread_secs_left = 60.0
        take()
        writer.wait()
        assert outcomes == [(0, None)] and writer.worker_pid is None and writer.num_forks == 0
        assert writer._thread_secs_left < 60.0
        writer._thread_secs_left = 0.001
        take()
        pid = writer.worker_pid
        assert is_alive(pid) and writer.num_forks == 1
        take()
        assert writer.worker_pid == pid
        check()
        assert not events
    """)


def test_a_large_state_is_not_written_by_a_thread_where_a_fork_costs_less(trainer):
    trainer("""
        writer._thread_secs_left = 0.1
        take(100_000_000)
        assert writer.num_forks == 1
        check()
    """)


# The disk hangs: no `fsync` returns before `calm.set()`, in the trainer and in workers forked from it.
HANGING = """
import threading
calm, is_hanging, fsync = threading.Event(), threading.Event(), os.fsync
os.fsync = lambda descriptor: is_hanging.set() or calm.wait() and fsync(descriptor)
"""


def test_training_does_not_wait_for_a_thread(trainer):
    trainer(
        HANGING,
        """
        writer._thread_secs_left = 60.0
        take()
        assert writer.is_busy and not outcomes
        calm.set()
        check()
        assert not events and writer.num_forks == 0
    """,
    )


def test_a_thread_that_hangs_is_left_behind_and_what_it_writes_after_all_counts(trainer):
    trainer(
        HANGING,
        """
        writer._thread_secs_left = 60.0
        take()
        took = time.monotonic()
        arena = writer._arena
        is_hanging.wait()
        os.fsync = fsync  # the next ones do not hang
        for _ in range(3):
            take()
        writer.wait()
        assert time.monotonic() - took < 15
        waits, wait = [], threading.Event.wait
        threading.Event.wait = lambda event, *secs: waits.append(event) or wait(event, *secs)
        if (child := os.fork()) == 0:
            os._exit(0)
        threading.Event.wait = wait
        os.waitpid(child, 0)
        assert writer._threaded._answer.is_there not in waits  # forking does not wait for what was given up
        assert outcomes == [(1, None), (2, None), (3, None)] and writer.num_forks == 1
        assert writer._arena is not arena  # which the thread still writes from
        assert "did not take it within 2 s; training goes on" in events[0] and len(events) == 1, events
        calm.set()
        while len(outcomes) < 4:
            writer.poll()
        assert outcomes.pop() == (0, None)
        outcomes.insert(0, (0, None))
        check()
    """,
        **QUICK,
    )


def test_a_disk_that_hangs_for_good_costs_three_deadlines_and_no_more(trainer):
    trainer(
        HANGING,
        """
        writer._thread_secs_left = 60.0
        began = time.monotonic()
        for _ in range(10):
            take()
        writer.close()
        assert time.monotonic() - began < 3 * 1.5 + 5
        assert sorted(number for number, _ in outcomes) == list(range(10)), outcomes
        assert all("disk" in error for _, error in outcomes), outcomes
        assert writer.is_alone and not [path for path in folder.iterdir() if path.name.isdigit()]
        os._exit(0)  # as a thread would hang that cannot be ended
    """,
        **QUICK,
    )


def test_training_waits_for_tensors_that_are_not_copied_until_a_deadline_alone(trainer):
    trainer(
        HANGING,
        """
        memory.available_bytes = lambda: 0
        take()
        take()
        assert [number for number, _ in outcomes] == [0, 1], outcomes
        assert "did not take it" in outcomes[0][1] and "still hangs" in outcomes[1][1], outcomes
        calm.set()
        while writer._threaded.is_under_way:
            time.sleep(0.01)
        take()
        assert outcomes[2] == (2, None)
        writer.close()
    """,
        **QUICK,
    )


def test_a_process_the_program_forks_finds_no_write_under_way(trainer):
    trainer(
        HANGING,
        """
        writer._thread_secs_left = 60.0
        take()
        threading.Timer(0.3, calm.set).start()
        child = os.fork()
        if child == 0:
            os._exit(writer._threaded.is_under_way)
        assert os.waitpid(child, 0)[1] == 0
        check()
    """,
    )


def test_ctrl_c_before_a_thread_runs_commits_nothing(trainer):
    trainer("""
        import threading
        writer._thread_secs_left = 60.0
        take()
        writer.wait()
        start = threading.Thread.start

        def interrupted(thread):
            threading.Thread.start = start
            raise KeyboardInterrupt

        threading.Thread.start = interrupted
        try:
            take()
        except KeyboardInterrupt:
            assert not writer.is_busy and outcomes == [(0, None)], outcomes
        else:
            raise AssertionError("not interrupted")
        take()
        check()
        assert not events and writer.num_forks == 0
    """)


def test_ctrl_c_while_training_waits_leaves_nothing_behind(trainer):
    trainer(
        HANGING,
        """
        memory.available_bytes = lambda: 0
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            take()
        except KeyboardInterrupt:
            taken.append(100_000)
        else:
            raise AssertionError("not interrupted")
        calm.set()
        take()
        check()
    """,
    )


def test_the_worker_does_not_write_again_what_a_thread_has_written(trainer):
    trainer("""
        writer._thread_secs_left = 60.0

        def take_same(number):
            layout = lay_out([("t", "uint8", (100_000,), 100_000)])
            arena = writer.prepare(layout)
            arena.view(layout.slots[0])[:] = 7
            writer.submit(writing.job_for(number, folder / str(number), layout, {}, {}, {}))

        take_same(0)
        assert writer.num_forks == 0
        writer._thread_secs_left = 0.0
        take_same(1)
        writer.close()
        assert writer.num_forks == 1 and outcomes == [(0, None), (1, None)]
        held = bundle.read_manifest(folder / "1")["tensors"]["t"]
        assert held["bundle"] == "../0", held
        assert (bundle.read_tensors(folder / "1")["t"] == 7).all()
    """)


def test_submitting_returns_before_the_disk_has_it(trainer):
    trainer("""
        take()
        writer.wait()
        os.kill(writer.worker_pid, signal.SIGSTOP)
        take()
        assert len(outcomes) == 1
        os.kill(writer.worker_pid, signal.SIGCONT)
        check()
        assert not events
    """)


def test_a_growing_state_gets_a_larger_arena_and_keeps_the_worker(trainer):
    trainer("""
        take(1000)
        pid = writer.worker_pid
        for size in (5_000_000, 1000, 20_000_000, 20_500_000, 7):
            take(size)
        assert writer.worker_pid == pid
        check()
        assert not events
    """)


def test_an_empty_state_is_a_checkpoint_too(trainer):
    trainer("""
        take(0)
        check()
    """)


def test_a_worker_killed_while_it_writes_is_replaced_and_the_checkpoint_written_again(trainer):
    trainer("""
        take()
        writer.wait()
        pid = writer.worker_pid
        os.kill(pid, signal.SIGSTOP)
        take()
        os.kill(pid, signal.SIGKILL)
        take()
        assert writer.worker_pid not in (pid, None) and not writer.is_alone
        check()
        assert events == ["The checkpoint worker died; it is replaced."], events
    """)


@pytest.mark.parametrize(
    "size", [100_000, 30_000_000], ids=["that fits the arena", "that needs a larger arena"]
)
def test_a_worker_killed_between_two_checkpoints_is_replaced_for_a_state(trainer, size):
    trainer(f"""
        take()
        writer.wait()
        os.kill(writer.worker_pid, signal.SIGKILL)
        time.sleep(0.1)
        take({size})
        take({size})
        check()
        assert events == ["The checkpoint worker died; it is replaced."], events
    """)


def test_a_stopped_worker_is_killed_at_its_deadline_and_replaced(trainer):
    trainer(
        """
        take()
        writer.wait()
        pid = writer.worker_pid
        os.kill(pid, signal.SIGSTOP)
        take()
        take()
        assert not is_alive(pid) and not writer.is_alone
        check()
        assert events == ["The checkpoint worker hung and was killed; it is replaced."], events
    """,
        **QUICK,
    )


def test_a_stopped_worker_cannot_hold_up_a_job_larger_than_a_pipe(trainer):
    trainer(
        """
        take()
        writer.wait()
        os.kill(writer.worker_pid, signal.SIGSTOP)
        words = np.array([b"%d" % number * 100 for number in range(20_000)], dtype=object)
        take(small={"words": ("string", (20_000,), words)})
        check()
        assert bundle.read_tensors(folder / "1")["words"][-1] == words[-1]
        assert events == ["The checkpoint worker hung and was killed; it is replaced."], events
    """,
        **QUICK,
    )


def test_after_two_failures_in_a_row_the_trainer_writes_itself_and_says_so_once(trainer):
    trainer("""
        take()
        writer.wait()
        os.kill(writer.worker_pid, signal.SIGKILL)
        worker.run = lambda *arguments: os._exit(3)
        take()
        take()
        assert writer.is_alone
        check()
        assert len(events) == 2, events
        assert "it is replaced" in events[0] and "written by the training process itself" in events[1], events
    """)


def test_a_success_forgives_earlier_failures(trainer):
    trainer("""
        for _ in range(4):
            take()
            writer.wait()
            os.kill(writer.worker_pid, signal.SIGKILL)
            time.sleep(0.05)
        take()
        assert not writer.is_alone
        check()
        assert len(events) == 4, events
    """)


HANDSHAKES = {
    "dies at once": "os._exit(3)",
    "never answers": "time.sleep(1000)",
    "cannot write": "(setattr(bundle, 'write', cannot), true_run(*arguments))",
    "writes what cannot be read": "(setattr(bundle, 'write', lies), true_run(*arguments))",
}


@pytest.mark.parametrize("behaviour", HANDSHAKES)
def test_a_worker_that_fails_the_handshake_is_not_trusted(trainer, behaviour):
    trainer(
        f"""
        def cannot(*arguments):
            raise OSError("no room")
        def lies(folder, *arguments):
            folder.mkdir()
            (folder / "manifest.json").write_text("{{}}")
            return 0
        true_run = worker.run
        worker.run = lambda *arguments: {HANDSHAKES[behaviour]}
        take()
        take()
        assert writer.is_alone
        check()
        assert len(events) == 2 and "did not start" in events[0] and "itself" in events[1], events
    """,
        **QUICK,
    )


def test_where_fork_fails_the_trainer_writes_itself(trainer):
    trainer("""
        def no_fork():
            raise OSError(11, "Resource temporarily unavailable")
        os.fork = no_fork
        take()
        take()
        check()
        assert writer.is_alone and "Resource temporarily unavailable" in events[0], events
    """)


def test_without_memory_for_a_copy_training_waits_for_each_write_and_says_how_much_it_needs(trainer):
    trainer("""
        memory.available_bytes = lambda: 500_000_000
        take()
        take(200_000_000 // 100)
        check()
        assert writer.worker_pid is None
        assert len(events) == 1 and "500 MB free" in events[0], events
    """)


def test_memory_that_runs_out_later_is_noticed_where_the_state_grows(trainer):
    trainer("""
        take()
        memory.available_bytes = lambda: 0
        take()
        take(30_000_000)
        take(30_000_000)
        check()
        assert len(events) == 1, events
    """)


@pytest.mark.parametrize(
    "waiting", ["signal.SIG_IGN", "lambda *_: os.waitpid(-1, os.WNOHANG)"], ids=["ignores", "reaps"]
)
def test_a_program_that_takes_the_end_of_all_children_is_no_obstacle(trainer, waiting):
    trainer(f"""
        def reap(*arguments):
            try:
                ({waiting})(*arguments)
            except ChildProcessError:
                pass
        signal.signal(signal.SIGCHLD, {waiting} if "SIG_IGN" in {waiting!r} else reap)
        take()
        writer.wait()
        os.kill(writer.worker_pid, signal.SIGKILL)
        time.sleep(0.1)
        take()
        check()
    """)


def test_a_file_size_limit_fails_the_checkpoint_not_the_trainer(trainer):
    trainer("""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        take(1000)
        writer.wait()
        resource.prlimit(writer.worker_pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        take(1_000_000)
        writer.wait()
        assert outcomes[-1][0] == 1 and outcomes[-1][1], outcomes
        take(1000)
        writer.close()
        assert outcomes[-1] == (2, None)
        assert not (folder / "1").exists()
        assert not list(folder.glob(".tmp-*")), list(folder.iterdir())
    """)


def test_the_worker_leaves_when_the_trainer_is_killed(project):
    script = project.write(
        "trainer.py",
        PRELUDE,
        """
        take()
        writer.wait()
        print(writer.worker_pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    )
    ended = project.run(script)
    pid = int(ended.stdout)
    project.succeed(
        project.write(
            "look.py",
            f"""
        import os, time
        for _ in range(1000):
            if not os.path.exists("/proc/{pid}"):
                break
            time.sleep(0.01)
        else:
            raise SystemExit("the worker is still there")
    """,
        )
    )


def test_the_worker_is_out_of_the_programs_terminal_files_and_signals(trainer):
    trainer("""
        held = open("held", "w")
        take()
        writer.wait()
        descriptors = Path(f"/proc/{writer.worker_pid}/fd")
        links = {path.name: os.readlink(path) for path in descriptors.iterdir()}
        assert links["0"] == "/dev/null", links
        assert all(links[name].endswith("worker.log") for name in "12"), links
        assert not any(link.endswith("held") for link in links.values()), links
        os.kill(writer.worker_pid, signal.SIGINT)
        take()
        check()
        assert not events
    """)
