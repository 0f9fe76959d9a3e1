"""HTTP for scrapes: ``GET /metrics``, and nothing else.

The server is small on purpose: a node must not load a web framework to show some numbers. The server accepts requests
without a body, keeps connections alive, and limits the connections of each client, the bytes of a request, and the time
that a client takes. A connection counts as soon as it is accepted, before the TLS handshake: asyncio's own servers
count no handshakes, so one client could hold all file descriptors of a node.

Two arguments add security: ``ssl_context`` encrypts the connections (and verifies client certificates, if the context
asks for them), and ``authorize`` checks each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..sockets import bound_socket
from .text import OPENMETRICS_TYPE, PROMETHEUS_TYPE, wants_openmetrics

logger = logging.getLogger("headrace.metrics")

#: Maximum number of open connections, including connections in the TLS handshake. When a further connection arrives,
#: the server closes another connection, preferably an idle one. Among the candidates, the server chooses the address
#: with the most connections, and of this address the longest idle or the oldest connection. An address never loses a
#: connection to an address that has more connections. Therefore a client with many connections cannot keep out a
#: Prometheus at another address.
CONNECTIONS_MAX = 16
BACKLOG = 128  #: Maximum number of connections that wait in the kernel.
HANDSHAKE_S = 10.0  #: Seconds for the TLS handshake.
CLOSING_S = 3.0  #: Seconds in which a client must answer the closing message of TLS.
PAUSE_S = 0.5  #: Seconds between two attempts to accept connections when no file descriptor is free.
CHUNK_BYTES = 128 * 1024  #: Bytes of an answer that a slow reader can hold in memory, in addition to the shared text.
REQUEST_BYTES_MAX = 8 * 1024  #: Maximum bytes of a request: of its request line and its headers.
REQUEST_S = 10.0  #: Seconds in which a request must arrive whole, after its first byte.
IDLE_S = 300.0  #: Seconds that a connection may be idle between two scrapes.
ANSWER_S = 30.0  #: Seconds in which a client must read an answer.

_PHRASES = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    431: "Request Header Fields Too Large", 500: "Internal Server Error",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScrapeRequest:
    """A request as ``authorize`` sees it. ``headers``: by name in lower case. ``certificate``: the client's verified
    certificate, as ``ssl.SSLSocket.getpeercert`` returns it; None without TLS or without a certificate."""

    method: str
    path: str
    headers: Mapping[str, str]
    certificate: Mapping[str, Any] | None = field(default=None)


class Refused(Exception):
    """A refused request: the client gets the HTTP status ``status`` with ``message``. ``authorize`` raises Refused with
    401 or 403."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


#: Checks a request; raises Refused with 401 or 403.
Authorize = Callable[[ScrapeRequest], None]


class MetricsServer:
    """Serves ``text`` at host:port. Call ``start``, then ``stop``."""

    def __init__(
        self,
        text: Callable[[bool], Awaitable[bytes]],
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        authorize: Authorize | None = None,
    ) -> None:
        """``text`` returns the text of a scrape; its argument says whether the client wants OpenMetrics. Port 0: any
        free port."""
        self._text = text
        self.host, self.port = host, port
        self._ssl_context = ssl_context
        self._authorize = authorize
        self._bound: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Task[None], str] = {}  # connections with their addresses, oldest first
        self._idle: dict[asyncio.Task[None], None] = {}  # connections that wait for a request, the longest wait first
        self._ending: set[asyncio.Task[None]] = set()  # connections that are closed to make room for others
        self._is_full = False

    async def start(self) -> int:
        """Bind and serve; returns the port. Raises OSError, which names the address."""
        bound = self._bound = await bound_socket(self.host, self.port, key="metrics.listener")
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self.port = bound.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(bound), name="metrics-listener")
        return self.port

    async def stop(self) -> None:
        """Close the port and all connections. Idempotent."""
        tasks = [*self._open, *self._ending]
        if self._accepting is not None:
            tasks.append(self._accepting)
            self._accepting = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    async def _accept(self, bound: socket.socket) -> None:
        loop, is_short = asyncio.get_running_loop(), False
        while True:
            try:
                accepted, peer = await loop.sock_accept(bound)
            except OSError as error:
                if not is_short:
                    logger.warning("cannot accept connections of scrapers: %s", error.strerror or error)
                is_short = True
                await asyncio.sleep(PAUSE_S)
                continue
            is_short = False
            address = _place(peer[0])
            if self._has_room(address):
                task = asyncio.create_task(self._connected(accepted), name="metrics-connection")
                self._open[task], self._idle[task] = address, None
                task.add_done_callback(functools.partial(self._ended, accepted))
            else:
                accepted.close()
            await asyncio.sleep(0)  # sock_accept does not yield while connections wait, but other tasks need the loop

    def _has_room(self, address: str) -> bool:
        """Whether a connection from ``address`` may stay; closes another connection if necessary."""
        if len(self._open) < CONNECTIONS_MAX:
            self._is_full = self._is_full and len(self._open) >= CONNECTIONS_MAX // 2
            return True
        counts = Counter(self._open.values())

        def count(task: asyncio.Task[None]) -> int:
            return counts[self._open[task]]

        idle = [task for task in self._idle if count(task) >= counts[address]]
        last = max(idle or self._open, key=count)
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "%d connections of scrapers are open, which is the limit; closing some of the %d connections of %s",
                CONNECTIONS_MAX,
                count(last),
                self._open[last],
            )
        if not idle and count(last) <= counts[address]:
            return False
        del self._open[last]
        self._idle.pop(last, None)
        self._ending.add(last)
        last.cancel()
        return True

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._idle.pop(task, None)
        self._ending.discard(task)
        if task.cancelled():  # before it began
            accepted.close()
        elif error := task.exception():
            logger.error("an unexpected error ended the connection of a scraper", exc_info=error)

    async def _connected(self, accepted: socket.socket) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        reader = asyncio.StreamReader(limit=REQUEST_BYTES_MAX, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        seconds: dict[str, float] = {}
        if self._ssl_context is not None:
            seconds = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": CLOSING_S}
        try:
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._ssl_context,
                **seconds,
            )
        except OSError:  # the handshake took too long, the client does not speak TLS, or the client has disconnected
            accepted.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            # drain() waits until all bytes are sent, because unsent bytes are lost when the connection is aborted. TLS
            # transports pause at ``high`` itself, so with 0 they would never resume.
            writer.transport.set_write_buffer_limits(high=0 if self._ssl_context is None else 1)
            while await self._serve_one(reader, writer, task):
                self._idle[task] = None
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has disconnected, or is too slow
        except asyncio.CancelledError:  # the node stops, or another connection needs the place
            writer.transport.abort()
            raise
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> bool:
        """Answer one request; False when the connection is to be closed."""
        try:
            async with asyncio.timeout(IDLE_S):
                first = await reader.readexactly(1)
            self._idle.pop(task, None)
            async with asyncio.timeout(REQUEST_S):
                rest = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await self._send(writer, 431, f"The request has more than {REQUEST_BYTES_MAX} bytes.\n", keep=False)
            return False
        try:
            request, keep = _parsed((first + rest).decode("latin-1"), writer)
        except Refused as refused:
            await self._send(writer, refused.status, f"{refused.message}\n", keep=False)
            return False
        extra: Mapping[str, str] = {}
        kind = PROMETHEUS_TYPE
        try:
            self._check(request)
            openmetrics = wants_openmetrics(request.headers.get("accept"))
            kind = OPENMETRICS_TYPE if openmetrics else PROMETHEUS_TYPE
            body: str | bytes
            status, body = 200, await self._text(openmetrics)
        except Refused as refused:
            status, body, extra = refused.status, f"{refused.message}\n", refused.headers
            keep = keep and status not in (401, 403)
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            status, body = 500, "The metrics could not be collected; the node's log has the reason.\n"
        await self._send(writer, status, body, keep=keep, kind=kind, extra=extra, with_body=request.method != "HEAD")
        return keep

    def _check(self, request: ScrapeRequest) -> None:
        if self._authorize is not None:
            self._authorize(request)
        if request.path != "/metrics":
            raise Refused(404, "This server has only the path /metrics.")
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, "This server accepts only the methods GET and HEAD.", {"Allow": "GET, HEAD"})

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        body: str | bytes,
        *,
        keep: bool,
        kind: str = PROMETHEUS_TYPE,
        extra: Mapping[str, str] | None = None,
        with_body: bool = True,
    ) -> None:
        data = body if isinstance(body, bytes) else body.encode()
        lines = [
            f"HTTP/1.1 {status} {_PHRASES[status]}",
            f"Content-Type: {kind if status == 200 else 'text/plain; charset=utf-8'}",
            f"Content-Length: {len(data)}",
            f"Connection: {'keep-alive' if keep else 'close'}",
            *(f"{name}: {value}" for name, value in (extra or {}).items()),
        ]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        async with asyncio.timeout(ANSWER_S):
            if not with_body or len(data) <= CHUNK_BYTES:
                writer.write(head + (data if with_body else b""))
                await writer.drain()
                return
            writer.write(head)
            view = memoryview(data)
            for begin in range(0, len(view), CHUNK_BYTES):
                writer.write(view[begin : begin + CHUNK_BYTES])
                await writer.drain()


def _place(address: str) -> str:
    """The address by which connections are counted: for IPv6 the /64 network, because one machine may use all addresses
    of it."""
    host = address.partition("%")[0]
    if ":" not in host or host.startswith("::ffff:"):
        return host.removeprefix("::ffff:")
    return str(ipaddress.ip_network((host, 64), strict=False))


def _parsed(head: str, writer: asyncio.StreamWriter) -> tuple[ScrapeRequest, bool]:
    """Return the request with the headers ``head``, and whether the client keeps the connection open. Raises
    Refused."""
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(400, "The request is not a valid HTTP/1.1 request.")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400, "A header line of the request has no name.")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Refused(400, "The request has a body; send a GET request without a body.")
    keep = headers.get("connection", "").lower() != "close" and words[2] != "HTTP/1.0"
    path = words[1].partition("?")[0]
    certificate = writer.get_extra_info("peercert") or None
    return ScrapeRequest(words[0], path, headers, certificate), keep
