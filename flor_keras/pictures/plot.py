"""Curves of logged numbers, one panel a name; what was computed in hindsight is drawn apart from what was recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flor_keras.errors import UsageError
from flor_keras.pictures.timeline import Timeline
from flor_keras.reading import Run
from flor_keras.records import Entry

_PANEL_INCHES = (8.0, 2.5)
_MARKED_POINTS = 80  # more markers than that hide the line
_COLORS = ("#2a6f97", "#d1495b", "#3a7d44", "#8d5a97", "#c77d0a", "#4a4e69")
_GRAY = "#5c6370"


def plot(runs: Sequence[Run], names: Sequence[str], path: Path) -> None:
    """Draw the numbers logged under ``names`` in ``runs`` into a picture; its format is that of the file's name.

    Raises:
      UsageError: matplotlib is not there, a name has no numbers, or the file's ending is none of a picture.
    """
    pyplot = _pyplot()
    lines = [[_lines(run, name) for run in runs] for name in names]
    for name, of_runs in zip(names, lines, strict=True):
        if not any(any(pair) for pair in of_runs):
            raise UsageError(
                f"Nothing logged under {name!r} is a number, so there is no curve. See: flor-keras logs {name}"
            )
    width, height = _PANEL_INCHES
    with pyplot.rc_context({"font.size": 9, "axes.titlesize": 10}):
        figure, axes = pyplot.subplots(
            len(names),
            1,
            sharex=True,
            squeeze=False,
            figsize=(width, 0.7 + height * len(names)),
            layout="constrained",
        )
        for axis, name, of_runs in zip(axes[:, 0], names, lines, strict=True):
            _draw_panel(axis, name, runs, of_runs)
        axes[-1, 0].set_xlabel("epoch (from 0; its steps lie before it)")
        figure.legend(handles=_legend(runs, lines), loc="outside upper center", ncols=4, frameon=False)
        try:
            figure.savefig(path, dpi=150)
        except ValueError as error:
            raise UsageError(
                f"Cannot write {path}: {error}. Give a file such as out.png or out.pdf."
            ) from error
        finally:
            pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError(
            "Plots need matplotlib, which is not installed. Type: pip install matplotlib"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


Points = tuple[list[float], list[float]]


def _lines(run: Run, name: str) -> tuple[Points | None, Points | None]:
    """Return the recorded and the hindsight points of a name; of several at one place the last."""
    if name not in run.names:
        return None, None
    kept = [run.entries(name, recorded=is_recorded) for is_recorded in (True, False)]
    timeline = Timeline(run, [*kept[0], *kept[1]])
    return _points(kept[0], timeline), _points(kept[1], timeline)


def _points(entries: Sequence[Entry], timeline: Timeline) -> Points | None:
    found = {timeline.epoch(e.position): float(e.value) for e in entries if _is_number(e.value)}
    return (sorted(found), [found[at] for at in sorted(found)]) if found else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (
        getattr(value, "shape", None) == () and value.dtype.kind in "iufb"
    )


def _draw_panel(
    axis: Any, name: str, runs: Sequence[Run], of_runs: Sequence[tuple[Points | None, Points | None]]
) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_title(name, loc="left", fontweight="bold")
    axis.grid(True, color="#e6e8eb", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for at, (run, (recorded, hindsight)) in enumerate(zip(runs, of_runs, strict=True)):
        color = _COLORS[at % len(_COLORS)]
        if recorded is not None:
            _draw(axis, recorded, color, is_hindsight=False)
        if hindsight is not None:
            _draw(axis, hindsight, color, is_hindsight=True)
        if len(runs) == 1:
            for border in Timeline(run, run.entries(name)).borders:
                axis.axvline(border, color="#b6bac2", linewidth=1, linestyle=(0, (2, 2)), zorder=0)


def _draw(axis: Any, points: Points, color: str, is_hindsight: bool) -> None:
    is_marked = len(points[0]) <= _MARKED_POINTS
    style = {
        "color": color,
        "linewidth": 1.4 if is_marked else 1.0,
        "linestyle": (0, (4, 2) if is_marked else (5, 1.2)) if is_hindsight else "-",
        "marker": "o" if is_marked else None,
        "markersize": 5 if is_hindsight else 4,
        "markerfacecolor": "white" if is_hindsight else color,
        "zorder": 3 if is_hindsight else 2,
    }
    axis.plot(*points, **style)
    lost = [at for at, value in zip(*points, strict=True) if not math.isfinite(value)]
    if lost:  # a gap in a line is easily overlooked
        low = axis.get_xaxis_transform()
        axis.plot(lost, [0.03] * len(lost), "x", color=color, markersize=5, transform=low, clip_on=False)


def _legend(runs: Sequence[Run], lines: Sequence[Sequence[tuple[Points | None, Points | None]]]) -> list[Any]:
    from matplotlib.lines import Line2D

    found = [
        Line2D([], [], color=_COLORS[at % len(_COLORS)], lw=3, label=_title(run))
        for at, run in enumerate(runs)
    ]
    flat = [pair for of_runs in lines for pair in of_runs]
    if any(pair[0] for pair in flat):
        found.append(Line2D([], [], color=_GRAY, lw=1.4, marker="o", markersize=4, label="recorded"))
    if any(pair[1] for pair in flat):
        dashed: dict[str, Any] = {
            "ls": (0, (4, 2)),
            "marker": "o",
            "markersize": 5,
            "markerfacecolor": "white",
        }
        found.append(Line2D([], [], color=_GRAY, lw=1.4, label="in hindsight", **dashed))
    if any(points and not all(map(math.isfinite, points[1])) for pair in flat for points in pair):
        found.append(Line2D([], [], color=_GRAY, ls="", marker="x", markersize=5, label="NaN or infinite"))
    return found


def _title(run: Run) -> str:
    return f"{run.name} ({run.id})" if run.name else run.id
