"""Replaying in the process that asks, such as a notebook's: the caller's own model and `fit`, no program run again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flor_keras import reading, session
from flor_keras.epochs import parse_epochs, spelled
from flor_keras.errors import UsageError
from flor_keras.instrument.levels import Level
from flor_keras.progress import bars
from flor_keras.records import CheckpointRecord, Kind, Verdict
from flor_keras.replay.plan import Plan, epochs_to_visit
from flor_keras.replay.replayer import ReplayDone, Replayer
from flor_keras.replay.route import legs_to
from flor_keras.store.database import Store

if TYPE_CHECKING:
    import pandas as pd

    from flor_keras.reading import Run

_LEVELS = (Level.EPOCH.value, Level.EVAL.value, Level.STEP.value)


def replay(
    run: Run | str, model: Any, probe: Callable[[Any], Any], epochs: str | None = None
) -> pd.DataFrame:
    """Return what ``probe`` gives for ``model`` at the end of each epoch, with a progress bar; see `Run.replay`."""
    found = reading.run(run) if isinstance(run, str) else run
    with bars() as shown:
        task = shown.add_task("epochs", total=len(found.epoch_ends(epochs)))

        def looked(model: Any) -> Any:
            value = probe(model)
            shown.advance(task)
            return value

        looked.__name__ = getattr(probe, "__name__", "value")
        return found.replay(model, looked, epochs)


class Replaying:
    """A replay in this process. What it found is complete when its context is over.

    Attributes:
      run: the run.
      names: the names values were kept of.
      verdict: whether all that was recorded and computed again is equal to the last bit.
      causes: why it may not be.
      held_back: the callbacks that were not called.
    """

    def __init__(self, run: Run, names: tuple[str, ...]) -> None:
        self.run = run
        self.names = list(names)
        self.verdict = Verdict.UNCHECKED
        self.causes: list[str] = []
        self.held_back: list[str] = []

    def __repr__(self) -> str:
        return f"Replaying({self.run.id!r}, names={self.names}, verdict={self.verdict.value!r})"

    def take(self, replayer: _Replayer) -> dict[str, Any]:
        """Take what came of a replay that is over, and return its report."""
        report = replayer.finish()
        self.names = self.names or list(replayer.kept)
        self.verdict = Verdict(report["verified"])
        self.causes, self.held_back = report["causes"], report["held_back"]
        return dict(report)

    def dataframe(self) -> pd.DataFrame:
        """Return the values of its names in the whole run; see `Run.dataframe`."""
        return reading.run(self.run.id, self.run.store).dataframe(*self.names)


@contextmanager
def replaying(
    run: str = "latest",
    *names: str,
    level: str = Level.EPOCH.value,
    epochs: str | None = None,
    steps: str | None = None,
    loop: int = 0,
    store: str | Path | None = None,
) -> Iterator[Replaying]:
    """Have the `fit` calls inside the context go through a recorded run instead of training.

    Callbacks are called at the recorded states, and what they log joins the run; those that write files are held back. `fit`
    returns the recorded History and leaves the model, the callbacks and the random states as the recorded `fit` left
    them. The model is built and compiled as the run's was, and the data are the same; where they are not, the replay
    says so and is not exact.

    Args:
      run: the run, by id, name or "latest".
      names: what to keep; all names the run has no recorded values of, if none is given.
      level: "epoch" calls the hooks of each epoch, "eval" evaluates, too, and "step" makes the training steps again.
      epochs: which, as in `flor-keras replay --epochs`; if not given all that follow a checkpoint or end with one.
      steps: of each epoch, at the level step; all if not given.
      loop: the run's loop that the first `fit` stands for; each further `fit` is the next one.
      store: where the run lies; the nearest store upwards if not given.

    Raises:
      UsageError: no such run, level, epoch or loop; nothing was logged under the names; a replay is under way already.
    """
    from flor_keras.callback import every_fit

    previous = session.current()
    if isinstance(previous, Replayer):
        raise UsageError("A replay is under way in this process already. Call fit without flor.replaying.")
    found = Replaying(reading.run(run, store), names)
    plan = _plan(found.run, names, level, epochs, steps, loop)
    with Store.open(found.run.store) as opened, bars() as shown:
        number = opened.begin_replay(plan.run, level, plan.names, _places(plan), plan.to_json())
        task = shown.add_task(f"run {plan.run}", total=plan.num_epochs)

        def tell(event: dict[str, Any]) -> None:
            shown.advance(task, event["event"] == "epoch")

        replayer = _Replayer(plan, number, tell, loop)
        began, status = time.monotonic(), "failed"
        session.begin(replayer)
        try:
            with every_fit():
                yield found
            status = "finished"
        except ReplayDone:  # the recorded loop never came to its end
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            session.begin(previous)
            report = found.take(replayer)
            report["error"] = None if status == "finished" else status
            secs, diff = time.monotonic() - began, report["max_abs_diff"]
            opened.finish_replay(number, status, secs, found.verdict, diff, report, found.names)
    _check_result(replayer, names, level)


class _Replayer(Replayer):
    """Answers the `fit` calls of a process that goes on afterwards.

    Attributes:
      kept: the names values were kept of, in the order they first came.
    """

    def __init__(self, plan: Plan, replay: int, tell: Callable[[dict[str, Any]], None], loop: int) -> None:
        super().__init__(plan, replay, tell)
        self.num_loops = self._first = loop
        self.kept: dict[str, None] = {}
        self._known = {name for name, _ in self._recorded}
        self.suspect_environment()

    @property
    def num_visited(self) -> int:
        """How many `fit` calls there were."""
        return self.num_loops - self._first

    def is_wanted(self, name: str) -> bool:
        """Whether a name was asked for, or is new where none was."""
        is_wanted = name in self._names if self._names else name not in self._known
        if is_wanted:
            self.kept[name] = None
        return is_wanted

    def whole(self, loop: int) -> list[CheckpointRecord]:
        """Return the checkpoints there are, without that of the start: it leaves out what was not created then."""
        return [checkpoint for checkpoint in super().whole(loop) if checkpoint.kind is not Kind.START]

    def is_finished(self, loop: int) -> bool:
        """Whether the run ended inside of a loop: there is no state after it to go on from."""
        return loop >= self._first and self.checkpoint(loop, Kind.AFTER) is None

    def fit(self, call: Any, callbacks: list[Any], flor: Any) -> Any:
        """Go through the next loop of the run."""
        if self.num_loops >= self.plan.num_loops:
            raise UsageError(
                f"Run {self.plan.run} has {self.plan.num_loops} loops, and this fit would be loop {self.num_loops}. "
                "Call fit as often as the run did, or say which loop is the first: flor.replaying(run, loop=0)."
            )
        return super().fit(call, callbacks, flor)

    def begin_loop(self, name: str, state: Any, every: Any) -> Any:
        """Refuse a loop of the program's own: its function is not run from the top, which its replay needs."""
        raise UsageError(
            f"flor.replaying goes through calls of fit, and the loop {name!r} is none. Replay its program instead: "
            "flor-keras replay SCRIPT NAME"
        )

    def finish(self) -> dict[str, Any]:
        """Keep what is left and return what this replay found."""
        self.flush()
        self._store.close()
        return self.outcome()


def _plan(
    run: Run, names: tuple[str, ...], level: str, epochs: str | None, steps: str | None, first: int
) -> Plan:
    if level not in _LEVELS:
        raise UsageError(f"level is {level!r}; expected one of {', '.join(_LEVELS)}.")
    if steps is not None and level != Level.STEP:
        raise UsageError(
            f'steps={steps!r} chooses among steps that are made again. Give level="step" with it.'
        )
    with Store.open(run.store) as store:
        visited = epochs_to_visit(store, run.row, {Level(level)}, epochs)
        loops, checkpoints = store.loops(run.id), store.checkpoints(run.id)
    kept = [c for c in checkpoints if c.error is None and c.kind is not Kind.START]
    reached = {
        loop: [e for e in at if _is_in_reach(e, level, [c for c in kept if c.loop == int(loop)])]
        for loop, at in visited.items()
        if int(loop) >= first
    }
    if not any(reached.values()) or (
        epochs is not None and any(reached[at] != visited[at] for at in reached)
    ):
        ends = [spelled([c.epoch for c in kept if c.kind is Kind.EPOCH_END and c.loop == first])]
        raise UsageError(
            f"A model that was trained cannot be put back to where training began, so only what follows a checkpoint can be "
            f"replayed in the same process; loop {first} of run {run.id} has those of the ends of epochs {ends[0]}. Ask for "
            'others, record with FlorKeras(checkpoint_every="epoch"), or replay the program: flor-keras replay SCRIPT NAME'
        )
    num_steps = max((loop.steps or 0 for loop in loops), default=0)
    return Plan(
        store=str(run.store),
        run=run.id,
        run_name=run.name,
        script=run.script or "",
        module=None,
        root=str(Path.cwd()),
        cwd=str(Path.cwd()),
        argv=[],
        args=run.args,
        variables={},
        names=list(names),
        level=level,
        levels=dict.fromkeys(names or ("",), level),
        epochs=reached,
        num_loops=len(loops),
        steps=None if steps is None else parse_epochs(steps, range(num_steps or 1 << 20), "step"),
        is_in_every_loop=False,
        is_in_graph=False,
        reaching=[],
        callbacks="all",
        is_changed=False,
        allow_writes=True,
    )


def _is_in_reach(epoch: int, level: str, kept: list[CheckpointRecord]) -> bool:
    """Whether an epoch's end can be restored, or its steps be made again from a checkpoint."""
    is_there = any(c.kind is Kind.EPOCH_END and c.epoch == epoch for c in kept)
    return (is_there and level != Level.STEP) or legs_to({epoch: (0, None)}, kept) is not None


def _places(plan: Plan) -> list[list[int]]:
    return [[int(loop), epoch] for loop, visited in plan.epochs.items() for epoch in visited]


def _check_result(replayer: _Replayer, names: tuple[str, ...], level: str) -> None:
    if not replayer.num_visited:
        raise UsageError("No fit was called inside flor.replaying. Call model.fit there as the run did.")
    missing = [name for name in names if name not in replayer.kept]
    if missing:
        raise UsageError(
            f"Nothing was logged under {', '.join(missing)} at the level {level}. Log it in a callback given to fit, or "
            'give another level, such as level="step".'
        )
