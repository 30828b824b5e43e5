"""What of a machine decides the last bit of a number: read from the system, and compared with a record.

Runs in every process, and imports neither TensorFlow nor NumPy.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

HASH_SEED = "PYTHONHASHSEED"
PACKAGES = ("tensorflow", "keras", "numpy", "flor-keras")
CHECKPOINT_EVERY = "FLOR_CHECKPOINT_EVERY"
_KEPT_VARIABLES = (HASH_SEED, CHECKPOINT_EVERY, "TF_", "CUDA_", "OMP_", "XLA_", "KERAS_", "OPENBLAS_", "MKL_")
_FOREIGN = ("TF_CLI_", "TF_VAR_", "TF_TOKEN_")  # Terraform's, and secret at times
# These say how much is printed, where things lie, and how often to checkpoint.
_INDIFFERENT = (
    "TF_CPP_",
    "CUDA_CACHE",
    "CUDA_HOME",
    "CUDA_PATH",
    "KERAS_HOME",
    HASH_SEED,
    CHECKPOINT_EVERY,
)
# TensorFlow, oneDNN and Eigen choose their kernels by these.
_CPU_FEATURES = (
    "sse4_1",
    "sse4_2",
    "avx",
    "avx2",
    "avx_vnni",
    "avx512",
    "amx_",
    "fma",
    "f16c",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
)
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Difference:
    """What was otherwise when a run was recorded, as a sentence, and what to type to have it back."""

    sentence: str
    change: str


def read_environment() -> dict[str, Any]:
    """Return the versions, environment variables and features of this machine that can decide results.

    How often to checkpoint is one of the variables: a run that is resumed goes on as it was recorded.
    """
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    variables = {
        key: value
        for key, value in os.environ.items()
        if key.startswith(_KEPT_VARIABLES) and not key.startswith(_FOREIGN)
    }
    return {"versions": versions, "variables": variables, "machine": read_machine()}


def read_machine() -> dict[str, Any]:
    """Return the machine's features; ``num_cpus`` is how many threads TensorFlow uses by default."""
    described = _cpuinfo()
    flags = (described.get("flags") or described.get("Features") or "").split()
    return {
        "architecture": platform.machine(),
        "num_cpus": num_cpus(),
        "cpu": described.get("model name"),
        "cpu_features": sorted(flag for flag in flags if flag.startswith(_CPU_FEATURES)),
        "num_gpus": num_gpus(),
    }


def num_gpus() -> int:
    """Return how many NVIDIA devices a program started now would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if visible is None:
        return present
    return min(present, sum(not word.strip().startswith("-") for word in visible.split(",") if word.strip()))


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """List what differs between a run's environment and that of now; what was not recorded does not count."""
    return [
        *_versions(recorded.get("versions", {}), now["versions"]),
        *_variables(recorded.get("variables"), now["variables"]),
        *_machines(recorded.get("machine", {}), now["machine"]),
    ]


def _versions(recorded: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for name in ("python", *PACKAGES[:3]):
        then, current = recorded.get(name), now.get(name)
        if then is not None and then != current:
            install = f"pip install {name}=={then}" if name != "python" else f"replay it with Python {then}"
            yield Difference(f"recorded with {name} {then}, here is {current or 'none'}", install)


def _variables(recorded: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted({*recorded, *now}) if recorded is not None else ():
        then, current = (recorded or {}).get(name), now.get(name)
        if then != current and not name.startswith(_INDIFFERENT):
            set_again = f"unset {name}" if then is None else f"export {name}={then}"
            yield Difference(f"recorded with {name} {_told(then)}, here it is {_told(current)}", set_again)


def _told(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def _machines(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    same = "replay it on a machine like the one that recorded it"
    if _differ(recorded, now, "architecture"):
        yield Difference(f"recorded on {recorded['architecture']}, this is {now['architecture']}", same)
    elif _differ(recorded, now, "cpu_features"):
        then, current = set(recorded["cpu_features"]), set(now["cpu_features"])
        words = [f"without {', '.join(sorted(then - current))}"] if then - current else []
        words += [f"with {', '.join(sorted(current - then))}"] if current - then else []
        yield Difference(f"this CPU is {' and '.join(words)} compared with the one that recorded", same)
    if _differ(recorded, now, "num_cpus"):
        then = recorded["num_cpus"]
        yield Difference(
            f"recorded with {_counted(then, 'CPU')}, here {_are(now['num_cpus'])}: "
            "TensorFlow divides its sums by threads",
            f"replay it under: taskset -c 0-{then - 1}" if now["num_cpus"] > then else same,
        )
    if _differ(recorded, now, "num_gpus"):
        then, current = recorded["num_gpus"], now["num_gpus"]
        hide = "export CUDA_VISIBLE_DEVICES=-1" if not then else same
        yield Difference(f"recorded with {_counted(then, 'GPU')}, here {_are(current)}", hide)


def _differ(recorded: Mapping[str, Any], now: Mapping[str, Any], name: str) -> bool:
    return recorded.get(name) is not None and recorded[name] != now[name]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


def _cpuinfo() -> dict[str, str]:
    """Return the first processor's lines; nothing where the system has no such file."""
    try:
        first = _CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def num_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
