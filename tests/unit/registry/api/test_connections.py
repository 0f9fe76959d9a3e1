"""Connections that send no request: how long they may stay, and how many there may be."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from headrace_core.node import http_connections
from headrace_core.node.http_connections import Listener
from headrace_registry.api.connections import Connections
from tests.worlds.security import TestAuthority
from tests.worlds.waiting import LoopClock, check_took, in_loop, until_async

#: The beginning of a TLS handshake.
HELLO = b"\x16\x03"
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
HALF = REQUEST[:20]


@asynccontextmanager
async def serving(
    connections: Connections, keepalive_s: float = 60.0, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        connections.has_request(request.protocol)
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, keepalive_timeout=keepalive_s)
    await runner.setup()
    server = runner.server
    assert server is not None
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    listener = Listener(
        bound,
        server,
        lambda: len(server.connections),
        connections,
        context,
        backlog=128,
        logger=logging.getLogger("headrace.registry"),
    )
    try:
        yield port
    finally:
        await listener.stop()
        await runner.cleanup()
        connections.close()


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, data: bytes = b"", context: ssl.SSLContext | None = None) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
        client.writer.write(data)
        return client

    async def is_answered(self, data: bytes = REQUEST) -> bool:
        self.writer.write(data)
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"ok"), 30)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return head.startswith(b"HTTP/1.1 200")

    async def closed_after_s(self) -> float:
        began = time.monotonic()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(self.reader.read(), 30) == b""
        return time.monotonic() - began

    def close(self) -> None:
        self.writer.transport.abort()


@pytest.mark.parametrize("data", [b"", HALF])
@in_loop
async def test_connections_without_a_whole_first_header_are_closed_and_others_are_served(data: bytes) -> None:
    async with serving(Connections(first_request_s=600), keepalive_s=6_000) as port:
        clock = LoopClock()
        idle = [await Client.open(port, data) for _ in range(200)]
        served = await Client.open(port)
        assert await served.is_answered()
        clock.forward(600)
        check_took(max(await asyncio.gather(*(each.closed_after_s() for each in idle))), 20)
        assert await served.is_answered()  # its first request was in time
        for each in (*idle, served):
            each.close()


@in_loop
async def test_half_a_header_after_a_request_ends_with_the_keepalive_timeout() -> None:
    async with serving(Connections(), keepalive_s=0.3) as port:
        client = await Client.open(port)
        assert await client.is_answered()
        client.writer.write(HALF)
        check_took(await client.closed_after_s(), 20)
        client.close()


@in_loop
async def test_a_crowd_of_silent_connections_gives_way_to_new_ones() -> None:
    async with serving(Connections(most=20)) as port:
        served = await Client.open(port)
        assert await served.is_answered()
        silent = [await Client.open(port) for _ in range(200)]
        late = await Client.open(port)
        assert await late.is_answered()
        assert await served.is_answered()
        assert await asyncio.gather(*(each.closed_after_s() for each in silent[:150]))
        for each in (*silent, served, late):
            each.close()


@in_loop
async def test_above_the_limit_connections_with_requests_stay_and_new_ones_are_closed() -> None:
    async with serving(Connections(most=3)) as port:
        served = [await Client.open(port) for _ in range(3)]
        assert all([await each.is_answered() for each in served])
        refused = await Client.open(port)
        await refused.closed_after_s()
        assert all([await each.is_answered() for each in served])
        served.pop().close()
        while True:
            again = await Client.open(port)
            if await again.is_answered():
                break
        for each in (*served, again, refused):
            each.close()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The context of a listener, and of its clients."""
    authority = TestAuthority(tmp_path_factory.mktemp("ca"))
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(authority.issue("own.pem"))
    return own, ssl.create_default_context(cafile=str(authority.ca))


@in_loop
async def test_a_crowd_of_handshakes_gives_way_to_new_connections(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    own, trusted = contexts
    connections = Connections(most=20)
    async with serving(connections, context=own) as port:
        served = await Client.open(port, context=trusted)
        assert await served.is_answered()
        held = [await Client.open(port, HELLO) for _ in range(200)]
        late = await Client.open(port, context=trusted)
        assert await late.is_answered()
        assert await served.is_answered()
        assert await asyncio.gather(*(each.closed_after_s() for each in held[:150]))
        assert len(connections._handshakes) <= 20
        for each in (*held, served, late):
            each.close()


@pytest.mark.parametrize("data", [HELLO, b"", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_handshake_that_does_not_end_is_closed_and_forgotten(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "HANDSHAKE_S", 0.5)

    async def work() -> None:
        connections = Connections()
        async with serving(connections, context=contexts[0]) as port:
            held = [await Client.open(port, data) for _ in range(50)]
            check_took(max(await asyncio.gather(*(each.closed_after_s() for each in held))), 20)
            await until_async(lambda: not connections._handshakes and not connections._silent)
            for each in held:
                each.close()

    asyncio.run(work())


@in_loop
async def test_silence_after_a_handshake_is_closed(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serving(Connections(first_request_s=0.5), context=contexts[0]) as port:
        silent = [await Client.open(port, data, contexts[1]) for data in (b"", HALF)]
        check_took(max(await asyncio.gather(*(each.closed_after_s() for each in silent))), 20)


@in_loop
async def test_connections_that_their_clients_close_are_forgotten() -> None:
    connections = Connections(most=20, first_request_s=600)
    async with serving(connections) as port:
        for _ in range(300):
            (await Client.open(port)).close()
            await asyncio.sleep(0.005)  # the server learns that the connection is closed
        assert len(connections._silent) <= 3 * 20
        served = await Client.open(port)
        assert await served.is_answered()
        served.close()
