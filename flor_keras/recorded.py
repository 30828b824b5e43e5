"""`@flor.record`, and what the loops it instruments call while the program runs.

The source of a program is read once per file; the code of a function is compiled again, from the same file and lines,
with the calls of `instrument.rewriting` in it. Where something cannot be told, the code stays as it was.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar, overload

from flor_keras import session
from flor_keras.checkpoint.schedule import Every, asked_every
from flor_keras.errors import FlorError, UsageError
from flor_keras.instrument.calls import Calls
from flor_keras.instrument.index import Index
from flor_keras.instrument.main_loops import MainLoop, MainLoops, Refused
from flor_keras.instrument.rewriting import BEGIN, rewritten
from flor_keras.instrument.scopes import Scope
from flor_keras.instrument.sources import imported_sources, project_root

CheckpointEvery = str | int | dict[str, float]
F = TypeVar("F", bound=Callable[..., Any])

_loops: dict[tuple[str, int], tuple[MainLoop, MainLoops, CheckpointEvery]] = {}  # by file and line


@overload
def record(function: F, /) -> F: ...
@overload
def record(*, name: str | None = None, checkpoint_every: CheckpointEvery = "auto") -> Callable[[F], F]: ...
def record(
    function: Any = None, /, *, name: str | None = None, checkpoint_every: CheckpointEvery = "auto"
) -> Any:
    """Record the training loop of a function, and have replays skip what of it they do not need.

    The outermost loop becomes the run's loop and its turns the epochs; the training inside it is what a replay skips.
    State is found by itself: models, optimizers and all else with variables that the loop or functions it calls use, the
    Python objects they change, and the locals that are needed afterwards.

    Args:
      function: the function to decorate; methods and nested functions too.
      name: a name for the run.
      checkpoint_every: how often to checkpoint, as in `FlorKeras`; at the ends of epochs.

    Raises:
      UsageError: ``checkpoint_every`` cannot be read.
    """
    asked_every(checkpoint_every)
    if function is None:
        return functools.partial(_record, name=name, every=checkpoint_every)
    return _record(function, name, checkpoint_every)


def _record(function: Any, name: str | None, every: CheckpointEvery) -> Any:
    try:
        instrumented, refused = instrument(function, every)
    except FlorError as error:
        return _left(function, str(error))
    for one in refused:
        _tell(one)
    if instrumented is None:
        return function if refused else _left(function, "it has no loop")
    if name is None:
        return instrumented

    @functools.wraps(instrumented)
    def named(*args: Any, **kwargs: Any) -> Any:
        session.ensure(name=name)
        return instrumented(*args, **kwargs)

    return named


def instrument(function: Any, every: CheckpointEvery = "auto") -> tuple[Any, list[Refused]]:
    """Return a function with its main loops instrumented, None where it has none, and the loops that are refused.

    ``every`` says how often they are checkpointed.

    Raises:
      UsageError: its source is not there, or is another than it was compiled from.
    """
    if not isinstance(function, FunctionType):
        raise UsageError(
            f"{function!r} is no plain function. Put @flor.record next to the def, below other decorators."
        )
    code = function.__code__
    path, loops = _read(code.co_filename)
    index = loops.calls.index
    scope = next((s for s in index.files[path].scopes if _is_of(s, code)), None)
    if scope is None:
        raise UsageError("its source was changed since it was imported, or cannot be found")
    found, refused = loops.recorded(scope)
    if not found:
        return None, refused
    note_loops(code.co_filename, found, loops, every)
    tree = rewritten(index.files[path].tree, found)
    flags = code.co_flags & _FUTURE
    compiled = compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True)
    new = next(
        c
        for c in _codes(compiled)
        if c.co_firstlineno == code.co_firstlineno and c.co_qualname == code.co_qualname
    )
    function.__globals__[BEGIN] = begin
    function.__code__ = _fitting(new, code)
    return function, refused


_FUTURE = functools.reduce(
    int.__or__,
    (getattr(__import__("__future__"), n).compiler_flag for n in __import__("__future__").all_feature_names),
)


def note_loops(
    filename: str, found: list[MainLoop], loops: MainLoops, every: CheckpointEvery = "auto"
) -> None:
    """Remember the loops of a file, for when they begin."""
    for main in found:
        _loops[filename, main.node.lineno] = (main, loops, every)


@functools.cache
def _read(filename: str) -> tuple[str, MainLoops]:
    """Return what a file is called among the sources of its program, and those sources' loops."""
    if os.path.isfile(filename):
        file = Path(filename).resolve()
        path = file.relative_to(project_root(file)).as_posix()
        return path, MainLoops(Calls(Index(None, imported_sources(file))))
    text = "".join(linecache.getlines(filename))
    if not text:
        raise UsageError(f"its source, {filename}, cannot be read")
    return filename, MainLoops(Calls(Index(None, {filename: text})))


def _is_of(scope: Scope, code: CodeType) -> bool:
    found = scope.id
    return found is not None and (found.line, found.qualname) == (code.co_firstlineno, code.co_qualname)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _fitting(new: CodeType, old: CodeType) -> CodeType:
    """Make sure that a function's cells fit its new code: they are the same names, which Python sorts."""
    if new.co_freevars != old.co_freevars:
        raise UsageError(
            f"it uses {new.co_freevars} of the code around it, and {old.co_freevars} as it was compiled"
        )
    return new


def _left(function: Any, why: str) -> Any:
    code = getattr(function, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""
    print(f"flor_keras: {where}not recorded, and trained as ever: {why}", file=sys.stderr)
    return function


def _tell(refused: Refused) -> None:
    print(
        f"flor_keras: {refused.path}:{refused.line}: loop not recorded, and run as ever: {refused.why}",
        file=sys.stderr,
    )


# -- while the program runs --------------------------------------------------------------------------------------


def begin(line: int) -> AbstractContextManager[Any]:
    """Begin the loop at a line of the calling code; return what drives it, which is also its context."""
    frame = sys._getframe(1)
    current = session.ensure()
    if _is_in_graph():
        return _Plain()
    if current.main_loop is not None:
        return _Inner(current.main_loop)
    main, loops, checkpoint_every = _loops[frame.f_code.co_filename, line]
    every = asked_every(checkpoint_every)
    try:
        return _Outer(current, main, loops, frame, every)
    except Exception as error:  # the border between us and the program
        if (
            current.about_next_loop() is not None
        ):  # a replay or a resumed run must not go on with wrong numbers
            raise
        current.report(
            f"The loop at {main.scope.path}:{line} is not recorded: {type(error).__name__}: {error}"
        )
        return _Plain()


def _is_in_graph() -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and not tensorflow.executing_eagerly()


class _Plain:
    """Drives a loop that is not recorded: as Python would."""

    runs_all = True
    is_entered = False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def epochs(self, iterable: Any) -> Any:
        """Iterate as ever."""
        return iterable

    steps = epochs

    def next_epoch(self) -> bool:
        """Go by the condition alone."""
        return True

    step = enters = next_epoch

    def ends(self) -> bool:
        """The condition has become false."""
        return False

    restores = ends

    def leave(self) -> None: ...

    def take(self) -> dict[str, Any]:
        """Return no locals."""
        return {}


class _Inner(_Plain):
    """Drives a main loop that another one's code calls: its turns are that one's steps, in its block."""

    def __init__(self, main: Any) -> None:
        self.epochs = main.steps  # type: ignore[method-assign]
        self.next_epoch = main.step  # type: ignore[method-assign]


class _Outer:
    """Drives a main loop: makes its session's loop, hands the calls on, and ends it however it is left."""

    def __init__(
        self, current: session.Session, main: MainLoop, loops: MainLoops, frame: FrameType, every: Every
    ) -> None:
        self._current = current
        self._frame: FrameType | None = frame
        self._kept = main.kept
        recorded = current.about_next_loop()
        state = loop_state(main, loops, frame, recorded, self._read_names)
        self.main = current.begin_loop(f"{Path(main.scope.path).name}:{main.node.lineno}", state, every)
        for name in ("epochs", "next_epoch", "ends", "enters", "steps", "step", "leave", "restores", "take"):
            setattr(self, name, getattr(self.main, name))

    def __enter__(self) -> Any:
        try:
            self.main.begin()
        except BaseException:
            self._current.end_loop(self.main)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.main.end(error)
        finally:
            self._current.end_loop(self.main)
            self._frame = None  # a frame that is held holds all locals of the program

    @property
    def runs_all(self) -> bool:
        """Whether the code of the epoch before its block is to run."""
        return bool(self.main.runs_all)

    @property
    def is_entered(self) -> bool:
        """Whether a ``while`` loop's condition was true when the epoch was recorded, and is not asked again."""
        return bool(self.main.is_entered)

    def _read_names(self) -> dict[str, Any]:
        assert self._frame is not None
        local, outer = self._frame.f_locals, self._frame.f_globals
        places = {name: local if name in local else outer for name in self._kept}
        return {name: place[name] for name, place in places.items() if name in place}


def loop_state(
    main: MainLoop,
    loops: MainLoops,
    frame: FrameType,
    recorded: Mapping[str, Any] | None,
    read_names: Callable[[], Mapping[str, Any]],
) -> Any:
    """Find the objects that a loop about to begin changes, and say what is known of it."""
    from flor_keras.state.loops import LoopState
    from flor_keras.state.reach import Reach

    reach = Reach(frame, loops.calls.index)
    changed = reach.changed(main)
    native = reach.everything(main)
    refused = reach.refusal(main, loops)
    if recorded is not None:  # code added in hindsight must not give objects other names
        changed = {key: changed[key] for key in recorded.get("changed", ()) if key in changed}
        native = {key: native[key] for key in recorded.get("native", ()) if key in native}
    about = {
        "kept": list(main.kept),
        "changed_by_block": [n for n in main.changed_by_block if n in main.kept or reach.can_change(n)],
        "needed_after": list(main.needed_after),
        "is_jumpable": main.is_jumpable,
        "is_entered_at_block": main.is_jumpable and main.first is not None,
        "is_way_out_seen": main.is_way_out_seen,
        "refused": refused,
    }
    state = LoopState(changed, read_names, about, native, reach.others(main))
    state.about |= {"changed": list(changed), "native": list(state.native)}
    return state
