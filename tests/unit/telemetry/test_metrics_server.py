"""HTTP for scrapes: what is answered, what is refused, and where security comes in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace_core.metrics import server as module
from headrace_core.metrics.server import (
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    Authorize,
    MetricsServer,
    Refused,
    ScrapeRequest,
)
from tests.worlds.security import TestAuthority
from tests.worlds.waiting import until_async


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


@asynccontextmanager
async def _server(authorize: Authorize | None = None) -> AsyncIterator[MetricsServer]:
    async def text(openmetrics: bool) -> bytes:
        return b"open\n# EOF\n" if openmetrics else b"plain\n"

    server = MetricsServer(text, "127.0.0.1", 0, authorize=authorize)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def _ask(server: MetricsServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    found = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return found


def _get(path: str = "/metrics", headers: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}\r\n".encode()


@on_loop
async def test_the_format_follows_accept() -> None:
    async with _server() as server:
        plain = await _ask(server, _get())
        assert plain.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
        assert plain.endswith(b"\r\n\r\nplain\n")
        found = await _ask(server, _get(headers="Accept: application/openmetrics-text\r\n"))
        assert b"application/openmetrics-text; version=1.0.0" in found
        assert found.endswith(b"# EOF\n")


@on_loop
async def test_a_connection_serves_one_scrape_after_the_other() -> None:
    async with _server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(3):
            writer.write(b"GET /metrics?x=1 HTTP/1.1\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert b"Connection: keep-alive" in head
            assert await reader.readexactly(6) == b"plain\n"
        writer.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (_get("/"), 404),
        (_get(method="POST"), 405),
        (_get(headers="Content-Length: 3\r\n"), 400),
        (_get(headers="Transfer-Encoding: chunked\r\n"), 400),
        (_get(headers="no colon\r\n"), 400),
        (_get(headers=" : x\r\n"), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /metrics SMTP/1.1\r\n\r\n", 400),
        (_get(headers=f"X: {'x' * REQUEST_BYTES_MAX}\r\n"), 431),
    ],
)
@on_loop
async def test_other_requests_are_refused(request_: bytes, status: int) -> None:
    async with _server() as server:
        assert (await _ask(server, request_)).startswith(f"HTTP/1.1 {status} ".encode())


@on_loop
async def test_head_has_the_length_and_no_body() -> None:
    async with _server() as server:
        found = await _ask(server, _get(method="HEAD"))
        assert b"Content-Length: 6" in found
        assert found.endswith(b"\r\n\r\n")


@on_loop
async def test_authorize_sees_each_request_and_refuses_it() -> None:
    seen: list[ScrapeRequest] = []

    def authorize(request: ScrapeRequest) -> None:
        seen.append(request)
        if request.headers.get("authorization") != "Bearer t":
            raise Refused(401, "A token is needed.", {"WWW-Authenticate": "Bearer"})

    async with _server(authorize) as server:
        refused = await _ask(server, _get("/"))
        assert refused.startswith(b"HTTP/1.1 401 Unauthorized")
        assert b"WWW-Authenticate: Bearer" in refused
        assert refused.endswith(b"\r\n\r\nA token is needed.\n")
        assert (await _ask(server, _get(headers="Authorization: Bearer t\r\n"))).endswith(b"plain\n")
    assert [each.path for each in seen] == ["/", "/metrics"]
    assert seen[0].certificate is None


@on_loop
async def test_connections_are_bounded_and_slow_requests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.05)
    async with _server() as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)]
        assert (await _ask(server, _get())).endswith(b"plain\n"), "idle strangers do not keep Prometheus out"
        assert await asyncio.wait_for(idle[0][0].read(), 5) == b"", "the one that was idle longest is closed"
        idle[1][1].write(b"GET")  # the first byte starts the clock of the request
        assert await asyncio.wait_for(idle[1][0].read(), 5) == b""
        monkeypatch.setattr(module, "REQUEST_S", 60.0)
        idle += [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for _, each in idle[2:]:
            each.write(b"G")
        await until_async(lambda: not server._idle, "all connections send a request")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionResetError):  # it is reset or closed, and never answered
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        for _, each in idle:
            each.close()


async def _from(
    address: str, server: MetricsServer, data: bytes, **more: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(address, 0), **more)
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize("data", [b"", b"G", _get().replace(b"close", b"keep-alive") * 3])
@on_loop
async def test_a_stranger_keeps_no_prometheus_at_another_address_out(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with _server() as server:
        prometheus, writer = await _from("127.0.0.2", server, b"")  # idle, and the oldest
        held = [await _from("127.0.0.1", server, data) for _ in range(3 * CONNECTIONS_MAX)]
        await asyncio.sleep(0.1)
        writer.write(_get())
        assert (await asyncio.wait_for(prometheus.read(), 5)).endswith(b"plain\n")
        assert len(server._open) <= CONNECTIONS_MAX
        another, _ = await _from("127.0.0.3", server, _get())
        assert (await asyncio.wait_for(another.read(), 5)).endswith(b"plain\n")
        assert caplog.text.count("connections of scrapers are open, which is the limit; ") == 1
        assert "connections of 127.0.0.1" in caplog.text
        for _, each in held:
            each.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_without_a_handshake_are_counted(tmp_path: Path, loop: str) -> None:
    authority = TestAuthority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("own.pem"))
    trusted = ssl.create_default_context(cafile=str(authority.ca))

    async def scrape() -> bytes:
        async def text(openmetrics: bool) -> bytes:
            return b"plain\n"

        server = MetricsServer(text, "127.0.0.1", 0, ssl_context=context)
        await server.start()
        before = len(os.listdir("/proc/self/fd"))
        held = [await _from("127.0.0.1", server, b"\x16") for _ in range(100)]
        await until_async(lambda: len(os.listdir("/proc/self/fd")) - before <= len(held) + 2 * CONNECTIONS_MAX)
        reader, writer = await _from("127.0.0.2", server, _get(), ssl=trusted)
        found = await asyncio.wait_for(reader.read(), 10)
        for each in (writer, *(writer for _, writer in held)):
            each.close()
        await server.stop()
        return found

    found = asyncio.run(scrape()) if loop == "asyncio" else uvloop.run(scrape())
    assert found.endswith(b"plain\n")


@on_loop
async def test_a_taken_port_is_an_error_that_names_the_key() -> None:
    async with _server() as server:
        other = MetricsServer(server._text, "127.0.0.1", server.port)
        with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:\d+ \(metrics\.listener\)"):
            await other.start()


@on_loop
async def test_an_answer_before_the_end_of_a_connection_is_sent_whole() -> None:
    async def text(openmetrics: bool) -> bytes:
        return b"x" * 40_000

    server = MetricsServer(text, "127.0.0.1", 0)
    await server.start()
    sent = asyncio.Event()
    send = server._send

    async def through_a_narrow_socket(writer: asyncio.StreamWriter, *given: Any, **named: Any) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        sending = asyncio.create_task(send(writer, *given, **named))
        await until_async(lambda: writer.transport.get_write_buffer_size() > 0, "a part of the answer waits")
        sent.set()
        await sending

    server._send = through_a_narrow_socket  # type: ignore[method-assign]
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        narrow.connect(("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=narrow, limit=1_024)
        writer.write(_get())
        await asyncio.wait_for(sent.wait(), 10)
        found = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert found.partition(b"\r\n\r\n")[2] == b"x" * 40_000
    await server.stop()


@pytest.mark.parametrize("size", [1_000, 400_000])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_answer_over_tls_is_whole_and_ends(tmp_path: Path, size: int, loop: str) -> None:
    authority = TestAuthority(tmp_path)
    own = authority.issue("own.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)

    async def scrape() -> bytes:
        async def text(openmetrics: bool) -> bytes:
            return b"x" * size

        server = MetricsServer(text, "127.0.0.1", 0, ssl_context=context)
        await server.start()
        trusted = ssl.create_default_context(cafile=str(authority.ca))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusted)
        writer.write(_get())
        found = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await server.stop()
        return found

    found = asyncio.run(scrape()) if loop == "asyncio" else uvloop.run(scrape())
    assert found.partition(b"\r\n\r\n")[2] == b"x" * size


@on_loop
async def test_a_slow_reader_holds_a_chunk_and_not_a_copy_of_the_text() -> None:
    async def text(openmetrics: bool) -> bytes:
        return b"x" * 20_000_000

    server = MetricsServer(text, "127.0.0.1", 0)
    await server.start()
    sizes: list[int] = []
    send = server._send

    async def spied(writer: asyncio.StreamWriter, *given: Any, **named: Any) -> None:
        sending = asyncio.create_task(send(writer, *given, **named))
        for _ in range(50):
            await asyncio.sleep(0)
            sizes.append(writer.transport.get_write_buffer_size())
        await sending

    server._send = spied  # type: ignore[method-assign]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=4_096)
    writer.write(_get())
    found = await asyncio.wait_for(reader.read(), 30)
    assert found.endswith(b"x")
    assert len(found) > 20_000_000
    assert 0 < max(sizes) < 1_000_000
    writer.close()
    await server.stop()
