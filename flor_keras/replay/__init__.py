"""Replaying recorded runs. The package can be called, as ``flor.replay(run, model, probe)``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from flor_keras.reading import Run


class _Callable(ModuleType):
    """A package and the function of its name in one, since importing any of its modules would hide the function."""

    def __call__(
        self, run: Run | str, model: Any, probe: Callable[[Any], Any], epochs: str | None = None
    ) -> pd.DataFrame:
        """Return what ``probe`` gives for ``model`` in the state it had at the end of each epoch; see `Run.replay`.

        Args:
          run: a run, or how to find one, such as "latest".
        """
        from flor_keras.replay.in_process import replay

        return replay(run, model, probe, epochs)


sys.modules[__name__].__class__ = _Callable
