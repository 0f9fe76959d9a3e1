"""One other replica: what waits to be sent to it, and the streams that lead there."""

from __future__ import annotations

from typing import Protocol

from headrace_protos.v1 import raft_pb2

from ..raft import ReplicaKey
from ..raft.types import Body
from . import wire
from .outbox import Outbox


class PeerStream(Protocol):
    """A stream that both have said hello on."""

    def wake(self) -> None:
        """There is something to write: ``Peer.take`` has it."""


class Peer:
    """Owned by the event loop. There may be a stream that this side opened, one of the other side's, both, or (when the
    other one came back before its end was noticed) more: what is sent takes the latest."""

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
        """How many lead there."""
        return len(self._streams)

    def put(self, body: Body) -> None:
        """``wake`` has it sent."""
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
        """What ``stream`` is to write now, and its bytes, about (at least 1)."""
        if not self.outbox or self._streams[-1:] != [stream]:
            return None
        bodies, size = self.outbox.take()
        return wire.envelope_of(bodies), max(size, 1)
