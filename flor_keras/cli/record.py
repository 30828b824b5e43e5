"""`flor-keras record`: run a program and record it, without a change to it."""

from __future__ import annotations

import json
import os
import sys

import click

from flor_keras.checkpoint.schedule import parse_every
from flor_keras.cli import programs
from flor_keras.environment import CHECKPOINT_EVERY, HASH_SEED
from flor_keras.errors import UsageError
from flor_keras.session import ARGS_VARIABLE

_NAMED = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command(context_settings=_NAMED)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS...]")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as with python -m.")
@click.option("--name", metavar="NAME", help="A name for the run, to find it by.")
@click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="A value for flor.arg(NAME).")
@click.option(
    "--store",
    metavar="PATH",
    help="The store to record into; without it FLOR_STORE, else .flor at the top of SCRIPT's git work tree, "
    "else beside it.",
)
@click.option(
    "--checkpoint-every",
    "every",
    metavar="OFTEN",
    help="auto, epoch, a number of epochs, steps=N or seconds=S; over what SCRIPT says.",
)
@click.pass_context
def record(
    context: click.Context,
    words: tuple[str, ...],
    is_module: bool,
    name: str | None,
    args: tuple[str, ...],
    store: str | None,
    every: str | None,
) -> int:
    """Run SCRIPT and record it: every fit, and the main loops of its own training.

    The script and its files stay as they are. Seeds are set, and recorded, where the program sets none. At the end it is
    told what was recorded, and what was left as it is, and why.
    """
    given_words = [*words, *context.obj.script_args]
    what, argv = given_words[0], given_words[1:]
    environment = {HASH_SEED: "0", **os.environ}
    if every is not None:
        environment[CHECKPOINT_EVERY] = str(parse_every(every, "--checkpoint-every"))
    if args:
        given = dict(json.loads(os.environ.get(ARGS_VARIABLE) or "{}"))
        environment[ARGS_VARIABLE] = json.dumps({**given, **dict(map(_pair, args))})
    kind = "-m" if is_module else "-f"
    program = [sys.executable, "-m", "flor_keras.hands_free", store or "", name or "", kind, what, *argv]
    return programs.call(program, environment)


def _pair(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise UsageError(f"--arg {given} has no value. Write --arg NAME=VALUE, for example --arg lr=0.01.")
    return name, value
