"""Long work in the event loop, in turns: others go on every 5 ms, and work for a call that is cancelled stops."""

from __future__ import annotations

import asyncio
import time

#: How long one turn may take.
TURN_S = 0.005


class Turns:
    """Of one piece of work. In its loop: ``if turns.is_over(): await turns.next()``."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s = time.perf_counter() + TURN_S

    def is_over(self) -> bool:
        """Has this turn taken its time?"""
        return time.perf_counter() >= self._until_s

    async def next(self) -> None:
        """Let the event loop do what waits. CancelledError: the call for which this is done was cancelled."""
        await asyncio.sleep(0)
        self._until_s = time.perf_counter() + TURN_S
