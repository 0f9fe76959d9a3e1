"""The doctor's probes of an address with real sockets, and of a move with two samples."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster_models import LogDirDescription, ReplicaInfo
from headrace_core.rpc.server import Listener
from headrace_core.types import TopicPartition
from headrace_tools.doctor.facts import Trouble
from headrace_tools.doctor.gathering import _grown, local_cluster
from headrace_tools.doctor.probing import at_once, try_address, try_addresses
from headrace_tools.local import ports

TIMEOUT_S = 60.0


@pytest.fixture
def listener() -> Iterator[tuple[str, asyncio.AbstractEventLoop, Listener]]:
    """A gRPC server in its own event loop, which does not serve yet."""
    made, ready, over = Listener("client"), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        await made.start()
        ready.set()
        await over.wait()
        await made.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield made.address, loop, made
    loop.call_soon_threadsafe(over.set)
    thread.join(60)
    loop.close()


@pytest.mark.parametrize("address", ["broker-3.invalid:9095", "no-port", "[::1:9095"])
def test_a_name_that_means_nothing(address: str) -> None:
    tried = try_address(address, timeout_s=TIMEOUT_S)
    assert (tried.address, tried.trouble, tried.ips) == (address, Trouble.NAME, ())
    assert tried.detail


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening, so that no other process listens there
        tried = try_address(f"127.0.0.1:{held.getsockname()[1]}", timeout_s=TIMEOUT_S)
    assert (tried.trouble, tried.ips) == (Trouble.REFUSED, ("127.0.0.1",))


def test_a_process_that_stands_still_takes_connections_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as still:
        tried = try_address(f"127.0.0.1:{still.getsockname()[1]}", timeout_s=1.5)
    assert tried.trouble is Trouble.SILENT
    assert "1.5 s" in tried.detail


def test_a_node_that_says_that_it_does_not_serve_and_one_that_does(
    listener: tuple[str, asyncio.AbstractEventLoop, Listener],
) -> None:
    address, loop, server = listener
    assert try_address(address, timeout_s=TIMEOUT_S).trouble is Trouble.NOT_SERVING
    asyncio.run_coroutine_threadsafe(server.serving(True), loop).result(60)
    tried = try_address(address, timeout_s=TIMEOUT_S)
    assert (tried.trouble, tried.detail, tried.ips) == (None, "", ("127.0.0.1",))


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port of 127.0.0.2 that answers no connection attempt: its queue is full, and nothing accepts. The same port of
    127.0.0.1 is free, and no outgoing connection takes it."""
    with contextlib.ExitStack() as held:
        still = held.enter_context(socket.create_server(("127.0.0.2", ports.pick(1)[0]), backlog=0))
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(still.getsockname())
        yield still.getsockname()[1]


def name_for(*ips: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the name broker.test resolve to these addresses, in this order."""
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "broker.test":
            return real(host, port, *args, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ips]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_a_node_with_an_address_that_is_deaf_is_found_at_its_other_one(
    deaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address is unreachable and another one works, for example IPv6 and IPv4. Clients can connect, so this is not
    a fault of the node."""
    name_for("127.0.0.2", "127.0.0.1", monkeypatch=monkeypatch)

    async def scenario() -> None:
        server = Listener("client", "127.0.0.1", deaf)
        await server.start()
        await server.serving(True)
        tried = await asyncio.to_thread(try_address, f"broker.test:{deaf}", timeout_s=3.0)
        await server.stop(0)
        assert (tried.trouble, tried.detail, tried.ips) == (None, "", ("127.0.0.2", "127.0.0.1"))

    asyncio.run(scenario())


def test_a_name_that_was_found_is_not_blamed_for_many_deaf_addresses(
    deaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_for(*["127.0.0.2", "127.0.0.02", "127.0.00.2", "127.00.0.2"], monkeypatch=monkeypatch)
    (tried,) = try_addresses([f"broker.test:{deaf}"], timeout_s=0.5)
    assert tried.trouble is Trouble.UNREACHABLE
    assert "0.5 s" in tried.detail


def test_addresses_are_tried_at_once_and_reported_in_order() -> None:
    addresses = ["a.invalid:1", "no-port", "b.invalid:2"]
    assert [tried.address for tried in try_addresses(addresses, timeout_s=TIMEOUT_S)] == addresses


def test_who_is_late_is_not_waited_for() -> None:
    never = threading.Event()

    def work(item: str) -> str:
        if item == "stuck":
            never.wait()
        return item

    assert at_once(work, ["stuck", "quick"], timeout_s=2.0, late=lambda item: f"{item}: late") == [
        "stuck: late",
        "quick",
    ]
    never.set()


def test_how_much_was_copied_is_reported_by_those_who_have_it() -> None:
    def at(size: int) -> tuple[LogDirDescription, ...]:
        return (LogDirDescription(3, "/d", b"", None, (ReplicaInfo("orders", 0, size, 0, False),), None, None),)

    orders = TopicPartition("orders", 0)
    assert _grown(orders, [3], {3: at(100)}, {3: at(150)}) == 50
    assert _grown(orders, [3], {3: ()}, {3: at(150)}) == 150  # the second sample had not begun
    assert _grown(orders, [3], {3: at(100)}, {3: at(100)}) == 0
    assert _grown(orders, [3, 4], {3: at(100)}, {3: at(150)}) is None  # broker 4 did not report this


def test_no_cluster_on_this_machine(tmp_path: Path) -> None:
    assert local_cluster(tmp_path, ["127.0.0.1:9095"]) is None
