"""Registry, console and /metrics against raw clients: nothing of a body is unpacked, nothing is read before the client
is admitted, and a refusal ends the connection at once."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

import headrace_registry.api.http
import headrace_registry.app
from headrace_console.app import ConsoleNode
from headrace_console.gate import FORM_BYTES_MAX
from headrace_console.settings import ConsoleSettings
from headrace_core.metrics.server import MetricsServer, ScrapeRequest
from headrace_core.metrics.server import Refused as ScrapeRefused
from headrace_core.node.config import NodeConfig
from headrace_core.node.http_bodies import SERVER
from headrace_core.security.http import BearerTokens, HttpGuard
from headrace_core.security.tls import TlsSettings, TlsSource
from headrace_registry.app import RegistryNode
from tests.unit.registry.api.world import MemoryRegistry
from tests.worlds.security import TestAuthority

TOKEN = "a-token-of-this-test"
WAIT_S = 5.0
#: Bytes that may be under way in the buffers of sockets.
BUFFERED_MAX = 32 << 20

CODINGS = ["gzip", "x-gzip", "GZIP", "deflate", "br", "zstd", "identity, gzip", "gzip, gzip", "nonsense"]


class _Registry(MemoryRegistry):
    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__([])

    async def start(self) -> None: ...

    async def stop(self, *, at_once: bool) -> None: ...

    async def wait_for_writer(self, _: float) -> bool:
        return True


@asynccontextmanager
async def _registry(guard: HttpGuard) -> AsyncIterator[int]:
    config = NodeConfig.from_properties(
        {"registry.listeners": "http://127.0.0.1:0", "kafkastore.bootstrap.servers": "127.0.0.1:1"}, role="registry"
    )
    node = RegistryNode(config)
    node.settings = dataclasses.replace(node.settings, guard=guard)
    await node.start()
    try:
        yield node._sockets[0].getsockname()[1]
    finally:
        await node.stop()


@asynccontextmanager
async def _console(guard: HttpGuard) -> AsyncIterator[int]:
    settings = ConsoleSettings.checked(
        listeners=["http://127.0.0.1:0" if guard.tls is None else "https://127.0.0.1:0"],
        bootstrap_servers=("127.0.0.1:1",),
        client={},
        path_prefix="",
        is_read_only=False,
        allowed_hosts=[],
        registry_urls="",
        directory="",
        guard=guard,
    )
    node = ConsoleNode(settings)
    await node.start()
    try:
        yield node._sockets[0].getsockname()[1]
    finally:
        await node.stop()


@asynccontextmanager
async def _metrics(guard: HttpGuard) -> AsyncIterator[int]:
    async def text(openmetrics: bool) -> bytes:
        return b"plain\n"

    def authorize(request: ScrapeRequest) -> None:
        if not guard.admits(request.headers.get("authorization"), request.certificate):
            raise ScrapeRefused(401, "authentication is needed")

    server = MetricsServer(text, "127.0.0.1", 0, authorize=authorize, ssl_context=guard.ssl_context())
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


@dataclasses.dataclass(frozen=True)
class Door:
    serve: Callable[[HttpGuard], Any]
    path: str
    media_type: str

    def head(self, *headers: str, method: str = "POST", token: str = "", path: str = "") -> bytes:
        lines = [f"{method} {path or self.path} HTTP/1.1", "Host: localhost", *headers]
        if method == "POST":
            lines.append(f"Content-Type: {self.media_type}")
        if token:
            lines.append(f"Authorization: Bearer {token}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n"


REGISTRY = Door(_registry, "/subjects/s/versions", "application/json")
CONSOLE = Door(_console, "/apply", "application/x-www-form-urlencoded")
METRICS = Door(_metrics, "/metrics", "text/plain")
DOORS = pytest.mark.parametrize("door", [REGISTRY, CONSOLE, METRICS], ids=["registry", "console", "metrics"])
WEB_DOORS = pytest.mark.parametrize("door", [REGISTRY, CONSOLE], ids=["registry", "console"])


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HttpGuard:
    monkeypatch.setattr(headrace_registry.app, "Registry", _Registry)
    (tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "tokens").chmod(0o600)
    return HttpGuard(tokens=BearerTokens(str(tmp_path / "tokens")))


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was unpacked with zlib."""
    found: list[Any] = []
    real = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda *given, **more: found.append(given) or real(*given, **more))
    return found


async def exchange(port: int, *parts: bytes, context: ssl.SSLContext | None = None) -> bytes | None:
    """What a client that sends ``parts`` gets until the connection has ended; None: it did not end."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None
    )
    got = bytearray()
    try:
        async with asyncio.timeout(WAIT_S):
            for part in parts:
                writer.write(part)
            while data := await reader.read(1 << 16):
                got += data
    except ConnectionError:
        pass  # it ends with a reset because the server has not read all
    except TimeoutError:
        return None
    finally:
        writer.transport.abort()
    return bytes(got)


def status_of(answer: bytes | None) -> int:
    assert answer is not None, "the connection stays open"
    assert answer.startswith(b"HTTP/1."), answer
    return int(answer.split()[1])


@DOORS
@pytest.mark.parametrize("length", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_stranger_is_refused_before_its_body_and_the_connection_ends(
    guard: HttpGuard, door: Door, length: str
) -> None:
    async def run() -> bytes | None:
        async with door.serve(guard) as port:
            return await exchange(port, door.head(length))

    assert status_of(asyncio.run(run())) == (400 if door is METRICS else 401)


@DOORS
def test_a_stranger_without_a_body_keeps_no_connection(guard: HttpGuard, door: Door) -> None:
    async def run() -> bytes | None:
        async with door.serve(guard) as port:
            return await exchange(port, door.head(method="GET"))

    assert status_of(asyncio.run(run())) == 401


@DOORS
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_stranger_over_tls_is_refused_before_its_body_and_the_connection_ends(
    guard: HttpGuard, door: Door, loop: Any, tmp_path: Path
) -> None:
    authority = TestAuthority(tmp_path / "ca")
    settings = TlsSettings.of({"ssl.keystore.location": str(authority.issue("own.pem"))})
    over_tls = HttpGuard(TlsSource(settings, needs_key=True, needs_trust=False), tokens=guard._tokens)
    context = ssl.create_default_context(cafile=str(authority.ca))

    async def run() -> bytes | None:
        async with door.serve(over_tls) as port:
            return await exchange(port, door.head("Content-Length: 1000000"), b"x" * 1000, context=context)

    with asyncio.Runner(loop_factory=loop) as runner:
        assert status_of(runner.run(run())) == (400 if door is METRICS else 401)


@DOORS
def test_a_stranger_cannot_make_the_server_read_on(guard: HttpGuard, door: Door) -> None:
    async def run() -> int:
        async with door.serve(guard) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(door.head("Transfer-Encoding: chunked"))
            sent = 0
            try:
                while sent <= BUFFERED_MAX:
                    writer.write(b"10000\r\n" + b" " * 65_536 + b"\r\n")
                    sent += 65_536
                    async with asyncio.timeout(WAIT_S):
                        await writer.drain()
            except ConnectionError:
                pass
            writer.transport.abort()
            return sent

    assert asyncio.run(run()) <= BUFFERED_MAX


@WEB_DOORS
@pytest.mark.parametrize("token", ["", TOKEN], ids=["stranger", "admitted"])
@pytest.mark.parametrize("coding", CODINGS)
def test_an_encoded_body_is_refused_and_not_unpacked(
    guard: HttpGuard, door: Door, coding: str, token: str, unpacked: list[Any]
) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packer.compress(b" " * (1 << 20)) + packer.flush()
    head = door.head(f"Content-Encoding: {coding}", f"Content-Length: {len(bomb)}", token=token)

    async def run() -> bytes | None:
        async with door.serve(guard) as port:
            return await exchange(port, head + bomb[:100], bomb[100:])

    assert status_of(asyncio.run(run())) == (415 if token else 401)
    assert unpacked == []


@WEB_DOORS
@pytest.mark.parametrize("coding", ["gzip, chunked", "deflate, chunked", "gzip,chunked"])
def test_a_compressing_transfer_coding_is_refused(
    guard: HttpGuard, door: Door, coding: str, unpacked: list[Any]
) -> None:
    async def run() -> bytes | None:
        async with door.serve(guard) as port:
            return await exchange(port, door.head(f"Transfer-Encoding: {coding}", token=TOKEN), b"5\r\nabcde\r\n")

    assert status_of(asyncio.run(run())) in (400, 501)
    assert unpacked == []


@WEB_DOORS
@pytest.mark.parametrize("length", ["Content-Length: 99999999", "Transfer-Encoding: chunked"])
def test_a_body_above_the_limit_ends_the_connection(guard: HttpGuard, door: Door, length: str) -> None:
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    size = FORM_BYTES_MAX if door is CONSOLE else headrace_registry.api.http.BODY_BYTES_MAX

    async def run() -> bytes | None:
        async with door.serve(guard) as port:
            pieces = [piece] * (size // 65_536 + 1) if "chunked" in length else []
            return await exchange(port, door.head(length, token=TOKEN), *pieces)

    assert status_of(asyncio.run(run())) == 413


@WEB_DOORS
def test_a_body_is_invited_only_after_the_request_was_admitted(guard: HttpGuard, door: Door) -> None:
    waiting = ("Expect: 100-continue", "Content-Length: 2")

    async def run() -> tuple[bytes | None, bytes, bytes]:
        async with door.serve(guard) as port:
            refused = await exchange(port, door.head(*waiting))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(door.head(*waiting, token=TOKEN))
            async with asyncio.timeout(WAIT_S):
                invited = await reader.readuntil(b"\r\n\r\n")
                writer.write(b"{}")
                answer = await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
            return refused, invited, answer

    refused, invited, answer = asyncio.run(run())
    assert status_of(refused) == 401
    assert status_of(invited) == 100
    assert status_of(answer) == (422 if door is REGISTRY else 403)


@DOORS
@pytest.mark.parametrize("count", [SERVER["max_headers"] + 1, 10_000])
def test_a_request_with_many_headers_is_refused_and_fills_no_log(
    guard: HttpGuard, door: Door, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    headers = [f"X-{number}: {'v' * 120}" for number in range(count)]

    async def run() -> bytes | None:
        async with door.serve(guard) as port:
            return await exchange(port, door.head(*headers, method="GET", token=TOKEN))

    assert status_of(asyncio.run(run())) in (400, 431)
    assert [each.levelname for each in caplog.records if each.levelno > logging.INFO and "http" in each.name] == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_a_body_that_has_no_meaning_costs_an_admitted_client_no_connection(guard: HttpGuard, method: str) -> None:
    """Some clients send the body of a DELETE in a packet of its own."""

    async def run() -> tuple[bytes, bytes]:
        async with _registry(guard) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REGISTRY.head("Content-Length: 2", method=method, token=TOKEN, path="/config"))
            await asyncio.sleep(0)
            writer.write(b"{}" + REGISTRY.head("Connection: close", method="GET", token=TOKEN, path="/subjects"))
            async with asyncio.timeout(WAIT_S):
                first = await reader.readuntil(b"\r\n\r\n")
                rest = await reader.read()
            writer.transport.abort()
            return first, rest

    first, rest = asyncio.run(run())
    assert status_of(first) == 200
    assert rest.endswith(b"\r\n\r\n[]")
