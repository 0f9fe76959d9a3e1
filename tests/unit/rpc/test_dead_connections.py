"""When a client is gone without closing its connection, a real listener closes its side, too."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys

import pytest

from headrace_core.rpc import server
from headrace_core.testing.raw_http2 import ACK, PREFACE, SETTINGS, frame
from tests.worlds.waiting import until_async

CONNECTIONS = 100
TIMEOUT_S = 30
#: The shortest time that gRPC accepts.
KEEPALIVE_MS = 1_000


def open_sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:  # closed meanwhile, such as the listing's own descriptor
            continue
    return found


def reset_behind_data(address: tuple[str, int]) -> None:
    """Connect, exchange settings, then send a frame and a reset at once: the server's poller usually sees one event for
    the frame and the reset."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
        assert connection.recv(9)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(frame(SETTINGS, ACK, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_a_connection_reset_behind_data_gives_its_descriptor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health checks and killed clients reset connections; a process leaked a descriptor with about every second of
    these connections."""
    others = tuple(option for option in server.COMMON_OPTIONS if option[0] != "grpc.keepalive_time_ms")
    monkeypatch.setattr(server, "COMMON_OPTIONS", (*others, ("grpc.keepalive_time_ms", KEEPALIVE_MS)))

    async def work() -> None:
        listener = server.Listener("client")
        port = await listener.start()
        before = open_sockets()
        for _ in range(CONNECTIONS):
            await asyncio.to_thread(reset_behind_data, ("127.0.0.1", port))
        try:
            await until_async(  # gRPC's threads close them
                lambda: open_sockets() <= before,
                lambda: f"{open_sockets() - before} of {CONNECTIONS} dead connections still have a descriptor",
                pause_s=0.02,
            )
        finally:
            await listener.stop(0)

    asyncio.run(work())
