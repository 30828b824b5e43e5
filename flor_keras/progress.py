"""Progress bars: on a terminal, or in the output of a notebook's cell; nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def bars() -> Progress:
    """Return bars that say how far each of their tasks is and how long it still takes; use it as a context.

    On a terminal they vanish at the end, in a notebook they stay. There rich needs ipywidgets; without it nothing is shown.
    """
    from importlib.util import find_spec

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    is_seen = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        console=console,
        transient=not console.is_jupyter,
        disable=not is_seen,
    )
