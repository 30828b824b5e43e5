"""A scratch project with programs of its own and a store beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from forked import Ended, ForkServer, Running

from flor_keras import reading

_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH")  # the last: which copy is tested


class Project:
    """Writes programs into a folder and runs them there.

    Args:
      folder: an empty folder.
      server: where programs run as forks.
    """

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self.folder = folder
        self.store = folder / ".flor"
        self.flor_path = server.flor_path
        self._server = server
        self._num_started = 0

    def write(self, name: str, *parts: str) -> Path:
        """Write a program of one or several parts, each dedented."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(textwrap.dedent(part) for part in parts), encoding="utf-8")
        return path

    def start(self, *words: Any, env: dict[str, str] | None = None) -> Running:
        """Start ``python WORDS…`` in the folder, as a fork."""
        self._num_started += 1
        outputs = (self.folder / f".{self._num_started}.out", self.folder / f".{self._num_started}.err")
        return self._server.start([str(w) for w in words], self.folder, self.environment(env), outputs)

    def run(self, *words: Any, env: dict[str, str] | None = None, timeout_secs: float = 120.0) -> Ended:
        """Run ``python WORDS…`` in the folder, as a fork."""
        return self.start(*words, env=env).wait(timeout_secs)

    def succeed(self, *words: Any, env: dict[str, str] | None = None) -> Ended:
        """Run a program that must end well."""
        ended = self.run(*words, env=env)
        assert ended.status == 0, f"exit status {ended.status}\n{ended.stdout}\n{ended.stderr}"
        return ended

    def run_alone(self, *words: Any, env: dict[str, str] | None = None, timeout_secs: float = 120.0) -> Ended:
        """Run ``python WORDS…`` in an interpreter of its own."""
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=self.folder,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_secs,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def flor(self, *words: Any, env: dict[str, str] | None = None, timeout_secs: float = 120.0) -> Ended:
        """Run ``flor-keras WORDS…`` as a fork; the workers it starts are forks, too."""
        return self.run(self.flor_path, *words, env=env, timeout_secs=timeout_secs)

    def replay(self, *words: Any, status: int = 0) -> dict[str, Any]:
        """Run ``flor-keras replay --json WORDS…``, which must end with ``status``; return its object."""
        ended = self.flor("replay", "--json", *words)
        assert ended.status == status, f"exit status {ended.status}\n{ended.stdout}\n{ended.stderr}"
        return json.loads(ended.stdout)

    def latest(self, ref: str = "latest") -> reading.Run:
        """Return a run of the store."""
        return reading.run(ref, self.store)

    def environment(self, changes: dict[str, str] | None = None) -> dict[str, str]:
        """Return a program's environment: nothing of the test session's but what any program needs."""
        kept = {key: value for key, value in os.environ.items() if key in _KEPT_VARIABLES}
        own = {"TF_CPP_MIN_LOG_LEVEL": "3", "FLOR_STORE": str(self.store), "FLOR_CHECKPOINT_EVERY": "epoch"}
        return {**kept, **own, **(changes or {})}


def values(run: reading.Run, name: str) -> list[Any]:
    """Return the values of a name in order of position."""
    return [entry.value for entry in run.entries(name)]
