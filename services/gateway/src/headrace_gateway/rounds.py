"""Work of many clients in rounds of the event loop, so that a client with one request does not wait for all others.

The event loop runs everything that is ready in one round. When a hundred connections send requests without end, a
round that starts one request of each takes longer than the rest of a round. Each step of another client's request
takes a round, and a record passes about six steps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Rounds:
    """Starts pieces of work in order, at most ``most`` in one round of the event loop. Use in one event loop."""

    __slots__ = ("_is_scheduled", "_left", "_most", "_waiting")

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def start(self, work: Callable[[], None]) -> None:
        """Call ``work`` now, or in a later round if enough work has started in this one."""
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
