"""Limits on the connections of strangers: their number, and the time until a handshake and a first request arrive.

    accept ──> TLS handshake (HANDSHAKE_S) ──> the first request (FIRST_REQUEST_S) ──> requests, idle between them

aiohttp closes a connection that is idle after a request, but waits forever for the first one, and asyncio counts no
handshakes. So without these limits one client could hold all file descriptors of the process, and with them the
console's own connections to the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_core.node.descriptors import connections_with_room
from headrace_core.visible import escaped

from .attempts import network_of

logger = logging.getLogger("headrace.console")

#: Maximum number of connections; less if the process may not open enough files.
CONNECTIONS_MAX = 1_000
#: File descriptors that the clients of the sessions need.
_CLIENTS_FILES = 256
#: Seconds for the TLS handshake, and seconds within which the header of the first request must arrive.
HANDSHAKE_S, FIRST_REQUEST_S = 10.0, 15.0
#: Seconds between two attempts to accept connections when no file descriptor is free.
_PAUSE_S = 0.5


class Connections:
    """The connections of one console. At the limit a new connection takes the place of an idle one: that which is idle
    for the longest time, of the address that has the most. Without an idle connection the new one is closed."""

    def __init__(self, most: int | None = None, first_request_s: float = FIRST_REQUEST_S) -> None:
        self.most = connections_with_room(CONNECTIONS_MAX, _CLIENTS_FILES) if most is None else most
        self._first_request_s = first_request_s
        #: Tasks of accepted connections, until the handshake has ended.
        self._handshakes: dict[asyncio.Task[None], str] = {}
        #: Connections with a request in progress.
        self._busy: set[Any] = set()
        #: Connections without a request in progress, with their addresses; the longest idle first.
        self._idle: dict[Any, str] = {}
        self._timeouts: dict[Any, asyncio.TimerHandle] = {}
        self._is_full = False

    # -- what happens to a connection

    def begun(self, task: asyncio.Task[None], address: str, count: int) -> bool:
        """Take a new connection, besides ``count`` others that have ended their handshake; returns whether it may
        stay."""
        has_room = count + len(self._handshakes) < self.most or self._make_room()
        if has_room:
            self._handshakes[task] = network_of(address)
        if count + len(self._handshakes) < self.most // 2:
            self._is_full = False
        return has_room

    def shaken(self, task: asyncio.Task[None], protocol: Any) -> None:
        """The handshake has ended; ``protocol`` is that of the connection, None if it failed."""
        address = self._handshakes.pop(task, None)
        if protocol is None or protocol.transport is None or address is None:
            return
        if protocol in self._busy or protocol in self._idle:  # the first request came with the end of the handshake
            return
        self._idle[protocol] = address
        loop = asyncio.get_running_loop()
        self._timeouts[protocol] = loop.call_later(self._first_request_s, self._close, protocol)

    def is_busy(self, protocol: Any) -> None:
        """A request has begun."""
        self._end_timeout(protocol)
        self._idle.pop(protocol, None)
        self._busy.add(protocol)

    def is_idle(self, protocol: Any, address: str) -> None:
        """A request has ended."""
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
                "%d connections are open, the limit; closing idle ones, first those of %s, which has %d",
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


class Listener:
    """Accepts the connections of one bound socket. ``make``: makes the protocol of a connection; ``count``: how many
    connections have a protocol that is open."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.Protocol],
        count: Callable[[], int],
        connections: Connections,
        context: ssl.SSLContext | None,
        *,
        backlog: int,
    ) -> None:
        self._bound, self._make, self._count, self._connections = bound, make, count, connections
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        bound.setblocking(False)
        bound.listen(backlog)
        self._accepting = asyncio.create_task(self._accept(), name="console-listener")

    async def stop(self) -> None:
        """Accept no further connection, and close those without a handshake. Closes the socket."""
        for task in (self._accepting, *self._tasks):
            task.cancel()
        await asyncio.gather(self._accepting, *self._tasks, return_exceptions=True)
        self._bound.close()

    async def _accept(self) -> None:
        loop, is_short = asyncio.get_running_loop(), False
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._bound)
            except OSError as error:
                if not is_short:
                    logger.warning("cannot accept connections: %s", error.strerror or error)
                is_short = True
                await asyncio.sleep(_PAUSE_S)
                continue
            is_short = False
            task = asyncio.create_task(self._begin(accepted), name="console-connection")
            if self._connections.begun(task, str(peer[0]) if peer else "", self._count()):
                self._tasks.add(task)
                task.add_done_callback(partial(self._has_begun, accepted))
            else:
                task.cancel()
                accepted.close()
            await asyncio.sleep(0)  # sock_accept does not pause while connections wait, and others want the loop

    async def _begin(self, accepted: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        protocol = None
        try:
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else HANDSHAKE_S,
            )
        except OSError:  # no handshake in time, another protocol than TLS, or the client is gone
            accepted.close()
        finally:
            self._connections.shaken(task, protocol)

    def _has_begun(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            accepted.close()
        elif error := task.exception():
            logger.error("a connection could not begin", exc_info=error)
