"""Connections to nodes (one per address for unary calls, one per stream), and unary calls that raise HeadraceError."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import grpc.aio

import headrace_core.rpc as rpc  # import rpc before grpc: rpc sets options that grpc reads at import
from headrace_core.errors import HeadraceError, IllegalStateError, RequestTimedOutError
from headrace_core.rpc import PLAINTEXT, ChannelPool, ChannelPurpose, Channels
from headrace_core.rpc.channel import Credentials
from headrace_core.rpc.duplex import Duplex
from headrace_core.security.protocols import CLIENT_ID_CHARS_MAX, CLIENT_ID_KEY
from headrace_core.tracing.context import TRACEPARENT
from headrace_protos.v1 import (
    fetch_pb2,
    fetch_pb2_grpc,
    groups_pb2,
    groups_pb2_grpc,
    metadata_pb2_grpc,
    offsets_pb2_grpc,
    produce_pb2,
    produce_pb2_grpc,
)

Answer = TypeVar("Answer")

#: Difference in seconds between time.time() and the machine's clock that only a test makes.
CLOCK_OFF_S = 1.0


class Connections:
    """The gRPC channels of one client. Channels connect at their first call and reconnect automatically; ``close``
    closes them. Each stream has its own connection, which is closed when the stream ends.

    Stubs that a plain producer or consumer never calls are imported at their first use."""

    def __init__(self, channels: Channels = PLAINTEXT, client_id: str = "") -> None:
        """``channels`` opens every channel, with the client's credentials. ``client_id``: the name for which brokers
        count the bytes of the client's streams (quotas)."""
        self._channels = channels
        #: gRPC metadata of the calls that brokers count for the client's quotas.
        self.named = ((CLIENT_ID_KEY, quote(client_id[:CLIENT_ID_CHARS_MAX])),)
        self._pool = ChannelPool(channels, ChannelPurpose.CONTROL)

    def _channel(self, address: str) -> grpc.aio.Channel:
        return self._pool.get(address)

    def metadata(self, address: str) -> Any:
        return metadata_pb2_grpc.MetadataStub(self._channel(address))  # type: ignore[no-untyped-call]

    def admin(self, address: str) -> Any:
        from headrace_protos.v1 import admin_pb2_grpc

        return admin_pb2_grpc.AdminStub(self._channel(address))  # type: ignore[no-untyped-call]

    def security(self, address: str) -> Any:
        from headrace_protos.v1 import security_pb2_grpc

        return security_pb2_grpc.SecurityStub(self._channel(address))  # type: ignore[no-untyped-call]

    def node(self, address: str) -> Any:
        from headrace_protos.v1 import node_pb2_grpc

        return node_pb2_grpc.NodeStub(self._channel(address))  # type: ignore[no-untyped-call]

    def offsets(self, address: str) -> Any:
        return offsets_pb2_grpc.OffsetsStub(self._channel(address))  # type: ignore[no-untyped-call]

    def produce(self, address: str) -> Any:
        """The channel for unary produce calls, which never wait behind the batches of a stream."""
        return produce_pb2_grpc.ProduceStub(self._channel(address))  # type: ignore[no-untyped-call]

    def groups(self, address: str) -> Any:
        return groups_pb2_grpc.GroupsStub(self._channel(address))  # type: ignore[no-untyped-call]

    def transactions(self, address: str) -> Any:
        from headrace_protos.v1 import transactions_pb2_grpc

        return transactions_pb2_grpc.TransactionsStub(self._channel(address))  # type: ignore[no-untyped-call]

    def producers(self, address: str) -> Any:
        from headrace_protos.v1 import transactions_pb2_grpc

        return transactions_pb2_grpc.ProducersStub(self._channel(address))  # type: ignore[no-untyped-call]

    def produce_stream(self, address: str) -> Duplex[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse]:
        return Duplex(
            address,
            ChannelPurpose.PRODUCE,
            lambda channel: produce_pb2_grpc.ProduceStub(channel).Produce(metadata=self.named),  # type: ignore[no-untyped-call]
            self._channels,
        )

    def fetch_stream(self, address: str) -> Duplex[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]:
        return Duplex(
            address,
            ChannelPurpose.FETCH,
            lambda channel: fetch_pb2_grpc.FetchStub(channel).Fetch(metadata=self.named),  # type: ignore[no-untyped-call]
            self._channels,
        )

    def membership_stream(self, address: str) -> Duplex[groups_pb2.MembershipRequest, groups_pb2.MembershipResponse]:
        return Duplex(
            address,
            ChannelPurpose.HEARTBEAT,
            lambda channel: groups_pb2_grpc.GroupsStub(channel).Membership(),  # type: ignore[no-untyped-call]
            self._channels,
        )

    async def close(self) -> None:
        await self._pool.close()

    async def why_unreachable(self, address: str, error: HeadraceError, timeout_s: float) -> str:
        """The reason why calls to an address fail, as ``why_unreachable`` finds it."""
        return await why_unreachable(address, error, timeout_s, self._channels.credentials)


async def call(
    method: Callable[..., Any], request: Any, address: str, timeout_s: float, traceparent: str | None = None
) -> Any:
    """Make one unary call. A failed call raises a HeadraceError that names the address. ``traceparent``: the context
    of the program's span, for the server's span."""
    options: dict[str, Any] = {} if traceparent is None else {"metadata": ((TRACEPARENT, traceparent),)}
    try:
        return await method(request, timeout=max(timeout_s, 0.001), **options)
    except grpc.aio.AioRpcError as failure:
        found = rpc.error_from_rpc(failure, address)
    # Raise it here, without gRPC's error as its context: whoever keeps the error would keep the call, and gRPC goes on
    # connecting for a call that exists, even after the channel was closed.
    try:
        raise found
    finally:
        del found


def check_clock() -> None:
    """Raise IllegalStateError if a test has stopped or moved the clock of this process: gRPC then gives up its calls at
    once, or never. A new pipe has the machine's time."""
    ends = os.pipe()
    try:
        right_s = os.fstat(ends[0]).st_mtime
    finally:
        for end in ends:
            os.close(end)
    off_s = time.time() - right_s
    if right_s and abs(off_s) > CLOCK_OFF_S:
        raise IllegalStateError(
            f"time.time() differs from the machine's clock by {off_s:.0f} s, as under freezegun or time-machine, and "
            "gRPC needs the right time: let freezegun ignore three modules (freezegun.configure(extend_ignore_list=["
            "'headrace', 'headrace_core', 'grpc'])), or use the client outside of the frozen time"
        )


async def why_unreachable(
    address: str, error: HeadraceError, timeout_s: float, credentials: Credentials | None = None
) -> str:
    """The reason why calls to an address fail: DNS, connection refused, timeout, certificates, or else the text of the
    error. ``credentials``: the client's keys and certificates; None: the client does not encrypt."""
    host, _, port = address.rpartition(":")
    try:
        await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as failure:
        return f"the name {host!r} cannot be resolved ({failure.strerror or failure})"
    except RuntimeError:  # the main thread has ended, so Python starts no thread that could look up the name
        return error.message
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
    from headrace_core.security.tls import TlsSource  # late imports: only a failed handshake needs them
    from headrace_core.security.trouble import why_refused

    tls = credentials if isinstance(credentials, TlsSource) else None
    if (reason := await why_refused(address, tls, timeout_s)) is not None:
        return reason
    if isinstance(error, RequestTimedOutError):
        return "the address accepts connections but does not answer in time (is it a Headrace client listener?)"
    return f"the address accepts connections, but: {error.message}"
