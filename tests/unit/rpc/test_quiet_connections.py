"""gRPC's bandwidth probes are off on connections with little traffic. Each probe is a ping that wakes both sides, and
an idle cluster has only connections with little traffic."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace_core.rpc import ChannelPurpose, open_channel
from headrace_core.rpc.server import Listener
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, PING = 0, 6
ACK = 1


class _Serves(cluster_pb2_grpc.ClusterServicer):  # type: ignore[misc]
    async def ReadIndex(self, request: Any, context: Any) -> Any:
        return cluster_pb2.ReadIndexResponse(committed_offset=7)


class _PassThrough:
    """``frames`` has (type, whether it is an answer to a ping) of all frames that passed."""

    def __init__(self, port: int) -> None:
        self.frames: Counter[tuple[int, bool]] = Counter()
        self._port = port
        self._copying: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target, preface in ((reader, to_writer, PREFACE), (to_reader, writer, b"")):
            task = asyncio.create_task(self._copy(source, target, preface))
            self._copying.add(task)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, preface: bytes) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            target.write(await source.readexactly(len(preface)))
            while True:
                head = await source.readexactly(9)
                body = await source.readexactly(int.from_bytes(head[:3], "big"))
                self.frames[head[3], head[3] == PING and bool(head[4] & ACK)] += 1
                target.write(head + body)
        target.close()

    async def close(self) -> None:
        for task in self._copying:
            task.cancel()
        await asyncio.gather(*self._copying, return_exceptions=True)


@contextlib.asynccontextmanager
async def passed_through(*, takes_bulk: bool) -> AsyncIterator[tuple[_PassThrough, str]]:
    listener = Listener("internal", takes_bulk=takes_bulk)
    listener.add(cluster_pb2_grpc.add_ClusterServicer_to_server, _Serves(), "headrace.v1.Cluster")
    passing = _PassThrough(await listener.start())
    server = await asyncio.start_server(passing.connected, "127.0.0.1", 0)
    try:
        yield passing, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await passing.close()
        await listener.stop(0)


@pytest.mark.parametrize(
    ("purpose", "takes_bulk"),
    [
        (ChannelPurpose.CONTROL, False),
        (ChannelPurpose.HEARTBEAT, False),
        (ChannelPurpose.RAFT, False),
        (ChannelPurpose.PRODUCE, True),
    ],
)
def test_calls_that_carry_little_are_followed_by_no_pings(purpose: ChannelPurpose, takes_bulk: bool) -> None:
    async def work() -> Counter[tuple[int, bool]]:
        async with passed_through(takes_bulk=takes_bulk) as (passing, address):
            channel = open_channel(address, purpose)
            stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            for _ in range(30):
                answer = await stub.ReadIndex(cluster_pb2.ReadIndexRequest(cluster_id="c"), timeout=60)
                assert answer.committed_offset == 7
            await channel.close()
            return passing.frames

    frames = asyncio.run(work())
    assert frames[DATA, False] >= 60
    if takes_bulk:
        assert frames[PING, False] > 0, "where much may come the way is measured"
    else:
        assert frames[PING, False] == 0
