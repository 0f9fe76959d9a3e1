"""Limits on connections: their number, and the time until the first request.

    accept ──> TLS handshake (10 s) ──> the first request (FIRST_REQUEST_S since accept) ──> requests

aiohttp closes a connection that is idle after a request (its keep-alive timeout), but waits forever for the first
request. asyncio counts no handshakes; ``http_connections`` of the core does. Without limits, a client could use up all
file descriptors of the registry, with connections that never complete a handshake or a request's header.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from headrace_core.node.descriptors import connections_with_room

logger = logging.getLogger("headrace.registry")

#: Maximum number of connections of a registry; fewer if the process's limit of open files is too low.
CONNECTIONS_MAX = 2_000
#: Number of file descriptors reserved for the registry's own clients and for requests to the writer.
_CLIENTS_FILES = 256
#: Seconds within which a client must send the header of its first request.
FIRST_REQUEST_S = 15.0


class Connections:
    """The connections of one replica. When there are ``most`` connections, a new connection replaces the oldest
    connection that has not sent a request. If all connections have sent a request, the new connection is closed.
    Connections in their TLS handshake count, too. ``most``: None for CONNECTIONS_MAX, or less if the process may not
    open enough files."""

    def __init__(self, most: int | None = None, first_request_s: float = FIRST_REQUEST_S) -> None:
        self._most = connections_with_room(CONNECTIONS_MAX, _CLIENTS_FILES) if most is None else most
        self._first_request_s = first_request_s
        #: The asyncio protocols of the connections that have not sent a request, each with its timeout; oldest first.
        self._silent: dict[Any, asyncio.TimerHandle] = {}
        #: Tasks of the handshakes in progress, by the protocol of the connection.
        self._handshakes: dict[Any, asyncio.Task[None]] = {}
        self._is_full = False

    def begun(self, task: asyncio.Task[None], protocol: Any, address: str, count: int) -> bool:
        """Take a new connection; returns whether it may stay. ``count``: the number of other connections that have
        finished their handshake."""
        if len(self._silent) > 2 * self._most:
            self._forget_closed()
        if count + len(self._handshakes) >= self._most:
            if not self._is_full:
                self._is_full = True
                logger.warning(
                    "%d connections are open, which is the limit; each new connection replaces the oldest one that has "
                    "not sent a request, or is closed if there is none",
                    self._most,
                )
            oldest = next((each for each in self._silent if self._is_open(each)), None)
            if oldest is None:
                return False
            self._close(oldest)
        else:
            self._is_full = False
        loop = asyncio.get_running_loop()
        self._silent[protocol] = loop.call_later(self._first_request_s, self._close, protocol)
        self._handshakes[protocol] = task
        return True

    def shaken(self, task: asyncio.Task[None], protocol: Any, *, is_open: bool) -> None:
        """Called when the handshake has ended; ``is_open``: whether it succeeded."""
        self._handshakes.pop(protocol, None)
        if not is_open:
            self.has_request(protocol)

    def has_request(self, protocol: Any) -> None:
        """Called for each request, when its header has arrived."""
        timeout = self._silent.pop(protocol, None)
        if timeout is not None:
            timeout.cancel()

    def close(self) -> None:
        """Forget all connections."""
        for timeout in self._silent.values():
            timeout.cancel()
        self._silent.clear()

    def _is_open(self, protocol: Any) -> bool:
        return protocol in self._handshakes or protocol.transport is not None

    def _close(self, protocol: Any) -> None:
        self.has_request(protocol)
        handshake = self._handshakes.pop(protocol, None)
        if handshake is not None:
            handshake.cancel()
        elif protocol.transport is not None:  # if it is missing, the client has closed the connection
            protocol.transport.abort()

    def _forget_closed(self) -> None:
        """Remove connections that their clients have closed without a request."""
        for protocol in [each for each in self._silent if not self._is_open(each)]:
            self.has_request(protocol)
