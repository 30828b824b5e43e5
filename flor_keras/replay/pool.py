"""Workers side by side: their events followed, a dead or silent one replaced once, the others' results kept.

Runs in the caller's process, in one thread.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flor_keras.replay.launch import Worker
from flor_keras.replay.plan import Plan
from flor_keras.replay.segments import Place, places, with_places

Event = dict[str, Any]
Start = Callable[[int, Plan], Worker]
_TRIES = 2
_TICK_SECS = 1.0


@dataclass
class _Seat:
    """One segment and the worker that is at it."""

    number: int
    segment: Plan
    worker: Worker
    last_word: float
    tries: int = 1
    rest: bytes = b""
    report: Event | None = None
    done: set[Place] = field(default_factory=set)


class Pool:
    """Carries out segments, one worker each.

    Args:
      start: starts the worker of a segment, given its number and the segment.
      on_event: called with each event; the key ``worker`` says which segment it is of.
      before_retry: called with the segment that is left, before it is tried again.
      patience_secs: how long a worker may give no sign.
    """

    def __init__(
        self,
        start: Start,
        on_event: Callable[[Event], None],
        before_retry: Callable[[Plan], None],
        patience_secs: float,
    ) -> None:
        self._start = start
        self._on_event = on_event
        self._before_retry = before_retry
        self._patience_secs = patience_secs
        self._selector = selectors.DefaultSelector()

    def run(self, segments: Sequence[Plan]) -> list[Event]:
        """Carry out all segments and return the report of each; ``error`` says what went wrong with it."""
        seats: list[_Seat] = []
        try:
            for number, segment in enumerate(segments):
                seats.append(_Seat(number, segment, self._start(number, segment), time.monotonic()))
                self._watch(seats[-1])
            while self._selector.get_map():
                self._follow(seats)
        except BaseException:
            for key in list(self._selector.get_map().values()):
                key.data.worker.kill()
                key.data.worker.end()
            raise
        finally:
            self._selector.close()
        return [seat.report or {"error": "the worker gave no report"} for seat in seats]

    def _watch(self, seat: _Seat) -> None:
        self._selector.register(seat.worker.events, selectors.EVENT_READ, seat)

    def _follow(self, seats: Sequence[_Seat]) -> None:
        wait_secs = min(_TICK_SECS, self._patience_secs)
        for key, _ in self._selector.select(wait_secs):
            self._read(key.data)
        now = time.monotonic()
        for key in list(self._selector.get_map().values()):
            if now - key.data.last_word > self._patience_secs:
                key.data.worker.kill()
                self._end(
                    key.data, f"it gave no sign for {self._patience_secs:.0f} s (--patience) and was ended"
                )

    def _read(self, seat: _Seat) -> None:
        chunk = os.read(seat.worker.events, 1 << 16)
        if not chunk:
            self._end(seat, None)
            return
        seat.last_word = time.monotonic()
        *lines, seat.rest = (seat.rest + chunk).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "end":
                seat.report = event
            elif event["event"] == "epoch":
                seat.done.add((event["loop"], event["epoch"]))
            self._on_event({**event, "worker": seat.number})

    def _end(self, seat: _Seat, why: str | None) -> None:
        """Take leave of a worker; try its segment again if it left without a report."""
        self._selector.unregister(seat.worker.events)
        status = seat.worker.end()
        if seat.report is not None:
            return
        why = why or (
            f"it was ended by {_signal_name(-status)}" if status < 0 else f"it left with status {status}"
        )
        is_retried = seat.tries < _TRIES
        self._on_event({"event": "died", "worker": seat.number, "why": why, "is_retried": is_retried})
        if not is_retried:
            seat.report = {"error": f"the worker died {seat.tries} times, the last time because {why}"}
            return
        left = [place for place in places(seat.segment) if place not in seat.done]
        seat.segment = with_places(seat.segment, left)
        if not left and not seat.segment.is_outside_kept:
            seat.report = {"error": None}
            return
        self._before_retry(seat.segment)
        seat.tries += 1
        seat.rest, seat.last_word = b"", time.monotonic()
        seat.worker = self._start(seat.number, seat.segment)
        self._watch(seat)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
