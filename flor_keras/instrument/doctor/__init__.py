"""Say beforehand which parts of a program can be replayed exactly. The program is read, not run.

``rules``         the table: what is found, why it matters, what to type instead
``randomness``    finders of random numbers that another process does not draw again
``surroundings``  finders of what comes from folders, clocks, threads, hash seeds, devices
``callbacks``     finders of state that callbacks keep where no checkpoint reaches
``code``          what finders ask of the source
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from flor_keras.instrument.doctor.code import Code, Surroundings
from flor_keras.instrument.doctor.rule import EXACT, NOT_EXACT, Finding, Part, Rule, place
from flor_keras.instrument.doctor.rules import FINE, FLOR_SEED, NO_LOOP, OWN_LOOPS, PROGRAM_SEED, RULES
from flor_keras.instrument.scopes import Scope

__all__ = ["EXACT", "NOT_EXACT", "Finding", "Part", "Rule", "Surroundings", "diagnose", "with_fine_parts"]


def diagnose(
    script: str, sources: Mapping[str, str], around: Surroundings, is_of_run: bool = False
) -> list[Finding]:
    """List what the rules find in a program, by part, and one line for each part in which they find nothing.

    Args:
      is_of_run: it is the source of a run, whose record tells which loops it has.

    Raises ``UsageError`` that names file and line when a source is not valid Python.
    """
    code = Code(script, sources, around)
    rules = [rule for rule in RULES if not (is_of_run and rule.name == NO_LOOP)]
    found = [finding for rule in rules for finding in rule.findings(code)]
    own = [] if is_of_run else _own_loops(code, found)
    return with_fine_parts([*found, *_seeds(code, found), *_loops(code, found), *own])


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


def _own_loops(code: Code, found: list[Finding]) -> list[Finding]:
    """List the loops that train by themselves, where the program has no others, and say how they are recorded."""
    if code.is_marked or any(finding.part is Part.WEIGHTS for finding in found):
        return []
    places = [(loop.scope, loop.node) for loop in code.own_loops[0]]
    return [Finding(Part.WEIGHTS, EXACT, _joined(places), OWN_LOOPS)]


def _joined(places: Sequence[tuple[Scope, ast.Call | ast.For | ast.While]]) -> str:
    ordered = sorted(places, key=lambda at: (at[0].path, at[1].lineno))
    return ", ".join(dict.fromkeys(place(*at) for at in ordered))
