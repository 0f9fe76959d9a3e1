"""Limits on connections: their number, and the time until the first request.

aiohttp closes a connection that is idle after a request (its keep-alive timeout), but waits forever for the first one.
So a client could hold connections with no request, or with half of a request's header.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web

logger = logging.getLogger("headrace.registry")

#: Maximum number of connections of a registry; less if the process may not open enough files.
CONNECTIONS_MAX = 2_000
#: Seconds within which a client must send the header of its first request.
FIRST_REQUEST_S = 15.0


class Connections:
    """The connections of one replica. When there are ``most`` connections, the oldest one that has not sent a request
    is closed in favour of a new connection; without such a connection the new one is closed."""

    def __init__(self, most: int = CONNECTIONS_MAX, first_request_s: float = FIRST_REQUEST_S) -> None:
        self._most = most
        self._first_request_s = first_request_s
        #: Connections that have not sent a request, with their timeouts; oldest first.
        self._silent: dict[Any, asyncio.TimerHandle] = {}
        self._is_full = False

    def opened(self, protocol: Any, count: int) -> bool:
        """Take a new connection, besides ``count`` others; returns whether the connection may stay."""
        if count >= self._most:
            if not self._is_full:
                self._is_full = True
                logger.warning("%d connections are open, the limit; closing connections without a request", count)
            oldest = next((each for each in self._silent if each.transport is not None), None)
            if oldest is None:
                return False
            self._close(oldest)
        else:
            self._is_full = False
        loop = asyncio.get_running_loop()
        self._silent[protocol] = loop.call_later(self._first_request_s, self._close, protocol)
        return True

    def has_request(self, protocol: Any) -> None:
        """Called for each request, when its header has arrived."""
        timeout = self._silent.pop(protocol, None)
        if timeout is not None:
            timeout.cancel()

    def _close(self, protocol: Any) -> None:
        self.has_request(protocol)
        if protocol.transport is not None:  # otherwise the client has closed the connection
            protocol.transport.abort()

    def close(self) -> None:
        for timeout in self._silent.values():
            timeout.cancel()
        self._silent.clear()


class _Refused(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class BoundedRunner(web.AppRunner):
    """A runner of aiohttp whose listeners make connections within the limits of ``connections``."""

    def __init__(self, app: web.Application, connections: Connections, **settings: Any) -> None:
        super().__init__(app, **settings)
        self._connections = connections

    @property
    def server(self) -> Any:
        """The factory of the listeners' protocols: aiohttp's server, except for connections above the limit."""
        return None if super().server is None else self._new_protocol

    def _new_protocol(self) -> asyncio.Protocol:
        server = super().server
        assert server is not None
        protocol = server()
        return protocol if self._connections.opened(protocol, len(server.connections)) else _Refused()

    async def cleanup(self) -> None:
        await super().cleanup()
        self._connections.close()
