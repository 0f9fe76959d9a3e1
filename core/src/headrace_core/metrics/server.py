"""HTTP for scrapes: ``GET /metrics``, and nothing else.

The server is small on purpose: a node must not load a web framework to show some numbers. It accepts requests without a
body, keeps connections alive, and bounds what a stranger can hold: connections, bytes of a request, seconds.

``ssl_context`` and ``authorize`` are the two places for security: TLS on the connection (with client certificates, if
the context asks for them), and a check of each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..sockets import bound_socket
from .text import OPENMETRICS_TYPE, PROMETHEUS_TYPE, wants_openmetrics

logger = logging.getLogger("headrace.metrics")

#: Connections at a time. For a further one, the server closes the connection that has waited longest for a request, so
#: idle strangers cannot keep Prometheus out. If none is idle, it closes the new one.
CONNECTIONS_MAX = 16
HANDSHAKE_S = 10.0  #: Seconds for the TLS handshake.
CHUNK_BYTES = 128 * 1024  #: Bytes of an answer that a slow reader can hold in memory, in addition to the shared text.
REQUEST_BYTES_MAX = 8 * 1024  #: Bytes of a request: the request line and the headers.
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
    """A request that gets the answer ``status`` with ``message``. ``authorize`` raises it with 401 or 403."""

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
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], None] = {}  # those that wait for a request, longest first

    async def start(self) -> int:
        """Bind and serve; returns the port. Raises OSError, which names the address."""
        bound = await bound_socket(self.host, self.port, key="metrics.listener")
        self._server = await asyncio.start_server(
            self._connected,
            sock=bound,
            limit=REQUEST_BYTES_MAX,
            ssl=self._ssl_context,
            ssl_handshake_timeout=None if self._ssl_context is None else HANDSHAKE_S,
            backlog=CONNECTIONS_MAX,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def stop(self) -> None:
        """Close the port and all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MAX:
            idle = next(iter(self._idle), None)
            if idle is None:
                writer.transport.abort()
                return
            del self._idle[idle]
            self._open.discard(idle)
            idle.cancel()
        self._open.add(task)
        try:
            connected = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # drain waits until all is sent, because what is left is aborted. Transports of TLS pause at ``high``
            # itself: 0 would never resume them.
            writer.transport.set_write_buffer_limits(high=0 if self._ssl_context is None else 1)
            self._idle[task] = None
            while await self._serve_one(reader, writer, task):
                self._idle[task] = None
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client is gone, or too slow
        except asyncio.CancelledError:
            pass  # the node stops; asyncio's streams log a cancelled handler as an error
        finally:
            self._open.discard(task)
            self._idle.pop(task, None)
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
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            status, body = 500, "The metrics could not be collected; the node's log has the reason.\n"
        await self._send(writer, status, body, keep=keep, kind=kind, extra=extra, with_body=request.method != "HEAD")
        return keep

    def _check(self, request: ScrapeRequest) -> None:
        if self._authorize is not None:
            self._authorize(request)
        if request.path != "/metrics":
            raise Refused(404, "Only /metrics is here.")
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, "Only GET and HEAD are served.", {"Allow": "GET, HEAD"})

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


def _parsed(head: str, writer: asyncio.StreamWriter) -> tuple[ScrapeRequest, bool]:
    """The request, and whether the client keeps the connection. Raises Refused."""
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(400, "This is no HTTP/1.1 request.")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400, "A header line has no name.")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Refused(400, "A scrape has no body.")
    keep = headers.get("connection", "").lower() != "close" and words[2] != "HTTP/1.0"
    path = words[1].partition("?")[0]
    certificate = writer.get_extra_info("peercert") or None
    return ScrapeRequest(words[0], path, headers, certificate), keep
