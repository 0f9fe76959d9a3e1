"""HTTP connections: how long they may stay without a request, how many there may be, and how many of one address."""

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

from headrace_core.connections import AddressLimits
from headrace_core.node import http_connections
from headrace_core.node.http_connections import HttpConnections, Listener
from tests.worlds.security import TestAuthority
from tests.worlds.waiting import LoopClock, check_took, in_loop, until_async

#: The beginning of a TLS handshake.
HELLO = b"\x16\x03"
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
HALF = REQUEST[:20]
HELD = REQUEST.replace(b"GET /", b"GET /?held")
LOGGER = logging.getLogger("headrace.registry")


def limited(most: int = 2_000, addresses: AddressLimits | None = None, **more: float) -> HttpConnections:
    return HttpConnections(most, LOGGER, addresses, **more)


@asynccontextmanager
async def serving(
    connections: HttpConnections, keepalive_s: float = 60.0, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        connections.is_busy(request.protocol)
        if "held" in request.query:
            await gone.wait()
        connections.is_idle(request.protocol, request.remote or "")
        return web.Response(text="ok")

    gone = asyncio.Event()

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
        logger=LOGGER,
    )
    try:
        yield port
    finally:
        gone.set()
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
    async with serving(limited(first_request_s=600), keepalive_s=6_000) as port:
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
    async with serving(limited(), keepalive_s=0.3) as port:
        client = await Client.open(port)
        assert await client.is_answered()
        client.writer.write(HALF)
        check_took(await client.closed_after_s(), 20)
        client.close()


@in_loop
async def test_a_crowd_of_silent_connections_gives_way_to_new_ones() -> None:
    async with serving(limited(most=20)) as port:
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
async def test_at_the_limit_connections_with_a_request_in_progress_stay_and_new_ones_are_closed() -> None:
    connections = limited(most=3)
    async with serving(connections) as port:
        busy = [await Client.open(port, HELD) for _ in range(3)]
        await until_async(lambda: len(connections._busy) == 3)
        refused = await Client.open(port)
        await refused.closed_after_s()
        assert not any(each.reader.at_eof() for each in busy)
        for each in (*busy, refused):
            each.close()


@in_loop
async def test_idle_connections_of_one_client_keep_no_other_out() -> None:
    """They did for as long as each sent a request now and then: only silent connections gave way."""
    async with serving(limited(most=5)) as port:
        held = [await Client.open(port) for _ in range(5)]
        assert all([await each.is_answered() for each in held])
        other = await Client.open(port)
        assert await other.is_answered()
        assert await held[-1].is_answered(), "the longest idle one gave way"
        assert await held[0].closed_after_s() >= 0
        for each in (*held, other):
            each.close()


@in_loop
async def test_at_the_limit_a_connection_whose_answer_is_still_being_written_goes_last() -> None:
    class Transport(asyncio.Transport):
        def __init__(self, unwritten: int) -> None:
            super().__init__()
            self.unwritten, self.aborted = unwritten, False

        def get_write_buffer_size(self) -> int:
            return self.unwritten

        def abort(self) -> None:
            self.aborted = True

    class Protocol:
        def __init__(self, transport: Transport | None = None) -> None:
            self.transport = transport

    connections = limited(3)
    answered = [Transport(size) for size in (70_000, 0, 1)]
    for each in map(Protocol, answered):  # the longest idle one first
        connections.is_busy(each)
        connections.is_idle(each, "10.0.0.1")
    for expected in ([False, True, False], [True, True, False]):
        task = asyncio.create_task(asyncio.sleep(0))
        assert connections.begun(task, Protocol(), "10.0.0.2", 3)
        assert [each.aborted for each in answered] == expected
        await task
        connections.shaken(task, None, is_open=False)
    connections.close()


@pytest.mark.parametrize(
    "limits", [AddressLimits(2), AddressLimits(overrides={"127.0.0.1": 2}), AddressLimits(0, {"127.0.0.1": 2})]
)
@in_loop
async def test_an_address_has_no_more_connections_than_its_limit(limits: AddressLimits) -> None:
    async with serving(limited(addresses=limits)) as port:
        served = [await Client.open(port) for _ in range(2)]
        assert all([await each.is_answered() for each in served])
        for _ in range(3):
            await (await Client.open(port)).closed_after_s()
        assert all([await each.is_answered() for each in served])
        served.pop().close()
        while True:
            again = await Client.open(port)
            if await again.is_answered():
                break
        for each in (*served, again):
            each.close()


@in_loop
async def test_handshakes_count_for_their_address(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    own, trusted = contexts
    connections = limited(addresses=AddressLimits(2))
    async with serving(connections, context=own) as port:
        held = [await Client.open(port, HELLO) for _ in range(2)]
        refused = await Client.open(port, HELLO)
        await refused.closed_after_s()
        held.pop().close()
        await until_async(lambda: len(connections._handshakes) < 2)
        served = await Client.open(port, context=trusted)
        assert await served.is_answered()
        for each in (*held, served):
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
    connections = limited(most=20)
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
        connections = limited()
        async with serving(connections, context=contexts[0]) as port:
            held = [await Client.open(port, data) for _ in range(50)]
            check_took(max(await asyncio.gather(*(each.closed_after_s() for each in held))), 20)
            await until_async(lambda: not connections._handshakes and not connections._timeouts)
            for each in held:
                each.close()

    asyncio.run(work())


@in_loop
async def test_silence_after_a_handshake_is_closed(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serving(limited(first_request_s=0.5), context=contexts[0]) as port:
        silent = [await Client.open(port, data, contexts[1]) for data in (b"", HALF)]
        check_took(max(await asyncio.gather(*(each.closed_after_s() for each in silent))), 20)


@in_loop
async def test_connections_that_their_clients_close_are_forgotten() -> None:
    connections = limited(most=20, first_request_s=600)
    async with serving(connections) as port:
        for _ in range(300):
            (await Client.open(port)).close()
            await asyncio.sleep(0.005)  # the server learns that the connection is closed
        assert len(connections._idle) <= 20
        served = await Client.open(port)
        assert await served.is_answered()
        served.close()
