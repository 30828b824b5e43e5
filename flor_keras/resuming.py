"""The process of ``flor-keras resume``: the program runs again and goes on where its run had come to.

Started as ``python -m flor_keras.resuming STORE RUN`` with the program's own terminal, folder and arguments.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from flor_keras import hands_free, origin, session
from flor_keras.store import layout
from flor_keras.store.database import Store


def main(store: str, ref: str, *argv: str) -> None:
    """Run the program of a run again, resuming the run."""
    with Store.open(Path(store)) as opened:
        run = opened.run(ref)
    os.environ[session.RESUME_VARIABLE] = run.id
    os.environ["FLOR_STORE"] = store
    os.environ[session.ARGS_VARIABLE] = os.environ.get(session.ARGS_VARIABLE, "")
    module = run.environment.get("module")
    if run.environment.get("is_hands_free"):
        target = hands_free.Target(Path(str(run.script)), module)
        hands_free.run_program(target, hands_free.prepare(target, argv))
        return
    origin.restore_on_import(layout.run_folder(Path(store), run.id))
    sys.argv = [str(run.script), *argv]
    if module is not None and module != "__main__":
        sys.path.insert(0, run.cwd)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[0:0] = [os.path.dirname(str(run.script))]
        runpy.run_path(str(run.script), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
