"""Tables of the benchmarks, on standard output and as sections of a page."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

_PACKAGES = ("flor-keras", "tensorflow", "keras", "numpy", "orbax-checkpoint", "mlflow-skinny", "flordb")
_TITLE = """# Benchmarks

What recording and replaying cost, measured by the programs in `benchmarks/`. `make bench` writes this page, `make
bench-quick` prints the same tables for small sizes. Everything one table compares was measured in the same
minutes on the same machine, turn by turn, so read the ratios; another machine has other absolute figures.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a markdown table; every column but the first is aligned to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [_line(head, widths), "|".join(["", *_rules(widths), ""]), *(_line(row, widths) for row in rows)]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (text.rjust(width) for text, width in zip(row, widths, strict=True))
    return f"| {' | '.join([first.strip().ljust(widths[0]), *others])} |"


def _rules(widths: Sequence[int]) -> list[str]:
    return ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]


def verdicts(targets: Sequence[tuple[str, bool | None, str]]) -> str:
    """Return the targets, given as (what must hold, whether it does, the figures), one line each."""
    words = {True: "PASS", False: "FAIL", None: "not measured"}
    return "\n".join(f"- {words[holds]}: {what} ({figures})" for what, holds, figures in targets)


def machine() -> str:
    """Describe the machine and the versions in a paragraph."""
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return (
        f"{time.strftime('%Y-%m-%d')}, {len(os.sched_getaffinity(0))} cores ({_cpu()}), "
        f"{_memory_gb():.0f} GB of memory, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, {', '.join(versions)}, load {os.getloadavg()[0]:.1f}."
    )


def _cpu() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def publish(name: str, title: str, text: str, page: Path | None) -> None:
    """Print a section, and put it in its place on ``page`` if one is given."""
    print(f"\n## {title}\n\n{text}\n", flush=True)
    if page is None:
        return
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    section = f"{begin}\n## {title}\n\n{text}\n{end}"
    page.parent.mkdir(parents=True, exist_ok=True)
    old = page.read_text(encoding="utf-8") if page.exists() else _TITLE
    new, num_found = re.subn(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: section, old, flags=re.DOTALL)
    page.write_text(new if num_found else f"{old.rstrip()}\n\n{section}\n", encoding="utf-8")
