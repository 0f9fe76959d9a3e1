"""Accept HTTP connections, and limit them: their number, and the time until the handshake and the first request.

    accept ──> ``begun`` ──> TLS handshake (HANDSHAKE_S) ──> ``shaken`` ──> the first request (FIRST_REQUEST_S)
           ──> requests, idle between them

aiohttp closes a connection that is idle after a request, but waits forever for the first request, and asyncio's own
servers count no handshakes. Without limits, one client could hold all file descriptors of the process.
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

from ..connections import AddressLimits, plain
from ..security.acl_types import network_of
from ..visible import escaped

#: Maximum duration of a TLS handshake in seconds.
HANDSHAKE_S = 10.0
#: Seconds within which the header of the first request must arrive.
FIRST_REQUEST_S = 15.0
#: Seconds in which a client must answer the closing message of TLS.
CLOSING_S = 1.0
#: Seconds between two attempts to accept connections when no file descriptor is free.
_PAUSE_S = 0.5


class HttpConnections:
    """The connections of one node. At the limit, the node closes a connection of the address with the most idle
    connections for a new one: the oldest that has sent no request yet, or else the longest idle one. So one address
    cannot keep others out. If no connection is idle, the node closes the new connection. A connection above the limit
    of its address is closed, too.

    ``most``: maximum number of connections. ``logger`` gets a warning when it is reached."""

    def __init__(
        self,
        most: int,
        logger: logging.Logger,
        addresses: AddressLimits | None = None,
        *,
        first_request_s: float = FIRST_REQUEST_S,
    ) -> None:
        self.most = most
        self._logger = logger
        self._addresses = addresses or AddressLimits()
        self._first_request_s = first_request_s
        #: The address of each connection while a limit of addresses is set. Closed ones are removed when an address has
        #: no room, because aiohttp does not tell when a connection ends.
        self._hosts: dict[Any, str] = {}
        #: Tasks of accepted connections, with their networks and protocols, until the handshake has ended.
        self._handshakes: dict[asyncio.Task[None], tuple[str, Any]] = {}
        #: Connections with a request in progress.
        self._busy: set[Any] = set()
        #: Connections without a request in progress, with their networks; the longest idle connection first.
        self._idle: dict[Any, str] = {}
        self._timeouts: dict[Any, asyncio.TimerHandle] = {}
        self._is_full = False

    # -- what happens to a connection

    def begun(self, task: asyncio.Task[None], protocol: Any, address: str, count: int) -> bool:
        """Count a new connection from ``address``; returns whether it may stay. ``count``: number of other connections
        that have finished their handshake. ``task`` runs the handshake; cancelling ``task`` closes the connection.
        ``protocol`` has no transport before the handshake has ended."""
        if not self._has_room_for(address):
            return False
        if len(self._idle) > 2 * self.most:
            self._forget_closed()
        has_room = count + len(self._handshakes) < self.most or self._make_room()
        if has_room:
            self._handshakes[task] = network_of(address), protocol
            if self._addresses.are_set:
                self._hosts[protocol] = plain(address)
        if count + len(self._handshakes) < self.most // 2:
            self._is_full = False
        return has_room

    def shaken(self, task: asyncio.Task[None], protocol: Any, *, is_open: bool) -> None:
        """Record that the handshake has ended; ``is_open``: whether it succeeded. A first request may arrive before the
        listener calls ``shaken``. If ``task`` was cancelled before it ran, the listener does not call ``shaken``."""
        found = self._handshakes.pop(task, None)
        if not is_open or protocol.transport is None or found is None:
            return
        # the first request arrived together with the end of the handshake
        if protocol in self._busy or protocol in self._idle:
            return
        self._idle[protocol] = found[0]
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
        """Forget all connections."""
        for timeout in self._timeouts.values():
            timeout.cancel()
        self._timeouts.clear()
        self._idle.clear()
        self._hosts.clear()

    # -- room for another

    def _has_room_for(self, address: str) -> bool:
        """Whether the address may have one more connection."""
        if not self._addresses.are_set:
            return True
        host = plain(address)
        most = self._addresses.most(host)
        if len(self._hosts) < 2 * self.most and sum(each == host for each in self._hosts.values()) < most:
            return True
        shaking = {protocol for _, protocol in self._handshakes.values()}
        for protocol in [each for each in self._hosts if each not in shaking and each.transport is None]:
            del self._hosts[protocol]
        return sum(each == host for each in self._hosts.values()) < most

    def _make_room(self) -> bool:
        self._forget_closed()
        counts = Counter(self._idle.values()) + Counter(network for network, _ in self._handshakes.values())
        if not counts:
            return False
        network, count = counts.most_common(1)[0]
        if not self._is_full:
            self._is_full = True
            self._logger.warning(
                "%d connections are open, which is the limit; closing idle connections, first those of %s, which has "
                "%d",
                self.most,
                escaped(network),
                count,
            )
        idle = [each for each, place in self._idle.items() if place == network]
        silent = next((each for each in idle if each in self._timeouts), None)
        if silent is None and len(idle) < count - len(idle):
            task = next(each for each, (place, _) in self._handshakes.items() if place == network)
            del self._handshakes[task]
            task.cancel()
        else:
            # A connection whose answer is still being written goes last, because its client would lose the answer.
            written = (each for each in idle if each.transport.get_write_buffer_size() == 0)
            self._close(silent or next(written, idle[0]))
        return True

    def _forget_closed(self) -> None:
        """Remove idle connections that their clients have closed."""
        for protocol in [each for each in self._idle if each.transport is None]:
            self._end_timeout(protocol)
            del self._idle[protocol]

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
    """Accepts the connections of one bound socket. ``make`` returns the protocol of a new connection; ``count`` returns
    the number of connections whose protocol is open. ``context``: None for a listener that does not encrypt."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.Protocol],
        count: Callable[[], int],
        connections: HttpConnections,
        context: ssl.SSLContext | None,
        *,
        backlog: int,
        logger: logging.Logger,
    ) -> None:
        self._bound, self._make, self._count, self._connections = bound, make, count, connections
        self._context, self._logger = context, logger
        self._tasks: set[asyncio.Task[None]] = set()
        bound.setblocking(False)
        bound.listen(backlog)
        self._accepting = asyncio.create_task(self._accept(), name="http-listener")

    async def stop(self) -> None:
        """Accept no further connection, and close connections whose handshake has not ended. Closes the socket."""
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
                    self._logger.warning("cannot accept connections: %s", error.strerror or error)
                is_short = True
                await asyncio.sleep(_PAUSE_S)
                continue
            is_short = False
            protocol = self._make()
            task = asyncio.create_task(self._begin(accepted, protocol), name="http-connection")
            if self._connections.begun(task, protocol, str(peer[0]) if peer else "", self._count()):
                self._tasks.add(task)
                task.add_done_callback(partial(self._has_begun, accepted))
            else:
                task.cancel()
                accepted.close()
            await asyncio.sleep(0)  # sock_accept does not yield while connections wait, but other tasks need the loop

    async def _begin(self, accepted: socket.socket, protocol: asyncio.Protocol) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_open = False
        seconds: dict[str, float] = {}
        if self._context is not None:
            seconds = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": CLOSING_S}
        try:
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context,
                **seconds,
            )
            is_open = True
        except OSError:  # the handshake took too long, the client does not speak TLS, or the client has disconnected
            accepted.close()
        finally:
            self._connections.shaken(task, protocol, is_open=is_open)

    def _has_begun(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            accepted.close()
        elif error := task.exception():
            self._logger.error("a new connection failed", exc_info=error)
