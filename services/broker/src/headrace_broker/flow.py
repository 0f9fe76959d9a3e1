"""Every reason why the broker does not read a client's stream, or lets a request wait.

    the reason                                                        until
    OWN_LIMIT       the stream's unanswered requests are too many     some are answered
    BROKER_LIMIT    the requests of all streams need too much memory  records are in the log
    UNREAD          the client leaves answers unread                  it reads half of them
    QUOTA           the client is over a quota (KIP-219)              the throttle time is over
    TURN            a large request has just been read                its turn is over (``BulkTurns``)
    PORTIONS        a request with many partitions is in work         its last partition is handled

``Flow`` has what all streams of a broker share: bytes, deadlines and turns. ``StreamFlow`` has the reasons of one
stream: ``admit`` counts a produce request, and ``done`` ends it.

A request's *memory* counts only until its records are in the log: a partition that commits nothing must not stop the
producers of other partitions. An unanswered request whose records are in the log still *keeps* names, and the state of
each partition.

The gRPC call of a stream identifies the client of a quota by the principal that the listener has authenticated, and by
the client id. On a listener without security, the user is ANONYMOUS, and the client chooses the client id. A client
over its quota gets its response at once, with ``throttle_time_ms``. If it opens another stream, the first request of
that stream waits: else a client that sends each request on a new stream would have no limit. The
streams of Kafka's clients have the same quotas.

All times are seconds of ``time.perf_counter``; the caller reads the clock once for each turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace_core.clock import Clock
from headrace_core.quotas import CONNECTION_CREATION_RATE, REQUEST_PERCENTAGE, ClientLimits, QuotaManager
from headrace_core.security.acl_types import host_of
from headrace_core.security.caller import current_caller

OWN_LIMIT, BROKER_LIMIT, UNREAD, QUOTA, TURN, PORTIONS = 1, 2, 4, 8, 16, 32

#: While the unanswered requests of all streams keep too many bytes (``Flow.kept_max``), the broker does not read a
#: stream whose own unanswered requests keep more than KEPT_BYTES_MAX bytes.
KEPT_BYTES_MAX = 1024 * 1024
#: Milliseconds between two looks at the deadlines. An expired request is answered late by at most one tick.
TICK_MS = 100
_CONNECTIONS_SEEN_MAX = 10_000

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


class Expiring(Protocol):
    """A request with a deadline. ``deadline_ms``: of the broker's monotonic clock."""

    deadline_ms: float

    def expire(self) -> None:
        """Called once when the deadline is over, and never after ``Deadlines.discard``."""


class Deadlines:
    """Timeouts of many requests, with one timer for all of them, which runs only while requests wait. Requests nearly
    always end long before their deadline."""

    __slots__ = ("_clock", "_loop", "_timer", "_waiting", "discard")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock, self._loop = clock, loop
        self._waiting: dict[Expiring, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: ``discard(request, None)`` removes a request. (The method of the dictionary: it costs no frame.)
        self.discard: Callable[[Any, None], None] = self._waiting.pop

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entry: Expiring, timeout_ms: int) -> None:
        entry.deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._waiting[entry] = None
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        for entry in [entry for entry in self._waiting if entry.deadline_ms <= now_ms]:
            if entry in self._waiting:  # the answer to a request also ends requests whose errors wait for it
                del self._waiting[entry]
                entry.expire()
        if self._waiting:
            self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)


class BulkTurns:
    """Turns for large messages, first come first served, so that bulk clients do not delay all other clients.

    To answer a reader with 1 MiB of records takes about 1 ms of the event loop, and a live record passes the event loop
    about four times. So the broker handles one large message at a time (a *turn*), after ``QUIET_PASSES`` passes of the
    event loop without a small message, or after ``WAIT_MAX_S``. While there is live traffic, each turn is followed by a
    pause of the turn's length: bulk traffic gets at most half of the event loop. Without live traffic the next turn
    comes after some empty passes, which cost almost nothing. (``rpc.turns`` is for requests with many items.)"""

    __slots__ = ("_began_s", "_is_busy", "_loop", "_now_s", "_quiet", "_seen_s", "_waiting", "noted_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = time.perf_counter) -> None:
        """``now_s``: a clock in seconds. (The clock of uvloop has a resolution of only one millisecond.)"""
        self._loop, self._now_s = loop, now_s
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False  # True while a turn waits or runs, and while the event loop rests after a turn
        self._quiet = 0  # passes since the last small message
        #: Time of the last small message of a client that was received, or is about to be sent. Messages between
        #: brokers do not count, because bulk traffic causes them, too.
        self.noted_s = -LIVE_S
        self._seen_s = self.noted_s  # ``noted_s`` in the last pass
        self._began_s = 0.0  # when the present turn began, or when the next turn began to wait

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
        self._quiet, self._seen_s = 0, self.noted_s
        self._began_s = self._now_s()
        self._loop.call_soon(self._wait)

    def _wait(self) -> None:
        if self._seen_s != self.noted_s:
            self._quiet, self._seen_s = 0, self.noted_s
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
        if now_s - self.noted_s < LIVE_S:
            self._loop.call_later(min(now_s - self._began_s, REST_MAX_S), self._begin_next)
        else:
            self._begin_next()


class Flow:
    """What all client streams of a broker share. The limits are in bytes.

    ``in_memory``: requests whose records are not in the log yet. Above ``in_memory_max``, each stream that brings a
    request is held; held streams resume in the order in which they were held. One request may exceed the limit,
    because its size is known only after its arrival.

    ``kept``: what unanswered produce requests need besides their records. Above ``kept_max``, each stream continues
    with few requests at a time.

    ``unread``: fetch responses that clients have not read. Above ``unread_max``, each stream continues with one small
    response at a time.
    """

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        in_memory_max: int,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.deadlines = Deadlines(clock, loop)
        self.turns = BulkTurns(loop, now_s)
        self.in_memory, self.in_memory_max = 0, in_memory_max
        self.held: dict[StreamFlow, None] = {}  #: Streams with BROKER_LIMIT.
        self.kept, self.kept_max = 0, 64 * 1024 * 1024
        self.unread, self.unread_max = 0, 64 * 1024 * 1024
        self.drained: Callable[[], None] | None = None  #: Called once when no produce request is in progress.

    def free(self, size: int) -> None:
        """Return the memory of a request, and resume streams for which there is room."""
        self.in_memory -= size
        assert self.in_memory >= 0, "more bytes given back than taken"
        while self.held and self.in_memory <= self.in_memory_max:
            first = next(iter(self.held))
            del self.held[first]
            first.release(BROKER_LIMIT)
            if self.held and self.in_memory > self.in_memory_max * 3 // 4:
                break  # the other streams resume one by one, as bytes become free


class StreamFlow:
    """The reasons why one stream is not read: ``holds``, as bits. ``pause`` is called with each reason, and ``resume``
    when no reason is left. ``limits``: the quotas of the stream's client; None: no quotas."""

    __slots__ = (
        "_bytes",
        "_flow",
        "_kept",
        "_loop",
        "_pause",
        "_resume",
        "_timer",
        "_until_s",
        "bytes_max",
        "holds",
        "limits",
    )

    def __init__(
        self,
        flow: Flow,
        limits: ClientLimits | None,
        pause: Callable[[], None],
        resume: Callable[[], None],
        bytes_max: int = 0,
    ) -> None:
        """``bytes_max``: most bytes of the stream's unanswered requests."""
        self._flow, self.limits, self.bytes_max = flow, limits, bytes_max
        self._pause, self._resume = pause, resume
        self._loop = asyncio.get_running_loop()
        self.holds = 0
        self._bytes = self._kept = 0
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    def begin(self, key: str) -> None:
        """Called when the stream begins: the client may have to wait because of its other or earlier streams. ``key``:
        the quota that limits the stream's bytes."""
        if self.limits is not None:
            now_s = time.perf_counter()
            self.throttle(max(self.limits.first_wait_s(each, now_s) for each in (key, REQUEST_PERCENTAGE)))

    def hold(self, reason: int) -> None:
        self.holds |= reason
        self._pause()

    def release(self, reason: int) -> None:
        self.holds &= ~reason
        if not self.holds:
            self._resume()

    def close(self) -> None:
        """Called when the stream has ended. A reference cycle of the stream and its StreamFlow would keep the stream's
        objects in memory until the garbage collector runs."""
        self._pause = self._resume = _nothing
        self._flow.held.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- produce requests --------------------------------------------------------------------------------------------

    def admit(self, size: int, kept: int, now_s: float) -> float:
        """Count a produce request that was read: ``size`` bytes in memory until its records are in the log
        (``Flow.free``), and ``kept`` bytes until it is answered. Returns the seconds of its client's throttle time."""
        flow = self._flow
        flow.in_memory += size
        flow.kept += kept
        self._bytes += size
        self._kept += kept
        if (self._bytes > self.bytes_max or flow.kept > flow.kept_max) and self._has_too_many():
            self.hold(OWN_LIMIT)
        if flow.in_memory > flow.in_memory_max:
            self.hold(BROKER_LIMIT)
            flow.held.setdefault(self)
        limits = self.limits
        if limits is None or not limits.manager.table.keys:
            return 0.0
        return self.throttle(limits.produced(size, now_s))

    def done(self, size: int, kept: int) -> None:
        """Called when a produce request is answered and its records are in the log."""
        flow = self._flow
        self._bytes -= size
        self._kept -= kept
        flow.kept -= kept
        assert flow.kept >= 0, "more bytes removed than added"
        if not flow.kept and flow.drained is not None:
            drained, flow.drained = flow.drained, None
            drained()
        if self.holds & OWN_LIMIT and not self._has_too_many():
            self.release(OWN_LIMIT)

    def _has_too_many(self) -> bool:
        """Whether the stream's unanswered requests exceed a limit of the stream."""
        flow = self._flow
        return self._bytes > self.bytes_max or (flow.kept > flow.kept_max and self._kept > KEPT_BYTES_MAX)

    # -- quotas ------------------------------------------------------------------------------------------------------

    def worked(self, started_s: float) -> float:
        """Count the time since ``started_s`` against the quota of request time, if there is one; returns the wait in
        seconds."""
        limits = self.limits
        if limits is None or not limits.measures_work:
            return 0.0
        now_s = time.perf_counter()
        return self.throttle(limits.worked(now_s - started_s, now_s))

    def throttle(self, wait_s: float) -> float:
        """Hold the stream for ``wait_s`` seconds from now, unless it is held for longer; returns ``wait_s``."""
        if wait_s > 0:
            until_s = self._loop.time() + wait_s
            if self._timer is None:
                self._until_s = until_s
                self._timer = self._loop.call_at(until_s, self._over)
                self.hold(QUOTA)
            else:
                self._until_s = max(self._until_s, until_s)
        return wait_s

    def _over(self) -> None:
        if self._until_s > self._loop.time():
            self._timer = self._loop.call_at(self._until_s, self._over)
            return
        self._timer = None
        self.release(QUOTA)


class NewConnections:
    """The quota of new connections by address (KIP-612). gRPC accepts connections itself, so a connection counts when
    its first stream begins; the stream then waits until the quota allows the connection."""

    def __init__(self, quotas: QuotaManager) -> None:
        self._quotas = quotas
        self._seen: dict[str, None] = {}  # connections that have been counted

    async def admitted(self, context: Any) -> None:
        """Wait until the connection of a call is within the quota of its address; normally returns at once."""
        if CONNECTION_CREATION_RATE not in self._quotas.table.keys or current_caller().role is not None:
            return
        peer = context.peer()
        if peer in self._seen:
            return
        if len(self._seen) >= _CONNECTIONS_SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[peer] = None
        wait_s = self._quotas.connected(host_of(peer), time.perf_counter())
        if wait_s > 0:
            await asyncio.sleep(wait_s)


def _nothing() -> None:
    """Replaces the callbacks of a stream that has ended, and does nothing."""
