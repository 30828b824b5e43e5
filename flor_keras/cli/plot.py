"""`flor-keras plot`: curves of what was logged."""

from __future__ import annotations

from pathlib import Path

import click

from flor_keras import reading
from flor_keras.cli import text


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--run", "refs", multiple=True, metavar="REF", help="Run to draw; repeatable. [latest]")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Picture: .png, .pdf, .svg.",
)
@text.store_option
def plot(names: tuple[str, ...], refs: tuple[str, ...], out: Path, store: str | None) -> None:
    """Draw the numbers logged under NAMEs, one panel each.

    Solid lines were recorded while training, dashed ones were computed in hindsight.
    """
    from flor_keras.pictures.plot import plot as draw

    runs = [reading.run(ref, store) for ref in dict.fromkeys(refs or ("latest",))]
    draw(runs, list(dict.fromkeys(names)), out)
    click.echo(f"{out}: {', '.join(names)} of {', '.join(run.id for run in runs)}")
