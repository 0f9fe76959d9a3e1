"""Bodies of HTTP requests: nothing of a body is unpacked, and nothing is read before the request is admitted.

aiohttp's own defaults unpack a gzip body as it arrives, also that of a refused request (1 MB becomes 1,000 MiB), read
on for 10 seconds after an answer, and ask every client that sends ``Expect`` for its body. ``SERVER``, ``expected`` and
``invite`` replace these; ``has_unread_body`` says that a connection must close with its answer.
"""

from __future__ import annotations

import logging
from typing import Any

#: Arguments of aiohttp's runners.
SERVER: dict[str, Any] = {
    "auto_decompress": False,
    "lingering_time": 0.0,
    "read_bufsize": 64 * 1024,  # bytes of a body that wait until a handler reads them; twice as many at most
    "max_headers": 64,
    "max_line_size": 8190,  # bytes of a request line; of a header: ``max_field_size``
    "max_field_size": 8190,
}


def coding_error(request: Any) -> tuple[int, str] | None:
    """The status and message for a request whose body is encoded or compressed; None for a plain one. RFC 9110, 8.4;
    RFC 9112, 6.1."""
    if any(_names(request, "Content-Encoding") - {"identity"}):
        return 415, "a body with Content-Encoding is not accepted; send it without compression"
    if any(_names(request, "Transfer-Encoding") - {"chunked"}):
        return 501, "of the transfer codings only chunked is accepted; send the body without compression"
    return None


def server_logger(name: str) -> logging.Logger:
    """The logger of aiohttp's server, which logs each request that is not HTTP with a traceback, so any client could
    fill the log. This one writes one line at level DEBUG in its place."""
    found = logging.getLogger(name)
    found.addFilter(_is_own_fault)
    return found


def _is_own_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    is_aiohttps = type(error).__module__.startswith("aiohttp.")
    if not is_aiohttps and not isinstance(error, ConnectionError):
        return True
    logging.getLogger(record.name).debug("a request that is not HTTP: %s", type(error).__name__)
    return False


def _names(request: Any, header: str) -> set[str]:
    names = ",".join(request.headers.getall(header, ())).lower().split(",")
    return {name.strip() for name in names} - {""}


async def expected(request: Any) -> None:
    """aiohttp's handler of ``Expect: 100-continue``, which runs before the request is checked: it invites no body."""


async def invite(request: Any) -> None:
    """Ask for the body of a request that is admitted, if its client waits for that (RFC 9110, 10.1.1)."""
    is_waiting = request.headers.get("Expect", "").lower() == "100-continue" and request.version >= (1, 1)
    if is_waiting and not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # aiohttp takes it for the size of the answer


def has_unread_body(request: Any) -> bool:
    """Whether the connection must close after the answer. Stops reading from it, so that a closing TLS connection reads
    no further either."""
    if request.content.at_eof():
        return False
    if request.transport is not None:
        request.transport.pause_reading()
    return True
