"""The replay worker: a process that runs a recorded program again. Started as ``python -m flor_keras.replay.worker``.

Arguments: the plan as a JSON file, the number of the replay, a scratch folder, and the descriptor events go to, one
JSON object a line. The last event is ``{"event": "end", …}``. The program's own output goes wherever the standard
streams of this process lead; standard input is closed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from flor_keras import hands_free, origin, session
from flor_keras.replay import guard
from flor_keras.replay.cost import measured
from flor_keras.replay.guard.quiet import quiet_program
from flor_keras.replay.plan import Plan
from flor_keras.replay.replayer import ReplayDone, Replayer
from flor_keras.store import layout
from flor_keras.store.process import age_secs

_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> None:
    """Run the program the plan names and tell what happened; ends the process."""
    is_forked = "tensorflow" in sys.modules
    if not is_forked:
        die_with(os.getppid())
    began = time.monotonic() - age_secs()
    plan_path, replay, scratch, descriptor = words
    events = os.fdopen(int(descriptor), "w", buffering=1)
    told: list[tuple[float, dict[str, Any]]] = []

    def tell(event: dict[str, Any]) -> None:
        told.append((time.monotonic(), event))
        events.write(json.dumps(event) + "\n")

    plan = Plan(**json.loads(Path(plan_path).read_text(encoding="utf-8")))
    watch = None
    if not plan.allow_writes:
        allowed = [Path(plan.store), Path(scratch)]
        watch = guard.install(Path(scratch), allowed)
        guard.confine_writes(allowed)
    replayer = Replayer(plan, int(replay), tell)
    replayer.suspect_environment()
    session.begin(replayer)
    quiet_program()
    if not plan.is_hands_free:  # there everything follows from the recorded seed
        origin.restore_on_import(layout.run_folder(Path(plan.store), plan.run))
    outcome = _run(plan)
    try:
        replayer.flush()
    except Exception as error:  # noqa: BLE001 - the report says so
        outcome = outcome or f"{type(error).__name__}: {error}"
    diverted = {} if watch is None else {"diverted": watch.diverted, "refused": watch.refused}
    timings = {**measured(told, began, is_forked), "peak_bytes": _peak_bytes()}
    tell({"event": "end", "error": outcome, **replayer.outcome(), **diverted, "timings": timings})
    sys.stdout.flush()
    sys.stderr.flush()
    events.flush()
    os._exit(0 if outcome is None else 1)


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, even by SIGKILL; nobody would read what it finds."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(70)


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _run(plan: Plan) -> str | None:
    """Run the program; return what went wrong, None if nothing did."""
    if os.path.isdir(plan.cwd):
        os.chdir(plan.cwd)
    sys.argv = [plan.script, *plan.argv]
    try:
        if plan.is_hands_free:
            target = hands_free.Target(Path(plan.script), plan.module)
            hands_free.run_program(target, hands_free.prepare(target, plan.argv))
        elif plan.module is not None and plan.module != "__main__":
            sys.path.insert(0, plan.cwd)
            runpy.run_module(plan.module, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(plan.script))
            runpy.run_path(plan.script, run_name="__main__")
    except ReplayDone:
        return None
    except SystemExit as leaving:
        return None if leaving.code in (None, 0) else f"the program left with exit status {leaving.code}"
    except BaseException as error:  # noqa: BLE001 - whatever ends the program is reported
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
