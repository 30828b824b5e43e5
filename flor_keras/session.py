"""The session of this process: what `flor.log`, `flor.arg` and `FlorKeras` talk to.

A session is a Recorder, or, in a process that replays a run, a Replayer. Both answer to the same calls. It begins with the first of them;
importing flor_keras begins nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from flor_keras.errors import FlorError, UsageError
from flor_keras.records import Execution, Position
from flor_keras.store import layout

ARGS_VARIABLE = "FLOR_ARGS"
RESUME_VARIABLE = "FLOR_RESUME"
_FALSE = ("0", "false", "no", "off")
_TRUE = ("1", "true", "yes", "on")


class Session(Protocol):
    """What a Recorder and a Replayer have in common. ``seed`` is that of `flor.seed`, if called."""

    seed: int | None
    position: Position
    execution: Execution
    main_loop: Any  # the loop of the program's own that is under way
    objects: dict[str, Any]  # what `flor.checkpointing` named

    def log(self, name: str, value: Any, step_offset: int = 0) -> None:
        """Take a value the program logs, ``step_offset`` steps after the current position."""

    def report(self, message: str) -> None:
        """Tell the person something once."""

    def note(self, message: str) -> None:
        """Keep a sentence with the run that is recorded; a replay has nothing to keep."""

    def settle(self) -> None:
        """Have everything logged so far in the store, for who reads it next."""

    def name_run(self, name: str) -> None:
        """Take the name a `FlorKeras` gives the run, which something else may have begun."""

    def arg(self, name: str, value: Any, default: Any) -> Any:
        """Take an argument of the program with the value asked for now; return the value it is to use."""

    def fit(self, call: Any, callbacks: list[Any], flor: Any) -> Any:
        """Make the `fit` call that has ``flor`` among its ``callbacks``."""

    def about_next_loop(self) -> Mapping[str, Any] | None:
        """Return what was recorded of the loop about to begin; None where it is recorded now."""

    def begin_loop(self, name: str, state: Any, every: Any) -> Any:
        """Take the main loop the program is about to begin, with its state; return what drives it.

        ``every`` says how often to checkpoint it.
        """

    def end_loop(self, main: Any) -> None:
        """The main loop is over; what comes next is not inside of it."""

    def checkpointing(self, objects: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Take the objects that loops inside the context change."""

    def begin_fit(self, is_own: bool) -> Any:
        """Begin a loop; ``is_own`` where the program, not `fit`, calls the callbacks."""


_current: Session | None = None
_is_hook_set = False
names_from_graphs: set[str] = set()  # under which tensors of a graph are logged


def current() -> Session | None:
    """Return the session of this process, None before it has begun."""
    return _current


def begin(session: Session | None) -> None:
    """Make ``session`` the one of this process; None ends it, and the next call begins another."""
    global _current
    _current = session


def ensure(store: str | Path | None = None, name: str | None = None, resume: str | None = None) -> Session:
    """Return the session of this process; begin recording into ``store`` if there is none yet.

    The variable FLOR_RESUME names a run to resume, like ``resume``.

    Raises:
      StoreError: the store cannot be written.
      UsageError: the process records into another store already.
    """
    if _current is None:
        begin(_recorder(store, name, resume or os.environ.get(RESUME_VARIABLE)))
        name = None
    elif store is not None and getattr(_current, "store", None) not in (None, layout.store_path(store)):
        raise UsageError(
            f"This program records into {_current.store} already and FlorKeras asks for {store}. "  # type: ignore[attr-defined]
            "Give every FlorKeras of one program the same store, or set FLOR_STORE."
        )
    assert _current is not None
    if name is not None:
        _current.name_run(name)
    return _current


def _recorder(store: str | Path | None, name: str | None, resume: str | None) -> Session:
    from flor_keras.recording.recorder import Recorder

    _print_errors_without_traceback()
    script = main_script()
    folder = layout.store_path(store) if store is not None else layout.default_store(script)
    return Recorder(folder, name, script, resume)


def main_script() -> Path | None:
    """Return the program's file, None in an interactive session or under a tool that runs it."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or "site-packages" in path or not os.path.isfile(path):
        return None
    return Path(path).resolve()


def _print_errors_without_traceback() -> None:
    """Let our own errors end a program with their message alone; a second call does nothing more."""
    global _is_hook_set
    if _is_hook_set:
        return
    _is_hook_set = True
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, FlorError):
            print(f"Error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook


def log(name: str, value: Any) -> None:
    """Log a value under a name at the current position of the run.

    Args:
      name: the name; any text. A name logged twice at one position keeps both values, tables show the last.
      value: a number, text, anything JSON can hold, a NumPy array or a tensor. Arrays are stored as they are.

    Inside a `tf.function` the value is logged each time the graph runs, also where it is not a tensor.
    """
    if _graphs.stack and _is_in_graph():
        _log_from_graph(name, value)
    else:
        (_current or ensure()).log(name, value)


class _NoGraphsYet:
    """Stands for TensorFlow's graphs that are being built until TensorFlow has been imported."""

    @property
    def stack(self) -> Any:
        global _graphs
        if not hasattr(sys.modules.get("tensorflow"), "inside_function"):
            return ()
        from flor_keras import keras_internals

        _graphs = keras_internals.graphs_under_way()
        return _graphs.stack


_graphs: Any = _NoGraphsYet()


def _is_in_graph() -> bool:
    import tensorflow as tf

    return not tf.executing_eagerly() and bool(tf.inside_function())


def _log_from_graph(name: str, value: Any) -> None:
    import tensorflow as tf

    session = _current or ensure()
    why = _why_not_from_graph(session)
    if why is not None:
        session.report(f"flor.log({name!r}) inside {why}")
        return
    line, is_tensor = _TracedLine(), tf.is_tensor(value)
    if is_tensor:
        names_from_graphs.add(name)

    def emit(*tensors: Any) -> None:
        session = _current or ensure()
        session.log(name, tensors[0].numpy() if tensors else value, line.step_offset(session))

    tf.py_function(emit, [value] if is_tensor else [], [])


def _why_not_from_graph(session: Session) -> str | None:
    """Say where a log line stands that no value leads out of, None if it stands elsewhere."""
    from flor_keras import keras_internals

    if session.execution.is_compiled:
        return "a step compiled by XLA is not recorded: replay computes it later."
    if keras_internals.is_in_xla():
        return (
            "a function compiled by XLA is not recorded: no value leads out of it. Return the value and log it where the "
            "function is called, or leave out jit_compile=True."
        )
    if keras_internals.is_in_tf_data():
        return (
            "a tf.data pipeline is not recorded: it runs ahead of the steps, at no position of its own. Log the value "
            "where the element is used."
        )
    return None


class _TracedLine:
    """A log line inside a graph. When several steps run at once, it counts which of them it is in."""

    def __init__(self) -> None:
        self._position: Position | None = None
        self._count = 0

    def step_offset(self, session: Session) -> int:
        """Return the number of the step within the execution under way."""
        is_same = self._position == session.position
        self._position = session.position
        self._count = self._count + 1 if is_same else 0
        return self._count if session.execution.steps_at_once > 1 else 0


def arg(name: str, default: Any = None) -> Any:
    """Return the program's argument ``name`` and record it with the run; a replay gets the recorded value.

    The value is ``--arg name=value`` on the program's command line, else from the variable FLOR_ARGS (JSON:
    ``{"lr": 0.01}``), else ``default``. Text is converted to the type of ``default``.

    Raises:
      UsageError: the text given does not fit the type of the default.
    """
    _print_errors_without_traceback()
    given = _given_args()
    value = _converted(name, given[name], default) if name in given else default
    return (_current or ensure()).arg(name, value, default)


def _given_args() -> dict[str, Any]:
    try:
        given = dict(json.loads(os.environ.get(ARGS_VARIABLE) or "{}"))
    except ValueError as error:
        raise UsageError(
            f'The variable {ARGS_VARIABLE} is not JSON: {error}. Expected something like {{"lr": 0.01}}.'
        ) from error
    words = sys.argv[1:]
    for index, word in enumerate(words):
        if word == "--arg" and index + 1 < len(words):
            given.update([_pair(words[index + 1])])
        elif word.startswith("--arg="):
            given.update([_pair(word.removeprefix("--arg="))])
    return given


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--arg {text} has no value. Write --arg NAME=VALUE, for example --arg lr=0.01.")
    return name, value


def _converted(name: str, given: Any, default: Any) -> Any:
    if not isinstance(given, str) or isinstance(default, str):
        return given
    try:
        if isinstance(default, bool):
            return _TRUE_OR_FALSE[given.lower()]
        if isinstance(default, int | float):
            return type(default)(given)
        return json.loads(given)
    except (ValueError, KeyError) as error:
        if default is None:
            return given
        raise UsageError(
            f"The argument {name} is {given!r}, but its default {default!r} is of type {type(default).__name__}. "
            f"Give a value of that type: --arg {name}={default}"
        ) from error


_TRUE_OR_FALSE = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}
