"""Connections to nodes (one per address for unary calls, one per stream), and unary calls that raise HeadraceError."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import grpc.aio

import headrace_core.rpc as rpc  # import rpc before grpc: rpc sets options that grpc reads at import
from headrace_core.errors import HeadraceError, RequestTimedOutError
from headrace_core.rpc import ChannelPurpose
from headrace_core.rpc.duplex import Duplex
from headrace_protos.v1 import (
    admin_pb2_grpc,
    fetch_pb2,
    fetch_pb2_grpc,
    groups_pb2,
    groups_pb2_grpc,
    metadata_pb2_grpc,
    node_pb2_grpc,
    offsets_pb2_grpc,
    produce_pb2,
    produce_pb2_grpc,
    transactions_pb2_grpc,
)

Answer = TypeVar("Answer")

#: Seconds without a response from a broker after which the client asks another node whether the silent broker is still
#: the leader.
SILENT_S = 2.0


class Connections:
    """The gRPC channels of one client. Channels connect at their first call and reconnect automatically; ``close``
    closes them. Each stream has its own connection, which is closed when the stream ends."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def _channel(self, address: str) -> grpc.aio.Channel:
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = rpc.open_channel(address, ChannelPurpose.CONTROL)
        return found

    def metadata(self, address: str) -> Any:
        return metadata_pb2_grpc.MetadataStub(self._channel(address))  # type: ignore[no-untyped-call]

    def admin(self, address: str) -> Any:
        return admin_pb2_grpc.AdminStub(self._channel(address))  # type: ignore[no-untyped-call]

    def node(self, address: str) -> Any:
        return node_pb2_grpc.NodeStub(self._channel(address))  # type: ignore[no-untyped-call]

    def offsets(self, address: str) -> Any:
        return offsets_pb2_grpc.OffsetsStub(self._channel(address))  # type: ignore[no-untyped-call]

    def produce(self, address: str) -> Any:
        """The channel for unary produce calls, which never wait behind the batches of a stream."""
        return produce_pb2_grpc.ProduceStub(self._channel(address))  # type: ignore[no-untyped-call]

    def groups(self, address: str) -> Any:
        return groups_pb2_grpc.GroupsStub(self._channel(address))  # type: ignore[no-untyped-call]

    def transactions(self, address: str) -> Any:
        return transactions_pb2_grpc.TransactionsStub(self._channel(address))  # type: ignore[no-untyped-call]

    def producers(self, address: str) -> Any:
        return transactions_pb2_grpc.ProducersStub(self._channel(address))  # type: ignore[no-untyped-call]

    def produce_stream(self, address: str) -> Duplex[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse]:
        return Duplex(address, ChannelPurpose.PRODUCE, lambda channel: produce_pb2_grpc.ProduceStub(channel).Produce())  # type: ignore[no-untyped-call]

    def fetch_stream(self, address: str) -> Duplex[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]:
        return Duplex(address, ChannelPurpose.FETCH, lambda channel: fetch_pb2_grpc.FetchStub(channel).Fetch())  # type: ignore[no-untyped-call]

    def membership_stream(self, address: str) -> Duplex[groups_pb2.MembershipRequest, groups_pb2.MembershipResponse]:
        return Duplex(
            address,
            ChannelPurpose.HEARTBEAT,
            lambda channel: groups_pb2_grpc.GroupsStub(channel).Membership(),  # type: ignore[no-untyped-call]
        )

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))


async def call(method: Callable[..., Any], request: Any, address: str, timeout_s: float) -> Any:
    """Make one unary call. A failed call raises a HeadraceError that names the address."""
    try:
        return await method(request, timeout=max(timeout_s, 0.001))
    except grpc.aio.AioRpcError as failure:
        raise rpc.error_from_rpc(failure, address) from None


async def pause(seconds: float, news: asyncio.Event) -> None:
    """Wait before the next stream to the same broker is opened; the event ``news`` ends the wait early."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()


async def why_unreachable(address: str, error: HeadraceError, timeout_s: float) -> str:
    """The reason why calls to an address fail: DNS, connection refused, timeout, or else the text of the error."""
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
