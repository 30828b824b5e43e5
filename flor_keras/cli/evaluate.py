"""`flor-keras evaluate`: metrics over any data for epochs that are over, without the program that trained."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text
from flor_keras.cli.export import choose


@click.command()
@click.argument("ref", metavar="RUN")
@click.option("--data", required=True, metavar="FILE", help="FILE.npz, FILE.csv or FILE.py:NAME.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="A name, or 'keras.metrics.AUC()'. [those compiled]",
)
@click.option("--epochs", metavar="N[,M:K]", default=":", help="Which epochs, counted from 0. [all]")
@text.loop_option
@text.model_option
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--target", metavar="NAME", help="The column of a CSV file that is y. [the last]")
@click.option(
    "--prefix", metavar="TEXT", help="Put before the names of the results. [eval_, the name of the file, _]"
)
@text.store_option
@text.json_option
def evaluate(ref: str, data: str, store: str | None, is_json: bool, **options: Any) -> None:
    """Compute metrics over data for every epoch of RUN, through the SavedModel of each. The program is not needed.

    The results join the run as hindsight values: flor-keras logs shows them. With the validation data of the run and its
    batch size they equal the recorded val_ values to the last bit, which is told.

    An .npz file has arrays x, y and perhaps sample_weight (x/NAME for an input with a name). A .py file is run.

    JSON: {"run", "replay", "values", "equal_to_recorded", "notes"}; values is a list with loop, epoch and the results.
    """
    from flor_keras.evaluation.data import read_data
    from flor_keras.evaluation.evaluate import Question, evaluate
    from flor_keras.evaluation.metrics import metric

    run = reading.run(ref, store)
    checkpoints = choose(run, options["loop"], options["epochs"], None)
    for name in options["metrics"]:
        metric(name)
    x, y, weights = read_data(data, options["target"])
    prefix = options["prefix"]
    if prefix is None:
        stem = re.sub(r"\W+", "_", Path(data.partition(":")[0]).stem)
        prefix = f"eval_{stem}_"
    metrics = [partial(metric, name) for name in options["metrics"]]
    how = (metrics, options["batch_size"], prefix, data, options["model"])
    answer = evaluate(Question(run, checkpoints, x, y, weights, *how))
    if is_json:
        described = {"run": run.id, "replay": answer.replay, "values": answer.rows}
        click.echo(
            text.to_strict_json(
                {**described, "equal_to_recorded": answer.equal_to_recorded, "notes": answer.notes}
            )
        )
        return
    headings = list(answer.rows[0])
    text.print_columns(headings, [[text.brief(row.get(name)) for name in headings] for row in answer.rows])
    for name in answer.equal_to_recorded:
        click.echo(f"{prefix}{name} equals the recorded val_{name} in every epoch, to the last bit.")
    for note in answer.notes:
        click.echo(note)
