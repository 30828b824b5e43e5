"""The tables of runs and what belongs to a run as a whole: loops, args, sources, events."""

from __future__ import annotations

import dataclasses
import difflib
import re
import time
from dataclasses import dataclass
from typing import Any

import xxhash

from flor_keras.errors import UsageError
from flor_keras.records import LoopRecord, RunRecord, Status
from flor_keras.store import layout
from flor_keras.store.connection import Connection, from_json
from flor_keras.store.process import is_gone
from flor_keras.store.values import decode, encode, to_json

_RUN_COLUMNS = (
    "id, name, script, argv, started_at, pid, host, process_started, cwd, environment, "
    "status, finished_at, error"
)
_LOOP_COLUMNS = "loop, kind, name, initial_epoch, epochs, steps, started_at, finished_at, history, recording"


@dataclass(frozen=True, slots=True)
class RunRow(RunRecord):
    """A run as it stands now. A run whose process is gone without a word has the status killed."""

    status: Status = Status.RUNNING
    finished_at: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling about a run: a warning of the recorder, a resume, a failed checkpoint."""

    time: float
    level: str
    message: str


class RunTables(Connection):
    """Reads and writes runs, loops, args, sources and events."""

    def begin_run(self, run: RunRecord) -> None:
        """Add a run that is under way."""
        row = (run.id, run.name, run.script, to_json(run.argv), run.started_at, *_process_columns(run))
        with self._transaction() as connection:
            connection.execute(
                f"INSERT INTO runs ({_RUN_COLUMNS}) VALUES ({'?, ' * 10} 'running', NULL, NULL)",
                row,
            )

    def reopen_run(self, run: str, record: RunRecord) -> None:
        """Take up a run again in the process of `record`; its id, name, script and start stay."""
        row = (to_json(record.argv), *_process_columns(record), self._number(run))
        with self._transaction() as connection:
            connection.execute(
                "UPDATE runs SET argv = ?, pid = ?, host = ?, process_started = ?, cwd = ?, environment = ?, "
                "status = 'running', finished_at = NULL, error = NULL WHERE number = ?",
                row,
            )

    def finish_run(self, run: str, status: Status, error: str | None = None) -> None:
        """Say how a run ended, and the error that ended it."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE runs SET status = ?, finished_at = ?, error = ? WHERE number = ?",
                (status.value, time.time(), error, self._number(run)),
            )

    def name_run(self, run: str, name: str) -> None:
        """Give a run a name; one it has already stays."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE runs SET name = ? WHERE number = ? AND name IS NULL", (name, self._number(run))
            )

    def gone_runs(self) -> list[str]:
        """Return the runs that are under way by their row and whose process is certainly gone, by id."""
        sql = "SELECT id, pid, host, process_started FROM runs WHERE status = 'running'"
        return [run for run, *process in self._rows(sql) if is_gone(*process)]

    def mark_killed(self, run: str) -> None:
        """Note for good that a run's process is gone; so far it was found out by each who read."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE runs SET status = 'killed' WHERE number = ? AND status = 'running'",
                (self._number(run),),
            )

    def runs(self, limit: int | None = None) -> list[RunRow]:
        """Return the runs, newest first; only the `limit` newest if given."""
        sql = f"SELECT {_RUN_COLUMNS} FROM runs ORDER BY started_at DESC, number DESC LIMIT ?"
        return [_run_row(row) for row in self._rows(sql, -1 if limit is None else limit)]

    def num_runs(self) -> int:
        """Return how many runs the store holds."""
        return int(self._rows("SELECT count(*) FROM runs")[0][0])

    def run(self, ref: str) -> RunRow:
        """Return the run `ref` means: an id, `latest`, `latest~2`, a name (its newest) or an id prefix."""
        newest = "ORDER BY started_at DESC, number DESC LIMIT 1"
        latest = re.fullmatch(r"latest(?:~(\d{1,9}))?", ref)
        row = self._one("id = ?", ref)
        if row is None and latest:
            row = self._one(f"1 {newest} OFFSET ?", int(latest[1] or 0))
        if row is None:
            row = self._one(f"name = ? {newest}", ref)
        return self._by_prefix(ref) if row is None else row

    def _one(self, condition: str, value: Any) -> RunRow | None:
        rows = self._rows(f"SELECT {_RUN_COLUMNS} FROM runs WHERE {condition}", value)
        return _run_row(rows[0]) if rows else None

    def _by_prefix(self, ref: str) -> RunRow:
        rows = (
            self._rows(f"SELECT {_RUN_COLUMNS} FROM runs WHERE substr(id, 1, ?) = ?", len(ref), ref)
            if ref
            else []
        )
        if len(rows) == 1:
            return _run_row(rows[0])
        if rows:
            ids = ", ".join(row[0] for row in rows[:5]) + (", …" if len(rows) > 5 else "")
            raise UsageError(f"{ref!r} may be any of {len(rows)} runs: {ids}. Type more of the id.")
        raise UsageError(f"No run {ref!r} in {self.path}.{self._near(ref)} List them with: flor-keras runs.")

    def _near(self, ref: str) -> str:
        known = self._rows("SELECT id, name FROM runs ORDER BY started_at DESC LIMIT 1000")
        if not known:
            return " It holds no runs yet."
        words = list(dict.fromkeys(word for row in known for word in row if word))
        near = difflib.get_close_matches(ref, words, n=3)
        return f" Did you mean {' or '.join(near)}?" if near else f" The newest is {known[0][0]}."

    def add_event(self, run: str, level: str, message: str) -> None:
        """Keep something worth telling; `level` is "info", "warning" or "error"."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO events (run, time, level, message) VALUES (?, ?, ?, ?)",
                (self._number(run), time.time(), level, message),
            )

    def events(self, run: str) -> list[Event]:
        """Return the events of a run in the order they happened."""
        sql = "SELECT time, level, message FROM events WHERE run = ? ORDER BY number"
        return [Event(*row) for row in self._rows(sql, self._number(run))]

    def add_args(self, run: str, args: dict[str, tuple[Any, Any]]) -> None:
        """Keep arguments as {name: (value, default)}; a name kept before is replaced."""
        number, arrays = self._number(run), layout.arrays_folder(self.path, run)
        rows = [
            (number, name, *encode(value, arrays), *encode(default, arrays))
            for name, (value, default) in args.items()
        ]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO args VALUES (?, ?, ?, ?, ?, ?)", rows)

    def args(self, run: str) -> dict[str, Any]:
        """Return the values of the arguments of a run by name."""
        return self._args("WHERE runs.number = ?", self._number(run)).get(run, {})

    def args_by_run(self) -> dict[str, dict[str, Any]]:
        """Return the values of the arguments of all runs that have any, by run id."""
        return self._args("")

    def _args(self, condition: str, *values: Any) -> dict[str, dict[str, Any]]:
        sql = "SELECT runs.id, args.name, kind, value FROM args JOIN runs ON runs.number = args.run "
        args: dict[str, dict[str, Any]] = {}
        for run, name, kind, column in self._rows(f"{sql} {condition} ORDER BY args.rowid", *values):
            args.setdefault(run, {})[name] = decode(kind, column, layout.arrays_folder(self.path, run))
        return args

    def add_sources(self, run: str, sources: dict[str, str]) -> None:
        """Keep program texts as {relative path: text}; runs with the same text share it."""
        hashes = {
            path: xxhash.xxh3_128_hexdigest(text.encode(errors="surrogatepass"))
            for path, text in sources.items()
        }
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO source_texts VALUES (?, ?)",
                [(hashes[path], text) for path, text in sources.items()],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO sources VALUES (?, ?, ?)",
                [(self._number(run), path, digest) for path, digest in hashes.items()],
            )

    def sources(self, run: str) -> dict[str, str]:
        """Return the program texts of a run as {relative path: text}."""
        sql = "SELECT path, text FROM sources JOIN source_texts USING (hash) WHERE run = ? ORDER BY path"
        return dict(self._rows(sql, self._number(run)))

    def begin_loop(self, loop: LoopRecord) -> None:
        """Add a loop; one of the same number (a resumed run comes to it again) is replaced."""
        row = (loop.loop, loop.kind, loop.name, loop.initial_epoch, loop.epochs, loop.steps, loop.started_at)
        texts = [None if value is None else to_json(value) for value in (loop.history, loop.recording)]
        with self._transaction() as connection:
            connection.execute(
                f"INSERT OR REPLACE INTO loops (run, {_LOOP_COLUMNS}) VALUES (?{', ?' * 10})",
                (self._number(loop.run), *row, loop.finished_at, *texts),
            )

    def finish_loop(self, run: str, loop: int, history: dict[str, Any] | None, finished_at: float) -> None:
        """Say when a loop ended and, for `fit`, what History it gave."""
        text = None if history is None else to_json(history)
        with self._transaction() as connection:
            connection.execute(
                "UPDATE loops SET finished_at = ?, history = ? WHERE run = ? AND loop = ?",
                (finished_at, text, self._number(run), loop),
            )

    def note_recording(self, run: str, loop: int, recording: dict[str, Any]) -> None:
        """Say what recording a loop has cost so far; see `LoopRecord.recording`."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE loops SET recording = ? WHERE run = ? AND loop = ?",
                (to_json(recording), self._number(run), loop),
            )

    def loops(self, run: str) -> list[LoopRecord]:
        """Return the loops of a run in the order they started."""
        rows = self._rows(f"SELECT {_LOOP_COLUMNS} FROM loops WHERE run = ? ORDER BY loop", self._number(run))
        return [_loop_record(run, row) for row in rows]


def _process_columns(run: RunRecord) -> tuple[Any, ...]:
    return run.pid, run.host, run.process_started, run.cwd, to_json(run.environment)


def _loop_record(run: str, row: tuple[Any, ...]) -> LoopRecord:
    loop = LoopRecord(run, *row[:-2])
    return dataclasses.replace(loop, history=from_json(row[-2]), recording=from_json(row[-1]))


def _run_row(row: tuple[Any, ...]) -> RunRow:
    (run, name, script, argv, started_at, pid, host, process_started, cwd, environment, status, *end) = row
    is_killed = status == Status.RUNNING and is_gone(pid, host, process_started)
    return RunRow(
        *(
            layout.check_inside(run),
            name,
            script,
            from_json(argv),
            started_at,
            pid,
            host,
            process_started,
            cwd,
            from_json(environment),
        ),
        Status.KILLED if is_killed else Status(status),
        *end,
    )
