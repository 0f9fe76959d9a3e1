"""Turns of the event loop for bulk traffic, so that bulk clients do not delay all other clients.

One event loop handles all requests of a broker. To answer a reader with 1 MiB of records takes about 1 ms of the event
loop. A live record passes through the event loop about four times between its send and its receipt (request, end of the
append, answer of the waiting fetch, write of that answer). Without turns the record waits in each of these passes for a
large response to each bulk reader.

With ``BulkTurns`` one large message is handled at a time, after ``QUIET_PASSES`` passes of the event loop in which no
small message was noted. A turn waits at most ``WAIT_MAX_S``, so live traffic does not stop bulk traffic. If the event
loop has nothing else to do, a turn comes after two empty passes, so turns cost bulk traffic almost nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

#: Size in bytes of a message from which it is bulk traffic.
BULK_BYTES = 64 * 1024
#: Passes of the event loop without a small message before a turn. gRPC reports a message in one pass, and the message
#: is handled in the next pass, so one pass is not enough.
QUIET_PASSES = 2
#: The longest time in seconds that a turn waits for quiet passes. With 1 MiB in a turn, bulk traffic gets more than 250
#: MiB/s beside any number of small messages.
WAIT_MAX_S = 0.003


class BulkTurns:
    """The turns of one event loop, first come first served. All methods are called in the event loop."""

    __slots__ = ("_began_s", "_loop", "_now_s", "_quiet", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = time.perf_counter) -> None:
        """``now_s``: a clock in seconds. (uvloop's own clock has whole milliseconds.)"""
        self._loop, self._now_s = loop, now_s
        self._waiting: deque[Callable[[], None]] = deque()
        self._quiet = 0  # passes since the last small message
        self._began_s = 0.0  # when the first turn in the queue began to wait

    def note(self) -> None:
        """Record that a small message was received, or is about to be sent."""
        self._quiet = 0

    def ask(self, turn: Callable[[], None]) -> None:
        """Call ``turn`` in its turn, in a later pass of the event loop. A turn whose client has gone is called as
        well."""
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._wait()

    def _wait(self) -> None:
        self._quiet = 0
        self._began_s = self._now_s()
        self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._quiet += 1
        if self._quiet <= QUIET_PASSES and self._now_s() - self._began_s < WAIT_MAX_S:
            self._loop.call_soon(self._pass)
            return
        turn = self._waiting.popleft()
        if self._waiting:
            self._wait()
        turn()
