"""`flor-keras resume`: go on with a run that was interrupted or killed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from flor_keras.cli import programs, text
from flor_keras.environment import CHECKPOINT_EVERY
from flor_keras.errors import UsageError
from flor_keras.records import Status
from flor_keras.session import ARGS_VARIABLE
from flor_keras.store.database import Store
from flor_keras.store.layout import find_store, given_store


@click.command()
@click.argument("ref", default="latest", metavar="[RUN]")
@text.store_option
@click.pass_context
def resume(context: click.Context, ref: str, store: str | None) -> int:
    """Run the program of RUN again and go on from its last checkpoint, in the same run.

    Loops that were finished are skipped. The run ends as it would have without the interruption. Arguments after --
    go to the program in place of the recorded ones.
    """
    location = (given_store(store) if store else find_store(Path.cwd())).resolve()
    with Store.open(location) as opened:
        run = opened.run(ref)
        args = opened.args(run.id)
    if run.status in (Status.RUNNING, Status.FINISHED):
        raise UsageError(
            f"Run {run.id} is {run.status.value}; only an interrupted, failed or killed run can be resumed."
        )
    if run.script is None or not Path(run.script).is_file():
        raise UsageError(f"The script of run {run.id} is gone: {run.script}. Put it back and try again.")
    argv = context.obj.script_args or run.argv
    environment = {**os.environ, **run.environment.get("variables", {}), ARGS_VARIABLE: json.dumps(args)}
    if os.environ.get(CHECKPOINT_EVERY):  # asked for now
        environment[CHECKPOINT_EVERY] = os.environ[CHECKPOINT_EVERY]
    program = [sys.executable, "-m", "flor_keras.resuming", str(location), run.id, *argv]
    return programs.call(program, environment, run.cwd if Path(run.cwd).is_dir() else None)
