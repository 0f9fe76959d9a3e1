"""A follower's progress, as its leader sees it (etcd's tracker; Raft, 5.3).

    PROBE       it is unknown where the two logs diverge: the leader sends one message at a time
    REPLICATE   the logs agree: the leader sends messages ahead, within limits, without waiting for answers
    SNAPSHOT    the leader's log no longer has the entries that the follower needs: it sends a snapshot, chunk by chunk

The leader learns that a message was lost when the follower refuses a later message because of the gap. At the latest,
the leader learns of the loss from the answer to the next heartbeat. A lost message causes a delay of at most one
heartbeat interval.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING

from .reads import NEVER
from .types import RaftSettings, Room, SnapshotId, SnapshotResponse

if TYPE_CHECKING:
    from .log import RaftLog

#: Number of answered heartbeats after which the leader sends an unanswered snapshot chunk again.
CHUNK_RESEND_HEARTBEATS = 5


class Mode(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """See the module. ``match``: below this offset the follower's log is durable and equal to the leader's log.
    ``next_offset``: the offset of the next entry that the leader sends."""

    __slots__ = (
        "_bytes",
        "_in_flight",
        "_settings",
        "_unanswered",
        "answered_at",
        "caught_up_at",
        "contact_at",
        "goal",
        "goal_at",
        "is_waiting",
        "lost_at",
        "match",
        "mode",
        "next_offset",
        "position",
        "room",
        "round",
        "sent_committed",
        "snapshot",
    )

    def __init__(self, settings: RaftSettings, next_offset: int) -> None:
        self._settings = settings
        self.mode = Mode.PROBE
        self.match = 0
        self.next_offset = next_offset
        #: The tick at which the leader sent the last heartbeat that the follower answered; NEVER before the first
        #: answer.
        self.contact_at = NEVER
        #: The leader's ticks at which the follower last answered, and last answered with the whole log; NEVER without
        #: such an answer. Only descriptions of the quorum use these ticks, never decisions, because delayed answers
        #: change the ticks, too.
        self.answered_at = NEVER
        self.caught_up_at = NEVER
        #: The leader's log end at the tick ``goal_at``. When the follower's ``match`` reaches ``goal``, the follower
        #: had caught up at the tick ``goal_at``.
        self.goal = next_offset
        self.goal_at = NEVER
        self.round = 0  #: The last heartbeat round that the follower answered.
        self.room: Room | None = None  #: The space on the follower's disk, as it last reported it.
        #: (``match``, latest heartbeat round) when the connection to the follower last broke.
        self.lost_at = (-1, -1)
        self.is_waiting = False  #: Whether a probe or a snapshot chunk is in flight.
        self.snapshot: SnapshotId | None = None
        self.position = 0  #: Position in ``snapshot`` of the next chunk to send, in bytes.
        self.sent_committed = 0  #: The commit offset that was last sent to the follower.
        self._in_flight: deque[tuple[int, int]] = deque()
        self._bytes = 0
        #: Number of heartbeats that the follower answered since the leader sent the snapshot chunk in flight.
        self._unanswered = 0

    @property
    def may_send(self) -> bool:
        if self.mode is not Mode.REPLICATE:
            return not self.is_waiting
        limits = self._settings
        return len(self._in_flight) < limits.in_flight_messages_max and self._bytes < limits.in_flight_bytes_max

    @property
    def proven_match(self) -> int:
        """``match`` as far as it counts for commits: 0 after a broken connection, until the follower has acknowledged
        more, or has answered a heartbeat, which names what it has acknowledged. It may have come back with an older
        copy of its directory."""
        match, round_ = self.lost_at
        return self.match if self.match > match or self.round > round_ else 0

    def is_done(self, end: int) -> bool:
        """Whether the follower has the whole log up to ``end``, and knows that the log is committed up to ``end``."""
        return self.mode is Mode.REPLICATE and self.match == end and self.sent_committed == end

    def touch(self, round_: int, sent_at: int) -> None:
        """Record that the follower answered the heartbeat round ``round_``, which was sent at the tick ``sent_at``."""
        self.round = max(self.round, round_)
        self.contact_at = max(self.contact_at, sent_at)

    def sent(self, next_offset: int, size: int) -> None:
        """Record that entries up to ``next_offset`` are in flight."""
        if self.mode is Mode.REPLICATE:
            if next_offset > self.next_offset:
                self._in_flight.append((next_offset, size))
                self._bytes += size
                self.next_offset = next_offset
        else:
            self.is_waiting = True

    def matched(self, offset: int) -> bool:
        """Record that the follower has all entries below ``offset``; returns whether ``match`` has advanced."""
        is_news = offset > self.match
        self.match = max(self.match, offset)
        self.next_offset = max(self.next_offset, self.match)
        while self._in_flight and self._in_flight[0][0] <= self.match:
            self._bytes -= self._in_flight.popleft()[1]
        if self.mode is Mode.PROBE:
            self.replicate()
        return is_news

    def refused(self, previous_offset: int, next_offset: int) -> bool:
        """Called when the follower lacks entries before ``previous_offset``: continue at ``next_offset``. Returns False
        for a late answer of the follower."""
        if self.mode is Mode.SNAPSHOT or previous_offset <= self.match:
            return False
        if self.mode is Mode.PROBE and previous_offset != self.next_offset:
            return False
        self.probe(max(min(next_offset, previous_offset), self.match))
        return True

    def chunk_sent(self) -> None:
        """Record that a snapshot chunk was sent; the next chunk is sent after the answer to this chunk."""
        self.is_waiting = True
        self._unanswered = 0

    def next_chunk(self, log: RaftLog) -> tuple[SnapshotId, int, bytes, bool]:
        """(snapshot, position, bytes, whether it is the last chunk) of the next chunk."""
        if self.mode is not Mode.SNAPSHOT or self.snapshot is None:
            self.install(log.snapshot)
        assert self.snapshot is not None
        chunk = log.snapshot_chunk(self.snapshot, self.position, self._settings.snapshot_chunk_bytes)
        if chunk is None:  # the snapshot was removed, because a later snapshot replaces it
            self.install(log.snapshot)
            chunk = log.snapshot_chunk(log.snapshot, 0, self._settings.snapshot_chunk_bytes)
            assert chunk is not None, f"{log.snapshot} is not there"
        return self.snapshot, self.position, *chunk

    def chunk_answered(self, body: SnapshotResponse) -> bool:
        """Called when the follower asks for the chunk at ``body.position``, or has all chunks. Returns False if the
        answer names another snapshot."""
        if self.mode is not Mode.SNAPSHOT or self.snapshot is None or self.snapshot.place != body.place:
            return False
        if body.is_installed:
            self.installed(body.place.offset)
        else:
            self.position, self.is_waiting = body.position, False
        return True

    def give_way(self) -> None:
        """Called when the follower answered a heartbeat: messages in flight may be lost, so one more message may be
        sent. A snapshot chunk gets more time than other messages, because it is large and may wait for a slow disk."""
        match self.mode:
            case Mode.REPLICATE:
                if self._in_flight and not self.may_send:
                    self._bytes -= self._in_flight.popleft()[1]
            case Mode.PROBE:
                self.is_waiting = False
            case Mode.SNAPSHOT:
                self._unanswered += 1
                if self._unanswered >= CHUNK_RESEND_HEARTBEATS:
                    self.is_waiting = False

    def note_end(self, end: int, tick: int) -> None:
        """Record the leader's log end at a tick, from which ``caught_up_at`` is derived."""
        if self.match >= self.goal:
            self.caught_up_at = self.goal_at
        self.goal, self.goal_at = end, tick

    def lost(self, round_: int) -> None:
        """Called when the connection to the follower broke: all messages in flight are lost. ``round_``: the latest
        heartbeat round."""
        self.lost_at = (self.match, round_)
        if self.mode is Mode.REPLICATE:
            self.probe(self.match)
        self.is_waiting = False

    def probe(self, next_offset: int) -> None:
        self.mode, self.next_offset, self.is_waiting, self.snapshot = Mode.PROBE, next_offset, False, None
        self._clear()

    def replicate(self) -> None:
        self.mode, self.next_offset, self.is_waiting, self.snapshot = Mode.REPLICATE, self.match, False, None
        self._clear()

    def install(self, snapshot: SnapshotId) -> None:
        self.mode, self.snapshot, self.position, self.is_waiting = Mode.SNAPSHOT, snapshot, 0, False
        self._clear()

    def installed(self, offset: int) -> None:
        """Called when the snapshot that ends at ``offset`` is durable on the follower: continue with entries. Refusals
        that the follower sent before the snapshot was durable are outdated."""
        self.match = max(self.match, offset)
        self.replicate()

    def _clear(self) -> None:
        self._in_flight.clear()
        self._bytes = 0
