"""Apply the quotas of the broker's clients: delay new connections, and the streams of clients that are over their
quota.

The gRPC call of a stream identifies the client by the principal that the listener has authenticated, and by the client
id. On a listener without security, the user is ANONYMOUS, and the client chooses the client id. A client over its quota
gets its response at once, with ``throttle_time_ms``. The broker then reads nothing from the client's stream until the
throttle time is over (KIP-219). Other streams continue.

If a client over its quota opens another stream, the stream's first request waits. Without a wait on new streams, a
client that sends each request on a new stream would have no limit.

A gateway opens a fetch stream for each client, and names the client in the call. For produce requests, the gateway uses
one stream for several clients. The broker does not limit a gateway's produce stream, because the gateway applies the
quotas of its clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headrace_core.quotas import CONNECTION_CREATION_RATE, REQUEST_PERCENTAGE, ClientLimits, QuotaManager
from headrace_core.security.acl_types import host_of
from headrace_core.security.caller import current_caller

_CONNECTIONS_SEEN_MAX = 10_000


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
        wait_s = self._quotas.connected(host_of(peer), time.monotonic())
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class StreamBrake:
    """Pauses one stream while its client is over a quota. ``hold`` pauses the stream, and ``release`` resumes it; both
    are called once for each wait."""

    __slots__ = ("_hold", "_loop", "_release", "_timer", "_until_s", "limits")

    def __init__(self, limits: ClientLimits, hold: Callable[[], None], release: Callable[[], None]) -> None:
        self.limits = limits
        self._hold, self._release = hold, release
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    def begin(self, key: str) -> None:
        """Called when the stream begins: pause the stream while the client must wait because of its other or earlier
        streams. ``key``: the configuration key of the quota that limits the stream's bytes."""
        now_s = time.monotonic()
        self._wait(max(self.limits.first_wait_s(each, now_s) for each in (key, REQUEST_PERCENTAGE)))

    def produced(self, size: int) -> float:
        """Count a produce request of ``size`` bytes; returns the wait in seconds."""
        return self._wait(self.limits.produced(size, time.monotonic()))

    def fetched(self, size: int) -> float:
        """Count a fetch response of ``size`` bytes; returns the wait in seconds."""
        return self._wait(self.limits.fetched(size, time.monotonic()))

    def worked(self, started_s: float) -> float:
        """Count the time since ``started_s`` (time.perf_counter()) against the quota of request time; returns the wait
        in seconds."""
        return self._wait(self.limits.worked(time.perf_counter() - started_s, time.monotonic()))

    @property
    def is_on(self) -> bool:
        """Whether the stream is paused now."""
        return self._timer is not None

    def close(self) -> None:
        """Called when the stream has ended. The stream and its StreamBrake must no longer refer to each other. A
        reference cycle would keep the stream's objects in memory until the garbage collector runs."""
        self._hold = self._release = _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, wait_s: float) -> float:
        if wait_s > 0:
            until_s = self._loop.time() + wait_s
            if self._timer is None:
                self._until_s = until_s
                self._timer = self._loop.call_at(until_s, self._over)
                self._hold()
            else:
                self._until_s = max(self._until_s, until_s)
        return wait_s

    def _over(self) -> None:
        if self._until_s > self._loop.time():
            self._timer = self._loop.call_at(self._until_s, self._over)
            return
        self._timer = None
        self._release()


def _nothing() -> None:
    """Replaces the callbacks of a stream that has ended, and does nothing."""
