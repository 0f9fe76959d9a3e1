"""The edge: bytes go through both ways, slow readers hold writers up, who is not there looks like nobody listening."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    """A program of deploy/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"deploy_{name}", ROOT / "deploy" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


edge = load("edge")
requirements = load("requirements")


def test_a_port_of_a_range_leads_to_the_node_of_its_place() -> None:
    routes = edge.parse_routes(["9095=broker:9096", "9101-9103=b-{slot}.net:9096"])
    assert [(each.listen, each.host, each.port) for each in routes] == [
        (9095, "broker", 9096),
        (9101, "b-1.net", 9096),
        (9102, "b-2.net", 9096),
        (9103, "b-3.net", 9096),
    ]


@pytest.mark.parametrize(
    "text", ["9095", "0=b:1", "9103-9101=b-{slot}:1", "9101-9103=b:1", "9101=b-{slot}:1", "1=b:70000"]
)
def test_a_route_that_leads_nowhere_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        edge.parse_routes([text])


def test_a_port_leads_to_one_place() -> None:
    with pytest.raises(ValueError, match="none twice"):
        edge.parse_routes(["9095=a:1", "9095=b:1"])


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        async def limited() -> None:
            async with asyncio.timeout(100):
                await test()

        asyncio.run(limited())

    return run


@asynccontextmanager
async def through(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]]:
    """A connection by way of an edge to 127.0.0.1:``port``, and the edge's end of it."""
    dialing: set[Any] = set()
    route = edge.Route(0, "127.0.0.1", port)
    accepted: list[Any] = []

    def accept() -> Any:
        accepted.append(edge.Client(route, dialing))
        return accepted[0]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    while not accepted or accepted[0].transport is None:  # noqa: ASYNC110 -- the edge tells nobody
        await asyncio.sleep(0)
    try:
        yield reader, writer, accepted[0]
    finally:
        writer.transport.abort()
        server.close()


@in_a_loop
async def test_all_that_is_sent_arrives_in_both_directions_and_each_may_end_first() -> None:
    sent = bytes(range(256)) * 20_000  # 5 MB, far more than the buffers

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.read()  # until the client's end
        writer.write(received[::-1])
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 16)
    async with through(server.sockets[0].getsockname()[1]) as (reader, writer, _):
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == sent[::-1]
    server.close()


@in_a_loop
async def test_a_connection_that_both_sides_have_ended_leaves_nothing_behind() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with through(server.sockets[0].getsockname()[1]) as (_, writer, inside):
        writer.write(b"one question, as a health check asks it")
        writer.close()
        async with asyncio.timeout(60):
            while not (inside.transport.is_closing() and inside.other is None):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    server.close()


@in_a_loop
async def test_who_sends_waits_while_the_other_side_does_not_read() -> None:
    going_on = asyncio.Event()
    received = asyncio.get_running_loop().create_future()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await going_on.wait()
        received.set_result(len(await reader.read()))
        writer.close()

    total = 64 * 1024 * 1024
    server = await asyncio.start_server(slow, "127.0.0.1", 0, limit=1 << 16)
    async with through(server.sockets[0].getsockname()[1]) as (_, writer, inside):
        writer.transport.set_write_buffer_limits(1 << 16)
        writer.write(bytes(total))
        while inside.other is None or inside.transport.is_reading():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert writer.transport.get_write_buffer_size() > total // 2, "the edge has not taken it all into its memory"
        going_on.set()
        writer.write_eof()
        assert await received == total
    server.close()


@in_a_loop
async def test_a_node_that_is_not_there_is_a_reset_connection() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    async with through(port) as (reader, *_):
        with pytest.raises(ConnectionResetError):
            await reader.read()


@in_a_loop
async def test_a_client_that_went_away_while_the_node_was_looked_for_is_no_trouble() -> None:
    """Its socket is closed when it is to be reset; else: "Task exception was never retrieved"."""
    async with through(1) as (_, _, client):
        transport = client.transport
        transport.abort()
        while transport.get_extra_info("socket").fileno() >= 0:  # noqa: ASYNC110 -- the loop closes it next
            await asyncio.sleep(0)
        edge.reset(transport)


@in_a_loop
async def test_a_machine_that_vanishes_does_not_hold_its_connection_for_ever() -> None:
    node = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with node, through(node.sockets[0].getsockname()[1]) as (_, _, client):
        while client.other is None:  # noqa: ASYNC110 -- the edge tells nobody
            await asyncio.sleep(0)
        for end in (client, client.other):
            connection = end.transport.get_extra_info("socket")
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + interval * count <= 120


def test_images_need_what_the_pyproject_files_say_and_none_of_ours() -> None:
    service = requirements.requirements("service", ROOT)
    assert any(each.startswith("grpcio") for each in service)
    assert any(each.startswith("google-re2") for each in service)
    assert not any(each.startswith(("headrace", "pyarrow")) for each in service)
