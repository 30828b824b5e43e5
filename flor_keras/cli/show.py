"""`flor-keras show`: all that is known of one run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text
from flor_keras.records import OWN_SEED, SEED_ARGUMENT, CheckpointRecord, Kind, LoopRecord
from flor_keras.store.database import Event, ReplayRow, Store


@click.command()
@click.argument("ref", metavar="[RUN]", default="latest")
@text.store_option
@text.json_option
def show(ref: str, store: str | None, is_json: bool) -> None:
    """Show a run: status, arguments, versions, loops, names, checkpoints, events, replays.

    RUN is a prefix of its id, its name, latest (the default) or latest~2.
    """
    description = describe(reading.run(ref, store))
    if is_json:
        click.echo(text.to_strict_json(description))
    else:
        _print(description)


def describe(run: reading.Run) -> dict[str, Any]:
    """Return all that is known of a run as plain values."""
    row = run.row
    with Store.open(run.store) as opened:
        checkpoints = opened.checkpoints(run.id)
        return {
            "id": run.id,
            "name": run.name,
            "status": run.status.value,
            "error": row.error,
            "script": run.script,
            "argv": row.argv,
            "cwd": row.cwd,
            "started_at": _moment(row.started_at),
            "finished_at": _moment(row.finished_at),
            "seconds": None if row.finished_at is None else row.finished_at - row.started_at,
            "args": run.args,
            "environment": row.environment,
            "loops": [_loop(loop, checkpoints) for loop in opened.loops(run.id)],
            "names": {
                name: {"recorded": recorded, "hindsight": hindsight}
                for name, (recorded, hindsight) in opened.name_counts(run.id).items()
            },
            "checkpoints": _checkpoints(checkpoints),
            "events": [_event(event) for event in opened.events(run.id)],
            "replays": [_replay(replay) for replay in opened.replays(run.id)],
        }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def _loop(loop: LoopRecord, checkpoints: list[CheckpointRecord]) -> dict[str, Any]:
    """Describe a loop."""
    return {
        "loop": loop.loop,
        "kind": loop.kind,
        "name": loop.name,
        "initial_epoch": loop.initial_epoch,
        "epochs": loop.epochs,
        "epochs_done": _num_done(loop, checkpoints),
        "steps": loop.steps,
        "is_finished": loop.finished_at is not None,
        "checkpoints": sum(at.loop == loop.loop and at.error is None for at in checkpoints),
        "recording": _recording(loop.recording),
    }


def _num_done(loop: LoopRecord, checkpoints: list[CheckpointRecord]) -> int | None:
    """Return how many epochs a loop did: `fit` tells by its history, a loop of the program's own by where it ended."""
    if loop.history:
        return len(loop.history.get("epoch", []))
    own = [at for at in checkpoints if at.loop == loop.loop]
    after = [at for at in own if at.kind is Kind.AFTER]
    if loop.kind != "custom" or loop.finished_at is None or not after:
        return None
    last = after[-1]
    is_begun = last.epoch or last.step or any(at.kind is Kind.EPOCH_END for at in own)
    return last.epoch + 1 if is_begun else None  # at its very beginning a loop of no epochs ends, too


def _recording(recording: dict[str, Any] | None) -> dict[str, Any] | None:
    """Describe what recording a loop cost; None of a run that was recorded before that was kept."""
    if recording is None:
        return None
    secs = recording["stall_secs"] + recording["worker_secs"]
    share = secs / recording["training_secs"] if recording["training_secs"] else None
    return {**recording, "share": share}


def _checkpoints(checkpoints: list[CheckpointRecord]) -> dict[str, Any]:
    whole = [at for at in checkpoints if at.error is None]
    failed = [at for at in checkpoints if at.error is not None]
    return {
        "count": len(whole),
        "num_bytes": sum(at.num_bytes for at in whole),
        "logical_bytes": sum(at.num_bytes + at.shared_bytes for at in whole),
        "stall_secs": sum(at.stall_secs for at in checkpoints),
        "worker_cpu_secs": sum(at.worker_cpu_secs for at in checkpoints),
        "failed": [{"loop": at.loop, "epoch": at.epoch, "step": at.step, "error": at.error} for at in failed],
    }


def _event(event: Event) -> dict[str, Any]:
    return {"time": _moment(event.time), "level": event.level, "message": event.message}


def _replay(replay: ReplayRow) -> dict[str, Any]:
    return {
        "id": replay.id,
        "level": replay.level,
        "names": replay.names,
        "epochs": replay.epochs,
        "started_at": _moment(replay.started_at),
        "status": replay.status,
        "seconds": replay.seconds,
        "verdict": replay.verdict and replay.verdict.value,
        "max_abs_diff": replay.max_abs_diff,
    }


def _print(run: dict[str, Any]) -> None:
    for heading, lines in _sections(run):
        for at, line in enumerate(lines):
            click.echo(f"{heading if at == 0 else '':<12}{line}")


def _sections(run: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what to print: a heading and its lines; without lines it is left out."""
    named = f" ({run['name']})" if run["name"] else ""
    took = f", took {text.duration(run['seconds'])}" if run["seconds"] is not None else ""
    started = text.ago(datetime.fromisoformat(run["started_at"]).timestamp())
    return [
        ("run", [f"{run['id']}{named}"]),
        ("status", [run["status"] + (f": {run['error']}" if run["error"] else "")]),
        ("script", [" ".join([run["script"] or "interactive session", *run["argv"]])]),
        ("started", [started + took]),
        ("args", _args_lines(run["args"], run["events"])),
        ("versions", _version_lines(run["environment"])),
        ("loops", [_loop_line(loop) for loop in run["loops"]]),
        ("logged", [_name_line(name, **counts) for name, counts in run["names"].items()]),
        ("checkpoints", _checkpoint_lines(run["checkpoints"])),
        ("recording", [line for loop in run["loops"] for line in _recording_lines(loop)]),
        ("events", [f"{event['level']}: {event['message']}" for event in run["events"]]),
        ("replays", [_replay_line(replay) for replay in run["replays"]]),
    ]


def _args_lines(args: dict[str, Any], events: list[dict[str, Any]]) -> list[str]:
    """Return the arguments; the seed is left out that gave way to the program's own, of which an event tells."""
    is_own_seed = any(event["message"] == OWN_SEED for event in events)
    shown = {name: value for name, value in args.items() if not (is_own_seed and name == SEED_ARGUMENT)}
    return [text.brief_args(shown)] if shown else []


def _version_lines(environment: dict[str, Any]) -> list[str]:
    versions = environment.get("versions", environment)
    parts = [f"{name} {version}" for name, version in versions.items() if isinstance(version, str)]
    return [", ".join(parts)] if parts else []


def _loop_line(loop: dict[str, Any]) -> str:
    done, asked = loop["epochs_done"], loop["epochs"]
    if done is None:
        epochs = f"{asked or '?'} epochs"
    elif asked is None:
        epochs = "1 epoch" if done == 1 else f"{done} epochs"
    else:
        epochs = f"{done} of {asked} epochs"
    first = f" from epoch {loop['initial_epoch']}" if loop["initial_epoch"] else ""
    steps = f" of {loop['steps']} steps" if loop["steps"] else ""
    unfinished = "" if loop["is_finished"] else ", not finished"
    name = f" {loop['name']}" if loop["name"] else ""
    return f"{loop['loop']}: {loop['kind']}{name}, {epochs}{first}{steps}{unfinished}"


def _name_line(name: str, recorded: int, hindsight: int) -> str:
    counts = [f"{recorded} recorded"] if recorded else []
    counts += [f"{hindsight} in hindsight"] if hindsight else []
    return f"{name}: {', '.join(counts)}"


def _checkpoint_lines(checkpoints: dict[str, Any]) -> list[str]:
    costs = f"training stood still {text.duration(checkpoints['stall_secs'])}"
    costs += f", worker took {text.duration(checkpoints['worker_cpu_secs'])} of CPU"
    num_bytes, logical_bytes = checkpoints["num_bytes"], checkpoints["logical_bytes"]
    whole = f" in place of {text.size(logical_bytes)}" if logical_bytes > num_bytes else ""
    line = f"{checkpoints['count']}, {text.size(num_bytes)}{whole}; {costs}"
    failed = [
        f"failed at loop {at['loop']}, epoch {at['epoch']}, step {at['step']}: {at['error']}"
        for at in checkpoints["failed"]
    ]
    return [line if checkpoints["count"] or failed else "none", *failed]


_WHY_SKIPPED = {
    "cost": "more would have cost more than {overhead:.1%} of training",
    "busy": "the worker was still writing",
    "asked": "checkpoint_every={every}",
}


def _recording_lines(loop: dict[str, Any]) -> list[str]:
    recording = loop["recording"]
    if recording is None:
        return []
    stood, worked = text.duration(recording["stall_secs"]), text.duration(recording["worker_secs"])
    share = "" if recording["share"] is None else f", {recording['share']:.1%} of training"
    line = f"loop {loop['loop']}: stood still {stood}, worker's share of the CPU {worked}{share}"
    skipped = [
        f"{count} passed by: {_WHY_SKIPPED[why].format(**recording)}"
        for why, count in recording["skipped"].items()
        if why in _WHY_SKIPPED
    ]
    return [f"{line}; {recording['taken']} checkpoints", *(f"  {why}" for why in skipped)]


def _replay_line(replay: dict[str, Any]) -> str:
    took = f" in {text.duration(replay['seconds'])}" if replay["seconds"] is not None else ""
    verdict = f", {replay['verdict']}" if replay["verdict"] else ""
    diff = f" (largest difference {replay['max_abs_diff']:.3g})" if replay["max_abs_diff"] else ""
    names = ", ".join(replay["names"])
    return f"{replay['id']}: {names} at level {replay['level']}, {replay['status']}{took}{verdict}{diff}"
