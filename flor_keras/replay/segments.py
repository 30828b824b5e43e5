"""Dividing a plan into segments of about equal cost, each a plan of its own for one worker. Pure, no process runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flor_keras.instrument.levels import Level
from flor_keras.replay.plan import Plan

Place = tuple[int, int]  # loop, epoch
_ROUNDS = 50
_OF_EPOCHS = (Level.EPOCH.value, Level.EVAL.value, Level.STEP.value)


def places(plan: Plan) -> list[Place]:
    """Return the (loop, epoch) pairs a plan visits, in the order of training."""
    return sorted((int(loop), epoch) for loop, epochs in plan.epochs.items() for epoch in epochs)


def with_places(plan: Plan, chosen: list[Place]) -> Plan:
    """Return a plan that visits only ``chosen``."""
    epochs: dict[str, list[int]] = {}
    for loop, epoch in sorted(chosen):
        epochs.setdefault(str(loop), []).append(epoch)
    return replace(plan, epochs=epochs)


def divide(
    plan: Plan, num_workers: int, cost: Callable[[Place], float], lead_in: Callable[[Place], float]
) -> list[Plan]:
    """Divide a plan among at most ``num_workers``; the largest of their costs is about as small as it can be.

    What the program logs outside of epochs is kept by the last segment alone, which runs farthest; otherwise
    every worker would add it once more.

    Args:
      cost: seconds to visit one place.
      lead_in: seconds to get to a place where a segment begins: epochs to redo from the nearest checkpoint.
    """
    whole = places(plan)
    if num_workers <= 1 or len(whole) <= 1:
        return [plan]
    parts = _parts(whole, num_workers, cost, lead_in)
    inner = {name: level for name, level in plan.levels.items() if level in _OF_EPOCHS}
    first = replace(plan, levels=inner, is_in_every_loop=False, is_outside_kept=False)
    return [*(with_places(first, part) for part in parts[:-1]), with_places(plan, parts[-1])]


def _parts(
    whole: list[Place], limit: int, cost: Callable[[Place], float], lead_in: Callable[[Place], float]
) -> list[list[Place]]:
    """Cut the line of places: the smallest bound on a part's cost under which ``limit`` parts are enough."""
    low, high = 0.0, lead_in(whole[0]) + sum(map(cost, whole)) + 1e-9
    best = [whole]
    for _ in range(_ROUNDS):
        bound = (low + high) / 2
        parts = _filled(whole, bound, cost, lead_in)
        if len(parts) <= limit:
            best, high = parts, bound
        else:
            low = bound
    return best


def _filled(
    whole: list[Place], bound: float, cost: Callable[[Place], float], lead_in: Callable[[Place], float]
) -> list[list[Place]]:
    parts: list[list[Place]] = []
    spent = 0.0
    for place in whole:
        here = cost(place)
        if not parts or spent + here > bound:
            parts.append([])
            spent = lead_in(place)
        parts[-1].append(place)
        spent += here
    return parts
