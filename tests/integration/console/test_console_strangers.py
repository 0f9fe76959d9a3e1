"""A console without a cluster, and strangers who hold connections: others still get their pages."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

import headrace_console.console
from headrace_console.app import ConsoleNode
from headrace_console.settings import ConsoleSettings
from headrace_core.node import http_connections
from headrace_core.node.http_connections import HttpConnections
from headrace_core.security.http import HttpGuard
from headrace_core.security.tls import TlsSettings, TlsSource
from tests.worlds.security import TestAuthority
from tests.worlds.this_process import logged
from tests.worlds.waiting import until_async

ABOVE_ALL = 8  #: The limit of connections in these tests.
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of asyncio, and in one of uvloop."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
    @functools.wraps(test)
    def both(run: Callable[[Coroutine[Any, Any, None]], None], **given: Any) -> None:
        run(test(**given))

    both.__signature__ = _with_run(test)  # type: ignore[attr-defined]
    return both


def _with_run(test: Callable[..., Any]) -> Any:
    import inspect

    found = inspect.signature(test)
    run = inspect.Parameter("run", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return found.replace(parameters=[run, *found.parameters.values()])


@asynccontextmanager
async def _console(guard: HttpGuard | None = None) -> AsyncIterator[ConsoleNode]:
    settings = ConsoleSettings.checked(
        listeners=["http://127.0.0.1:0" if guard is None else "https://127.0.0.1:0"],
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
        yield node
    finally:
        await node.stop()


def _port(node: ConsoleNode) -> int:
    return int(node.url.split(":")[2].split("/")[0])


async def _open(
    node: ConsoleNode, address: str, data: bytes = b"", **more: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(node), local_addr=(address, 0), **more)
    writer.write(data)
    return reader, writer


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.05):
            return not await reader.read(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def _has_ended(reader: asyncio.StreamReader) -> bool:
    return reader.at_eof() or reader.exception() is not None


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace_console.console, "HttpConnections", lambda _, *rest: HttpConnections(ABOVE_ALL, *rest))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request must arrive within a second."""
    hurried = functools.partial(HttpConnections, first_request_s=1.0)
    monkeypatch.setattr(headrace_console.console, "HttpConnections", lambda _, *rest: hurried(ABOVE_ALL, *rest))


@on_both_loops
async def test_half_requests_of_a_stranger_keep_no_visitor_out(few: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.console"):
        async with _console() as node:
            visitor, at = await _open(node, "127.0.0.2")  # idle for longer than each of the stranger
            held = [await _open(node, "127.0.0.1", b"GET / HTTP/1.1\r\nX-A: ") for _ in range(3 * ABOVE_ALL)]
            await asyncio.sleep(0.2)
            at.write(REQUEST)
            assert (await asyncio.wait_for(visitor.read(), 10)).startswith(b"HTTP/1.1 200 ")
            another, _ = await _open(node, "127.0.0.3", REQUEST)
            assert (await asyncio.wait_for(another.read(), 10)).startswith(b"HTTP/1.1 200 ")
            closed = [await _is_closed(reader) for reader, _ in held]
            assert closed.count(False) <= ABOVE_ALL
            said = "connections are open, which is the limit; closing idle connections, first those of 127.0.0.1"
            assert said in caplog.text
            assert caplog.text.count("the limit") == 1
            for _, writer in held:
                writer.close()


@on_both_loops
async def test_a_connection_without_a_request_is_closed_in_time(hurried: None) -> None:
    async with _console() as node:
        reader, _ = await _open(node, "127.0.0.1", b"GET / HT")
        assert not await asyncio.wait_for(reader.read(), 10)


@on_both_loops
async def test_connections_without_a_handshake_keep_no_visitor_out(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = TestAuthority(tmp_path)
    source = TlsSource(TlsSettings(keystore_location=str(authority.issue("own.pem"))), needs_key=True, where="")
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    async with _console(HttpGuard(source)) as node:
        with monkeypatch.context() as patched:  # only for the stranger: a visitor's handshake may be slow
            patched.setattr(http_connections, "HANDSHAKE_S", 1.0)
            held = [await _open(node, "127.0.0.1", b"\x16\x03") for _ in range(3 * ABOVE_ALL)]
            await until_async(lambda: sum(_has_ended(each) for each, _ in held) >= 2 * ABOVE_ALL)
        for _ in range(2):
            reader, _ = await _open(node, "127.0.0.2", REQUEST, ssl=trusted)
            assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200 ")
        assert [await _is_closed(each) for each, _ in held].count(False) <= ABOVE_ALL
        kept, at = await _open(node, "127.0.0.2", ssl=trusted)  # a whole connection serves request after request
        for _ in range(3):
            at.write(REQUEST.replace(b"Connection: close\r\n", b""))
            async with asyncio.timeout(10):
                head = await kept.readuntil(b"\r\n\r\n")
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                await kept.readexactly(int(length.partition(b":")[2]))
        await until_async(lambda: not node_handshakes(node))
        for _, writer in held:
            writer.close()


def node_handshakes(node: ConsoleNode) -> int:
    assert node._connections is not None
    return len(node._connections._handshakes)


@on_both_loops
async def test_what_is_no_http_is_refused_without_a_traceback(few: None, caplog: pytest.LogCaptureFixture) -> None:
    async with _console() as node:
        for data in (
            b"\x16\x03\x01\x00\xa5\r\n\r\n",
            b"GET /\x1b[31m HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
            b"POST /review HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        ):
            reader, _ = await _open(node, "127.0.0.1", data)
            found = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
            assert b" 400 " in found
    assert not [record for record in logged(caplog) if record.levelno > logging.INFO]
