"""Messages between a follower and a leader about partitions (replication.proto), as plain values.

Lanes, machines and the simulator use these; shells translate them to and from the wire. A handle names one partition on
one stream from its join to its end, and is never reused there. Offsets are exclusive ends.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace_core.errors import HeadraceError


class Lane(enum.Enum):
    """Content of a stream: partitions near their leader's end, or those far behind."""

    LIVE = "live"
    CATCH_UP = "catch-up"


class Hello(NamedTuple):
    """First message of a stream: the follower's broker epoch (KIP-903), the intended leader, and the stream's window in
    bytes of records."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    leader_id: int
    lane: Lane
    window_bytes: int
    sends_heartbeats: bool = False  #: It sends heartbeats every second.


class Join(NamedTuple):
    """The follower's log of a partition: its start and end, the epoch of its last record (-1: none), and its durable
    end. ``window_bytes``: of unacknowledged records."""

    handle: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    log_start: int
    log_end: int
    last_epoch: int
    durable_end: int
    window_bytes: int


class Ack(NamedTuple):
    """Progress of the follower's log; ``durable_end`` counts in the high watermark."""

    handle: int
    durable_end: int
    log_end: int
    log_start: int


class Request(NamedTuple):
    """A follower's message."""

    hello: Hello | None = None
    joins: tuple[Join, ...] = ()
    leaves: tuple[int, ...] = ()
    acks: tuple[Ack, ...] = ()
    #: Leaves because the log takes no appends; these leave the in-sync set.
    cannot_append: frozenset[int] = frozenset()


class Divergence(NamedTuple):
    """The leader's largest epoch not above the follower's last one, and its end (KIP-101, KIP-279)."""

    epoch: int
    end_offset: int


class Joined(NamedTuple):
    """Answer to a join. With an error, diverging, out of range or for the other lane, the handle has ended."""

    handle: int
    error: HeadraceError | None = None
    high_watermark: int = 0
    log_start: int = 0
    log_end: int = 0
    diverging: Divergence | None = None
    out_of_range: bool = False
    other_lane: bool = False

    @property
    def follows(self) -> bool:
        """The logs match, and pushes will follow."""
        return self.error is None and self.diverging is None and not self.out_of_range and not self.other_lane


class Push(NamedTuple):
    """Whole batches as in the leader's log, starting where the last push (or the join) ended."""

    handle: int
    records: bytes
    high_watermark: int
    log_start: int


class OffsetsUpdate(NamedTuple):
    """Offsets that changed without records to push."""

    handle: int
    high_watermark: int
    log_start: int


class Ended(NamedTuple):
    """The leader ended this handle: it no longer leads the partition, or it wants the other lane."""

    handle: int
    error: HeadraceError | None = None
    other_lane: bool = False


class Response(NamedTuple):
    """A leader's message."""

    joined: tuple[Joined, ...] = ()
    pushes: tuple[Push, ...] = ()
    updates: tuple[OffsetsUpdate, ...] = ()
    ended: tuple[Ended, ...] = ()
    sends_heartbeats: bool = False  #: It sends heartbeats every second.
