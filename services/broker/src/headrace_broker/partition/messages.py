"""Messages between a follower and a leader (replication.proto), as plain values.

Leaders, followers and the simulator use the values of this module; handlers convert them to and from protobuf messages.
A handle is the number of one partition's join on one stream, from the join to its end. A stream never uses the number
of an ended join again. End offsets in messages are exclusive.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace_core.errors import HeadraceError


class Lane(enum.Enum):
    """The kind of a stream: for partitions near their leader's end (live), or for partitions far behind (catch-up)."""

    LIVE = "live"
    CATCH_UP = "catch-up"


class Hello(NamedTuple):
    """First message of a stream: the follower's broker epoch (KIP-903), the intended leader, and the maximum number of
    unacknowledged bytes of records."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    leader_id: int
    lane: Lane
    window_bytes: int
    sends_heartbeats: bool = False  #: Whether the follower sends a heartbeat on the stream every second.


class Join(NamedTuple):
    """A request to push a partition, with the start, the end and the durable end of the follower's log. A join request
    also has the epoch of the log's last record (-1 if the log has none). ``window_bytes`` limits the unacknowledged
    records."""

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
    """Progress of the follower's log; the high watermark depends on ``durable_end``."""

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
    #: Handles of the joins that end because the follower's log takes no appends; the leader removes these followers
    #: from the in-sync set.
    cannot_append: frozenset[int] = frozenset()


class Divergence(NamedTuple):
    """Where the logs may diverge: the leader's largest epoch not above the follower's last epoch, and that epoch's end
    offset (KIP-101, KIP-279)."""

    epoch: int
    end_offset: int


class Joined(NamedTuple):
    """The leader's answer to a join. The answer ends the join if ``error``, ``diverging``, ``out_of_range`` or
    ``other_lane`` is set."""

    handle: int
    error: HeadraceError | None = None
    high_watermark: int = 0
    log_start: int = 0
    log_end: int = 0
    diverging: Divergence | None = None
    out_of_range: bool = False
    other_lane: bool = False
    producers: bytes = b""  #: With ``out_of_range``: a snapshot of the leader's producers at ``log_start``.

    @property
    def follows(self) -> bool:
        """Whether the logs match, so that pushes follow."""
        return self.error is None and self.diverging is None and not self.out_of_range and not self.other_lane


class PushTrace(NamedTuple):
    """The trace context (``traceparent``) of a batch that is traced."""

    base_offset: int
    traceparent: str


class Push(NamedTuple):
    """Whole batches from the leader's log, starting where the previous push (or the follower's log) ended. ``traces``:
    the trace contexts of those batches that are traced."""

    handle: int
    records: bytes
    high_watermark: int
    log_start: int
    traces: tuple[PushTrace, ...] = ()


class OffsetsUpdate(NamedTuple):
    """A message with new offsets of the leader, sent when there are no records to push."""

    handle: int
    high_watermark: int
    log_start: int


class Ended(NamedTuple):
    """The message with which a leader ends a join. The reason: the leader no longer leads the partition, or the replica
    should use the leader's other stream."""

    handle: int
    error: HeadraceError | None = None
    other_lane: bool = False


class Response(NamedTuple):
    """A leader's message."""

    joined: tuple[Joined, ...] = ()
    pushes: tuple[Push, ...] = ()
    updates: tuple[OffsetsUpdate, ...] = ()
    ended: tuple[Ended, ...] = ()
    sends_heartbeats: bool = False  #: Whether the leader sends a heartbeat on the stream every second.
