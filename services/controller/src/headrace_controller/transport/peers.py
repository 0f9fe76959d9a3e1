"""The other replicas: the streams of each replica, and its bounded queue of messages, urgent messages first.

    urgent    votes, heartbeats, answers, orders: small, and useless when late. If there are too many, the oldest are
              dropped; a newer heartbeat replaces an unsent one
    bulk      entries and chunks of snapshots, in order. Messages that do not fit are dropped: the follower refuses
              messages after the gap, and the leader restarts there after the next heartbeat at the latest

Raft tolerates the loss of any message, and small messages that overtake large messages. (An append without entries
announces the commit of earlier entries, so it keeps its place among the appends.)

The controller queues messages in ``Peers``, and the links (links.py) connect the peers. The controller and the links
share the table ``Peers``, so they need no references to each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from headrace_protos.v1 import raft_pb2

from ..raft import AppendRequest, HeartbeatRequest, Message, ReplicaKey, SnapshotRequest
from ..raft.types import Body
from . import wire


class PeerStream(Protocol):
    """A stream on which both sides have sent a hello."""

    def wake(self) -> None:
        """Called when there is a message to write on the stream; ``Peer.take`` returns the message."""


class Peer:
    """Call all methods in the event loop. A peer may have a stream that this controller opened and a stream that the
    peer opened. When the end of a stream was not noticed, a peer may have more than two streams; messages use the
    latest stream."""

    __slots__ = ("_streams", "key", "outbox")

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.outbox = Outbox()
        self._streams: list[PeerStream] = []

    @property
    def is_connected(self) -> bool:
        return bool(self._streams)

    @property
    def streams(self) -> int:
        """Number of streams."""
        return len(self._streams)

    def put(self, body: Body) -> None:
        """Queue a message; the caller then calls ``wake`` to send it."""
        self.outbox.put(body, wire.size_of(body))

    def wake(self) -> None:
        if self._streams and self.outbox:
            self._streams[-1].wake()

    def joined(self, stream: PeerStream) -> None:
        self._streams.append(stream)
        self.outbox.is_open = True
        self.wake()

    def left(self, stream: PeerStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
        if self._streams:
            self.wake()
        else:
            self.outbox.close()

    def take(self, stream: PeerStream) -> tuple[raft_pb2.RaftEnvelope, int] | None:
        """The next envelope for ``stream``, and its approximate size in bytes (at least 1)."""
        if not self.outbox or self._streams[-1:] != [stream]:
            return None
        bodies, size = self.outbox.take()
        return wire.envelope_of(bodies), max(size, 1)


class Peers:
    """The table of the other replicas. Call all methods in the event loop."""

    def __init__(self) -> None:
        self.by_key: dict[ReplicaKey, Peer] = {}
        self.addresses: dict[ReplicaKey, str] = {}  #: The address that each replica reported in its last hello.
        self.undeliverable = 0  #: Number of messages to unknown replicas that the controller dropped.

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages. ``send`` never waits and never fails; messages that cannot be sent are lost."""
        touched: dict[ReplicaKey, Peer] = {}
        for message in messages:
            peer = self.by_key.get(message.to)
            if peer is None:
                self.undeliverable += 1
            else:
                peer.put(message.body)
                touched[message.to] = peer
        for peer in touched.values():
            peer.wake()

    @property
    def connected(self) -> frozenset[ReplicaKey]:
        return frozenset(key for key, peer in self.by_key.items() if peer.is_connected)

    @property
    def dropped(self) -> int:
        """Number of messages that were not sent, because there was no connection or the queue was full."""
        return self.undeliverable + sum(peer.outbox.dropped for peer in self.by_key.values())

    def address_of(self, key: ReplicaKey) -> str:
        """The address that a replica reported; "" if the replica has never connected."""
        return self.addresses.get(key, "")

    def seen_address(self, node_id: int) -> str:
        """The address that a connected node reported; "" if the node reported no address."""
        return next((self.address_of(key) for key in self.connected if key.node_id == node_id), "")


URGENT_MAX = 256
_KEPT_MAX = 8  #: ... without a connection.
#: Maximum bytes of the messages with entries in the outbox; Raft has at most 8 MiB in flight to one follower
#: (RaftSettings.in_flight_bytes_max).
BULK_BYTES_MAX = 16 << 20
BULK_MAX = 1_024
#: Largest envelope in bytes, unless one message is larger. A heartbeat may have to wait until one envelope is sent, so
#: envelopes are small.
ENVELOPE_BYTES = 256 << 10


class Outbox:
    """``is_open`` is False while there is no connection. Without a connection, large messages are dropped and a few
    small messages are kept. Because small messages are kept, a vote that is requested during a connection attempt need
    not be repeated."""

    __slots__ = ("_bulk", "_bulk_bytes", "_urgent", "dropped", "is_open")

    def __init__(self) -> None:
        self._urgent: deque[Body] = deque()
        self._bulk: deque[tuple[Body, int]] = deque()
        self._bulk_bytes = 0
        self.is_open = False
        self.dropped = 0  #: Number of messages that the outbox dropped instead of sending them.

    def __bool__(self) -> bool:
        return bool(self._urgent or self._bulk)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._bulk)

    def put(self, body: Body, size: int) -> bool:
        """Queue a message; returns False if it was dropped."""
        if isinstance(body, AppendRequest | SnapshotRequest):
            return self._put_bulk(body, size)
        urgent = self._urgent
        if isinstance(body, HeartbeatRequest):
            for at, other in enumerate(urgent):
                if isinstance(other, HeartbeatRequest):
                    urgent[at] = body
                    return True
        urgent.append(body)
        if len(urgent) > (URGENT_MAX if self.is_open else _KEPT_MAX):
            urgent.popleft()
            self.dropped += 1
        return True

    def _put_bulk(self, body: Body, size: int) -> bool:
        is_full = len(self._bulk) >= BULK_MAX or (self._bulk and self._bulk_bytes + size > BULK_BYTES_MAX)
        if not self.is_open or is_full:
            self.dropped += 1
            return False
        self._bulk.append((body, size))
        self._bulk_bytes += size
        return True

    def take(self) -> tuple[list[Body], int]:
        """The messages of the next envelope, and their approximate size in bytes."""
        bodies: list[Body] = list(self._urgent)
        self._urgent.clear()
        size = 0
        bulk = self._bulk
        while bulk and (not size or size + bulk[0][1] <= ENVELOPE_BYTES):
            body, its_size = bulk.popleft()
            bodies.append(body)
            size += its_size
        self._bulk_bytes -= size
        return bodies, size

    def close(self) -> None:
        """Called when the connection ended: drop the large messages."""
        self.is_open = False
        self.dropped += len(self._bulk)
        self._bulk.clear()
        self._bulk_bytes = 0
        while len(self._urgent) > _KEPT_MAX:
            self._urgent.popleft()
            self.dropped += 1
