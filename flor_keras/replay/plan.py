"""The plan of a replay: which run, which level, which epochs, and what of the program is called.

Made in the caller's process from the store and the program's source alone; TensorFlow is not imported.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from flor_keras.epochs import parse_epochs
from flor_keras.errors import ReplayError, UsageError
from flor_keras.instrument.carried import carried_between_epochs
from flor_keras.instrument.changes import difference, forbidden_changes
from flor_keras.instrument.levels import Level, dearest
from flor_keras.instrument.loglines import LogLine, Program
from flor_keras.instrument.sources import read_sources
from flor_keras.records import CheckpointRecord, Kind, LoopRecord
from flor_keras.replay.asked import parse_probes
from flor_keras.replay.route import legs_to
from flor_keras.store.database import Store
from flor_keras.store.run_tables import RunRow

_CHANGES_SHOWN = 5


@dataclass(frozen=True)
class Request:
    """What a person asks of a replay."""

    script: Path
    names: tuple[str, ...]
    run: str | None = None
    epochs: str | None = None
    steps: str | None = None
    level: str | None = None
    argv: tuple[str, ...] | None = None  # the program's arguments; the recorded ones if None
    callbacks: str = "needed"  # or "all"
    is_forced: bool = False
    allow_writes: bool = False
    probes: tuple[str, ...] = ()  # built-in ones and functions: see `asked.parse_probes`
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a replay will do. Everything in it is plain data, it travels to the worker as JSON."""

    store: str
    run: str
    run_name: str | None
    script: str
    module: str | None
    root: str
    cwd: str
    argv: list[str]
    args: dict[str, Any]
    variables: dict[str, str]  # environment variables that decide results, as recorded
    names: list[str]
    level: str
    levels: dict[str, str]  # of each name
    epochs: dict[str, list[int]]  # by loop; what travels as JSON has text for keys
    num_loops: int
    steps: list[int] | None  # of each visited epoch; all if None
    is_in_every_loop: bool  # an asked line stands where a loop begins or ends
    is_in_graph: bool  # an asked line stands in code that TensorFlow traces
    reaching: list[tuple[str, int]]  # functions that lead to an asked name: path from root, first line
    callbacks: str
    is_changed: bool  # the program differs from the recorded one and the person insisted
    allow_writes: bool
    held_back: list[str] = field(default_factory=list)  # as far as the record tells; the report has what was
    key: str = ""  # equal for replays that compute the same from the same program
    continues: list[int] = field(
        default_factory=list
    )  # unfinished replays like this one, whose values are kept
    done: dict[str, list[int]] = field(default_factory=dict)  # the epochs they have computed, by loop
    probes: list[dict[str, Any]] = field(default_factory=list)  # computed without a line in the program
    is_hands_free: bool = False  # the program does not know flor_keras
    is_outside_kept: bool = True  # what is logged outside of epochs; of several workers one keeps it
    expected_secs: float | None = None  # what it was expected to take
    from_start: dict[str, str] = field(
        default_factory=dict
    )  # loops made again from their first epoch, and why
    carried: str | None = None  # what an asked line carries from one epoch to the next, if anything

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self)

    @property
    def is_to_the_end(self) -> bool:
        """Whether the program is run to its end, not only to the last asked epoch."""
        return Level.AFTER.value in self.levels.values()

    @property
    def num_epochs(self) -> int:
        """How many epochs are visited."""
        return sum(len(epochs) for epochs in self.epochs.values())


def make_plan(store: Store, request: Request) -> Plan:
    """Decide what a replay does, or say why it cannot be done.

    Raises:
      UsageError: no such run, script, name, level or epoch.
      ReplayError: the program was changed in more than its log lines, metrics and callbacks.
    """
    run = _find_run(store, request)
    root = Path(run.environment.get("root") or Path(str(run.script)).parent)
    recorded = store.sources(run.id)
    current = read_sources(root, recorded)
    is_changed = _check_changes(recorded, current, request.is_forced)
    script = Path(str(run.script)).relative_to(root).as_posix()
    program = Program(script, current, bool(run.environment.get("is_hands_free")))
    probes = parse_probes(request.probes, request.metrics)
    if not request.names and not probes:
        raise UsageError(
            "Nothing was asked for; expected a NAME the program logs, a probe or a metric. Type, for example: "
            f"flor-keras replay {request.script} --probe weight_norm"
        )
    levels = {name: _level(name, program, store, run, request.level) for name in request.names}
    levels |= {probe["name"]: _probe_level(probe, request) for probe in probes}
    level = reduce(dearest, levels.values())
    lines = [line for name in request.names for line in program.log_lines(name)]
    reaching = sorted((function.path, function.line) for function in program.reaching(lines))
    loops = store.loops(run.id)
    plan = Plan(
        store=str(store.path),
        run=run.id,
        run_name=run.name,
        script=str(run.script),
        module=run.environment.get("module"),
        root=str(root),
        cwd=run.cwd,
        argv=list(run.argv if request.argv is None else request.argv),
        args=store.args(run.id),
        variables=run.environment.get("variables", {}),
        names=list(levels),
        level=level.value,
        levels={name: one.value for name, one in levels.items()},
        epochs=epochs_to_visit(store, run, set(levels.values()), request.epochs),
        num_loops=len(loops),
        steps=_steps(loops, store.checkpoints(run.id), request, levels),
        is_in_every_loop=any(_is_at_the_ends_of_loops(line) for line in lines),
        is_in_graph=any(_is_in_graph(line) for line in lines) or any(p["is_in_graph"] for p in probes),
        reaching=reaching,
        callbacks=request.callbacks,
        is_changed=is_changed,
        allow_writes=request.allow_writes,
        is_hands_free=bool(run.environment.get("is_hands_free")),
        probes=probes,
        from_start=_from_start(store, run),
        carried=carried_between_epochs(current, program.reaching(lines)),
    )
    return _continued(store, replace(plan, key=_key(plan, current)))


def _probe_level(probe: Mapping[str, Any], request: Request) -> Level:
    own = Level(probe["level"])
    if request.level is None or probe["kind"] == "metric" or probe["is_in_graph"]:
        return own
    if request.level not in (Level.EPOCH, Level.STEP):
        raise UsageError(
            f"A probe is called at the level epoch or step, not {request.level}. Give one of these as --level."
        )
    return Level(request.level)


def _key(plan: Plan, sources: Mapping[str, str]) -> str:
    """Return a hash of what decides the values of a replay at each of its positions."""
    asked = [
        sorted(plan.names),
        plan.levels,
        plan.steps,
        plan.argv,
        plan.args,
        plan.callbacks,
        plan.allow_writes,
    ]
    text = json.dumps([plan.script, sorted(sources.items()), asked, plan.probes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _continued(store: Store, plan: Plan) -> Plan:
    """Leave out the epochs an unfinished replay of the same has computed."""
    alike = [replay for replay in store.replays(plan.run) if replay.plan.get("key") == plan.key]
    if not alike or alike[-1].status == "finished":
        return plan
    continues = [*alike[-1].plan.get("continues", []), alike[-1].id]
    places = store.hindsight_places(plan.run, plan.names, continues)
    done = {loop: [e for e in epochs if (int(loop), e) in places] for loop, epochs in plan.epochs.items()}
    left = {loop: [e for e in epochs if (int(loop), e) not in places] for loop, epochs in plan.epochs.items()}
    if not any(done.values()):
        return plan
    return replace(
        plan,
        continues=continues,
        done={loop: epochs for loop, epochs in done.items() if epochs},
        epochs={loop: epochs for loop, epochs in left.items() if epochs},
    )


def _steps(
    loops: list[LoopRecord],
    checkpoints: list[CheckpointRecord],
    request: Request,
    levels: Mapping[str, Level],
) -> list[int] | None:
    if request.steps is None:
        return None
    if Level.STEP not in levels.values():
        found = ", ".join(f"{name} (level {level.value})" for name, level in levels.items())
        raise UsageError(
            f"--steps {request.steps} chooses among steps that are made again, and none are for {found}. "
            "Leave --steps out, or give --level step."
        )
    known = [loop.steps for loop in loops if loop.steps]
    known += [checkpoint.step for checkpoint in checkpoints if checkpoint.step]  # of custom loops
    return parse_epochs(request.steps, range(max(known)) if known else range(1 << 20), "step")


def _is_at_the_ends_of_loops(line: LogLine) -> bool:
    words = line.function.qualname.split(".") if line.function is not None else []
    return bool({"on_train_begin", "on_train_end"} & set(words))


def _is_in_graph(line: LogLine) -> bool:
    """Whether a line stands in a training step rather than in a callback's hook."""
    words = line.function.qualname.split(".") if line.function is not None else []
    return line.level is Level.STEP and not any(word.startswith("on_") for word in words)


def _find_run(store: Store, request: Request) -> RunRow:
    script = request.script.resolve()
    if not script.is_file():
        raise UsageError(
            f"There is no file {request.script}. Give the script of a recorded run; `flor-keras runs` lists them."
        )
    if request.run is not None:
        run = store.run(request.run)
        if run.script != str(script):
            raise UsageError(
                f"Run {run.id} was recorded from {run.script}, not from {script}. "
                f"Type: flor-keras replay {run.script} {' '.join(request.names)} --run {run.id}"
            )
        return run
    for run in store.runs():
        if run.script == str(script):
            return run
    raise UsageError(
        f"No run in {store.path} was recorded from {script}. Record one by running the script, or list the runs "
        "with: flor-keras runs"
    )


def _check_changes(recorded: Mapping[str, str], current: Mapping[str, str], is_forced: bool) -> bool:
    changes = forbidden_changes(recorded, current)
    if not changes or is_forced:
        return bool(changes)
    shown = "\n".join(f"  {c.path}:{c.line}: {c.kind}: {c.text}" for c in changes[:_CHANGES_SHOWN])
    raise ReplayError(
        "The program was changed in more than its log lines, metrics and callbacks since the run was recorded:\n"
        f"{shown}\n\n{difference(recorded, current)}\n"
        "Its replay would not be the recorded training. Undo these changes, or go on with --force; the values are then marked."
    )


def _level(name: str, program: Program, store: Store, run: RunRow, override: str | None) -> Level:
    if override is not None:
        return Level(override)
    level = program.level_of(name)
    if level is not None:
        return level
    recorded = store.names(run.id)
    compiled = program.compiled_metrics()
    if name.startswith("val_") and (name in recorded or name.removeprefix("val_") in (*compiled, "loss")):
        return Level.EVAL
    if name in compiled or name in recorded:
        return Level.STEP
    known = sorted({*recorded, *compiled, *(line.name for line in program.all_log_lines if line.name)})
    close = difflib.get_close_matches(name, known, 3, 0.5)
    hint = f" Did you mean {' or '.join(close)}?" if close else f" It logs: {', '.join(known) or 'nothing'}."
    raise UsageError(
        f"The program never logs {name!r}.{hint} Add a line such as flor.log({name!r}, value) to it, "
        "or a metric of that name to compile()."
    )


def epochs_to_visit(store: Store, run: RunRow, levels: set[Level], asked: str | None) -> dict[str, list[int]]:
    """Return the epochs to visit of each loop, where the levels need any."""
    if not levels & {Level.EPOCH, Level.EVAL, Level.STEP}:
        return {}
    checkpoints = [c for c in store.checkpoints(run.id) if c.error is None]
    available = {
        loop.loop: _reachable(loop, [c for c in checkpoints if c.loop == loop.loop])
        for loop in store.loops(run.id)
    }
    available |= _epochs_of_custom_loops(store, run)
    if not any(available.values()):
        raise UsageError(
            f"Run {run.id} has no checkpoint of any epoch. See what happened with: flor-keras show {run.id}"
        )
    everywhere = sorted({epoch for epochs in available.values() for epoch in epochs})
    chosen = set(parse_epochs(asked, everywhere))
    visited = {str(loop): [e for e in epochs if e in chosen] for loop, epochs in available.items()}
    return {loop: epochs for loop, epochs in visited.items() if epochs}


def _reachable(loop: LoopRecord, checkpoints: list[CheckpointRecord]) -> list[int]:
    """Return the epochs of a `fit` call whose end has a checkpoint, or can be made again from one before."""
    ends = {c.epoch for c in checkpoints if c.kind is Kind.EPOCH_END}
    begun = [c.epoch for c in checkpoints if c.kind in (Kind.STEP, Kind.EPOCH_HOOKS, Kind.EPOCH_END)]
    num_over = max([max(ends, default=-1) + 1, *begun]) if begun else loop.initial_epoch
    trained = (loop.history or {}).get("epoch") or range(loop.initial_epoch, num_over)
    return sorted(ends | {epoch for epoch in trained if legs_to({epoch: (0, None)}, checkpoints) is not None})


def _from_start(store: Store, run: RunRow) -> dict[str, str]:
    """Return the loops in which nothing can be skipped, since what their steps change could not be told."""
    from flor_keras.checkpoint import bundle  # which brings NumPy; other commands make no plan

    found = {}
    for checkpoint in store.checkpoints(run.id):
        folder = store.path / checkpoint.path
        if checkpoint.kind is Kind.START and checkpoint.error is None and folder.is_dir():
            why = bundle.read_manifest(folder).get("refused")
            if why:
                found[str(checkpoint.loop)] = str(why)
    return found


def _epochs_of_custom_loops(store: Store, run: RunRow) -> dict[int, list[int]]:
    """Return all epochs of the program's own loops: those without a checkpoint are redone from one before."""
    custom = {loop.loop for loop in store.loops(run.id) if loop.kind == "custom"}
    last: dict[int, int] = {}
    for checkpoint in store.checkpoints(run.id):
        is_last = checkpoint.kind is Kind.EPOCH_END or _is_end_to_be_had(store, checkpoint)
        if checkpoint.loop in custom and is_last:
            last[checkpoint.loop] = max(checkpoint.epoch, last.get(checkpoint.loop, 0))
    return {loop: list(range(epoch + 1)) for loop, epoch in last.items()}


def _is_end_to_be_had(store: Store, checkpoint: CheckpointRecord) -> bool:
    """Whether it is of the end of a loop, and how that came about comes again: a person's interrupt does not."""
    from flor_keras.checkpoint import bundle

    folder = store.path / checkpoint.path
    if checkpoint.kind is not Kind.AFTER or checkpoint.error is not None or not folder.is_dir():
        return checkpoint.kind is Kind.AFTER
    return bundle.read_manifest(folder).get("error") != KeyboardInterrupt.__name__
