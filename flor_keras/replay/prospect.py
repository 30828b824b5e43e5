"""A plan with its prospects: on how many workers, divided how, in what time. Made without TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flor_keras.replay.cost import Costs, costs_of
from flor_keras.replay.plan import Plan
from flor_keras.replay.segments import divide
from flor_keras.replay.workers import choose_workers, read_workers_machine
from flor_keras.store.database import Store


@dataclass(frozen=True)
class Prospect:
    """What carrying out a plan will look like."""

    plan: Plan
    num_workers: int
    why: str | None  # the workers are fewer than asked for
    segments: list[Plan]
    costs: Costs
    expected_secs: float


def foresee(store: Store, plan: Plan, workers: str) -> Prospect:
    """Decide on the number of workers (``workers``: a number or "auto") and estimate what the plan takes.

    Raises:
      UsageError: ``workers`` is neither.
    """
    costs = costs_of(store, plan)
    num_workers, why = choose_workers(workers, plan, costs, read_workers_machine())
    segments = divide(plan, num_workers, costs.of_place, costs.of_lead_in)
    expected_secs = costs.expected_secs(segments)
    return Prospect(
        replace(plan, expected_secs=expected_secs), len(segments), why, segments, costs, expected_secs
    )
