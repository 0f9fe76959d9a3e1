"""Limits how many requests start in each iteration of the event loop, so that a client with one request does not wait
for busy clients.

In each iteration, the event loop runs all callbacks that are ready. If a hundred busy connections each start a request
in every iteration, the iterations become long. The request of another client needs about six iterations, so the latency
of this request grows with the length of the iterations.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Rounds:
    """Starts pieces of work in order, at most ``most`` in one iteration of the event loop. Each Rounds object belongs
    to one event loop."""

    __slots__ = ("_is_scheduled", "_left", "_most", "_waiting")

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def start(self, work: Callable[[], None]) -> None:
        """Call ``work`` now, or in a later iteration if ``most`` pieces of work have started in this iteration."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)
        if self._left and not self._waiting:
            self._left -= 1
            work()
        else:
            self._waiting.append(work)

    async def turn(self) -> None:
        """Wait until the caller may start its work."""
        turn = asyncio.get_running_loop().create_future()
        self.start(lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _next_round(self) -> None:
        started = self._left < self._most
        self._left = self._most
        try:
            while self._waiting and self._left:
                self._left -= 1
                self._waiting.popleft()()
        finally:
            if self._waiting or started or self._left < self._most:
                asyncio.get_running_loop().call_soon(self._next_round)
            else:
                self._is_scheduled = False
