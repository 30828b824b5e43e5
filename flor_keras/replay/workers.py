"""How many workers a replay gets."""

from __future__ import annotations

from dataclasses import dataclass

from flor_keras.checkpoint.memory import available_bytes
from flor_keras.environment import num_gpus, read_machine
from flor_keras.errors import UsageError
from flor_keras.replay.cost import Costs
from flor_keras.replay.plan import Plan
from flor_keras.replay.segments import places

AUTO = "auto"
_WORTH_SECS = 20.0  # of work; below it a second worker costs more than it saves


@dataclass(frozen=True)
class Machine:
    """What workers have to share."""

    num_cpus: int
    num_gpus: int
    available_bytes: int | None


def read_workers_machine() -> Machine:
    """Return what this machine has to share now."""
    return Machine(read_machine()["num_cpus"], num_gpus(), available_bytes())


def choose_workers(asked: str, plan: Plan, costs: Costs, machine: Machine) -> tuple[int, str | None]:
    """Return how many workers to start, and why they are fewer than asked, or than the machine has room for.

    Args:
      asked: a number, or "auto".

    Raises:
      UsageError: ``asked`` is neither.
    """
    if asked != AUTO and not (asked.isdigit() and int(asked)):
        raise UsageError(
            f"--workers is {asked!r}; expected a number from 1 up, or auto. Type, for example: --workers 2"
        )
    fitting = _fitting(costs, machine)
    num_places = max(1, len(places(plan)))
    if asked != AUTO:
        wanted = min(int(asked), num_places)
        few = f"memory is left for {fitting} of about {costs.worker_bytes / 1e9:.1f} GB each"
        return (wanted, None) if wanted <= fitting else (fitting, few)
    num_workers = min(machine.num_gpus or machine.num_cpus, num_places, fitting)
    if num_workers == 1 or costs.work_secs(plan) < _WORTH_SECS:
        return 1, None
    if any(loop in plan.epochs for loop in plan.from_start):
        return 1, "the loop is made again from its first epoch"
    if plan.carried is not None:
        return 1, f"the line carries something from one epoch to the next ({plan.carried})"
    return num_workers, None


def _fitting(costs: Costs, machine: Machine) -> int:
    if machine.available_bytes is None:
        return machine.num_cpus
    return max(1, machine.available_bytes // costs.worker_bytes)
