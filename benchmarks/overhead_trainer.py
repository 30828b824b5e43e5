"""One workload, trained plainly and saved in several ways, turn by turn, in a process of its own.

Run by `overhead.py`, as ``python overhead_trainer.py WORKLOAD SECONDS ROUNDS FOLDER WAY...``. It writes a line of JSON for each
turn into ``FOLDER/turns.jsonl``.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from workloads import WORKLOADS, Workload

_WARM_STEPS, _MEASURED_STEPS = 5, 40
_SAVES_IN_ONE_EPOCH = 10
_CORES = len(os.sched_getaffinity(0))


class Way:
    """A way to save while training: a callback, and what there is to do and to ask after `fit`."""

    def __init__(self, callback: keras.callbacks.Callback | None = None) -> None:
        self.callback = callback

    def finish(self) -> dict[str, float]:
        """Return when nothing is written any more, with what the way itself knows of its cost."""
        return {}


class FlorKeras(Way):
    """The product."""

    def __init__(self, folder: Path, save_freq: Any) -> None:
        import flor_keras

        self._store = folder / "store"
        super().__init__(flor_keras.FlorKeras(store=self._store))

    def finish(self) -> dict[str, float]:
        from flor_keras import session
        from flor_keras.records import Kind
        from flor_keras.store.database import Store

        session.current().close()
        session.begin(None)
        with Store.open(self._store) as store:
            run = store.run("latest").id
            taken = [checkpoint for checkpoint in store.checkpoints(run) if checkpoint.error is None]
            recording = store.loops(run)[0].recording or {}
        spread = [checkpoint for checkpoint in taken if checkpoint.kind in (Kind.STEP, Kind.EPOCH_END)]
        return {
            "worker_secs": recording["worker_secs"],
            "worker_cpu_secs": sum(checkpoint.worker_cpu_secs for checkpoint in taken),
            "save_secs": statistics.median(c.stall_secs + c.worker_cpu_secs / _CORES for c in taken),
            "num_checkpoints": len(taken),
            "num_spread": len(spread),
            "checkpoint_bytes": bytes_in(self._store / "runs" / run / "checkpoints"),
        }


def _backup_and_restore(folder: Path, save_freq: Any) -> Way:
    return Way(keras.callbacks.BackupAndRestore(str(folder), save_freq=save_freq, delete_checkpoint=False))


def _model_checkpoint(folder: Path, save_freq: Any) -> Way:
    name = "{epoch:05d}.keras" if save_freq == "epoch" else "{epoch:05d}-{batch:06d}.keras"
    return Way(keras.callbacks.ModelCheckpoint(str(folder / name), save_freq=save_freq))


def _orbax_checkpoint(folder: Path, save_freq: Any) -> Way:
    return Way(keras.callbacks.OrbaxCheckpoint(str(folder), save_freq=save_freq, max_to_keep=None))


class MLflow(Way):
    """MLflow's callback, with its store of files."""

    def __init__(self, folder: Path, save_freq: Any) -> None:
        os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
        import mlflow
        from mlflow.tensorflow import MlflowModelCheckpointCallback

        mlflow.set_tracking_uri((folder / "mlruns").as_uri())
        self._end = mlflow.end_run
        mlflow.start_run()
        super().__init__(MlflowModelCheckpointCallback(save_best_only=False, save_freq=save_freq))

    def finish(self) -> dict[str, float]:
        self._end()
        return {}


PLAIN, FLOR = "plain", "FlorKeras"
WAYS: dict[str, Callable[[Path, Any], Way]] = {
    PLAIN: lambda folder, save_freq: Way(),
    FLOR: FlorKeras,
    "BackupAndRestore": _backup_and_restore,
    "ModelCheckpoint": _model_checkpoint,
    "OrbaxCheckpoint": _orbax_checkpoint,
    "MLflow": MLflow,
}


class Stopwatch:
    """Adds up the time inside of functions, less that inside of others which they call."""

    def __init__(self) -> None:
        self.secs = 0.0
        self._is_counting = False
        self._since = 0.0

    def watch(self, owner: Any, names: list[str], is_counted: bool = True) -> None:
        """Count the time inside of some functions of an object, a class or a module; or the contrary."""
        for name in names:
            setattr(owner, name, self._watched(getattr(owner, name), is_counted))

    def _watched(self, function: Callable[..., Any], is_counted: bool) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = self._switch(is_counted)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch(before)

        return watched

    def _switch(self, is_counting: bool) -> bool:
        before, now = self._is_counting, time.perf_counter()
        if before:
            self.secs += now - self._since
        self._is_counting, self._since = is_counting, now
        return before


def watch_saving(callback: keras.callbacks.Callback, stopwatch: Stopwatch) -> None:
    """Have everything timed that a callback of Keras does inside of `fit`."""
    hooks = ("train_begin", "train_batch_begin", "train_batch_end", "epoch_begin", "epoch_end", "train_end")
    stopwatch.watch(callback, [f"on_{hook}" for hook in hooks])


def watch_flor(stopwatch: Stopwatch) -> None:
    """Have everything timed that flor_keras does in the training thread, around Keras's own `fit` and inside of it."""
    from flor_keras import session
    from flor_keras.keras_internals import FitCall
    from flor_keras.recording.fit import FitLoop
    from flor_keras.recording.recorder import Recorder

    stopwatch.watch(session, ["ensure"])
    stopwatch.watch(Recorder, ["fit"])
    stopwatch.watch(FitCall, ["make"], is_counted=False)
    public = [name for name, value in vars(FitLoop).items() if inspect.isfunction(value) and name[0] != "_"]
    stopwatch.watch(FitLoop, public)


class Trainer:
    """Trains one workload again and again, with the same compiled model."""

    def __init__(self, workload: Workload, secs: float, folder: Path) -> None:
        keras.utils.set_random_seed(0)
        self._folder = folder
        self._batch_size = workload.batch_size
        self._model = workload.build()
        self._x, self._y = workload.data(_WARM_STEPS * workload.batch_size)
        self._fit(1)
        self._x, self._y = workload.data(_MEASURED_STEPS * workload.batch_size)
        step_secs = self._epoch_secs() / _MEASURED_STEPS
        num_steps = max(1, round(secs * workload.epoch_share / step_secs))
        self._x, self._y = workload.data(num_steps * workload.batch_size)
        is_single = workload.epoch_share == 1
        self._num_epochs = 1 if is_single else max(2, round(secs / self._epoch_secs()))
        self._save_freq = max(1, num_steps // _SAVES_IN_ONE_EPOCH) if is_single else "epoch"
        self._flor_stopwatch = Stopwatch()
        self._is_flor_watched = False

    def _fit(self, num_epochs: int, *callbacks: keras.callbacks.Callback) -> float:
        """Train and return the seconds it took."""
        began = time.perf_counter()
        self._model.fit(
            *(self._x, self._y),
            batch_size=self._batch_size,
            epochs=num_epochs,
            verbose=0,
            callbacks=list(callbacks),
        )
        return time.perf_counter() - began

    def _epoch_secs(self) -> float:
        return self._fit(3) / 3

    def turn(self, way: str) -> dict[str, Any]:
        """Train once, saving in one way; return what that took."""
        folder = self._folder / "turn"
        folder.mkdir()
        chosen = WAYS[way](folder, self._save_freq)
        stopwatch = self._stopwatch(way, chosen)
        cpu = time.process_time()
        fit_secs = self._fit(self._num_epochs, *([] if chosen.callback is None else [chosen.callback]))
        began = time.perf_counter()
        known = chosen.finish()
        finish_secs = time.perf_counter() - began
        measured = {
            "way": way,
            "wall_secs": fit_secs + finish_secs,
            "cpu_secs": time.process_time() - cpu,
            "stall_secs": stopwatch.secs + finish_secs,
            "num_bytes": bytes_in(folder),
            "num_epochs": self._num_epochs,
            "state_bytes": self._state_bytes(),
            **known,
        }
        shutil.rmtree(folder)
        os.sync()  # else the disk would still be writing in the next one's turn
        return measured

    def _stopwatch(self, way: str, chosen: Way) -> Stopwatch:
        """Return what times the saving. FlorKeras is watched by its classes, which is done once."""
        if way != FLOR:
            stopwatch = Stopwatch()
            if chosen.callback is not None:
                watch_saving(chosen.callback, stopwatch)
            return stopwatch
        if not self._is_flor_watched:
            watch_flor(self._flor_stopwatch)
            self._is_flor_watched = True
        self._flor_stopwatch.secs = 0.0
        return self._flor_stopwatch

    def _state_bytes(self) -> int:
        variables = [*self._model.variables, *self._model.optimizer.variables]
        return sum(variable.value.numpy().nbytes for variable in variables)


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(workload: str, secs: float, rounds: int, folder: Path, ways: list[str]) -> None:
    """Let all ways take their turns between two of plain training, in the other order every other round."""
    trainer = Trainer(WORKLOADS[workload], secs, folder)
    with (folder / "turns.jsonl").open("w", encoding="utf-8") as turns:
        for number in range(rounds):
            for way in (PLAIN, *(ways if number % 2 == 0 else reversed(ways)), PLAIN):
                print(json.dumps({"round": number, **trainer.turn(way)}), file=turns, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
