"""gRPC channels: their targets, purposes and message sizes.

gRPC shares one TCP connection among channels whose target and options are equal. Bulk data delays all other calls on
the same connection. Channels of each *purpose* therefore have a different value of a channel option, and with it a
separate connection.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from typing import Protocol

import grpc
import grpc.aio

#: gRPC's message limit, above every limit that Headrace enforces (socket.request.max.bytes is at most 100 MiB). Because
#: gRPC accepts larger messages, a record that is too large gets a typed error and never gRPC's RESOURCE_EXHAUSTED.
MAX_MESSAGE_BYTES = 112 * 1024 * 1024

COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class ChannelPurpose(enum.StrEnum):
    """Purpose of a channel; channels of different purposes never share a connection."""

    PRODUCE = "produce"
    FETCH = "fetch"
    CONTROL = "control"  # metadata, admin, offsets
    HEARTBEAT = "heartbeat"
    RAFT = "raft"
    REPLICATION = "replication"
    CATCH_UP = "catch-up"  # connections that replicate to replicas far behind the leader
    KAFKA = "kafka"  # a broker's calls of coordinators for Kafka's clients, which may last minutes


#: gRPC sets the kernel's TCP_USER_TIMEOUT to its keepalive timeout, so unacknowledged heartbeats end the connections to
#: a failed machine after the keepalive timeout. Each channel between two nodes has a separate connection, which closes
#: with the channel.
_PEER_OPTIONS: dict[str, int | str] = {"grpc.keepalive_timeout_ms": 2_000, "grpc.use_local_subchannel_pool": 1}

#: Options for connections with little traffic. To size its flow-control window, gRPC measures bandwidth times delay
#: with a ping whenever data has arrived. Each bandwidth ping of gRPC sets timers and wakes threads on both sides, which
#: is a third of the cost of an idle broker. A large initial window makes gRPC's measurement of the bandwidth
#: unnecessary.
UNMEASURED_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
)

_UNMEASURED = (ChannelPurpose.CONTROL, ChannelPurpose.HEARTBEAT, ChannelPurpose.RAFT, ChannelPurpose.KAFKA)
_BETWEEN_PEERS = (
    ChannelPurpose.RAFT,
    ChannelPurpose.REPLICATION,
    ChannelPurpose.CATCH_UP,
    ChannelPurpose.KAFKA,
)


#: Milliseconds that gRPC allows for an attempt to connect. gRPC calls this limit the minimum reconnect backoff; it does
#: not delay an attempt. Each attempt costs CPU time on both sides, with TLS some milliseconds. With a short limit,
#: every handshake with a busy node times out, and the repeated attempts keep the node busy. (50 ms without TLS left
#: three controllers on two full cores without a leader for 55 s.) The limit also bounds how long a call waits for an
#: unreachable node. With TLS, channels for Raft and heartbeats have a shorter limit than other channels, because
#: elections and sessions depend on them. (Over a network with a one-way delay above 250 ms, encrypted controllers would
#: need a longer limit.)
_CONNECT_MS, _CONNECT_TLS_MS, _CONNECT_TLS_QUICK_MS = 1_000, 3_000, 1_500
_QUICK = (ChannelPurpose.RAFT, ChannelPurpose.HEARTBEAT)

#: Maximum number of a process's channels that share one connection. Each channel has one or two long-lived calls, and a
#: broker accepts 32 calls on a connection: a further call would wait forever in gRPC.
CHANNELS_PER_CONNECTION = 12
_channels = itertools.count()


#: Seconds within which calls in progress must end on a channel that is replaced because the certificates changed.
REPLACED_S = 60.0


class Credentials(Protocol):
    """The credentials that an encrypted channel needs; security/tls.py has the implementation."""

    @property
    def generation(self) -> int:
        """A number that grows whenever new channels get other credentials."""

    def channel_credentials(self) -> grpc.ChannelCredentials: ...


class Channels:
    """Opens the channels of one node or client, with its credentials; ``credentials`` None: unencrypted."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.credentials = credentials

    @property
    def generation(self) -> int:
        return 0 if self.credentials is None else self.credentials.generation

    def open(self, address: str, purpose: ChannelPurpose) -> grpc.aio.Channel:
        """Open a channel to ``host:port``; see ``open_channel``."""
        return open_channel(address, purpose, self.credentials)


PLAINTEXT = Channels()  #: Opens channels without encryption.


class LiveChannel:
    """A channel to one address that lasts as long as its owner. When the certificates change, ``get`` opens another
    channel; calls in progress on the previous channel have REPLACED_S to end."""

    def __init__(self, channels: Channels, address: str, purpose: ChannelPurpose) -> None:
        self._channels, self._address, self._purpose = channels, address, purpose
        self._generation = channels.generation
        self._channel = channels.open(address, purpose)
        self._former: set[asyncio.Task[None]] = set()

    def get(self) -> grpc.aio.Channel:
        """The channel for the next call; do not keep the channel."""
        generation = self._channels.generation
        if generation != self._generation:
            former, self._channel = self._channel, self._channels.open(self._address, self._purpose)
            self._generation = generation
            task = asyncio.get_running_loop().create_task(former.close(REPLACED_S), name=f"old channel {self._address}")
            self._former.add(task)
            task.add_done_callback(self._former.discard)
        return self._channel

    async def close(self) -> None:
        """Close the channel, and cancel the calls in progress."""
        for task in self._former:
            task.cancel()
        await asyncio.gather(*self._former, return_exceptions=True)
        await self._channel.close()


class ChannelPool:
    """Channels by address, which open at their first use."""

    def __init__(self, channels: Channels, purpose: ChannelPurpose) -> None:
        self._channels, self._purpose = channels, purpose
        self._by_address: dict[str, LiveChannel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel for the next call to ``address``; do not keep the channel."""
        found = self._by_address.get(address)
        if found is None:
            found = self._by_address[address] = LiveChannel(self._channels, address, self._purpose)
        return found.get()

    async def close(self) -> None:
        by_address, self._by_address = self._by_address, {}
        await asyncio.gather(*(each.close() for each in by_address.values()))


def open_channel(
    address: str,
    purpose: ChannelPurpose,
    credentials: Credentials | None = None,
    *,
    has_own_connection: bool = False,
) -> grpc.aio.Channel:
    """Open a channel to ``host:port``. The channel connects at its first call and reconnects by itself; the caller
    closes it. ``credentials`` None: the channel is not encrypted. ``has_own_connection``: no other channel
    shares the connection."""
    options: dict[str, int | str] = {
        **dict(COMMON_OPTIONS),
        "headrace.purpose": purpose.value,
        "headrace.share": next(_channels) // CHANNELS_PER_CONNECTION,
        "grpc.initial_reconnect_backoff_ms": 50,
        "grpc.min_reconnect_backoff_ms": _connect_ms(purpose, is_encrypted=credentials is not None),
        "grpc.max_reconnect_backoff_ms": 1_000,
        "grpc.enable_http_proxy": 0,
        **(_PEER_OPTIONS if purpose in _BETWEEN_PEERS else {}),
        # (a broker does not read a connection for seconds after large refused requests, whichever client sent them)
        **({"grpc.use_local_subchannel_pool": 1} if has_own_connection else {}),
        **(dict(UNMEASURED_OPTIONS) if purpose in _UNMEASURED else {}),
    }
    if credentials is not None:
        return grpc.aio.secure_channel(address, credentials.channel_credentials(), options=list(options.items()))
    return grpc.aio.insecure_channel(address, options=list(options.items()))


def _connect_ms(purpose: ChannelPurpose, *, is_encrypted: bool) -> int:
    if not is_encrypted:
        return _CONNECT_MS
    return _CONNECT_TLS_QUICK_MS if purpose in _QUICK else _CONNECT_TLS_MS
