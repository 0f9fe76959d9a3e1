"""What a follower and a leader say to each other about partitions (replication.proto), as plain values.

Lanes, machines and the simulator speak these; shells translate them from and to the wire. A handle names one partition
on one stream from its join to its end, and is never used twice there. Offsets are exclusive ends; bytes are bytes.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace_core.errors import HeadraceError


class Lane(enum.Enum):
    """What a stream carries: partitions near their leader's end, or those that are far behind."""

    LIVE = "live"
    CATCH_UP = "catch-up"


class Hello(NamedTuple):
    """The first thing on a stream: the follower in this life (KIP-903), whom it means to speak to, and how many bytes
    of records may be under way on the stream."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    leader_id: int
    lane: Lane
    window_bytes: int
    #: It says something every second, or the link is broken.
    speaks: bool = False


class Join(NamedTuple):
    """The follower's log of a partition: where it starts and ends, the epoch of its last record (-1: it has none), and
    up to where it has met the topic's flush policy. ``window_bytes``: of records that may be under way."""

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
    """How far the follower's log has come; ``durable_end`` counts in the high watermark."""

    handle: int
    durable_end: int
    log_end: int
    log_start: int


class Request(NamedTuple):
    """From the follower."""

    hello: Hello | None = None
    joins: tuple[Join, ...] = ()
    leaves: tuple[int, ...] = ()
    acks: tuple[Ack, ...] = ()
    #: Of the leaves, those whose logs take no appends: out of the in-sync set with them.
    cannot_append: frozenset[int] = frozenset()


class Divergence(NamedTuple):
    """The leader's largest epoch that is not above the follower's last one, and where it ended (KIP-101, KIP-279)."""

    epoch: int
    end_offset: int


class Joined(NamedTuple):
    """The answer to a join. With an error, diverging, out of range or for the other lane, the handle is ended."""

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
        """The logs match, and pushes will come."""
        return self.error is None and self.diverging is None and not self.out_of_range and not self.other_lane


class Push(NamedTuple):
    """Whole batches as they stand in the leader's log; they go on where the last push (or the join) ended."""

    handle: int
    records: bytes
    high_watermark: int
    log_start: int


class News(NamedTuple):
    """Offsets that moved while there was nothing to push."""

    handle: int
    high_watermark: int
    log_start: int


class Ended(NamedTuple):
    """The leader follows this handle no more: it leads the partition no longer, or it wants the other lane."""

    handle: int
    error: HeadraceError | None = None
    other_lane: bool = False


class Response(NamedTuple):
    """From the leader."""

    joined: tuple[Joined, ...] = ()
    pushes: tuple[Push, ...] = ()
    news: tuple[News, ...] = ()
    ended: tuple[Ended, ...] = ()
    #: It says something every second, or the link is broken.
    speaks: bool = False
