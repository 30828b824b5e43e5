"""Programs in forks behave as under an interpreter of their own."""

from __future__ import annotations

import signal
import subprocess

import pytest

pytestmark = pytest.mark.slow


def test_a_program_is_main_and_gets_its_words_folder_and_environment(project):
    project.write("helper.py", "WORD = 'beside'\n")
    script = project.write(
        "program.py",
        """
        import os, sys, helper
        is_main = sys.modules["__main__"].__file__ == __file__
        print(__name__, is_main, sys.argv[1:], helper.WORD, os.environ["KEY"])
        print("problem", file=sys.stderr)
    """,
    )
    ended = project.run(script, "--lr", "1", env={"KEY": "value"})
    assert ended == (0, "__main__ True ['--lr', '1'] beside value\n", "problem\n")


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('words')", 1),
        ("1 / 0", 1),
        ("os._exit(9)", 9),
        ("os.kill(os.getpid(), 9)", -9),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_the_exit_status_is_the_programs(project, ending, status):
    script = project.write("program.py", f"import os, sys\n{ending}\n")
    assert project.run(script).status == status


def test_hooks_and_exit_handlers_run_while_main_is_still_there(project):
    script = project.write(
        "program.py",
        """
        import atexit, sys
        atexit.register(lambda: print("exit", sys.modules["__main__"].word))
        sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, trace.tb_lineno)
        word = "still here"
        raise ValueError
    """,
    )
    assert project.run(script).stdout == "hook ValueError 6\nexit still here\n"


def test_tensorflow_is_imported_and_computes(project):
    script = project.write(
        "program.py",
        """
        import sys
        assert "tensorflow" in sys.modules
        import tensorflow as tf
        print(float(tf.reduce_sum(tf.matmul(tf.ones((300, 300)), tf.ones((300, 300))))))
    """,
    )
    first, second = project.start(script), project.start(script)
    assert first.wait().stdout == second.wait().stdout == "27000000.0\n"


def test_unseeded_randomness_differs_between_programs(project):
    script = project.write(
        "program.py", "import random, numpy\nprint(random.random(), numpy.random.rand())\n"
    )
    assert project.run(script).stdout != project.run(script).stdout


def test_a_program_that_hangs_is_killed_and_says_where(project):
    script = project.write("program.py", "import time\nprint('begun', flush=True)\ntime.sleep(1000)\n")
    with pytest.raises(AssertionError, match=r'(?s)no end after.*begun.*program.py", line 3'):
        project.run(script, timeout_secs=2)


def test_a_program_can_be_killed_from_outside(project):
    running = project.start(project.write("program.py", "import time\ntime.sleep(1000)\n"))
    running.signal(signal.SIGKILL)
    assert running.wait().status == -9


def test_the_launcher_leaves_other_programs_to_the_interpreter(project, fork_server):
    words = [fork_server.launcher_path, "-c", "import sys; print('tensorflow' in sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
