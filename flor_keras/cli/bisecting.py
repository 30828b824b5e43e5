"""`flor-keras replay --bisect`: where an expression over probes first holds."""

from __future__ import annotations

import time
from typing import Any

import click

from flor_keras.cli import text
from flor_keras.epochs import spelled
from flor_keras.records import Verdict
from flor_keras.replay.bisect import bisect
from flor_keras.replay.engine import Outcome, carry_out
from flor_keras.replay.plan import Plan


def bisected(plan: Plan, expression: str, patience_secs: float, is_json: bool) -> int:
    """Search, print what was found, and return the exit status.

    JSON: {"run", "expression", "loop", "epoch", "step", "values", "num_visits", "verified", "seconds"}; null where it never
    holds.
    """
    began = time.monotonic()

    def look(one: Plan) -> Outcome:
        if not is_json:
            click.echo(
                f"looking at epochs {spelled(next(iter(one.epochs.values())))}, level {one.level}", err=True
            )
        return carry_out(one, lambda event: None, patience_secs)

    found = bisect(plan, expression, look)
    seconds = time.monotonic() - began
    loop, epoch, step = found.position or (None, None, None)
    if is_json:
        place = {"loop": loop, "epoch": epoch, "step": step}
        told: dict[str, Any] = {"run": plan.run, "expression": expression, **place, "values": found.values}
        told |= {
            "num_visits": found.num_visits,
            "verified": found.verdict.value,
            "seconds": round(seconds, 3),
        }
        print(text.to_strict_json(told))
    else:
        where = f"first at epoch {epoch}" if epoch is not None else "nowhere in the epochs asked for"
        where += f", step {step}" if step is not None else ""
        where += f" of loop {loop}" if loop is not None and plan.num_loops > 1 else ""
        click.echo(f"{expression}: {where}")
        for name, value in found.values.items():
            click.echo(f"{name} = {text.brief(value)}")
        click.echo(f"{found.num_visits} epochs visited in {text.duration(seconds)}; {found.verdict.value}")
    return 0 if found.verdict is Verdict.EXACT else 3
