"""The replayer: the session of a process that runs a recorded program again. Runs in the replay worker.

It answers to the same calls as the recorder. What the program logs under an asked name becomes a hindsight entry; what
it logs under a recorded name is compared with the record; everything else is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flor_keras import keras_internals, session
from flor_keras.checkpoint import bundle
from flor_keras.environment import differences, read_environment
from flor_keras.errors import ReplayError
from flor_keras.records import CheckpointRecord, Entry, Execution, Kind, Position, Verdict
from flor_keras.replay.merge import less_unchecked
from flor_keras.replay.plan import Plan
from flor_keras.replay.verify import Comparison
from flor_keras.state.surroundings import Surroundings
from flor_keras.store.database import Store
from flor_keras.store.values import kept

_OF_EPOCHS = (Kind.EPOCH_HOOKS, Kind.EPOCH_END)


class ReplayDone(BaseException):
    """Ends the program once nothing more is needed of it. Not an Exception, so that the program does not catch it."""


class Replayer(Surroundings):
    """Answers a program that is run again according to a plan.

    Args:
      plan: what to do.
      replay: the number the store gave this replay.
      tell: called with each event worth showing: a dict with the key ``event``.
    """

    def __init__(self, plan: Plan, replay: int, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.plan = plan
        self.tell = tell
        self.comparison = Comparison()
        self.held_back: list[str] = []
        self.causes: list[str] = []
        self.told: list[str] = []
        self.is_other_data = False  # the program has other data than when it was recorded
        self.num_loops = 0
        self.seed: int | None = None
        self.execution = Execution()
        self.position = Position()
        self._replay = replay
        self._names = frozenset(plan.names)
        self._store = Store.open(Path(plan.store))
        self._whole = [c for c in self._store.checkpoints(plan.run) if c.error is None]
        self._checkpoints: dict[tuple[int, Kind, int | None], CheckpointRecord] = {
            (c.loop, c.kind, c.epoch if c.kind in _OF_EPOCHS else None): c
            for c in self._whole
            if c.kind is not Kind.STEP
        }
        self._recorded = {(e.name, e.position): e.value for e in self._store.entries(plan.run, recorded=True)}
        self._here = Comparison()
        self._pending: list[Entry] = []
        self.find_random_ops: Callable[[], Iterable[str]] = tuple  # in the graphs of the loop under way
        self.unchecked: dict[
            int, list[int]
        ] = {}  # epochs by loop that were made again and compared with nothing
        self.is_unsettled = False  # the program is on its way to an epoch, in a state it never had there
        self.redone: dict[int, str] = {}
        self.num_entries = 0

    # -- what the program says ---------------------------------------------------------------------------------

    def log(self, name: str, value: Any, step_offset: int = 0) -> None:
        """Keep a value that was asked for; compare one that was recorded."""
        if self.is_unsettled:
            return
        value, position = kept(value), self.position
        if step_offset and position.step is not None:
            position = position._replace(step=position.step + step_offset)
        if (name, position) in self._recorded:
            self._here.compare(name, position, self._recorded[name, position], value)
        if self.is_wanted(name) and self._is_asked(position):
            self._pending.append(Entry(name, value, position))

    def is_wanted(self, name: str) -> bool:
        """Whether values under a name are asked for."""
        return name in self._names

    def settle(self) -> None:
        """Have everything logged so far in the store."""
        self.flush()

    def note(self, message: str) -> None:
        """The record has it already."""

    def report(self, message: str) -> None:
        """Leave the message in the worker's output, and for where nothing comes of the replay."""
        print(f"flor_keras: {message}")
        if message not in self.told:
            self.told.append(message)

    def _is_asked(self, position: Position) -> bool:
        """Whether a position is one of the asked; an epoch may be redone only to get to the next."""
        if position.epoch is None and not self.plan.is_outside_kept:
            return False
        asked = self.plan.epochs.get(str(position.loop))
        is_epoch = position.epoch is None or asked is None or position.epoch in asked
        return is_epoch and (
            self.plan.steps is None or position.step is None or position.step in self.plan.steps
        )

    def name_run(self, name: str) -> None:
        """Leave the recorded run its name."""

    def arg(self, name: str, value: Any, default: Any) -> Any:
        """Return the value the argument had in the recorded run."""
        return self.plan.args.get(name, value)

    def begin_fit(self, is_own: bool = False) -> Any:
        """Refuse a loop that the program drives itself: there is no `fit` to resume."""
        raise ReplayError(
            "The program calls its callbacks itself instead of calling fit; such a loop cannot be replayed by "
            "FlorKeras. Mark it with flor.loop or @flor.record and record it again."
        )

    def fit(self, call: Any, callbacks: list[Any], flor: Any) -> Any:
        """Resume a recorded `fit` at the epochs the plan asks for."""
        from flor_keras.replay.fit import replay_fit

        self.flush()
        loop = self.num_loops
        self.num_loops += 1
        if self.is_finished(loop - 1):
            raise ReplayDone
        self.tell({"event": "loop", "loop": loop})
        others = [callback for callback in callbacks if not isinstance(callback, type(flor))]
        others += self._probes(call.arguments.get("validation_data"))
        history = replay_fit(self, loop, call, others)
        self.move(Position(loop))
        if self.is_finished(loop):
            raise ReplayDone
        return history

    def about_next_loop(self) -> dict[str, Any] | None:
        """Return what was recorded of the loop about to begin."""
        start = self.checkpoint(self.num_loops, Kind.START)
        return None if start is None else bundle.read_manifest(self.folder(start))

    def _probes(self, validation_data: Any) -> list[Any]:
        from flor_keras.replay.asked import make_probes

        is_redone = "step" in self.plan.levels.values()
        return make_probes(self.plan.probes, validation_data, is_redone)

    def begin_loop(self, name: str, state: Any, every: Any) -> Any:
        """Begin visiting a loop of the program's own."""
        from flor_keras.replay.custom import CustomVisit

        self.flush()
        loop = self.num_loops
        self.num_loops += 1
        if self.is_finished(loop - 1):
            raise ReplayDone
        self.tell({"event": "loop", "loop": loop})
        for probe in self._probes(None):
            if hasattr(probe, "listen"):
                probe.listen()
        self.main_loop = CustomVisit(self, loop, state)
        self.find_random_ops = keras_internals.live_random_ops
        return self.main_loop

    # -- what replaying a loop needs ---------------------------------------------------------------------------

    def move(self, position: Position) -> None:
        """Say where in the run the program is now; what was logged so far is kept."""
        if position[:2] != self.position[:2]:
            self.flush()
        self.position = position

    def is_finished(self, loop: int) -> bool:
        """Whether nothing is needed of the program after this loop."""
        last = max((int(asked) for asked in self.plan.epochs), default=-1)
        if self.plan.is_in_every_loop:
            last = self.plan.num_loops - 1
        return not self.plan.is_to_the_end and loop >= last

    def checkpoint(self, loop: int, kind: Kind, epoch: int | None = None) -> CheckpointRecord | None:
        """Return a checkpoint of the recorded run, None where there is none."""
        return self._checkpoints.get((loop, kind, epoch))

    def whole(self, loop: int) -> list[CheckpointRecord]:
        """Return all checkpoints of a loop, those between steps too."""
        return [c for c in self._whole if c.loop == loop]

    def epoch_ends(self, loop: int) -> dict[int, CheckpointRecord]:
        """Return the checkpoints of the ends of a loop's epochs."""
        found = self._checkpoints.items()
        return {
            epoch: c
            for (at, kind, epoch), c in found
            if at == loop and kind is Kind.EPOCH_END and epoch is not None
        }

    def note_redone(self, loop: int, why: str) -> None:
        """Note that a loop is made again from its beginning, since what its steps change is not known."""
        self.redone[loop] = why

    def required(self, loop: int, kind: Kind, epoch: int | None = None) -> CheckpointRecord:
        """Return a checkpoint of the recorded run; ReplayError where there is none."""
        checkpoint = self.checkpoint(loop, kind, epoch)
        if checkpoint is None:
            what = kind.value if epoch is None else f"epoch {epoch}"
            raise ReplayError(
                f"The run has no checkpoint of loop {loop}, {what}: it ended before, or writing it failed. "
                "Ask for other epochs; `flor-keras show` lists what there is."
            )
        return checkpoint

    def folder(self, checkpoint: CheckpointRecord) -> Path:
        """Return where a checkpoint lies."""
        return Path(self.plan.store) / checkpoint.path

    def recorded_value(self, name: str, position: Position) -> Any:
        """Return what was recorded under a name at a position, None where nothing was."""
        return self._recorded.get((name, position))

    def compare(self, name: str, position: Position, recorded: Any, replayed: Any) -> None:
        """Compare something recomputed with its record."""
        self._here.compare(name, position, recorded, replayed)

    def suspect(self, cause: str) -> None:
        """Note why this replay may differ from the record."""
        if cause not in self.causes:
            self.causes.append(cause)

    def suspect_environment(self) -> None:
        """Note what of this machine and its packages is not as it was when the run was recorded."""
        recorded = self._store.run(self.plan.run).environment
        for difference in differences(recorded, read_environment()):
            self.suspect(difference.sentence)

    def suspect_random_ops(self, ops: Iterable[str]) -> None:
        """Note random ops of graphs as what a replay may differ for."""
        for op in ops:
            self.suspect(f"{op} draws from a state inside TensorFlow that cannot be put back")

    def _suspect_graphs(self) -> None:
        """Note what of the program's graphs may be why something differs for the first time."""
        self.suspect_random_ops(self.find_random_ops())
        for name in sorted(session.names_from_graphs & self._names):
            self.suspect(
                f"flor.log({name!r}) takes a value out of a graph, around which TensorFlow simplifies less and may round "
                "differently"
            )

    @property
    def has_compared_here(self) -> bool:
        """Whether anything recorded was compared since the program came to this epoch."""
        return self._here.num_compared > 0

    def note_exact(self, count: int) -> None:
        """Count restored tensors, each compared with the hash it was recorded with."""
        self._here.num_compared += count

    def flush(self) -> None:
        """Store the hindsight entries so far, with what comparing gave where they were computed."""
        verdict = self._verdict(self._here)
        if self._pending:
            self._store.add_entries(self.plan.run, self._pending, replay=self._replay, verdict=verdict)
            self.num_entries += len(self._pending)
        if self._here.first is not None and self.comparison.first is None:
            self._suspect_graphs()
        self.comparison.add(self._here)
        self._pending, self._here = [], Comparison()

    def _verdict(self, comparison: Comparison) -> Verdict:
        """What comparing gave, unless the program or its data are not those of the record."""
        is_other = self.plan.is_changed or self.is_other_data
        return Verdict.APPROXIMATE if is_other else comparison.verdict

    def outcome(self) -> dict[str, Any]:
        """Return what this replay did and found, as plain data."""
        first = self.comparison.first
        unchecked = [
            f"epoch {epoch} of loop {loop}" for loop in self.unchecked for epoch in self.unchecked[loop]
        ]
        verdict = less_unchecked(self._verdict(self.comparison), unchecked)
        return {
            "num_entries": self.num_entries,
            "num_compared": self.comparison.num_compared,
            "verified": verdict.value,
            "unchecked": unchecked,
            "max_abs_diff": self.comparison.max_abs_diff if self.comparison.num_compared else None,
            "first_difference": None if first is None else {"name": first[0], "position": list(first[1])},
            "differing": self.comparison.differing,
            "held_back": self.held_back,
            "told": self.told,
            "causes": [] if verdict is Verdict.EXACT else self.causes,
        }
