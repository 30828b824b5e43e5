"""`flor-keras tensorboard`: runs as event files."""

from __future__ import annotations

from pathlib import Path

import click

from flor_keras import reading
from flor_keras.cli import text


@click.command()
@click.argument("refs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--logdir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder to write; a run gets one in it.",
)
@text.store_option
def tensorboard(refs: tuple[str, ...], logdir: Path, store: str | None) -> None:
    """Write what RUNs logged, recorded or in hindsight, as event files for TensorBoard.

    Numbers become scalars, arrays histograms or, where they look like images, images. Steps count through all of a run.
    """
    from flor_keras.pictures.tensorboard import write_events

    for run in {found.id: found for found in (reading.run(ref, store) for ref in refs)}.values():
        written = write_events(run, logdir)
        click.echo(f"{run.id}: {sum(written.values())} values of {len(written)} names")
    click.echo(f"See them with: tensorboard --logdir {logdir}")
