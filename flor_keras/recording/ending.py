"""How the program ends: watched through what Python calls at an uncaught exception and what programs call to leave.

An exit handler alone learns neither. Runs in the training process; the program's own hooks are called as without it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, NoReturn

from flor_keras.records import Status


class Ending:
    """The status a run would have if the program ended now, and the error behind it."""

    def __init__(self) -> None:
        self.status = Status.FINISHED
        self.error: str | None = None
        self._excepthook, self._exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self._on_exception, self._on_exit

    def fail(self, error: BaseException) -> None:
        """Note that a loop, or the program, ended by ``error``. Leaving after a failure does not hide that."""
        if isinstance(error, SystemExit) and (error.code in (None, 0) or self.error is not None):
            return
        is_interrupt = isinstance(error, KeyboardInterrupt)
        self.status = Status.INTERRUPTED if is_interrupt else Status.FAILED
        self.error = f"{type(error).__name__}: {error}".rstrip(": ")

    def succeed(self) -> None:
        """Note that a loop came to its end; an earlier one's failure was the program's to handle."""
        self.status, self.error = Status.FINISHED, None

    def unwatch(self) -> None:
        """Take the hooks away, unless the program has put its own in their place."""
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._excepthook
        if sys.exit == self._on_exit:
            sys.exit = self._exit

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self.fail(error)
        self._excepthook(kind, error, trace)

    def _on_exit(self, status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # elsewhere it ends the thread alone
            self.fail(SystemExit(status))
        self._exit(status)
