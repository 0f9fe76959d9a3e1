"""The edge: bytes pass both ways, slow readers throttle writers, and an absent node looks like a closed port."""

from __future__ import annotations

import asyncio
import contextlib
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

from tests.worlds.this_process import logged

ROOT = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    """Load a program of deploy/, which is not a package."""
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
    "text",
    [
        *("9095", "0=b:1", "9103-9101=b-{slot}:1", "9101-9103=b:1", "9101=b-{slot}:1", "1=b:70000"),
        "9101-9103=b-{slot}:1-3",
    ],
)
def test_a_route_that_leads_nowhere_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        edge.parse_routes([text])


def test_a_port_leads_to_one_place() -> None:
    with pytest.raises(ValueError, match="no port twice"):
        edge.parse_routes(["9095=a:1", "9095=b:1"])


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(100):
                await test(**fixtures)

        asyncio.run(limited())

    return run


@asynccontextmanager
async def through(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]]:
    """A connection through an edge to 127.0.0.1:``port``, and the edge's end of the connection."""
    door = edge.Edge(edge.Limits())
    route = edge.Route(0, "127.0.0.1", port)
    accepted: list[Any] = []

    def accept() -> Any:
        accepted.append(edge.Client(route, door))
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
    with socket.socket() as held:  # bound, so that no other process listens there
        held.bind(("127.0.0.1", 0))
        async with through(held.getsockname()[1]) as (reader, *_):
            with pytest.raises(ConnectionResetError):
                await reader.read()


@in_a_loop
async def test_a_client_that_went_away_while_the_node_was_looked_for_is_no_trouble() -> None:
    """The client's socket is closed when the edge is about to reset it. Without a special case, asyncio logs "Task
    exception was never retrieved"."""
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


@in_a_loop
async def test_the_edge_holds_no_more_than_it_says_while_neither_side_reads() -> None:
    """Client and node send without end, and neither reads. The edge's memory stays within the limit for a
    connection."""

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(bytes(64 * 1024 * 1024))

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    async with through(server.sockets[0].getsockname()[1]) as (reader, writer, inside):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(bytes(64 * 1024 * 1024))
        while inside.other is None or inside.transport.is_reading() or inside.other.transport.is_reading():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        held = [end.transport.get_write_buffer_size() for end in (inside, inside.other)]
        assert min(held) > 0, "both directions are full"
        assert sum(held) <= 256 * 1024
    server.close()


@in_a_loop
async def test_who_does_not_read_for_too_long_loses_the_connection_and_the_edge_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = [option for option in edge.SOCKET_OPTIONS if option[1] == socket.TCP_USER_TIMEOUT]
    assert limit == [(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)]
    others = [option for option in edge.SOCKET_OPTIONS if option not in limit]
    monkeypatch.setattr(edge, "SOCKET_OPTIONS", [*others, (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000)])

    async def talker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(64 * 1024 * 1024))

    server = await asyncio.start_server(talker, "127.0.0.1", 0)
    async with through(server.sockets[0].getsockname()[1]) as (reader, _, inside):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        while inside.other is None or inside.other.transport.is_reading():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        node = inside.other
        while not (inside.transport.is_closing() and node.transport.is_closing()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    server.close()


class Door:
    """An edge with ``limits`` on a port of its own, before a node that echoes its input."""

    def __init__(self, limits: Any) -> None:
        self.edge = edge.Edge(limits)
        self._kept: list[Any] = []

    async def __aenter__(self) -> Door:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                writer.write(data)
            writer.close()

        self._node = await asyncio.start_server(echo, "127.0.0.1", 0)
        route = edge.Route(0, "127.0.0.1", self._node.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: edge.Client(route, self.edge), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._kept:
            writer.transport.abort()
        self._server.close()
        self._node.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._server.sockets[0].getsockname())

    async def is_answered(self) -> bool:
        """Whether the edge accepts one more connection, which then stays open."""
        reader, writer = await self.connect()
        self._kept.append(writer)
        try:
            writer.write(b"hello")
            return await reader.readexactly(5) == b"hello"
        except (ConnectionError, asyncio.IncompleteReadError):
            return False


@in_a_loop
async def test_one_connection_too_many_is_reset_counted_and_reported_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Door(edge.Limits(max_connections=2)) as door:
        reader, writer = await door.connect()
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        assert await door.is_answered()
        for _ in range(3):
            assert not await door.is_answered()
        assert door.edge.admission.connections == 2
        assert door.edge.admission.refused == {"max.connections=2": 3}
        (warning,) = [each.getMessage() for each in logged(caplog) if each.levelname == "WARNING"]
        assert warning.startswith("1 connections refused by max.connections=2, the last one from 127.0.0.1; 2 are open")
        door.edge._logged_at -= edge.TELL_S
        door.edge.tell_refusals()
        assert "2 connections refused by max.connections=2" in logged(caplog)[-1].getMessage(), "those since"
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()
        while door.edge.admission.connections == 2:  # noqa: ASYNC110 -- the edge tells nobody
            await asyncio.sleep(0.01)
        assert await door.is_answered(), "there is room again"


@in_a_loop
async def test_connections_that_end_in_any_way_are_counted_out() -> None:
    async with Door(edge.Limits()) as door:
        streams = [await door.connect() for _ in range(6)]
        for number, (reader, writer) in enumerate(streams):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            if number % 2:
                writer.transport.abort()
            else:
                writer.close()
        while door.edge.admission.connections or door.edge.clients:  # noqa: ASYNC110 -- the edge tells nobody
            await asyncio.sleep(0.01)
        assert not door.edge.admission._of_ip, "nothing is kept of who has left"


@in_a_loop
async def test_a_connection_on_which_nothing_came_for_ten_minutes_is_closed_and_others_stay() -> None:
    async with Door(edge.Limits()) as door:
        silent_reader, _ = await door.connect()
        reader, writer = await door.connect()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        while len(door.edge.clients) < 2 or not all(client.other for client in door.edge.clients):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for client in door.edge.clients:  # eleven minutes pass
            for end in (client, client.other):
                end.received_at -= 660
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        assert door.edge.end_idle() == 1
        with contextlib.suppress(ConnectionError):
            assert await silent_reader.read() == b""
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        assert door.edge.admission.connections == 1


@in_a_loop
async def test_idle_connections_are_looked_for_again_and_again() -> None:
    async with Door(edge.Limits(connections_max_idle_ms=50)) as door:
        house = asyncio.get_running_loop().create_task(door.edge.keep_house())
        for _ in range(2):
            reader, _ = await door.connect()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        house.cancel()


def test_an_address_takes_no_more_than_its_share() -> None:
    admission = edge.Admission(edge.Limits(max_connections=4, max_connections_per_ip=2))
    assert [admission.enter("a"), admission.enter("a")] == [None, None]
    assert admission.enter("a") == "max.connections.per.ip=2"
    assert [admission.enter("b"), admission.enter("c")] == [None, None]
    assert admission.enter("d") == "max.connections=4"
    admission.leave("a")
    assert admission.enter("a") is None
    assert admission.connections == 4


def test_limits_come_from_the_environment_by_kafkas_names() -> None:
    warning = {"HEADRACE_MAX_CONNECTIONS": "50", "HEADRACE_MAX_CONNECTIONS_PER_IP": "", "HEADRACE_LOG_LEVEL": "DEBUG"}
    assert edge.parse_limits(warning) == edge.Limits(max_connections=50)
    for wrong in ("0", "-1", "many", "1e3", str(2**31)):
        with pytest.raises(ValueError, match=re.escape(f"HEADRACE_CONNECTIONS_MAX_IDLE_MS={wrong}")):
            edge.parse_limits({"HEADRACE_CONNECTIONS_MAX_IDLE_MS": wrong})


def test_without_descriptors_for_them_fewer_connections_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(1_024, 1_200)]
    monkeypatch.setattr(edge.resource, "getrlimit", lambda which: given[0])
    monkeypatch.setattr(edge.resource, "setrlimit", lambda which, limits: given.__setitem__(0, limits))
    assert edge.allow_descriptors(edge.Limits(max_connections=300), 20) == edge.Limits(max_connections=300)
    assert given == [(1_024, 1_200)], "there were enough"
    assert edge.allow_descriptors(edge.Limits(max_connections=500), 20).max_connections == 500
    assert given == [(1_120, 1_200)]
    assert edge.allow_descriptors(edge.Limits(max_connections=1_000), 20).max_connections == 540
    assert given == [(1_200, 1_200)]


def test_images_need_what_the_pyproject_files_say_and_none_of_ours() -> None:
    service = requirements.requirements("service", ROOT)
    assert any(each.startswith("grpcio") for each in service)
    assert any(each.startswith("google-re2") for each in service)
    assert not any(each.startswith(("headrace", "pyarrow")) for each in service)


def test_the_registrys_image_adds_its_libraries_to_the_services_image() -> None:
    service, registry = (requirements.requirements(image, ROOT) for image in ("service", "registry"))
    assert any(each.startswith("aiohttp") for each in registry)
    assert not set(service) & set(registry)
    assert not any(each.startswith("aiohttp") for each in service)
