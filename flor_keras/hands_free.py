"""A program that does not know flor_keras, run so that it is recorded, replayed or resumed: not one line of it changes.

Every `fit` gets a FlorKeras, unless it has one; main loops of the script and of the modules of its project are
instrumented as under `@flor.record`, as they are imported, and no bytecode of them is written. Where the program sets no
seed, a recorded one is set. Started as ``python -m flor_keras.hands_free``; the replay worker and `flor-keras resume`
use `prepare` and `run_program`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import secrets
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from flor_keras import session
from flor_keras.errors import FlorError, UsageError
from flor_keras.instrument.calls import Calls
from flor_keras.instrument.index import Index
from flor_keras.instrument.main_loops import MainLoop, MainLoops, Refused
from flor_keras.instrument.rewriting import BEGIN, rewritten
from flor_keras.instrument.sources import imported_sources, is_own_file, project_root
from flor_keras.recorded import begin, note_loops
from flor_keras.records import OWN_SEED, SEED_ARGUMENT

MARK = "__flor_hands_free__"  # what the main module of such a program has, for the record of the run


@dataclass(frozen=True)
class Target:
    """What to run: a script, or a module by its name."""

    script: Path
    module: str | None = None

    @classmethod
    def of(cls, script: str | None, module: str | None) -> Target:
        """Find the file of what was asked for; UsageError if there is none."""
        if module is None:
            path = Path(str(script))
            if not path.is_file():
                raise UsageError(f"There is no file {script}. Give a script, or a module with -m.")
            return cls(path.resolve())
        _lead_to(cls(Path(), module))
        for name in (f"{module}.__main__", module):
            try:
                spec = importlib.util.find_spec(name)
            except ModuleNotFoundError:
                spec = None
            if spec is not None and spec.origin is not None and spec.submodule_search_locations is None:
                return cls(Path(spec.origin).resolve(), name)
        raise UsageError(
            f"There is no module {module} that can be run. Its folder must be the current one, or on PYTHONPATH."
        )


class Instrumenter:
    """Compiles the files of a program with their main loops instrumented, and remembers what it did."""

    def __init__(self, script: Path) -> None:
        self._root = project_root(script)
        sources = imported_sources(script)
        self._loops = MainLoops(Calls(Index(script.relative_to(self._root).as_posix(), sources)))
        self.instrumented: list[MainLoop] = []
        self.refused: list[Refused] = []

    def is_own(self, file: Path) -> bool:
        """Whether a file is the project's, and not an installed package's."""
        return is_own_file(self._root, file.resolve())

    def compile(self, file: Path, text: bytes) -> CodeType:
        """Return the code of a file, with its loops instrumented where they can be."""
        path = file.resolve().relative_to(self._root).as_posix()
        try:
            return self._compiled(file, path, text)
        except FlorError as error:
            self.refused.append(Refused(path, 1, str(error)))
            code: CodeType = compile(text, str(file), "exec", dont_inherit=True)
            return code

    def _compiled(self, file: Path, path: str, text: bytes) -> CodeType:
        loops = self._loops
        if path not in loops.calls.index.files:  # imported in a way that its importer's source does not tell
            loops = MainLoops(Calls(Index(None, {path: importlib.util.decode_source(text)})))
        found: list[MainLoop] = []
        for scope in loops.calls.index.files[path].scopes:
            if loops.is_decorated(scope):
                continue
            own, refused = loops.training(scope)
            found += own
            self.refused += refused
        self.instrumented += found
        note_loops(str(file), found, loops)
        tree = rewritten(loops.calls.index.files[path].tree, found)
        code: CodeType = compile(tree, str(file), "exec", dont_inherit=True)
        return code


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the project, instrumented; neither reads nor writes bytecode."""

    def __init__(self, name: str, path: str, instrumenter: Instrumenter) -> None:
        super().__init__(name, path)
        self._instrumenter = instrumenter

    def get_code(self, fullname: str) -> CodeType:
        """Return the module's instrumented code."""
        return self._instrumenter.compile(Path(self.path), self.get_data(self.path))

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        module.__dict__[BEGIN] = begin
        super().exec_module(module)


class _AfterImport(importlib.abc.Loader):
    """Loads a module as ever, then makes the call that waits for it, which is made once.

    Looking for a module must not use its call up: importing TensorFlow looks for Keras, and does not import it.
    """

    def __init__(self, loader: Any, after: dict[str, Callable[[], None]]) -> None:
        self._loader = loader
        self._after = after

    def create_module(self, spec: Any) -> ModuleType | None:
        """Leave it to the module's own loader."""
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then the call."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if (then := self._after.pop(module.__name__, None)) is not None:
            then()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of the project, and notices when libraries are imported."""

    def __init__(self, instrumenter: Instrumenter, after: dict[str, Callable[[], None]]) -> None:
        self._instrumenter = instrumenter
        self._after = after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec Python would find, with a loader of ours."""
        if fullname in self._after:
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _AfterImport(spec.loader, self._after)
            return spec
        if fullname.partition(".")[0] in sys.stdlib_module_names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        is_source = spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        if (
            spec is None
            or not is_source
            or spec.origin is None
            or not self._instrumenter.is_own(Path(spec.origin))
        ):
            return None
        spec.loader = _Loader(fullname, spec.origin, self._instrumenter)
        return spec


def prepare(target: Target, argv: Sequence[str]) -> Instrumenter:
    """Make this process one in which ``target`` is recorded, replayed or resumed without knowing it."""
    instrumenter = Instrumenter(target.script)
    _lead_to(target)
    main = types.ModuleType("__main__")
    package = target.module.rpartition(".")[0] if target.module is not None else None
    spec = importlib.util.find_spec(target.module) if target.module is not None else None
    main.__dict__.update(__file__=str(target.script), __package__=package, __spec__=spec)
    main.__dict__.update({"__builtins__": __builtins__, BEGIN: begin, MARK: True})
    sys.modules["__main__"] = main
    sys.argv = [str(target.script), *argv]
    after = {"tensorflow": _seed_tensorflow, "keras": _record_every_fit}
    loaded = [name for name in after if name in sys.modules]
    sys.meta_path.insert(0, _Finder(instrumenter, {n: call for n, call in after.items() if n not in loaded}))
    _loaded[:] = [after[name] for name in loaded]
    return instrumenter


def _lead_to(target: Target) -> None:
    """Have imports of the program find what they find when Python runs it."""
    folder = os.getcwd() if target.module is not None else str(target.script.parent)
    if target.module is None or folder not in sys.path:
        sys.path.insert(0, folder)


_loaded: list[
    Callable[[], None]
] = []  # what importing libraries would have called, had they not been there before


def run_program(target: Target, instrumenter: Instrumenter) -> None:
    """Seed everything, and run the program; what it raises passes through."""
    current = session.ensure()
    current.seed = int(session.arg(SEED_ARGUMENT, secrets.randbits(31)))
    _seed_python(current.seed)
    for call in _loaded:
        call()
    code = instrumenter.compile(target.script, target.script.read_bytes())
    exec(code, sys.modules["__main__"].__dict__)


def _seed_python(seed: int) -> None:
    import numpy as np

    from flor_keras.state.seeds import follow_numpy

    random.seed(seed)
    np.random.seed(seed)
    follow_numpy(seed)


def _seed_tensorflow() -> None:
    from flor_keras.state.seeds import follow

    current = session.ensure()

    def release() -> None:
        current.seed = None
        current.note(OWN_SEED)

    if current.seed is not None:
        follow(current.seed, release)


def _record_every_fit() -> None:
    from flor_keras.callback import record_every_fit

    record_every_fit()


def main(words: Sequence[str]) -> None:
    """Record a program: STORE, NAME, -m or -f, what to run, its arguments. Empty texts stand for what is not given."""
    store, name, kind, what, *argv = words
    target = Target.of(what, None) if kind == "-f" else Target.of(None, what)
    instrumenter = prepare(target, argv)
    session.ensure(store or None, name or None)
    status: Any = 0
    try:
        run_program(target, instrumenter)
    except SystemExit as leaving:
        status = leaving.code
    except BaseException as error:  # noqa: BLE001 - shown as its own interpreter would
        error.with_traceback(_own_frames(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    report(instrumenter)
    sys.exit(status)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this module, as Python shows it of a program it runs itself."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    if trace is not None:
        trace.tb_next = _own_frames(trace.tb_next)
    return trace


def report(instrumenter: Instrumenter) -> None:
    """Say on standard error what was recorded, and what was left as it is."""
    num_fits, run = _num_fits(), getattr(session.current(), "run", "")
    print(f"flor_keras: recorded as run {run}", file=sys.stderr)
    for main in instrumenter.instrumented:
        block = "" if main.first is None else f", training from line {main.home[main.first].lineno}"
        print(f"flor_keras:   {main.scope.path}:{main.node.lineno}: main loop{block}", file=sys.stderr)
    if num_fits:
        print(
            f"flor_keras:   fit, called {num_fits} times" if num_fits > 1 else "flor_keras:   fit",
            file=sys.stderr,
        )
    if not instrumenter.instrumented and not num_fits:
        print("flor_keras:   no loop that trains was found", file=sys.stderr)
    for refused in instrumenter.refused:
        print(f"flor_keras:   left as it is, {refused.path}:{refused.line}: {refused.why}", file=sys.stderr)
    for why in getattr(session.current(), "redone_loops", ()):
        print(f"flor_keras:   {why}", file=sys.stderr)


def _num_fits() -> int:
    callback = sys.modules.get("flor_keras.callback")
    return 0 if callback is None else callback.num_recorded_fits()


if __name__ == "__main__":
    from flor_keras import hands_free  # this module under its own name, which other parts import

    try:
        hands_free.main(sys.argv[1:])
    except FlorError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
