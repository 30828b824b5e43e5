"""The command `flor-keras`: parse, one library call, print. Each command has a file of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import click

from flor_keras import __version__
from flor_keras.cli.doctor import doctor
from flor_keras.cli.evaluate import evaluate
from flor_keras.cli.export import export
from flor_keras.cli.keeping import du, prune, verify
from flor_keras.cli.logs import logs
from flor_keras.cli.plot import plot
from flor_keras.cli.record import record
from flor_keras.cli.replay import replay
from flor_keras.cli.resume import resume
from flor_keras.cli.runs import runs
from flor_keras.cli.show import show
from flor_keras.cli.tensorboard import tensorboard
from flor_keras.errors import FlorError

# Commands that hand what follows `--` to the script they run.
SCRIPT_COMMANDS = ("record", "replay", "resume")


@dataclass(frozen=True, slots=True)
class Invocation:
    """What click does not parse: `click.get_current_context().obj` of every command."""

    script_args: tuple[str, ...] = ()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flor-keras")
@click.pass_context
def cli(context: click.Context) -> None:
    """Hindsight logging for Keras 3: log a number after the training run is over."""
    if context.obj.script_args and context.invoked_subcommand not in SCRIPT_COMMANDS:
        raise click.UsageError(
            f"{context.invoked_subcommand} takes no arguments after --: {' '.join(context.obj.script_args)}"
        )


for _command in (
    plot,
    tensorboard,
    runs,
    show,
    logs,
    record,
    replay,
    resume,
    doctor,
    export,
    evaluate,
    prune,
    verify,
    du,
):
    cli.add_command(_command)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    own, script_args = split_argv(sys.argv[1:] if argv is None else argv)
    try:
        # Not cli.main(), which ends the process by itself when the reader of a pipe leaves.
        with cli.make_context("flor-keras", own, obj=Invocation(script_args)) as context:
            status = cli.invoke(context)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except FlorError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_status
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.exceptions.Exit as done:  # --help, --version, context.exit()
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python flushes again at exit, so give it somewhere to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def split_argv(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split at the first `--`: ours before it, the script's after it."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], tuple(argv[at + 1 :])
