"""`flor-keras doctor`: what of a program or a run can be replayed exactly, and what to change."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from flor_keras.cli import text
from flor_keras.environment import read_environment
from flor_keras.errors import UsageError
from flor_keras.instrument.doctor import EXACT, NOT_EXACT, Finding, Surroundings, diagnose
from flor_keras.instrument.sources import imported_sources, project_root
from flor_keras.store.database import Store
from flor_keras.store.layout import find_store, given_store

ALL_EXACT, NOT_ALL_EXACT = 0, 3


@click.command()
@click.argument("subject", metavar="SCRIPT|RUN")
@text.store_option
@text.json_option
def doctor(subject: str, store: str | None, is_json: bool) -> int:
    """Say which parts of SCRIPT or a recorded RUN can be replayed exactly, and what to change for the rest.

    The program is read, not run. Of a run, what was recorded is looked at too, and what differs here and
    now.

    JSON: {"subject", "parts": [{"part", "verdict", "where", "why", "change"}]}.
    Exit status: 0 all is exact, 2 wrong use, 3 something may not be.
    """
    is_script = subject.endswith(".py") or Path(subject).is_file()
    name, found = _of_script(Path(subject)) if is_script else _of_run(subject, store)
    if is_json:
        print(text.to_strict_json({"subject": name, "parts": [_as_json(finding) for finding in found]}))
    else:
        _print(name, found)
    return ALL_EXACT if all(finding.verdict == EXACT for finding in found) else NOT_ALL_EXACT


def _of_script(script: Path) -> tuple[str, list[Finding]]:
    if not script.is_file():
        raise UsageError(f"There is no file {script}. Give a script, or a run that flor-keras runs lists.")
    now = read_environment()
    around = Surroundings(now["variables"], now["machine"]["num_gpus"])
    name = script.resolve().relative_to(project_root(script)).as_posix()
    return str(script), diagnose(name, imported_sources(script), around)


def _of_run(ref: str, store: str | None) -> tuple[str, list[Finding]]:
    from flor_keras.replay.prospects import (
        diagnose_run,
    )  # loads NumPy, which no other command should wait for

    with Store.open(given_store(store) if store else find_store(Path.cwd())) as opened:
        run = opened.run(ref)
        return run.id, diagnose_run(opened, run)


def _as_json(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "part": finding.part.value}


def _print(name: str, found: list[Finding]) -> None:
    """Print a line for each part that is exact; for the others also why, and what to change."""
    width = max(len(finding.part.value) for finding in found)
    previous = None
    for finding in found:
        part = finding.part.value if finding.part is not previous else ""
        previous = finding.part
        is_exact = finding.verdict == EXACT
        words = [finding.verdict, finding.where, finding.why if is_exact else ""]
        click.echo(f"{part:<{width}}  {'  '.join(filter(None, words))}")
        for line in () if is_exact else (finding.why, f"change: {finding.change}"):
            click.echo(f"{'':<{width}}    {line}")
    click.echo(f"\n{name}: {summary(found)}")


def summary(found: list[Finding]) -> str:
    """Say in one line how a diagnosis came out."""
    wrong = sum(finding.verdict == NOT_EXACT for finding in found)
    doubtful = sum(finding.verdict not in (EXACT, NOT_EXACT) for finding in found)
    if not wrong and not doubtful:
        return "all parts can be replayed exactly"
    counts = [f"{wrong} not exact"] if wrong else []
    counts += [f"{doubtful} exact under a condition"] if doubtful else []
    return f"{', '.join(counts)}; the rest can be replayed exactly"
