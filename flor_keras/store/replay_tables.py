"""The tables of checkpoints and of replays. A checkpoint's row comes after its folder is whole on disk."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from flor_keras.records import CheckpointRecord, Kind, Verdict
from flor_keras.store import layout
from flor_keras.store.connection import Connection, from_json
from flor_keras.store.values import to_json

_CHECKPOINT_COLUMNS = (
    "loop, epoch, step, kind, path, num_bytes, stall_secs, worker_cpu_secs, created_at, error, shared_bytes"
)


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One replay of a run, under way (status "running") or over."""

    id: int
    run: str
    level: str
    names: list[str]
    epochs: list[Any]
    plan: dict[str, Any]
    started_at: float
    status: str
    seconds: float | None
    verdict: Verdict | None
    max_abs_diff: float | None
    report: dict[str, Any] | None


class ReplayTables(Connection):
    """Reads and writes checkpoints and replays."""

    def add_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Add a checkpoint, committed or failed, in place of one with the same path."""
        row = (checkpoint.loop, checkpoint.epoch, checkpoint.step, checkpoint.kind.value, checkpoint.path)
        costs = (checkpoint.num_bytes, checkpoint.stall_secs, checkpoint.worker_cpu_secs)
        with self._transaction() as connection:
            connection.execute(
                f"INSERT OR REPLACE INTO checkpoints (run, {_CHECKPOINT_COLUMNS}) VALUES (?{', ?' * 11})",
                (
                    *(self._number(checkpoint.run), *row, *costs),
                    *(checkpoint.created_at, checkpoint.error, checkpoint.shared_bytes),
                ),
            )

    def checkpoints(self, run: str, loop: int | None = None) -> list[CheckpointRecord]:
        """Return the checkpoints of a run, or of one loop, in the order of training, failed ones included."""
        rows = self._rows(
            f"SELECT {_CHECKPOINT_COLUMNS} FROM checkpoints WHERE run = ? AND loop = ifnull(?, loop) "
            "ORDER BY loop, kind = 'after', epoch, kind = 'epoch_end', kind = 'epoch_hooks', step",
            *(self._number(run), loop),
        )
        return [_checkpoint_record(run, row) for row in rows]

    def mark_checkpoints(self, run: str, paths: list[str], error: str) -> None:
        """Say of committed checkpoints that they are none any more, and why; all of them or none."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE checkpoints SET error = ? WHERE run = ? AND path = ? AND error IS NULL",
                [(error, self._number(run), path) for path in paths],
            )

    def drop_checkpoint(self, run: str, path: str) -> None:
        """Drop the row of a checkpoint whose folder is gone."""
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM checkpoints WHERE run = ? AND path = ?", (self._number(run), path)
            )

    def begin_replay(
        self, run: str, level: str, names: list[str], epochs: list[Any], plan: dict[str, Any]
    ) -> int:
        """Add a replay that is under way and return its number."""
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO replays (run, level, names, epochs, plan, started_at, status) "
                "VALUES (?, ?, ?, ?, ?, ?, 'running')",
                (self._number(run), level, to_json(names), to_json(epochs), to_json(plan), time.time()),
            )
            return int(cursor.lastrowid or 0)

    def finish_replay(
        self,
        replay: int,
        status: str,
        seconds: float,
        verdict: Verdict | None,
        max_abs_diff: float | None,
        report: dict[str, Any],
        names: list[str] | None = None,
    ) -> None:
        """Say how a replay ended, what comparing it with the record gave, and its names if they were not known before."""
        word = None if verdict is None else verdict.value
        with self._transaction() as connection:
            connection.execute(
                "UPDATE replays SET status = ?, seconds = ?, verdict = ?, max_abs_diff = ?, report = ?, "
                "names = ifnull(?, names) WHERE id = ?",
                (
                    *(str(status), seconds, word, max_abs_diff, to_json(report)),
                    None if names is None else to_json(names),
                    replay,
                ),
            )

    def replays(self, run: str) -> list[ReplayRow]:
        """Return the replays of a run, oldest first."""
        rows = self._rows(
            "SELECT id, level, names, epochs, plan, started_at, status, seconds, verdict, max_abs_diff, "
            "report FROM replays WHERE run = ? ORDER BY id",
            self._number(run),
        )
        return [_replay_row(run, row) for row in rows]


def _checkpoint_record(run: str, row: tuple[Any, ...]) -> CheckpointRecord:
    loop, epoch, step, kind, path, *rest = row
    return CheckpointRecord(run, loop, epoch, step, Kind(kind), layout.check_inside(path), *rest)


def _replay_row(run: str, row: tuple[Any, ...]) -> ReplayRow:
    number, level, names, epochs, plan, started_at, status, seconds, verdict, max_abs_diff, report = row
    return ReplayRow(
        *(
            number,
            run,
            level,
            from_json(names),
            from_json(epochs),
            from_json(plan),
            started_at,
            status,
            seconds,
        ),
        *(verdict and Verdict(verdict), max_abs_diff, from_json(report)),
    )
