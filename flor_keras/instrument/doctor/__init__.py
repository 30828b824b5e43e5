"""Say beforehand which parts of a program can be replayed exactly. The program is read, not run.

``rules``         the table: what is found, why it matters, what to type instead
``randomness``    finders of random numbers that another process does not draw again
``surroundings``  finders of what comes from folders, clocks, threads, hash seeds, devices
``callbacks``     finders of state that callbacks keep where no checkpoint reaches
``code``          what finders ask of the source
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from flor_keras.instrument.doctor.code import Code, Surroundings
from flor_keras.instrument.doctor.rule import EXACT, NOT_EXACT, Finding, Part, Rule, place
from flor_keras.instrument.doctor.rules import FINE, FLOR_SEED, PROGRAM_SEED, RULES
from flor_keras.instrument.scopes import Scope

__all__ = ["EXACT", "NOT_EXACT", "Finding", "Part", "Rule", "Surroundings", "diagnose", "with_fine_parts"]


def diagnose(script: str, sources: Mapping[str, str], around: Surroundings) -> list[Finding]:
    """List what the rules find in a program, by part, and one line for each part in which they find nothing.

    Raises ``UsageError`` that names file and line when a source is not valid Python.
    """
    code = Code(script, sources, around)
    found = [finding for rule in RULES for finding in rule.findings(code)]
    return with_fine_parts([*found, *_seeds(code, found), *_loops(code, found)])


def with_fine_parts(found: list[Finding]) -> list[Finding]:
    """Order findings by part and add a line for each part that has none."""
    ordered = []
    for part in Part:
        here = sorted((f for f in found if f.part is part), key=_by_place)
        ordered += here or [Finding(part, EXACT, "", FINE[part])]
    return ordered


def _by_place(finding: Finding) -> tuple[str, int]:
    path, _, line = finding.where.split(",")[0].rpartition(":")
    return path, int(line) if line.isdigit() else 0


def _seeds(code: Code, found: list[Finding]) -> list[Finding]:
    """Say what the program's seeds do, where nothing is wrong with them."""
    if any(finding.part is Part.SEEDS for finding in found):
        return []
    for calls, why in ((list(code.flor_calls("seed")), FLOR_SEED), (code.seeds, PROGRAM_SEED)):
        if calls:
            return [Finding(Part.SEEDS, EXACT, _joined(calls), why)]
    return []


def _loops(code: Code, found: list[Finding]) -> list[Finding]:
    """List the program's `fit` calls, where there are several."""
    if len(code.fits) < 2 or any(finding.part is Part.WEIGHTS for finding in found):
        return []
    why = f"{FINE[Part.WEIGHTS]}; each fit is a loop, earlier ones are skipped through their final state"
    return [Finding(Part.WEIGHTS, EXACT, _joined(code.fits), why)]


def _joined(places: list[tuple[Scope, ast.Call]]) -> str:
    ordered = sorted(places, key=lambda at: (at[0].path, at[1].lineno))
    return ", ".join(dict.fromkeys(place(*at) for at in ordered))
