"""Schedule the work for bulk clients in the event loop, so that bulk clients do not delay all other clients.

One event loop handles all requests of a broker. To answer a reader with 1 MiB of records takes about 1 ms of the event
loop. A live record passes the event loop about four times: request, end of the append, answer to the waiting fetch,
write of the answer. Without scheduling, a live record waits in each of its passes for a large response to each bulk
reader.

With ``BulkTurns`` the broker handles one large message at a time (a *turn*), after ``QUIET_PASSES`` passes of the event
loop without a small message. A turn waits at most ``WAIT_MAX_S`` for passes without a small message. While there is
live traffic, each turn is followed by a pause of the turn's length, without bulk traffic. Bulk traffic therefore gets
at most half of the event loop. Without live traffic the next turn comes after some empty passes, which cost almost
nothing.

(``rpc.turns`` is for requests with many items, and gives these requests a quarter of the event loop.)
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

#: Minimum size in bytes of a message that counts as bulk traffic.
BULK_BYTES = 64 * 1024
#: Number of passes of the event loop without a small message before a turn. gRPC reports a message in one pass, and the
#: message is handled in the next pass, so one pass is not enough.
QUIET_PASSES = 2
#: Number of passes of the event loop that a turn lasts: the stream writes the response in the second pass after the
#: turn began.
TURN_PASSES = 3
#: The longest time in seconds that a turn waits for QUIET_PASSES passes of the event loop without a small message.
WAIT_MAX_S = 0.003
#: Traffic is live if a small message was received or sent within this number of seconds.
LIVE_S = 0.02
REST_MAX_S = 0.1  #: Longest pause after a turn in seconds, which matters if the process was stopped during the turn.


class BulkTurns:
    """The turns of one event loop, first come first served. Call all methods in the event loop."""

    __slots__ = ("_began_s", "_is_busy", "_loop", "_noted_s", "_now_s", "_quiet", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = time.perf_counter) -> None:
        """``now_s``: a clock in seconds. (The clock of uvloop has a resolution of only one millisecond.)"""
        self._loop, self._now_s = loop, now_s
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False  # True while a turn waits or runs, and while the event loop rests after a turn
        self._quiet = 0  # passes since the last small message
        self._noted_s = -LIVE_S  # time of the last small message
        self._began_s = 0.0  # when the present turn began, or when the next turn began to wait

    def note(self) -> None:
        """Record that a small message of a client was received, or is about to be sent. Messages between brokers do not
        count, because bulk traffic causes them, too."""
        self._quiet = 0
        self._noted_s = self._now_s()

    def ask(self, turn: Callable[[], None]) -> None:
        """Queue ``turn``, which is called in a later pass of the event loop, even if its client has disconnected by
        then."""
        self._waiting.append(turn)
        if not self._is_busy:
            self._is_busy = True
            self._begin_next()

    def _begin_next(self) -> None:
        if not self._waiting:
            self._is_busy = False
            return
        self._quiet = 0
        self._began_s = self._now_s()
        self._loop.call_soon(self._wait)

    def _wait(self) -> None:
        self._quiet += 1
        now_s = self._now_s()
        if self._quiet <= QUIET_PASSES and now_s - self._began_s < WAIT_MAX_S:
            self._loop.call_soon(self._wait)
            return
        self._began_s = now_s
        self._loop.call_soon(self._end, TURN_PASSES - 1)
        self._waiting.popleft()()

    def _end(self, passes: int) -> None:
        if passes:
            self._loop.call_soon(self._end, passes - 1)
            return
        now_s = self._now_s()
        if now_s - self._noted_s < LIVE_S:
            self._loop.call_later(min(now_s - self._began_s, REST_MAX_S), self._begin_next)
        else:
            self._begin_next()
