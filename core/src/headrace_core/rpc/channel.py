"""Channels: where they lead, what they are for, how large a message may be.

gRPC shares one TCP connection among channels whose target and options are equal. Bulk data on a connection delays
whatever else is on it, so each *purpose* gets an option value of its own, and with it a connection of its own.
"""

from __future__ import annotations

import enum
import itertools

import grpc
import grpc.aio

#: Above every limit that Headrace enforces by itself (socket.request.max.bytes is 100 MiB), so that a record too large
#: is answered with a typed error and never with gRPC's RESOURCE_EXHAUSTED.
MAX_MESSAGE_BYTES = 112 * 1024 * 1024

COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class ChannelPurpose(enum.StrEnum):
    """What a channel is for; channels of different purposes never share a connection."""

    PRODUCE = "produce"
    FETCH = "fetch"
    CONTROL = "control"  # metadata, admin, offsets
    HEARTBEAT = "heartbeat"
    RAFT = "raft"
    REPLICATION = "replication"
    CATCH_UP = "catch-up"  # replication of what is far behind


#: gRPC makes its keepalive time-out the kernel's TCP_USER_TIMEOUT: when a machine vanishes, the heartbeats that it no
#: longer acknowledges end its connections so soon. One connection for each channel: who made it, closes it.
_PEER_OPTIONS: dict[str, int | str] = {"grpc.keepalive_timeout_ms": 2_000, "grpc.use_local_subchannel_pool": 1}

#: Of connections that carry little, and seldom much at a time. gRPC measures the way (bandwidth times delay) with pings
#: whenever something has arrived, to find out how much to let the other side send ahead; each of them sets timers and
#: wakes threads on both sides, and that was a third of what an idle broker cost. Instead the window is large at once.
UNMEASURED_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
)

_UNMEASURED = (ChannelPurpose.CONTROL, ChannelPurpose.HEARTBEAT, ChannelPurpose.RAFT)
_BETWEEN_PEERS = (ChannelPurpose.RAFT, ChannelPurpose.REPLICATION, ChannelPurpose.CATCH_UP)


#: So many channels of a process, made one after the other, share a connection where gRPC lets them. Each has one or two
#: lasting calls, and a broker takes 100 on a connection: gRPC would keep the next one waiting for ever.
CHANNELS_PER_CONNECTION = 40
_channels = itertools.count()


def open_channel(address: str, purpose: ChannelPurpose) -> grpc.aio.Channel:
    """A channel to ``host:port``. It connects lazily and again by itself; the caller closes it."""
    options: dict[str, int | str] = {
        **dict(COMMON_OPTIONS),
        "headrace.purpose": purpose.value,
        "headrace.share": next(_channels) // CHANNELS_PER_CONNECTION,
        "grpc.initial_reconnect_backoff_ms": 50,
        "grpc.min_reconnect_backoff_ms": 50,
        "grpc.max_reconnect_backoff_ms": 1_000,
        "grpc.enable_http_proxy": 0,
        **(_PEER_OPTIONS if purpose in _BETWEEN_PEERS else {}),
        **(dict(UNMEASURED_OPTIONS) if purpose in _UNMEASURED else {}),
    }
    return grpc.aio.insecure_channel(address, options=list(options.items()))
