"""The recorder: one run, from the first thing worth recording to the end of the process.

No failure of ours reaches the program: every entrance from it is shielded, what goes wrong is told once on standard
error and kept with the run.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

from flor_keras import origin
from flor_keras.environment import read_environment
from flor_keras.errors import FlorError
from flor_keras.instrument.sources import project_root, project_sources
from flor_keras.recording.ending import Ending
from flor_keras.recording.journal import Journal
from flor_keras.recording.sweep import sweep
from flor_keras.records import Execution, Position, RunRecord
from flor_keras.state.surroundings import Surroundings
from flor_keras.store import layout
from flor_keras.store.database import Store
from flor_keras.store.process import age_secs, process_identity
from flor_keras.store.values import SCALARS, checked_name, kept


class Recorder(Surroundings):
    """Records one run into one store.

    Args:
      store: the store's folder; created if need be.
      name: the run's name.
      script: the program; None in an interactive session.
      resume: the run to go on with, as a person names it; a new run if None.

    Raises:
      StoreError: the store cannot be written.
      UsageError: there is no such run to resume.
    """

    def __init__(self, store: Path, name: str | None, script: Path | None, resume: str | None = None) -> None:
        super().__init__()
        self.store = store
        self.past: Any = None
        self.run = secrets.token_hex(5)
        self.script = script
        self._pid = os.getpid()
        self._told: set[str] = set()
        self._args: dict[str, tuple[Any, Any]] = {}
        self._known_modules: set[str] = set()
        self._kept_sources: set[str] = set()  # paths; who edits a file while it runs edits the next run's
        self._checkpoints: Any = None
        self._models: Any = None
        self._exports: Any = None
        self.redone_loops: list[str] = []  # those that a replay makes again from their first epoch, and why
        self.position = Position()
        self.num_loops = 0
        self.num_outside_steps = 0  # entries of the epoch under way that belong to none of its steps
        self.seed: int | None = None
        self.execution = Execution()
        if resume is not None:
            self._take_up(resume, name)
        else:
            self._begin(name)
        self.journal = Journal(store, self.run, self._tick, self.report)
        self.ending = Ending()
        atexit.register(self.close)

    def _begin(self, name: str | None) -> None:
        with Store.open(self.store, create=True) as opened:
            opened.begin_run(self._record(name))
            with contextlib.suppress(FlorError, OSError):  # what is left behind costs room and nothing else
                sweep(opened)
        folder = layout.run_folder(self.store, self.run)
        folder.mkdir(parents=True, exist_ok=True)
        origin.write(folder)

    def _take_up(self, ref: str, name: str | None) -> None:
        from flor_keras.recording.resume import take_up

        self.past = take_up(self.store, ref, self._record(name))
        self.run = self.past.run

    # -- what the program says ---------------------------------------------------------------------------------

    def log(self, name: str, value: Any, step_offset: int = 0) -> None:
        """Record a value at the current position; the program never waits for the disk.

        Loops log every step, so a scalar takes the shortest way: one tuple into the journal's queue. All of it is of
        plain types, which the garbage collector stops to follow: a queue of anything else has it search the whole
        program again and again, which takes several times what logging does.
        """
        if type(value) not in SCALARS or type(name) is not str:
            try:
                name, value = checked_name(name), kept(value)
            except FlorError as error:
                self.report(f"flor.log({name!r}) was not recorded: {error}")
                return
        position = self.position
        if position.step is None:
            self.num_outside_steps += 1
        elif step_offset:
            position = position._replace(step=position.step + step_offset)
        if self.past is not None and self._is_known(name, position):
            return
        journal = self.journal
        journal.entries.append((name, value) + position)  # noqa: RUF005 - twice as fast as unpacking
        if monotonic() > journal.overdue_at:
            journal.give_way()

    def _is_known(self, name: str, position: Position) -> bool:
        """Whether a run that is resumed has a value already: of what is outside of epochs, or in a loop that was over."""
        if position.epoch is None:
            return bool(self.past.is_kept(name, position))
        return bool(self.past.is_over(position.loop))

    def arg(self, name: str, value: Any, default: Any) -> Any:
        """Record the value an argument of the program has in this run, and return it."""
        self._args[name] = (value, default)
        self.journal.post(lambda store: store.add_args(self.run, {name: (value, default)}))
        return value

    def settle(self) -> None:
        """Wait until everything logged so far is in the store."""
        self.journal.settle()

    def name_run(self, name: str) -> None:
        """Give the run a name, unless it has one."""
        self.journal.post(lambda store: store.name_run(self.run, name))

    def move(self, position: Position) -> None:
        """Say where in the run the program is now."""
        self.position = position
        if monotonic() > self.journal.overdue_at:
            self.journal.give_way()

    def begin_fit(self, is_own: bool = False, initial_epoch: int = 0) -> Any:
        """Begin the next loop of the run; ``is_own`` where the program, not `fit`, calls the callbacks."""
        from flor_keras.recording.fit import FitLoop

        self.add_sources()
        loop = FitLoop(self, self.num_loops, is_own, initial_epoch)
        self.num_loops += 1
        return loop

    def fit(self, call: Any, callbacks: list[Any], flor: Any) -> Any:
        """Make a `fit` call and record it."""
        from flor_keras.recording.fit_call import record_fit

        return record_fit(self, call, callbacks, flor)

    def about_next_loop(self) -> dict[str, Any] | None:
        """Return what was recorded of the loop about to begin, where an interrupted run is resumed."""
        return None if self.past is None else self.past.about(self.num_loops)

    def begin_loop(self, name: str, state: Any, every: Any) -> Any:
        """Begin a loop of the program's own, checkpointed ``every`` so often."""
        from flor_keras.recording.custom import CustomLoop

        self.add_sources()
        self.main_loop = CustomLoop(self, self.num_loops, name, state, every)
        self.num_loops += 1
        return self.main_loop

    # -- the run's life ----------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Any:
        """The run's checkpoints; the first use imports TensorFlow and makes the folder for them."""
        if self._checkpoints is None:
            from flor_keras.recording.checkpoints import Checkpoints

            self._checkpoints = Checkpoints(
                self.store, self.run, self._num_entries, self._add_checkpoint, self.report
            )
        return self._checkpoints

    @property
    def models(self) -> Any:
        """The graphs of the run's models."""
        if self._models is None:
            from flor_keras.recording.models import Models

            self._models = Models(self.store, self.run, self.note)
        return self._models

    @property
    def exports(self) -> Any:
        """The models that are written while training goes on."""
        if self._exports is None:
            from flor_keras.recording.exports import Exports

            self._exports = Exports(self.store, self.run, self.report)
        return self._exports

    @contextlib.contextmanager
    def shielded(self, doing: str) -> Iterator[None]:
        """Keep our failures from the program: told once, kept with the run.

        Nor does the garbage collector run meanwhile: for what a look at the state allocates, it would search the whole
        program, which takes a quarter of a second where TensorFlow is imported. In the main thread alone: another would
        undo a `gc.disable` that the program calls meanwhile.
        """
        is_paused = gc.isenabled() and threading.current_thread() is threading.main_thread()
        if is_paused:
            gc.disable()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the border between us and the program
            self.report(f"{doing} failed: {type(error).__name__}: {error}")
        finally:
            if is_paused:
                gc.enable()

    def note(self, message: str) -> None:
        """Keep a sentence with the run, for `flor-keras show`."""
        self.journal.post(lambda store: store.add_event(self.run, "info", message))

    def report(self, message: str) -> None:
        """Tell the person once and keep it with the run."""
        self.journal.post(lambda store: store.add_event(self.run, "warning", message))
        kind = message.partition(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            print(f"flor_keras: {message}", file=sys.stderr, flush=True)

    def add_sources(self) -> None:
        """Keep the source of the program and of what it has imported; the next call adds what came since."""
        new = [module for name, module in list(sys.modules.items()) if name not in self._known_modules]
        if self.script is None or not new:
            return
        self._known_modules |= sys.modules.keys()
        script = self.script

        def write(store: Store) -> None:
            sources: dict[str, str] = {}
            with self.shielded("Keeping the program's source"):
                sources = project_sources(script, new)
            added = {path: text for path, text in sources.items() if path not in self._kept_sources}
            store.add_sources(self.run, added)
            self._kept_sources |= added.keys()

        self.journal.post(write)  # which reads them, too: training has begun meanwhile

    def close(self) -> None:
        """Finish everything in flight and the run. Does nothing in a process forked from the recording one."""
        if os.getpid() != self._pid or self.journal is None:
            return
        atexit.unregister(self.close)
        self.ending.unwatch()
        self.add_sources()
        if self._checkpoints is not None:
            with self.shielded("Finishing the checkpoints"):
                self._checkpoints.close()
        if self._exports is not None:
            self._exports.finish()
        self.journal.post(lambda store: store.finish_run(self.run, self.ending.status, self.ending.error))
        self.journal.close()

    def _tick(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.poll()

    def _num_entries(self) -> int:
        """Return how many entries the run has, those included that are not written yet."""
        return self.journal.num_entries + (0 if self.past is None else self.past.num_kept)

    def _add_checkpoint(self, row: Any) -> None:
        self.journal.post(lambda store: store.add_checkpoint(row))
        if self._exports is not None:
            self._exports.consider(row)
        if row.error:
            self.report(
                f"A checkpoint could not be written: {row.error} (loop {row.loop}, epoch {row.epoch})"
            )

    def _record(self, name: str | None) -> RunRecord:
        pid, host, started = process_identity()
        return RunRecord(
            id=self.run,
            name=name,
            script=str(self.script) if self.script else None,
            argv=sys.argv[1:],
            started_at=time.time(),
            pid=pid,
            host=host,
            process_started=started,
            cwd=os.getcwd(),
            environment=_environment(self.script),
        )


def _environment(script: Path | None) -> dict[str, Any]:
    root = str(project_root(script)) if script else None
    program = {"root": root, "module": _module_name(), "is_hands_free": _is_hands_free()}
    return {**read_environment(), **program, "age_secs": round(age_secs(), 3)}


def _is_hands_free() -> bool:
    """Whether the program runs without knowing flor_keras: its main module carries a mark."""
    return hasattr(sys.modules.get("__main__"), "__flor_hands_free__")


def _module_name() -> str | None:
    """Return the name behind ``python -m``, None for a script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None else None
