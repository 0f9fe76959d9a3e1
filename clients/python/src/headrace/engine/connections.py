"""Channels to nodes, one per address and purpose, and calls on them with typed errors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

import headrace_core.rpc as rpc  # first: it sets what grpc reads at import time
from headrace_core.errors import HeadraceError, RequestTimedOutError
from headrace_core.rpc import ChannelPurpose
from headrace_protos.v1 import (
    admin_pb2_grpc,
    fetch_pb2_grpc,
    groups_pb2_grpc,
    metadata_pb2_grpc,
    node_pb2_grpc,
    offsets_pb2_grpc,
    produce_pb2_grpc,
)

Answer = TypeVar("Answer")

#: A broker that has not answered for so long may stand still: somebody else is asked whether it leads.
SILENT_S = 2.0


class Connections:
    """The channels of one client. They connect lazily, and again by themselves; ``close`` ends them all."""

    def __init__(self) -> None:
        self._channels: dict[tuple[str, ChannelPurpose], grpc.aio.Channel] = {}

    def channel(self, address: str, purpose: ChannelPurpose) -> grpc.aio.Channel:
        found = self._channels.get((address, purpose))
        if found is None:
            found = self._channels[address, purpose] = rpc.open_channel(address, purpose)
        return found

    def metadata(self, address: str) -> Any:
        return metadata_pb2_grpc.MetadataStub(self.channel(address, ChannelPurpose.CONTROL))  # type: ignore[no-untyped-call]

    def admin(self, address: str) -> Any:
        return admin_pb2_grpc.AdminStub(self.channel(address, ChannelPurpose.CONTROL))  # type: ignore[no-untyped-call]

    def node(self, address: str) -> Any:
        return node_pb2_grpc.NodeStub(self.channel(address, ChannelPurpose.CONTROL))  # type: ignore[no-untyped-call]

    def offsets(self, address: str) -> Any:
        return offsets_pb2_grpc.OffsetsStub(self.channel(address, ChannelPurpose.CONTROL))  # type: ignore[no-untyped-call]

    def produce(self, address: str) -> Any:
        """For its unary calls, which wait behind no batches."""
        return produce_pb2_grpc.ProduceStub(self.channel(address, ChannelPurpose.CONTROL))  # type: ignore[no-untyped-call]

    def produce_stream(self, address: str) -> Any:
        return produce_pb2_grpc.ProduceStub(self.channel(address, ChannelPurpose.PRODUCE)).Produce()  # type: ignore[no-untyped-call]

    def fetch_stream(self, address: str) -> Any:
        return fetch_pb2_grpc.FetchStub(self.channel(address, ChannelPurpose.FETCH)).Fetch()  # type: ignore[no-untyped-call]

    def groups(self, address: str) -> Any:
        return groups_pb2_grpc.GroupsStub(self.channel(address, ChannelPurpose.CONTROL))  # type: ignore[no-untyped-call]

    def membership_stream(self, address: str) -> Any:
        return groups_pb2_grpc.GroupsStub(self.channel(address, ChannelPurpose.HEARTBEAT)).Membership()  # type: ignore[no-untyped-call]

    def is_ready(self, address: str, purpose: ChannelPurpose) -> bool:
        """Is there a connection now?"""
        return self.channel(address, purpose).get_state() is grpc.ChannelConnectivity.READY

    async def renew(self, address: str, purpose: ChannelPurpose) -> None:
        """The next call dials anew. A channel whose last attempts failed answers from memory for up to a second, though
        the node may be back; only for channels of one stream: everything else on it would end."""
        channel = self._channels.pop((address, purpose), None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))


async def call(method: Callable[..., Any], request: Any, address: str, timeout_s: float) -> Any:
    """One unary call; a failure is a HeadraceError that names the address."""
    try:
        return await method(request, timeout=max(timeout_s, 0.001))
    except grpc.aio.AioRpcError as failure:
        raise rpc.error_from_rpc(failure, address) from None


async def connected(stream: Any, reader: asyncio.Task[Any]) -> None:
    """Wait until the call ``stream`` has a connection, or ``reader``, which reads from it, has ended and knows why not.

    To be awaited before the first write. A write that waits for a connection by itself is not told when its call is
    cancelled (grpc.aio 1.85), and would wait for ever; this wait holds nothing of gRPC's, and is cancelled. Also,
    nothing was sent yet, so whatever fails here had no effect.
    """
    waiting = asyncio.ensure_future(stream.wait_for_connection())
    try:
        await asyncio.wait({waiting, reader}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def pause(seconds: float, news: asyncio.Event) -> None:
    """Before the next stream to the same broker; ``news`` of it end the pause."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()


async def why_unreachable(address: str, error: HeadraceError, timeout_s: float = 2.0) -> str:
    """The cause that a person needs, for an address at which a call failed: DNS, refused, timed out, or the error."""
    host, _, port = address.rpartition(":")
    try:
        await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as failure:
        return f"the name {host!r} cannot be resolved ({failure.strerror or failure})"
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except ConnectionRefusedError:
        return "connection refused (nothing listens there; is the cluster up?)"
    except TimeoutError:
        return f"no answer to a connection attempt within {timeout_s:g} s (a firewall, or a wrong address?)"
    except OSError as failure:
        return f"{failure.strerror or failure}"
    if isinstance(error, RequestTimedOutError):
        return "it accepts connections but does not answer in time (is it a Headrace client listener?)"
    return f"it accepts connections, but: {error.message}"
