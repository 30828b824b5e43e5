"""One way to save training state, in a process of its own: trains, and takes its turn when told to.

Run by `snapshot.py`, as ``python competitors.py METHOD WIDTH FOLDER``. It prints a line of JSON when it is
ready; for each line it reads, ``save`` or ``rest``, it goes on training to the end of the epoch, saves or
does not, makes the next two steps, waits until nothing is written any more, and prints what that took. Only
one such process runs at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_STEPS = 5  # per epoch: two measured ones after the save, others to warm up again after waiting
_BATCH = 64


class Method:
    """A way to save: a callback of Keras, whose `on_epoch_end` is what training waits for."""

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        self.callback = callback

    def wait(self) -> None:
        """Return when nothing is written any more."""

    def worker(self) -> dict[str, float]:
        """Return what the process that writes took for the last save: CPU seconds and private bytes."""
        return {}


class FlorKeras(Method):
    """The product, with its worker from the first checkpoint on: that is what is compared here."""

    def __init__(self, folder: Path) -> None:
        import flor_keras
        from flor_keras.checkpoint import writer

        writer.FORK_SECS = 0.0
        super().__init__(flor_keras.FlorKeras(store=folder / "store", checkpoint_every="epoch"))
        self._cpu_secs = 0.0

    @property
    def _checkpoints(self) -> Any:
        from flor_keras import session

        return session.current().checkpoints

    def wait(self) -> None:
        self._checkpoints.finish()

    def worker(self) -> dict[str, float]:
        cpu_secs, self._cpu_secs = self._cpu_secs, self._checkpoints.worker_cpu_secs
        return {
            "worker_cpu_secs": self._cpu_secs - cpu_secs,
            "worker_private_bytes": private_bytes(self._checkpoints._writer.worker_pid),
        }


class _Saving(keras.callbacks.Callback):
    """Calls a function at the end of each epoch."""

    def __init__(self, save: Callable[[keras.Model], None]) -> None:
        super().__init__()
        self._save = save

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._save(self.model)


class InLine(Method):
    """`tf.train.Checkpoint.write` by the trainer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_Saving(lambda model: _write(model, folder / "in-line")))


def _write(model: keras.Model, prefix: Path) -> None:
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    named = {str(number): variable.value for number, variable in enumerate(variables)}
    tf.train.Checkpoint(**named).write(str(prefix))


class Fork(Method):
    """A child forked for each save writes what it shares with the trainer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_Saving(self._fork))
        self._prefix = folder / "fork"
        self._pid: int | None = None
        self._worker: dict[str, float] = {}

    def _fork(self, model: keras.Model) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                _write(model, self._prefix)
                Path(f"{self._prefix}.private").write_text(str(private_bytes(os.getpid())))
                status = 0
            finally:
                os._exit(status)

    def wait(self) -> None:
        if self._pid is not None:
            _, status, usage = os.wait4(self._pid, 0)
            self._pid = None
            if status:
                raise RuntimeError(f"The forked writer ended with status {status}.")
            self._worker = {
                "worker_cpu_secs": usage.ru_utime + usage.ru_stime,
                "worker_private_bytes": float(Path(f"{self._prefix}.private").read_text()),
            }

    def worker(self) -> dict[str, float]:
        return self._worker


class BackupAndRestore(Method):
    """Keras's callback."""

    def __init__(self, folder: Path) -> None:
        super().__init__(keras.callbacks.BackupAndRestore(str(folder / "backup")))


class ModelCheckpoint(Method):
    """Keras's callback, whole models."""

    def __init__(self, folder: Path) -> None:
        super().__init__(keras.callbacks.ModelCheckpoint(str(folder / "model.keras")))


class OrbaxCheckpoint(Method):
    """Keras's callback, writing in the background as it does by default."""

    def __init__(self, folder: Path) -> None:
        super().__init__(keras.callbacks.OrbaxCheckpoint(directory=str(folder / "orbax")))

    def wait(self) -> None:
        self.callback.wait_until_finished()


class Memcpy(Method):
    """No saving at all: one copy of as many bytes as the state has, into a buffer that is warm."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_Saving(self._copy))
        self._source: np.ndarray | None = None

    def _copy(self, model: keras.Model) -> None:
        if self._source is None:
            self._source = np.ones(state_bytes(model), np.uint8)
            self._target = np.zeros_like(self._source)
            self._target[:] = 1
        np.copyto(self._target, self._source)


METHODS: dict[str, Callable[[Path], Method]] = {
    "FlorKeras": FlorKeras,
    "tf.train.Checkpoint.write": InLine,
    "fork per checkpoint": Fork,
    "BackupAndRestore": BackupAndRestore,
    "ModelCheckpoint": ModelCheckpoint,
    "OrbaxCheckpoint": OrbaxCheckpoint,
    "one memcpy": Memcpy,
}


class Turns:
    """Waits for its turn in the middle of an epoch and measures what follows.

    Its methods are called by a callback that has no state: what a callback holds is part of a checkpoint.
    """

    def __init__(self, method: Method, folder: Path, model: keras.Model) -> None:
        self._method = method
        self._model = model
        self._folder = folder
        self._word = "save"
        self._measured: dict[str, float] = {}
        self._step_secs = 0.0
        self._hook = method.callback.on_epoch_end
        method.callback.on_epoch_end = self._save_or_rest

    def callback(self) -> keras.callbacks.Callback:
        """Return what to give to `fit`."""
        return keras.callbacks.LambdaCallback(
            on_train_batch_begin=self.on_train_batch_begin, on_train_batch_end=self.on_train_batch_end
        )

    def _save_or_rest(self, epoch: int, logs: Any = None) -> None:
        self._cpu = time.process_time()
        self._measured = {"stall_secs": 0.0, "stall_cpu_secs": 0.0}
        if self._word == "save":
            cpu, wall = time.process_time(), time.perf_counter()
            self._hook(epoch, logs)
            self._measured["stall_secs"] = time.perf_counter() - wall
            self._measured["stall_cpu_secs"] = time.process_time() - cpu

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self._usage, self._step_secs = resource.getrusage(resource.RUSAGE_SELF), 0.0
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step_secs += time.perf_counter() - self._began
        if batch == 1 and self._measured:
            self._note_steps()
            self._finish_turn()
        if batch == 1:
            self._await_turn()

    def _note_steps(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._measured["steps_secs"] = self._step_secs
        self._measured["steps_faults"] = usage.ru_minflt - self._usage.ru_minflt
        self._measured["steps_system_secs"] = usage.ru_stime - self._usage.ru_stime

    def _finish_turn(self) -> None:
        self._method.wait()
        self._measured["cpu_secs"] = time.process_time() - self._cpu
        if self._word == "save":
            self._measured |= self._method.worker()
        os.sync()  # else the disk would still be writing in the next one's turn
        self._drop_old()
        say({"word": self._word, **self._measured})

    def _drop_old(self) -> None:
        """Take away what FlorKeras keeps of earlier epochs; the others overwrite theirs."""
        for folder in self._folder.glob("store/runs/*/checkpoints/*"):
            if folder.is_dir():
                shutil.rmtree(folder)

    def _await_turn(self) -> None:
        if not self._measured:
            say({"state_bytes": state_bytes(self._model)})
        word = sys.stdin.readline().strip()
        if word not in ("save", "rest"):
            with contextlib.suppress(Exception):
                self._method.wait()
            os._exit(0)
        self._word = word


def say(message: dict[str, Any]) -> None:
    """Print a line for `snapshot.py`."""
    print(json.dumps(message), flush=True)


def state_bytes(model: keras.Model) -> int:
    """Return the bytes of the variables of a model and its optimizer."""
    return sum(
        int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize
        for v in [*model.variables, *model.optimizer.variables]
    )


def private_bytes(pid: int) -> float:
    """Return the memory no other process shares with process ``pid``."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024.0 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def build(width: int) -> keras.Model:
    """Return a model of about 12 · width² bytes, with the slots of Adam."""
    relu = {"activation": "relu"}
    stack = [keras.layers.Dense(width, **relu), keras.layers.Dense(width, **relu), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((256,)), *stack])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def main(method: str, width: int, folder: Path) -> None:
    """Train until told to stop."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x, y = random.random((_BATCH * _STEPS, 256), np.float32), random.integers(0, 10, _BATCH * _STEPS)
    chosen = METHODS[method](folder)
    model = build(width)
    turns = Turns(chosen, folder, model).callback()
    model.fit(x, y, batch_size=_BATCH, epochs=10_000, verbose=0, callbacks=[turns, chosen.callback])


if __name__ == "__main__":
    threading.current_thread().name = "trainer"
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
