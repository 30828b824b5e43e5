"""`flor-keras export`: any recorded epoch as a model, without the program that trained it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from flor_keras import reading
from flor_keras.cli import text
from flor_keras.errors import UsageError
from flor_keras.export import FORMATS
from flor_keras.records import Kind


@click.command()
@click.argument("ref", metavar="RUN")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--epoch", "epochs", metavar="N[,M:K]", help="Which epochs, counted from 0; 3:6 is 3, 4 and 5. [the last]"
)
@click.option("--best", metavar="NAME[:min|max]", help="The epoch with the best recorded value of NAME.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="saved_model", show_default=True)
@text.loop_option
@text.model_option
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@text.store_option
@text.json_option
def export(
    ref: str,
    out: Path,
    epochs: str | None,
    best: str | None,
    form: str,
    loop: int | None,
    model: str | None,
    overwrite: bool,
    store: str | None,
    is_json: bool,
) -> None:
    """Write the model of RUN as it was at the end of an epoch. The program is not needed.

    saved_model is for serving (TensorFlow Serving, tf.saved_model.load); keras for keras.models.load_model, training
    goes on with the optimizer's state; weights.h5 for model.load_weights; checkpoint for tf.train.Checkpoint(model=model).
    With several epochs OUT is a folder: of versions 1, 2, … as TensorFlow Serving reads them, or of one file per epoch.

    JSON: a list of {"loop", "epoch", "format", "path", "num_bytes", "needs"}.
    """
    run = reading.run(ref, store)
    chosen = choose(run, loop, epochs, best)
    paths = [out] if len(chosen) == 1 else [out / name for name in _names(chosen, form)]
    rows = [
        _written(checkpoint, path, form, overwrite, model)
        for checkpoint, path in zip(chosen, paths, strict=True)
    ]
    if is_json:
        text.print_json_rows(rows)
        return
    for row in rows:
        click.echo(
            f"epoch {row['epoch']} of loop {row['loop']}: {row['path']} ({text.size(row['num_bytes'])})"
        )
    for need in dict.fromkeys(row["needs"] for row in rows if row["needs"]):
        click.echo(need)


def _names(chosen: list[reading.Checkpoint], form: str) -> list[str]:
    if form == "saved_model":
        return [str(version) for version in range(1, len(chosen) + 1)]
    suffix = {"keras": ".keras", "weights.h5": ".weights.h5"}.get(form, "")
    return [f"epoch-{checkpoint.epoch}{suffix}" for checkpoint in chosen]


def _written(
    checkpoint: reading.Checkpoint, path: Path, form: str, is_replacing: bool, model: str | None
) -> dict[str, Any]:
    needs = checkpoint.export(path, form, is_replacing, model)
    files = [path] if path.is_file() else [at for at in path.rglob("*") if at.is_file()]
    return {
        "loop": checkpoint.loop,
        "epoch": checkpoint.epoch,
        "format": form,
        "path": str(path),
        "num_bytes": sum(at.stat().st_size for at in files),
        "needs": needs,
    }


def choose(
    run: reading.Run, loop: int | None, epochs: str | None, best: str | None
) -> list[reading.Checkpoint]:
    """Return the checkpoints at the ends of the epochs asked for, in order; the last one of all by default.

    Raises:
      UsageError: there is no such loop, epoch or value.
    """
    if epochs is not None and best is not None:
        raise UsageError(f"--epoch {epochs} and --best {best} both choose an epoch. Give one of them.")
    ends = [at for at in run.checkpoints if at.kind is Kind.EPOCH_END and loop in (None, at.loop)]
    if not ends:
        where = f"loop {loop} of run {run.id}" if loop is not None else f"run {run.id}"
        raise UsageError(
            f"There is no checkpoint of the end of an epoch in {where}. flor-keras show {run.id} lists what there is."
        )
    if best is not None:
        return [_best(run, ends, best, loop)]
    if epochs is None:
        return [ends[-1]]
    newest = {at.epoch: at for at in ends}
    wanted = parse_epochs(epochs, sorted(newest))
    missing = [epoch for epoch in wanted if epoch not in newest]
    if missing:
        raise UsageError(
            f"Run {run.id} has no checkpoint of epoch {missing[0]}; epochs count from 0, and it has {_ranges(sorted(newest))}. "
            f"Choose among them, such as --epoch {max(newest)}."
        )
    return [newest[epoch] for epoch in wanted]


def parse_epochs(text: str, known: list[int]) -> list[int]:
    """Return the epochs that `N[,M:K]` means, in order; an open end of a range is that of ``known``."""
    wanted: set[int] = set()
    for part in text.split(","):
        single, span = re.fullmatch(r"\s*(\d+)\s*", part), re.fullmatch(r"\s*(\d*):(\d*)\s*", part)
        if single:
            wanted.add(int(single[1]))
        elif span:
            first, last = int(span[1] or known[0]), int(span[2] or known[-1] + 1)
            wanted.update(epoch for epoch in known if first <= epoch < last)
        else:
            raise UsageError(f"{part!r} is no epoch. Write numbers and ranges, such as 0,3:6 (3, 4 and 5).")
    if not wanted:
        raise UsageError(
            f"--epoch {text} means no recorded epoch; there are {_ranges(known)}. Choose among them, such as --epoch {known[-1]}."
        )
    return sorted(wanted)


def _ranges(epochs: list[int]) -> str:
    """Return epochs in short: 0-4, 7."""
    found: list[list[int]] = []
    for epoch in epochs:
        if found and epoch == found[-1][1] + 1:
            found[-1][1] = epoch
        else:
            found.append([epoch, epoch])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def best_epochs(run: reading.Run, best: str) -> tuple[dict[tuple[int, int], float], bool]:
    """Return the values of `NAME[:min|max]` by (loop, epoch), and whether larger is better."""
    name, _, way = best.rpartition(":") if best.endswith((":min", ":max")) else (best, "", "")
    is_max = way == "max" if way else _is_larger_better(name)
    values = {}
    for entry in run.entries(name):
        loop, epoch, step = entry.position
        if loop is not None and epoch is not None and step is None and isinstance(entry.value, int | float):
            values[loop, epoch] = float(entry.value)
    return values, is_max


def _is_larger_better(name: str) -> bool:
    """Guess as Keras's callbacks do with mode "auto"."""
    return any(word in name for word in ("acc", "auc", "f1", "fmeasure", "precision", "recall", "iou"))


def _best(
    run: reading.Run, ends: list[reading.Checkpoint], best: str, loop: int | None
) -> reading.Checkpoint:
    values, is_max = best_epochs(run, best)
    at = {(end.loop, end.epoch): end for end in ends}
    ranked = [(value, key) for key, value in values.items() if value == value and loop in (None, key[0])]
    if not ranked:
        raise UsageError(
            f"Run {run.id} has no value of {best.partition(':')[0]!r} at the end of an epoch, only at single steps or outside "
            f"of its loops. Give --best a name that ends of epochs have, such as loss; flor-keras show {run.id} lists the names."
        )
    value, key = (max if is_max else min)(ranked, key=lambda item: item[0])
    if key not in at:
        raise UsageError(
            f"The best {best} of run {run.id} is that of epoch {key[1]} ({value:g}), which has no checkpoint. "
            f"Choose an epoch that has one: --epoch with {_ranges(sorted({end.epoch for end in ends}))}."
        )
    return at[key]
