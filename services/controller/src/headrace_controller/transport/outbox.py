"""What waits to be sent to one replica: bounded, and the small before the large. Pure.

    urgent    votes, heartbeats, answers, orders: small, and worth nothing when late. When there are too many the oldest
              go; a newer heartbeat takes the place of one that has not left yet
    bulk      entries and chunks of snapshots, in order. What does not fit is dropped: the follower refuses what comes
              behind the gap, and the leader begins there again after the next heartbeat at the latest

Raft expects any message to be lost, and any small one to overtake a large one. (An append without entries tells what is
committed right behind those that go before it: it keeps its place among them.)
"""

from __future__ import annotations

from collections import deque

from ..raft import AppendRequest, HeartbeatRequest, SnapshotRequest
from ..raft.types import Body

URGENT_MAX = 256
#: Raft has 8 MiB under way to a follower at most (RaftSettings.in_flight_bytes_max).
BULK_BYTES_MAX = 16 << 20
BULK_MAX = 1_024
#: What goes into one envelope, unless one message is larger; a heartbeat waits for so much at most.
ENVELOPE_BYTES = 256 << 10


class Outbox:
    """``is_open`` is False while nobody is there to read: then large things are not kept, and of the small ones a few,
    so that a vote that is asked for while the connection is made need not be asked for again."""

    __slots__ = ("_bulk", "_bulk_bytes", "_urgent", "dropped", "is_open")

    def __init__(self) -> None:
        self._urgent: deque[Body] = deque()
        self._bulk: deque[tuple[Body, int]] = deque()
        self._bulk_bytes = 0
        self.is_open = False
        #: Messages that were not sent.
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._urgent or self._bulk)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._bulk)

    def put(self, body: Body, size: int) -> bool:
        """False: it was dropped."""
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
        """What goes next into one envelope, and its bytes, about."""
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
        """Nobody reads any more; what is large goes."""
        self.is_open = False
        self.dropped += len(self._bulk)
        self._bulk.clear()
        self._bulk_bytes = 0
        while len(self._urgent) > _KEPT_MAX:
            self._urgent.popleft()
            self.dropped += 1


_KEPT_MAX = 8
