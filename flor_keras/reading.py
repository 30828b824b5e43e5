"""Reading what was recorded: runs, logs as data frames, checkpoints. Only restoring needs TensorFlow.

Every call opens the store anew and closes it, so a `Run` may be kept, pickled and used from any thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flor_keras import session
from flor_keras.errors import UsageError
from flor_keras.records import CheckpointRecord, Entry, Kind, LoopRecord, Status
from flor_keras.store import layout
from flor_keras.store.database import RunRow, Store

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from flor_keras.store.pivot import Cells, Table


def runs(store: str | Path | None = None) -> list[Run]:
    """Return the runs of a store (the nearest upwards of the current folder unless given), newest first."""
    return newest_runs(store)


def newest_runs(store: str | Path | None = None, limit: int | None = None) -> list[Run]:
    """Return the `limit` newest runs, newest first."""
    path = _located(store)
    with Store.open(path) as opened:
        args = opened.args_by_run()
        return [Run(path, row, args.get(row.id, {})) for row in opened.runs(limit)]


def run(ref: str = "latest", store: str | Path | None = None) -> Run:
    """Return one run by its id or a prefix of it, its name, `latest`, or `latest~2` for the second before it.

    Raises:
        UsageError: there is no such run, or the prefix fits several.
    """
    path = _located(store)
    with Store.open(path) as opened:
        row = opened.run(ref)
        return Run(path, row, opened.args(row.id))


def dataframe(*names: str, store: str | Path | None = None) -> pd.DataFrame:
    """Return the values of `names` (all without any) of all runs, newest run first; see `Run.dataframe`."""
    path = _located(store)
    with Store.open(path) as opened:
        ids = [row.id for row in opened.runs()]
    return _frame(table(path, ids, names), ids)


def frame_of(runs: list[Run], names: Iterable[str]) -> pd.DataFrame:
    """Return the values of `names` (all without any) of some runs of one store; see `Run.dataframe`."""
    ids = list(dict.fromkeys(run.id for run in runs))
    return _frame(table(runs[0].store, ids, names), ids)


class Run:
    """One recorded run, as it stood when it was read."""

    def __init__(self, store: Path, row: RunRow, args: dict[str, Any]) -> None:
        self.store = store
        self.row = row
        self.args = args

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"Run({self.id!r}{name}, status={self.status.value!r})"

    @property
    def id(self) -> str:
        """The id: unique in its store, and the name of its folder there."""
        return self.row.id

    @property
    def name(self) -> str | None:
        """The name it was given, which several runs may share."""
        return self.row.name

    @property
    def status(self) -> Status:
        """How it stood when it was read."""
        return self.row.status

    @property
    def script(self) -> str | None:
        """The absolute path of its program; None for an interactive session."""
        return self.row.script

    @property
    def started_at(self) -> datetime:
        """When it began, in UTC."""
        return datetime.fromtimestamp(self.row.started_at, UTC)

    @cached_property
    def names(self) -> list[str]:
        """The names logged in it, recorded or in hindsight, in the order they first came."""
        with Store.open(self.store) as opened:
            return opened.names(self.id)

    @cached_property
    def loops(self) -> list[LoopRecord]:
        """Its loops in the order they started."""
        with Store.open(self.store) as opened:
            return opened.loops(self.id)

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Its committed checkpoints in the order of training."""
        with Store.open(self.store) as opened:
            records = opened.checkpoints(self.id)
        return [_checkpoint(self.store, record) for record in records if record.error is None]

    def epoch_ends(self, epochs: str | None = None) -> list[Checkpoint]:
        """Return the checkpoints of the ends of epochs: of all, or of those in a list such as ``0,3,10:20:2``."""
        from flor_keras.epochs import parse_epochs

        ends = [checkpoint for checkpoint in self.checkpoints if checkpoint.kind is Kind.EPOCH_END]
        asked = set(parse_epochs(epochs, sorted({end.epoch for end in ends})))
        return [end for end in ends if end.epoch in asked]

    def entries(self, *names: str, recorded: bool | None = None) -> list[Entry]:
        """Return the entries of `names` (all without any) by position, then insertion.

        `recorded` True gives recorded ones only, False hindsight ones only.
        """
        with Store.open(self.store) as opened:
            known = opened.names(self.id)
            _check_known(names, known, f"run {self.id}")
            return opened.entries(self.id, names or known, recorded)

    def dataframe(self, *names: str) -> pd.DataFrame:
        """Return the values of `names` (all without any): one row per position, one column per name.

        The columns run, loop, epoch and step come first. What was logged outside a loop has no loop and
        comes first; what was logged for an epoch as a whole has no step and comes after its steps. Where a
        name has several values at one position, the last recorded one counts, else the last in hindsight. A
        name that is also a position column gets the column `<name>_logged`.

        Raises:
            UsageError: the run has no such name.
        """
        return _frame(table(self.store, [self.id], names), [self.id])

    def replay(self, model: Any, probe: Callable[[Any], Any], epochs: str | None = None) -> pd.DataFrame:
        """Return what `probe` gives for `model` in the state it had at the end of each epoch: no program, no training.

        The model is left in the state of the last epoch looked at. Nothing is added to the run.

        Args:
            model: built as the run built it.
            probe: called with the model, such as `flor_keras.probes.weight_norm`.
            epochs: which, as in `flor-keras replay --epochs`; all if not given.

        Raises:
            StateError: the model is not the one of the run.
            UsageError: the run has no such epoch.
        """
        import pandas as pd

        name = getattr(probe, "__name__", "value")
        rows = []
        for end in self.epoch_ends(epochs):
            end.restore(model)
            rows.append({"loop": end.loop, "epoch": end.epoch, name: probe(model)})
        return pd.DataFrame(rows, columns=["loop", "epoch", name])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint. `step` is the number of steps done in its epoch."""

    loop: int
    epoch: int
    step: int
    kind: Kind
    path: Path
    num_bytes: int
    error: str | None = None

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the values of all its variables by name."""
        from flor_keras.checkpoint.bundle import read_tensors

        return read_tensors(self.path)

    def restore(self, model: Any) -> None:
        """Give the variables of `model` the values they had at this checkpoint.

        At the beginning of a run an optimizer has no slots yet; a model that was trained since gets them as first created.

        Raises:
            StateError: a variable of the model is not in the checkpoint, or of another shape.
        """
        from flor_keras.state.restore import restore_objects

        restore_objects(self.path, {"model": model})

    def export(
        self, path: str | Path, format: str = "saved_model", overwrite: bool = False, model: str | None = None
    ) -> str | None:
        """Write the model as it was at this checkpoint, without its program; return what loading it needs, if anything.

        Args:
            path: the file or folder to write.
            format: `saved_model`, `keras`, `weights.h5` or `checkpoint`.
            overwrite: replace what is there.
            model: the name of the model, where the program's own loop trains several.

        Raises:
            UsageError: the model has no such format (the message says why), or `path` exists.
            CheckpointError: the checkpoint is damaged.
        """
        from flor_keras.export.formats import export
        from flor_keras.export.kept import Which

        which = Which(self.path.parent.parent / "model", self.loop, model)
        return export(self.path, which, format, Path(path).absolute(), overwrite)


def table(store: Path, runs: list[str], names: Iterable[str]) -> Table:
    """Return the values of `names` (all if empty) over `runs` without pandas.

    Raises:
        UsageError: none of the runs has one of the names.
    """
    from flor_keras.store.pivot import pivot

    wanted = list(dict.fromkeys(names))
    with Store.open(store) as opened:
        known = list(dict.fromkeys(name for run in runs for name in opened.names(run)))
        _check_known(wanted, known, f"run {runs[0]}" if len(runs) == 1 else f"any of {len(runs)} runs")
        return pivot(opened, runs, wanted or known)


def _located(store: str | Path | None) -> Path:
    current = session.current()
    if current is not None:  # this process records, as a notebook does that reads what it has just trained
        current.settle()
    return layout.find_store(Path.cwd()) if store is None else layout.given_store(store)


def _check_known(wanted: Iterable[str], known: list[str], where: str) -> None:
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or known[:10]
            hint = f"Did you mean {', '.join(near)}?" if near else "Nothing was logged."
            raise UsageError(
                f"Nothing is logged under {name!r} in {where}. {hint} "
                f"To compute it in hindsight, log it in the script and type: flor-keras replay SCRIPT {name}."
            )


def _checkpoint(store: Path, record: CheckpointRecord) -> Checkpoint:
    return Checkpoint(
        *(record.loop, record.epoch, record.step, record.kind),
        path=store / record.path,
        num_bytes=record.num_bytes,
        error=record.error,
    )


def _frame(table: Table, ids: list[str]) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    from flor_keras.store.entry_tables import NO_EPOCH, NO_LOOP, NO_STEP

    missing = {"loop": NO_LOOP, "epoch": NO_EPOCH, "step": NO_STEP}
    positions = zip(missing.items(), (table.loops, table.epochs, table.steps), strict=True)
    columns: dict[str, Any] = {"run": np.array(ids or [""], dtype=object)[table.runs]}
    columns |= {name: pd.arrays.IntegerArray(values, values == none) for (name, none), values in positions}
    columns |= {name: _series(cells) for name, cells in table.columns.items()}
    return pd.DataFrame(columns, copy=False)


def _series(cells: Cells) -> pd.Series:
    """Return floats with NaN where missing, integers as int64 or nullable Int64, text as str, or objects."""
    import numpy as np
    import pandas as pd

    if cells.values.dtype == np.int64:
        is_whole = cells.is_present.all()
        return pd.Series(
            cells.values if is_whole else pd.arrays.IntegerArray(cells.values, ~cells.is_present)
        )
    if cells.values.dtype == np.float64:
        return pd.Series(np.where(cells.is_present, cells.values, np.nan))
    series = pd.Series(cells.values, dtype=object)
    is_uniform = set(map(type, cells.values)) in ({str}, {str, type(None)}, {bool})
    return series.infer_objects() if is_uniform else series
