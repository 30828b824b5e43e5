"""What a session knows of the loops of the program's own around the line that runs, recorded or replayed alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Surroundings:
    """The main loop under way, and the objects that `flor.checkpointing` names around it."""

    def __init__(self) -> None:
        self.main_loop: Any = None
        self.objects: dict[str, Any] = {}

    def end_loop(self, main: Any) -> None:
        """What comes next is not inside of the loop."""
        if self.main_loop is main:
            self.main_loop = None

    @contextmanager
    def checkpointing(self, objects: Mapping[str, Any]) -> Iterator[None]:
        """Take the objects that loops inside the context change."""
        before, self.objects = self.objects, {**self.objects, **objects}
        try:
            yield
        finally:
            self.objects = before
