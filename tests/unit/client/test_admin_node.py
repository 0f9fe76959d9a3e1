"""describe_node: the report of a process, and the offset of its clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace import Admin
from headrace.errors import InvalidArgumentError, NetworkError, UnsupportedVersionError
from headrace_core.clock import Clock, SystemClock
from headrace_core.membership.node_description import NodeService, descriptors_max, open_descriptors
from headrace_core.metadata import METADATA_VERSION
from headrace_core.rpc.server import Listener

AHEAD_MS = 90_000


class FastClock(SystemClock):
    """A clock that is a minute and a half ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + AHEAD_MS


@contextmanager
def served(clock: Clock | None) -> Iterator[str]:
    """Start a server of the Node service in its own event loop, and return its address. With ``clock`` None the server
    does not have the service."""
    listener, ready, over = Listener("client"), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        if clock is not None:
            NodeService("broker", lambda: 7, lambda: "a cluster", clock).register(listener)
        await listener.start()
        ready.set()
        await over.wait()
        await listener.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield listener.address
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()


def test_a_node_says_who_it_is_and_how_its_clock_stands() -> None:
    with served(FastClock()) as address, Admin(bootstrap_servers=address) as admin:
        described = admin.describe_node(address, timeout=60)
    assert (described.role, described.node_id, described.cluster_id) == ("broker", 7, "a cluster")
    assert (described.metadata_version_min, described.metadata_version_max) == (1, METADATA_VERSION)
    assert described.software_version[0].isdigit()
    # one of the times has only whole milliseconds
    assert abs(described.clock_ahead_ms - AHEAD_MS) <= described.round_trip_ms / 2 + 2
    assert described.descriptors_max == descriptors_max()
    assert described.open_descriptors is not None
    assert 3 <= described.open_descriptors <= open_descriptors() + 50


def test_a_node_that_is_too_old_to_say_or_is_not_there_is_a_typed_error() -> None:
    with served(None) as address, Admin(bootstrap_servers=address) as admin, pytest.raises(UnsupportedVersionError):
        admin.describe_node(address, timeout=60)
    with Admin(bootstrap_servers=address) as admin:
        with pytest.raises(NetworkError):
            admin.describe_node(address, timeout=60)
        with pytest.raises(InvalidArgumentError, match="must be HOST:PORT"):
            admin.describe_node("nowhere")
