"""Timeouts of many requests, with one timer for all of them.

Requests nearly always end long before their deadline, so adding and discarding a deadline must be cheap. An expired
request may be answered late, by at most one tick of the timer. The timer of the deadlines stops while no deadline is
pending.
"""

from __future__ import annotations

import asyncio

from headrace_core.clock import Clock

TICK_MS = 100


class Expiring:
    __slots__ = ("deadline_ms",)

    def __init__(self) -> None:
        self.deadline_ms = 0.0

    def expire(self) -> None:
        """Callback when the deadline is over: called once, and never after ``discard``."""
        raise NotImplementedError


class Deadlines:
    """A set of deadlines, checked at every tick of one timer."""

    __slots__ = ("_clock", "_loop", "_timer", "_waiting")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._waiting: dict[Expiring, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entry: Expiring, timeout_ms: int) -> None:
        entry.deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._waiting[entry] = None
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)

    def discard(self, entry: Expiring) -> None:
        self._waiting.pop(entry, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.monotonic_ms()
        for entry in [entry for entry in self._waiting if entry.deadline_ms <= now]:
            del self._waiting[entry]
            entry.expire()
        if self._waiting:
            self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)
