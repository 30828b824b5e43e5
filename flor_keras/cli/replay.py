"""`flor-keras replay`: compute a value that was never logged, for epochs that are over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text
from flor_keras.cli.bisecting import bisected
from flor_keras.cli.logs import print_rows, table_rows
from flor_keras.cli.plans import ASK_ABOVE_SECS, is_terminal, print_plan, progress
from flor_keras.records import Verdict
from flor_keras.replay.engine import PATIENCE_SECS, Outcome, carry_out
from flor_keras.replay.plan import Request, make_plan
from flor_keras.replay.prospect import Prospect, foresee
from flor_keras.replay.workers import AUTO
from flor_keras.store.database import Store
from flor_keras.store.layout import find_store, given_store

DONE, NOT_EXACT = 0, 3
_LISTED = 8


@click.command()
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--probe",
    "probes",
    multiple=True,
    metavar="PROBE",
    help="Compute without a line in SCRIPT: gradient_norm, weight_norm, … or FILE.py:function; repeatable.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar='NAME="EXPR"',
    help='Such as auc="keras.metrics.AUC()", logged as val_auc.',
)
@click.option(
    "--bisect",
    "expression",
    metavar="EXPR",
    help="Find where EXPR over the names first holds, such as num_not_finite>0.",
)
@click.option("--run", "run", metavar="REF", help="The run to replay. [the newest of SCRIPT]")
@click.option("--epochs", metavar="LIST", help="Epochs from 0, such as 0,3,10:20:2. [all]")
@click.option("--steps", metavar="LIST", help="Steps of each epoch, from 0, such as 0:10. [all]")
@click.option(
    "--level",
    type=click.Choice(["setup", "epoch", "eval", "step", "after"]),
    help="What is redone. [found from the source]",
)
@click.option(
    "--callbacks",
    type=click.Choice(["needed", "all"]),
    default="needed",
    show_default=True,
    help="Which callbacks of the program are called.",
)
@click.option(
    "--workers",
    default=AUTO,
    show_default=True,
    metavar="N|auto",
    help="Processes to divide the epochs among; auto takes what pays and the machine has room for.",
)
@click.option(
    "--yes", "-y", "is_sure", is_flag=True, help="Do not ask before a replay of more than a minute."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Show the plan and stop.")
@click.option(
    "--force", "is_forced", is_flag=True, help="Replay a program that was changed; marks the values."
)
@click.option("--allow-writes", is_flag=True, help="Let the replayed program write, rename and delete files.")
@click.option(
    "--patience",
    "patience_secs",
    type=click.FloatRange(min=1),
    default=PATIENCE_SECS,
    show_default=True,
    metavar="SECS",
    help="How long the program may give no sign.",
)
@text.store_option
@text.json_option
@click.pass_context
def replay(
    context: click.Context,
    /,
    script: Path,
    names: tuple[str, ...],
    is_dry: bool,
    workers: str,
    expression: str | None,
    is_sure: bool,
    patience_secs: float,
    store: str | None,
    is_json: bool,
    **asked: Any,
) -> int:
    """Compute NAMEs for a recorded run of SCRIPT, which now has lines that log them; or probes, which need none.

    The program runs again in replay mode: nothing is trained, and what it writes goes to a scratch folder. The
    values join the run. Arguments after -- go to the script in place of the recorded ones.

    With --bisect epochs are visited one at a time, halving what is left, then the steps of the epoch that is found. EXPR is
    supposed to stay true from where it first is.

    Ctrl-C stops it; what it had computed stays, and the same command computes the rest.

    JSON: {"run", "level", "epochs", "names", "values", "verified", "unchecked", "max_abs_diff", "held_back", "seconds",
    "workers", "causes", "diverted", "refused"}.
    Exit status: 0 done, 1 failed, 2 wrong use, 3 done but not exact, 130 stopped.
    """
    location = given_store(store) if store else find_store(Path.cwd())
    argv = context.obj.script_args or None
    with Store.open(location) as opened:
        plan = make_plan(opened, Request(script=script, names=names, argv=argv, **asked))
        prospect = foresee(opened, plan, workers)
    plan = prospect.plan
    if is_dry:
        print(text.to_strict_json(_prospect_json(prospect))) if is_json else print_plan(prospect)
        return DONE
    if expression is not None:
        return bisected(plan, expression, patience_secs, is_json)
    if is_json:
        outcome = carry_out(plan, lambda event: None, patience_secs, prospect.num_workers)
        print(text.to_strict_json(_as_json(outcome)))
    else:
        print_plan(prospect)
        if not is_sure and prospect.expected_secs > ASK_ABOVE_SECS and is_terminal():
            click.confirm("go on?", default=True, abort=True)
        outcome = _carried_out(prospect, patience_secs)
        _print_outcome(outcome)
    return DONE if outcome.verdict is Verdict.EXACT else NOT_EXACT


def _carried_out(prospect: Prospect, patience_secs: float) -> Outcome:
    with progress(prospect) as on_event:
        try:
            return carry_out(prospect.plan, on_event, patience_secs, prospect.num_workers)
        except KeyboardInterrupt:
            click.echo(
                "Stopped. The epochs that were done are in the store; the same command computes the rest.",
                err=True,
            )
            raise


def _prospect_json(prospect: Prospect) -> dict[str, Any]:
    segments = [segment.epochs for segment in prospect.segments]
    return {**prospect.plan.to_json(), "workers": prospect.num_workers, "segments": segments}


def _print_outcome(outcome: Outcome) -> None:
    click.echo()
    print_rows(_values(outcome))
    click.echo()
    click.echo(f"{outcome.num_entries} values in {text.duration(outcome.seconds)}; {_verdict(outcome)}")
    for word, found in (
        ("because", outcome.causes),
        ("not called", outcome.held_back),
        ("diverted to a scratch folder", outcome.diverted),
        ("refused", outcome.refused),
    ):
        if found:
            more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
            click.echo(f"{word}: {', '.join(found[:_LISTED])}{more}")


def _verdict(outcome: Outcome) -> str:
    if outcome.plan.is_changed:
        return "approximate: the program was changed since it was recorded"
    if outcome.verdict is Verdict.APPROXIMATE and outcome.first_difference:
        name, position = outcome.first_difference["name"], outcome.first_difference["position"]
        where = ", ".join(
            f"{w} {p}" for w, p in zip(("loop", "epoch", "step"), position, strict=True) if p is not None
        )
        return f"approximate: largest difference {outcome.max_abs_diff:.3g}, first in {name} at {where}"
    if outcome.verdict is Verdict.EXACT:
        return "exact: all that was recorded and recomputed is equal bit for bit"
    if outcome.unchecked:
        return (
            f"unchecked: {_listed(outcome.unchecked)} made again, and nothing was recorded there or after to compare with. "
            "Record with --checkpoint-every epoch, or log a number in each epoch"
        )
    return "unchecked: nothing recorded was recomputed"


def _listed(places: list[str]) -> str:
    more = f" and {len(places) - _LISTED} more" if len(places) > _LISTED else ""
    return f"{', '.join(places[:_LISTED])}{more} {'was' if len(places) == 1 else 'were'}"


def _values(outcome: Outcome) -> list[dict[str, Any]]:
    run = reading.run(outcome.plan.run, outcome.plan.store)
    return list(table_rows([run], tuple(outcome.plan.names)))


def _as_json(outcome: Outcome) -> dict[str, Any]:
    plan = outcome.plan
    return {
        "run": plan.run,
        "level": plan.level,
        "epochs": sorted(
            {e for part in (plan.epochs, plan.done) for epochs in part.values() for e in epochs}
        ),
        "names": plan.names,
        "values": _values(outcome),
        "verified": outcome.verdict.value,
        "unchecked": outcome.unchecked,
        "max_abs_diff": outcome.max_abs_diff,
        "held_back": outcome.held_back,
        "seconds": round(outcome.seconds, 3),
        "workers": outcome.num_workers,
        "causes": outcome.causes,
        "diverted": outcome.diverted,
        "refused": outcome.refused,
    }
