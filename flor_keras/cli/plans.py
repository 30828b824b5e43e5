"""How a replay's plan and its progress look on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from flor_keras.cli import text
from flor_keras.epochs import spelled
from flor_keras.progress import bars
from flor_keras.replay.plan import Plan
from flor_keras.replay.prospect import Prospect

ASK_ABOVE_SECS = 60.0
_LEVELS = {
    "setup": "the program up to its first loop",
    "epoch": "restore each epoch's end, call the epoch's hooks; no training step",
    "eval": "restore each epoch's end, evaluate; no training step",
    "step": "restore the nearest checkpoint before, redo the steps",
    "after": "restore the state after training, run the rest of the program",
}


def is_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_plan(prospect: Prospect) -> None:
    """Print what a replay will do, and what it is expected to take."""
    plan = prospect.plan
    click.echo(f"run     {plan.run}" + (f" ({plan.run_name})" if plan.run_name else ""))
    click.echo(f"names   {', '.join(plan.names)}")
    click.echo(f"level   {plan.level}: {_LEVELS[plan.level]}")
    if plan.epochs:
        click.echo(f"redo    {_epochs(plan, plan.epochs)}")
    for loop, why in plan.from_start.items():
        if loop in plan.epochs:
            click.echo(f"        every epoch of loop {loop} before them, too: {why}")
    if unkept := prospect.costs.unkept:
        click.echo(
            f"        the steps of {_epochs(plan, dict(unkept))} too, whose ends have no checkpoint: from the nearest before"
        )
    if plan.done:
        click.echo(f"done    {_epochs(plan, plan.done)}, by a replay that was stopped")
    if prospect.num_workers > 1:
        click.echo(
            f"workers {prospect.num_workers}: " + " | ".join(_epochs(s, s.epochs) for s in prospect.segments)
        )
    if prospect.why:
        number = prospect.num_workers
        only = "one worker only" if number == 1 else f"{number} workers only"
        click.echo(f"        {only}: {prospect.why}")
    click.echo(f"takes   {_expected(prospect)}")
    if plan.held_back:
        click.echo(f"held    {', '.join(plan.held_back)} (not called)")
    if plan.carried and prospect.num_workers > 1:
        click.echo(
            f"warning: {plan.carried} carries something from one epoch to the next; each worker begins without it. "
            "Use --workers 1 where that matters."
        )
    if plan.is_changed:
        click.echo("warning: the program was changed since; the values are marked approximate")


def _expected(prospect: Prospect) -> str:
    error = prospect.costs.error
    past = f" (earlier estimates were off by {error:.0%})" if error is not None else ""
    return f"about {text.duration(prospect.expected_secs)}{past}"


def _epochs(plan: Plan, epochs: dict[str, list[int]]) -> str:
    return "; ".join(
        f"epochs {spelled(asked)}" + (f" of loop {loop}" if plan.num_loops > 1 else "")
        for loop, asked in epochs.items()
    )


@contextmanager
def progress(prospect: Prospect) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a bar for each worker; give the function that takes its events."""
    with bars() as shown:
        is_single = len(prospect.segments) == 1
        tasks = [
            shown.add_task(
                "starting" if is_single else f"worker {at}: starting", total=segment.num_epochs or None
            )
            for at, segment in enumerate(prospect.segments)
        ]

        def on_event(event: dict[str, Any]) -> None:
            number = event["worker"]
            lead = "" if is_single else f"worker {number}: "
            if event["event"] == "epoch":
                asked = prospect.segments[number].epochs.get(str(event["loop"]), ())
                advance = int(event["epoch"] in asked)
                shown.update(tasks[number], advance=advance, description=f"{lead}epoch {event['epoch']}")
            elif event["event"] == "died":
                again = "; its epochs are tried once more" if event["is_retried"] else ""
                shown.console.print(
                    f"{lead}the worker died: {event['why']}{again}", markup=False, soft_wrap=True
                )

        yield on_event
