"""Limits on connections: their number, and the time until the handshake and the first request.

    accept ──> TLS handshake (HANDSHAKE_S) ──> the first request (FIRST_REQUEST_S) ──> requests, idle between them

aiohttp closes a connection that is idle after a request, but waits forever for the first request. asyncio counts no
handshakes, but ``http_connections`` of the core does. Without limits on connections, one client could use all file
descriptors of the process, and the console could not connect to the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from headrace_core.node.descriptors import connections_with_room
from headrace_core.visible import escaped

from .attempts import network_of

logger = logging.getLogger("headrace.console")

#: Maximum number of connections; fewer if the process's limit of open files is too low.
CONNECTIONS_MAX = 1_000
#: Number of file descriptors that are reserved for the sessions' clients of the cluster.
_CLIENTS_FILES = 256
#: Seconds within which the header of the first request must arrive.
FIRST_REQUEST_S = 15.0


class Connections:
    """The connections of one console. At the limit, the console closes an idle connection for a new connection: the
    longest idle connection of the address with the most idle connections. If no connection is idle, the console closes
    the new connection."""

    def __init__(self, most: int | None = None, first_request_s: float = FIRST_REQUEST_S) -> None:
        self.most = connections_with_room(CONNECTIONS_MAX, _CLIENTS_FILES) if most is None else most
        self._first_request_s = first_request_s
        #: Tasks of accepted connections, until the handshake has ended.
        self._handshakes: dict[asyncio.Task[None], str] = {}
        #: Connections with a request in progress.
        self._busy: set[Any] = set()
        #: Connections without a request in progress, with their addresses; the longest idle connection first.
        self._idle: dict[Any, str] = {}
        self._timeouts: dict[Any, asyncio.TimerHandle] = {}
        self._is_full = False

    # -- what happens to a connection

    def begun(self, task: asyncio.Task[None], protocol: Any, address: str, count: int) -> bool:
        """Count a new connection; returns whether the console keeps the connection. ``count``: number of other
        connections that have finished their handshake."""
        has_room = count + len(self._handshakes) < self.most or self._make_room()
        if has_room:
            self._handshakes[task] = network_of(address)
        if count + len(self._handshakes) < self.most // 2:
            self._is_full = False
        return has_room

    def shaken(self, task: asyncio.Task[None], protocol: Any, *, is_open: bool) -> None:
        """Called when the handshake has ended; ``is_open``: whether it succeeded."""
        address = self._handshakes.pop(task, None)
        if not is_open or protocol.transport is None or address is None:
            return
        # the first request arrived together with the end of the handshake
        if protocol in self._busy or protocol in self._idle:
            return
        self._idle[protocol] = address
        loop = asyncio.get_running_loop()
        self._timeouts[protocol] = loop.call_later(self._first_request_s, self._close, protocol)

    def is_busy(self, protocol: Any) -> None:
        """Called when a request on the connection has begun."""
        self._end_timeout(protocol)
        self._idle.pop(protocol, None)
        self._busy.add(protocol)

    def is_idle(self, protocol: Any, address: str) -> None:
        """Called when a request on the connection has ended."""
        self._busy.discard(protocol)
        if protocol.transport is not None:
            self._idle[protocol] = network_of(address)

    def close(self) -> None:
        for timeout in self._timeouts.values():
            timeout.cancel()
        self._timeouts.clear()
        self._idle.clear()

    # -- room for another

    def _make_room(self) -> bool:
        for protocol in [each for each in self._idle if each.transport is None]:  # the client has closed it
            self._end_timeout(protocol)
            del self._idle[protocol]
        counts = Counter(self._idle.values()) + Counter(self._handshakes.values())
        if not counts:
            return False
        address, count = counts.most_common(1)[0]
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "%d connections are open, which is the limit; closing idle connections, first those of %s, which has "
                "%d",
                self.most,
                escaped(address),
                count,
            )
        idle = next((each for each, place in self._idle.items() if place == address), None)
        if idle is not None:
            self._close(idle)
            return True
        task = next(each for each, place in self._handshakes.items() if place == address)
        del self._handshakes[task]
        task.cancel()
        return True

    def _close(self, protocol: Any) -> None:
        self._end_timeout(protocol)
        self._idle.pop(protocol, None)
        if protocol.transport is not None:
            protocol.transport.abort()

    def _end_timeout(self, protocol: Any) -> None:
        timeout = self._timeouts.pop(protocol, None)
        if timeout is not None:
            timeout.cancel()
