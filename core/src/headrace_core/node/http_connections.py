"""Accept HTTP connections, and count each connection before its TLS handshake.

asyncio's own servers count no handshakes. Without the count, a client that begins TLS handshakes and never finishes a
handshake could hold all file descriptors of the process.

    accept ──> ``begun`` ──> TLS handshake (HANDSHAKE_S) ──> ``shaken`` ──> requests
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

#: Maximum duration of a TLS handshake in seconds.
HANDSHAKE_S = 10.0
#: Seconds in which a client must answer the closing message of TLS.
CLOSING_S = 1.0
#: Seconds between two attempts to accept connections when no file descriptor is free.
_PAUSE_S = 0.5


class ConnectionLimits(Protocol):
    """Decides which new connections a listener accepts."""

    def begun(self, task: asyncio.Task[None], protocol: Any, address: str, count: int) -> bool:
        """Count a new connection from ``address``; returns whether the connection is accepted. ``count``: number of
        other connections that have finished their handshake. ``task`` runs the handshake; cancelling ``task`` closes
        the connection. ``protocol`` has no transport before the handshake has ended."""

    def shaken(self, task: asyncio.Task[None], protocol: Any, *, is_open: bool) -> None:
        """Record that the handshake has ended; ``is_open``: whether it succeeded. A first request may arrive before the
        listener calls ``shaken``. If ``task`` was cancelled before it ran, the listener does not call ``shaken``."""


class Listener:
    """Accepts the connections of one bound socket. ``make`` returns the protocol of a new connection; ``count`` returns
    the number of connections whose protocol is open. ``context``: None for a listener that does not encrypt."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.Protocol],
        count: Callable[[], int],
        connections: ConnectionLimits,
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
