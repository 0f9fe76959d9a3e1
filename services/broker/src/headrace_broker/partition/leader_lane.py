"""The leader's side of one stream to one follower (pure): it makes pushes and applies acknowledgements.

A follower joins partitions on the stream; the number of a join is its handle. From the join on, the leader pushes the
records after the follower's log end::

                      acknowledged          position                 leader's log end
        ------------------|---------------------|---------------------------|
                          |<---- in flight ---->|<------- owed ------------>|
                           at most the window

Each partition that the follower has joined is in one of six states::

    CALM      nothing is owed                                        -> the log grows
    READY     something is owed, and there is room: in ``_ready``    -> its turn comes in ``next``
    FULL      its window is full                                     -> an acknowledgement
    READING   what it is owed is not in the page cache: on a thread  -> ``was_read``
    PACED     the throttle delays it, because it is out of sync      -> time
    ENDED     left, ended, or replaced by a later join: queues skip it

``next`` makes one message, with some records of each partition in ``_ready``. Partitions with more records than fit
into the message move to the end of the queue. An idle partition costs nothing, no partition starves another, and small
amounts of records share a message. The leader reads records only when the windows of the stream and the partition allow
it to send them. A slow or silent follower costs only the memory of its stream's unacknowledged bytes.

The leader sends records as soon as they are in its log, before the log is flushed. Because all replicas flush at the
same time, acks=all costs one network round trip and the follower's flush more than acks=1 (decision 11). The high
watermark counts the durable ends that followers acknowledge.

A join checks whether the follower's log is a prefix of the leader's log (``matching.py``). A replica that is far behind
uses a second stream, the catch-up stream, whose reads may wait for the disk. Near the log's end the replica returns to
the leader's live stream. The throttle (KIP-73) delays replicas that are out of sync, on both streams: a small partition
that moves to another broker is never far behind.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    StaleBrokerEpochError,
)
from headrace_core.types import NO_EPOCH, TopicPartition

from .leader import PartitionLeader
from .matching import match
from .messages import Ack, Ended, Hello, Join, Joined, Lane, OffsetsUpdate, Push, Response
from .pacing import Pacer
from .versions import check_epoch

T = TypeVar("T")

#: Maximum window of a stream or a partition: the number of unacknowledged bytes that the follower allows.
WINDOW_BYTES_MAX = 64 * 1024 * 1024
#: Maximum bytes of records in one message; larger messages are no faster and delay the messages behind them.
MESSAGE_BYTES = 1024 * 1024
SHARE_BYTES_MIN = 64 * 1024  #: Minimum bytes that a partition gets in a message while other partitions wait.
#: Bytes behind the leader's log end above which a replica changes to the catch-up stream.
CATCH_UP_BYTES = 8 * 1024 * 1024
HAND_OVER_BYTES = 1024 * 1024  #: Bytes behind the leader's log end below which a replica returns to the live stream.
#: Milliseconds after which the leader sends changed offsets, such as the high watermark, in a message without records.
#: Before UPDATE_DELAY_MS are over, a push of records usually includes the changed offsets.
UPDATE_DELAY_MS = 20
PACED_LOOK_MS = 500  #: Longest wait in milliseconds between two checks of the replication throttle.
COLD_READS_MAX = 2  #: Maximum number of disk reads that run at the same time for one replication stream.
#: A follower that sends heartbeats counts as disconnected or frozen after this number of milliseconds without a
#: message.
SILENCE_MS = 3_000
ITEM_BYTES = 32  #: Bytes counted for an item in a replication message, in addition to the item's records.
#: Maximum bytes of producer state in an answer to a join: 700,000 producers. If a log has more producers, its new
#: follower begins without producer state.
PRODUCERS_MAX = 32 * 1024 * 1024
ENDED_QUEUED_MAX = 1_000  #: Maximum number of ended joins that the queues of a stream may contain.
ITEMS_MAX = 2_000  #: Maximum number of items (such as pushes or answers to joins) in one replication message.


class State(enum.IntEnum):
    """See the module."""

    CALM = 0
    READY = 1
    FULL = 2
    READING = 3
    PACED = 4
    ENDED = 5


class Slice(Protocol):
    """Result of a read: whole batches, and the offset after the batches."""

    @property
    def records(self) -> bytes: ...

    @property
    def next_offset(self) -> int: ...


class LedPartition(Protocol):
    """The methods of a led partition that a LeaderLane calls; the lane may read the partition's log up to
    ``leader.log_end``."""

    @property
    def leader(self) -> PartitionLeader: ...

    @property
    def log_start(self) -> int:
        """The log's start offset. ``leader.log_start`` gets the log's start offset later, when the event loop learns of
        the change."""

    @property
    def latest_epoch(self) -> int:
        """Leader epoch of the log's last record; -1 if the log has no record."""

    def known_epoch_end(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch at or below ``epoch``, its end), or (-1, -1); see ``matching.EndOf``."""

    def producers_at(self, offset: int) -> bytes:
        """A snapshot of the log's producers after all records before ``offset`` (``ProducerTable.snapshot_at``)."""

    def bytes_from(self, offset: int) -> int:
        """Approximate number of bytes of the records from ``offset`` on, computed without I/O."""

    def read_appended(self, offset: int, max_bytes: int) -> Slice | None:
        """Read batches from ``offset`` up to the log's end, at least one; None if the batches are not in the page
        cache."""


class ColdRead(NamedTuple):
    """A request to read records that are not in the page cache. The caller of the lane reads the records on a thread
    and calls ``was_read``."""

    replica: JoinedReplica
    source: LedPartition
    offset: int
    max_bytes: int


JoinedReplicaKey = tuple[bytes, int, int]  #: A joined replica: (topic id, partition, follower's broker id).


class JoinedReplicas:
    """The replicas that have joined on any stream, with one handle (number of the join) for each replica. A later join
    of a replica on any stream replaces an earlier join. A late leave on the old stream does not end the join on the new
    stream."""

    def __init__(self) -> None:
        self._replicas: dict[JoinedReplicaKey, JoinedReplica] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def find(self, key: JoinedReplicaKey) -> JoinedReplica | None:
        return self._replicas.get(key)

    def put(self, replica: JoinedReplica) -> None:
        self._replicas[replica.key] = replica

    def remove(self, replica: JoinedReplica) -> bool:
        """Remove the replica; returns True if the handle was that of the replica's latest join."""
        if self._replicas.get(replica.key) is replica:
            del self._replicas[replica.key]
            return True
        return False


class LaneHost(Protocol):
    """The functions of the broker that a LeaderLane calls; they must not block."""

    def find(self, topic_id: bytes, partition: int) -> LedPartition:
        """The partition, if this broker leads it. Raises the errors of ``PartitionTable.leader``, UnknownTopicIdError,
        InconsistentTopicIdError."""

    def is_throttled(self, leader: PartitionLeader, broker_id: int) -> bool:
        """Whether the leader's throttle applies to the replica, which is out of sync (KIP-73)."""


class JoinedReplica:
    """A follower's replica of one partition, joined on one stream. The JoinedReplica watches the partition's log
    (``LogWatcher``)."""

    __slots__ = (
        "handle",
        "holds_read",
        "in_flight",
        "in_flight_bytes",
        "key",
        "lane",
        "leader",
        "position",
        "sent_high_watermark",
        "sent_log_start",
        "source",
        "stash",
        "state",
        "window_bytes",
    )

    def __init__(self, lane: LeaderLane, join: Join, source: LedPartition) -> None:
        self.lane = lane
        self.handle = join.handle
        self.key = (join.topic_id, join.partition, lane.broker_id)
        self.source = source
        self.leader = source.leader
        self.position = join.log_end  #: The next offset that the leader pushes to the replica.
        self.in_flight: deque[tuple[int, int]] = deque()  #: Unacknowledged pushes as (end offset, bytes).
        self.in_flight_bytes = 0
        self.window_bytes = min(join.window_bytes, WINDOW_BYTES_MAX)
        self.state = State.CALM
        self.stash: Slice | None = None  #: Records that the leader has read from the log and has not sent yet.
        self.holds_read = False  #: Whether a disk read for this replica is in progress, or its result is in ``stash``.
        self.sent_high_watermark = -1
        self.sent_log_start = -1

    @property
    def partition(self) -> TopicPartition:
        return self.leader.partition

    def log_grew(self, partition: TopicPartition) -> None:
        if self.state is State.CALM:
            self.lane.make_ready(self)

    def high_watermark_moved(self, partition: TopicPartition) -> None:
        self.lane.offsets_changed(self)

    def leadership_ended(self, partition: TopicPartition) -> None:
        self.lane.resigned(self)


class Outgoing(NamedTuple):
    """A message to the follower, with its approximate size for the stream's queue."""

    response: Response
    size: int


class LeaderLane:
    """The leader's state of one stream, from its Hello message to its end. Call all methods in one event loop; times
    are monotonic milliseconds."""

    def __init__(
        self,
        hello: Hello,
        *,
        host: LaneHost,
        registry: JoinedReplicas,
        pacer: Pacer,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        wake_at: Callable[[int], None],
    ) -> None:
        """The caller has checked ``hello`` against the metadata; all streams share ``registry`` and ``pacer``. ``wake``
        is called, perhaps often, when ``next`` may have a new message. ``wake_at`` is called with the time at which
        ``next`` may have a message (``due_ms``). Raises InvalidRequestError if the hello's limit of unacknowledged
        bytes is not above 0."""
        if hello.window_bytes <= 0:
            raise InvalidRequestError(f"broker {hello.broker_id}: window_bytes={hello.window_bytes}: must be above 0")
        self.broker_id = hello.broker_id
        self.broker_epoch = hello.broker_epoch
        self.is_catch_up = hello.lane is Lane.CATCH_UP
        self.is_closed = False
        self._window_bytes = min(hello.window_bytes, WINDOW_BYTES_MAX)
        self._in_flight_bytes = 0
        self._sends_heartbeats = hello.sends_heartbeats
        self._last_contact_ms = now_ms()
        self._host = host
        self._registry = registry
        self._pacer = pacer
        self._now_ms = now_ms
        self._wake = wake
        self._wake_at = wake_at
        self._replicas: dict[int, JoinedReplica] = {}
        self._ready: deque[JoinedReplica] = deque()
        self._paced: deque[JoinedReplica] = deque()
        self._cold: deque[JoinedReplica] = deque()
        self._wants_cold: list[ColdRead] = []
        self._resigned: list[JoinedReplica] = []
        #: Number of the stream's joined replicas with a disk read in progress, or with records that were read and not
        #: sent.
        self._reading = 0
        self._joined: deque[Joined] = deque()
        #: Partitions whose followers must restart with an empty log, by the handle of the queued answer.
        self._beginning: dict[int, tuple[bytes, int]] = {}
        self._ended: deque[Ended] = deque()
        self._updates: dict[JoinedReplica, None] = {}
        self._updates_due_ms = 0

    def join(self, join: Join) -> None:
        """Process a join; a later ``next`` returns the answer. Raises InvalidRequestError for an invalid join, which
        ends the stream."""
        if join.handle in self._replicas:
            raise InvalidRequestError(
                f"broker {self.broker_id}: join handle {join.handle} is already in use on this replication stream"
            )
        _check(join)
        self._forget_ended()
        try:
            answer = self._join(join)
        except HeadraceError as error:
            answer = Joined(join.handle, error.copy())  # a copy, because the traceback of ``error`` keeps this frame
        self._joined.append(answer)
        if answer.out_of_range:
            self._beginning[join.handle] = (join.topic_id, join.partition)
        self._wake()

    def _join(self, join: Join) -> Joined:
        source = self._host.find(join.topic_id, join.partition)
        leader = source.leader
        if join.leader_epoch == NO_EPOCH:
            raise InvalidRequestError(f"{leader.partition}: broker {self.broker_id} joined without a leader epoch")
        check_epoch(leader, join.leader_epoch)
        before = self._registry.find((join.topic_id, join.partition, self.broker_id))
        if before is not None and before.lane.broker_epoch > self.broker_epoch:
            raise StaleBrokerEpochError(
                f"{leader.partition}: broker {self.broker_id} joined with broker epoch {self.broker_epoch}, but is "
                f"already joined with the newer epoch {before.lane.broker_epoch}: the broker has restarted"
            )
        found = match(
            log_start=source.log_start,
            log_end=leader.log_end,
            latest_epoch=source.latest_epoch,
            end_of=source.known_epoch_end,
            follower_end=join.log_end,
            follower_epoch=join.last_epoch,
        )
        # Read the log's start offset after its epoch history, which is the safe order while records are deleted. A
        # deletion of records advances the log start of the log first, then the epochs, and then ``leader.log_start``. A
        # follower that restarted at ``leader.log_start`` could ask for deleted offsets.
        here = leader.high_watermark, source.log_start, leader.log_end
        if not found.matches:
            leader.follower_tried(self.broker_id, self._now_ms())
            if found.diverging is not None:
                return Joined(join.handle, None, *here, found.diverging)
            return Joined(join.handle, None, *here, out_of_range=True)
        if self._belongs_elsewhere(source, join.log_end):
            leader.follower_tried(self.broker_id, self._now_ms())
            return Joined(join.handle, None, *here, other_lane=True)
        if before is not None:
            before.lane.forget(before)
        if not leader.follower_joined(
            self.broker_id,
            self.broker_epoch,
            log_end=join.log_end,
            durable_end=join.durable_end,
            log_start=join.log_start,
            now_ms=self._now_ms(),
        ):
            raise self._not_among(leader)
        replica = JoinedReplica(self, join, source)
        self._replicas[join.handle] = replica
        self._registry.put(replica)
        leader.watch_log(replica)
        replica.sent_high_watermark, replica.sent_log_start = leader.high_watermark, leader.log_start
        if replica.position < leader.log_end:
            self.make_ready(replica)
        return Joined(join.handle, None, leader.high_watermark, leader.log_start, leader.log_end)

    def _not_among(self, leader: PartitionLeader) -> NotLeaderOrFollowerError:
        return NotLeaderOrFollowerError(
            f"{leader.partition}: broker {self.broker_id} (broker epoch {self.broker_epoch}) is not a replica in "
            f"the metadata of broker {leader.leader_id}, which has {list(leader.replicas)}; retry"
        )

    def ack(self, ack: Ack) -> None:
        """Apply an acknowledgement; a late acknowledgement of an ended join is ignored. Raises InvalidRequestError if
        an acknowledged end is beyond the pushed records, because the high watermark would advance beyond existing
        records."""
        replica = self._replicas.get(ack.handle)
        if replica is None:
            return
        if not 0 <= ack.log_start <= ack.log_end <= replica.position or not 0 <= ack.durable_end <= ack.log_end:
            raise InvalidRequestError(
                f"{replica.partition}: broker {self.broker_id} acknowledged offsets {ack.log_start} to "
                f"{ack.log_end}, durable end {ack.durable_end}, but was sent offsets below {replica.position} only"
            )
        in_flight = replica.in_flight
        while in_flight and in_flight[0][0] <= ack.log_end:
            size = in_flight.popleft()[1]
            replica.in_flight_bytes -= size
            self._in_flight_bytes -= size
        if not replica.leader.follower_acked(
            self.broker_id,
            self.broker_epoch,
            durable_end=ack.durable_end,
            log_end=ack.log_end,
            log_start=ack.log_start,
            now_ms=self._now_ms(),
            # The replica was removed from the partition, and perhaps added again, after the follower joined: the
            # follower's acknowledgements do not count.
        ):
            self.end(replica, self._not_among(replica.leader))
            return
        if replica.state is State.FULL and replica.in_flight_bytes < replica.window_bytes:
            self.make_ready(replica)
        elif self._ready:
            self._wake()  # wake: the stream's own window may have been full

    def leave(self, handle: int, *, cannot_append: bool = False) -> None:
        """Process a leave, with which the follower ends a join. If the join's number (``handle``) is unknown, the
        leader has already ended the join. ``cannot_append``: the follower's log takes no appends, so the replica is out
        of sync from now on."""
        replica = self._replicas.get(handle)
        if replica is not None:
            self.forget(replica, cannot_append=cannot_append)

    def touch(self) -> None:
        """Record that the follower sent a message, perhaps only a heartbeat."""
        self._last_contact_ms = self._now_ms()

    def silent_at_ms(self) -> int | None:
        """Time at which the connection counts as broken unless the follower sends a message earlier. The result is None
        for a follower of an older version of Headrace, which sends no heartbeats."""
        return self._last_contact_ms + SILENCE_MS if self._sends_heartbeats else None

    def close(self) -> None:
        """End the stream. Idempotent."""
        self.is_closed = True
        for replica in list(self._replicas.values()):
            self.forget(replica, broken=True)
        # Remove every replica from the queues: a queued replica would keep its log, and so the files of a topic that is
        # deleted later.
        for queue in (self._ready, self._paced, self._cold, self._joined, self._ended):
            queue.clear()
        for kept in (self._wants_cold, self._resigned, self._updates):
            kept.clear()

    def make_ready(self, replica: JoinedReplica) -> None:
        replica.state = State.READY
        self._ready.append(replica)
        self._wake()

    def resigned(self, replica: JoinedReplica) -> None:
        """End the replica's join with the next message, not now: the leader is calling its watchers, and the list of
        watchers must not change."""
        self._resigned.append(replica)
        self._wake()

    def offsets_changed(self, replica: JoinedReplica) -> None:
        if not self._updates:
            self._updates_due_ms = self._now_ms() + UPDATE_DELAY_MS
            self._wake_at(self._updates_due_ms)
        self._updates[replica] = None

    def end(self, replica: JoinedReplica, error: HeadraceError | None, *, other_lane: bool = False) -> None:
        """End the join of the replica, with a message to the follower."""
        if self.forget(replica):
            self._ended.append(Ended(replica.handle, error, other_lane))
            self._wake()

    def forget(self, replica: JoinedReplica, *, cannot_append: bool = False, broken: bool = False) -> bool:
        """Remove the replica without a message to the follower; returns True if the replica was on this stream.
        ``broken``: the replica's stream has ended."""
        if self._replicas.get(replica.handle) is not replica:
            return False
        del self._replicas[replica.handle]
        was_reading = replica.state is State.READING
        replica.state = State.ENDED
        self._in_flight_bytes -= replica.in_flight_bytes
        replica.in_flight.clear()
        replica.in_flight_bytes = 0
        replica.stash = None
        self._updates.pop(replica, None)
        if replica.holds_read and not was_reading:
            self._read_done(replica)  # a read in progress ends by itself
        leader = replica.leader
        leader.unwatch_log(replica)
        if self._registry.remove(replica):
            leader.follower_left(self.broker_id, self._now_ms(), cannot_append=cannot_append, broken=broken)
        if self._ready:
            self._wake()  # the bytes in flight of the ended join are now free for other partitions
        return True

    def next(self) -> Outgoing | None:
        """The next message to the follower; None if there is no message now (call again after ``wake``, or at
        ``due_ms``)."""
        now_ms = self._now_ms()
        if self._resigned:
            self._end_resigned()
        if self._paced:
            self._unpace(now_ms)
        joined = self._take_joined()
        pushes: list[Push] = []
        # While answers to joins are queued, push no records: a follower needs the answer to its join of a partition
        # before the partition's records.
        size = 0 if self._joined else self._collect(pushes, now_ms)
        updates = () if self._joined else self._due_updates(now_ms)
        ended = _take(self._ended)
        items = len(joined) + len(pushes) + len(updates) + len(ended)
        if not items:
            return None
        size += sum([len(answer.producers) for answer in joined])
        return Outgoing(Response(joined, tuple(pushes), updates, ended), size + ITEM_BYTES * (items + 1))

    def _take_joined(self) -> tuple[Joined, ...]:
        """The next answers to joins. If a follower must restart with an empty log, the leader's answer contains the
        producers' sequence numbers. The lane adds the sequence numbers only when it makes the message, so that queued
        answers stay small."""
        taken: list[Joined] = []
        size = 0
        while self._joined and len(taken) < ITEMS_MAX and size < MESSAGE_BYTES:
            answer = self._joined.popleft()
            beginning = self._beginning.pop(answer.handle, None)
            if beginning is not None:
                answer = self._with_producers(answer, *beginning)
            size += len(answer.producers)
            taken.append(answer)
        return tuple(taken)

    def _with_producers(self, answer: Joined, topic_id: bytes, partition: int) -> Joined:
        """Add the log's producers to the answer, because a follower that restarts at the log's start cannot learn all
        producers from records."""
        try:
            source = self._host.find(topic_id, partition)
        except HeadraceError as error:  # this broker no longer leads the partition
            return Joined(answer.handle, error.copy())
        log_start = source.log_start
        producers = source.producers_at(log_start)
        return answer._replace(log_start=log_start, producers=producers if len(producers) <= PRODUCERS_MAX else b"")

    def _collect(self, pushes: list[Push], now_ms: int) -> int:
        """Fill ``pushes`` with records of the ready partitions, visiting each partition at most once; returns the bytes
        of the records."""
        ready, size = self._ready, 0
        is_limited = not self._pacer.is_unlimited  # once: usually no throttle is set
        for _ in range(min(len(ready), ITEMS_MAX)):
            room = min(MESSAGE_BYTES - size, self._window_bytes - self._in_flight_bytes)
            if room <= 0 or not ready:
                break
            replica = ready.popleft()
            if replica.state is not State.READY:
                continue  # the join of this replica ended while the replica was in the queue
            leader = replica.leader
            if is_limited and not self._may_go(replica, now_ms):
                continue
            space = replica.window_bytes - replica.in_flight_bytes
            if space <= 0:
                replica.state = State.FULL
                continue
            if ready:
                room = min(room, max(room // (len(ready) + 1), SHARE_BYTES_MIN))
            found = self._read(replica, min(room, space))
            if found is None:
                continue
            records = found.records
            if not records:  # the read returned no records because of a compaction gap: continue after the gap
                replica.position = found.next_offset
                replica.state = State.CALM
                if replica.position < leader.log_end:
                    self.make_ready(replica)
                continue
            if size and size + len(records) > MESSAGE_BYTES + SHARE_BYTES_MIN:
                replica.stash = found  # only a message's first batch may exceed the message size
                ready.appendleft(replica)
                break
            size += len(records)
            pushes.append(self._push(replica, found))
            if is_limited and self._host.is_throttled(leader, self.broker_id):
                self._pacer.take(len(records), now_ms)
        return size

    def _may_go(self, replica: JoinedReplica, now_ms: int) -> bool:
        """Whether the throttle allows a push to the replica now; if not, the replica's state becomes PACED."""
        if not self._host.is_throttled(replica.leader, self.broker_id) or self._pacer.ready_in_ms(now_ms) == 0.0:
            return True
        replica.state = State.PACED
        self._paced.append(replica)
        return False

    def _read(self, replica: JoinedReplica, max_bytes: int) -> Slice | None:
        """Read the next records for the replica. If there are no records, or if the read must wait, the result is None,
        and the replica's state shows the reason."""
        found, replica.stash = replica.stash, None
        if found is not None:
            if replica.holds_read:
                self._read_done(replica)
            return found
        try:
            found = replica.source.read_appended(replica.position, max_bytes)
        except HeadraceError as error:
            self.end(replica, error.copy())
            return None
        if found is None:
            self._read_cold(replica)
        elif found.next_offset <= replica.position:
            replica.state = State.CALM
            return None
        return found

    def _push(self, replica: JoinedReplica, found: Slice) -> Push:
        leader, size = replica.leader, len(found.records)
        replica.position = found.next_offset
        replica.in_flight.append((found.next_offset, size))
        replica.in_flight_bytes += size
        self._in_flight_bytes += size
        high_watermark, log_start = leader.high_watermark, leader.log_start
        replica.sent_high_watermark, replica.sent_log_start = high_watermark, log_start
        self._updates.pop(replica, None)
        push = Push(replica.handle, found.records, high_watermark, log_start)
        if self.is_catch_up and replica.source.bytes_from(replica.position) < HAND_OVER_BYTES:
            self.end(replica, None, other_lane=True)
        elif replica.position >= leader.log_end:
            replica.state = State.CALM
        elif replica.in_flight_bytes >= replica.window_bytes:
            replica.state = State.FULL
        else:
            replica.state = State.READY
            self._ready.append(replica)
        return push

    def _due_updates(self, now_ms: int) -> tuple[OffsetsUpdate, ...]:
        if not self._updates or now_ms < self._updates_due_ms:
            return ()
        updates: list[OffsetsUpdate] = []
        for replica in list(itertools.islice(self._updates, ITEMS_MAX)):
            del self._updates[replica]
            high_watermark, log_start = replica.leader.high_watermark, replica.leader.log_start
            if (high_watermark, log_start) != (replica.sent_high_watermark, replica.sent_log_start):
                replica.sent_high_watermark, replica.sent_log_start = high_watermark, log_start
                updates.append(OffsetsUpdate(replica.handle, high_watermark, log_start))
        return tuple(updates)

    def due_ms(self) -> int | None:
        """Time at which ``next`` may have a message without a call of ``wake``; None if only ``wake`` announces a
        message."""
        due_ms = self._updates_due_ms if self._updates else None
        if self._paced:
            now_ms = self._now_ms()
            wait_ms = self._pacer.ready_in_ms(now_ms)
            if wait_ms is None or wait_ms > PACED_LOOK_MS:
                # Check the throttle again soon, because an operator may raise the rate or remove the throttle before
                # the computed time.
                wait_ms = PACED_LOOK_MS
            paced_ms = now_ms + math.ceil(wait_ms)
            due_ms = paced_ms if due_ms is None else min(due_ms, paced_ms)
        return due_ms

    @property
    def has_work(self) -> bool:
        """Whether ``next`` may have a message, now or at ``due_ms``. After a result of False, ``wake`` or ``wake_at``
        will be called."""
        return bool(
            self._ready
            or self._updates
            or self._joined
            or self._ended
            or self._resigned
            or self._paced
            or self._wants_cold
        )

    @property
    def unsent(self) -> int:
        """Number of unsent answers; above a limit, the caller stops reading requests from the stream."""
        return len(self._joined) + len(self._ended)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the records that the follower has not acknowledged."""
        return self._in_flight_bytes

    def partition_of(self, handle: int) -> TopicPartition | None:
        """The partition of a join; None if the join has ended."""
        replica = self._replicas.get(handle)
        return None if replica is None else replica.partition

    def replicas(self) -> list[JoinedReplica]:
        return list(self._replicas.values())

    def take_cold_reads(self) -> list[ColdRead]:
        """Reads that the caller must run on threads now; the caller passes each result to ``was_read``."""
        wanted, self._wants_cold = self._wants_cold, []
        return wanted

    def was_read(self, read: ColdRead, outcome: Slice | HeadraceError) -> None:
        """Take the result of a read; the result is ignored if the join has ended."""
        replica = read.replica
        if replica.state is not State.READING:
            self._read_done(replica)
        elif isinstance(outcome, HeadraceError):
            self._read_done(replica)
            self.end(replica, outcome)
        else:
            if outcome.next_offset > replica.position:
                replica.stash = outcome
            else:
                self._read_done(replica)
            replica.state = State.READY
            self._ready.appendleft(replica)
            self._wake()

    def _read_cold(self, replica: JoinedReplica) -> None:
        if not self.is_catch_up and replica.source.bytes_from(replica.position) > CATCH_UP_BYTES:
            self.end(replica, None, other_lane=True)  # the replica has fallen behind the records in memory
            return
        replica.state = State.READING
        if self._reading < COLD_READS_MAX:
            self._ask_cold(replica)
        else:
            self._cold.append(replica)

    def _ask_cold(self, replica: JoinedReplica) -> None:
        replica.holds_read = True
        self._reading += 1
        max_bytes = min(MESSAGE_BYTES, replica.window_bytes)
        self._wants_cold.append(ColdRead(replica, replica.source, replica.position, max_bytes))
        self._wake()

    def _read_done(self, replica: JoinedReplica) -> None:
        """Called when a disk read has ended: the next waiting replica may now read from the disk."""
        replica.holds_read = False
        self._reading -= 1
        while self._cold and self._reading < COLD_READS_MAX:
            waiting = self._cold.popleft()
            if waiting.state is State.READING:
                self._ask_cold(waiting)

    def _belongs_elsewhere(self, source: LedPartition, log_end: int) -> bool:
        behind = source.bytes_from(log_end)
        return behind < HAND_OVER_BYTES if self.is_catch_up else behind > CATCH_UP_BYTES

    def _end_resigned(self) -> None:
        resigned, self._resigned = self._resigned, []
        for replica in resigned:
            try:
                replica.leader.check_serving()
            except HeadraceError as error:
                self.end(replica, error.copy())

    def _unpace(self, now_ms: int) -> None:
        """Check all PACED replicas again, because the throttle may no longer apply to some replicas."""
        for _ in range(len(self._paced)):
            replica = self._paced.popleft()
            if replica.state is State.PACED and self._may_go(replica, now_ms):
                replica.state = State.READY
                self._ready.append(replica)

    def _forget_ended(self) -> None:
        """Remove ended joins from the queues, because a follower may join and leave often while no message can be
        sent."""
        for queue in (self._ready, self._paced, self._cold):
            if len(queue) > 2 * len(self._replicas) + ENDED_QUEUED_MAX:
                live = [replica for replica in queue if replica.state is not State.ENDED]
                queue.clear()
                queue.extend(live)


def _take(queue: deque[T]) -> tuple[T, ...]:
    return tuple([queue.popleft() for _ in range(min(len(queue), ITEMS_MAX))])


def _check(join: Join) -> None:
    if not 0 <= join.log_start <= join.log_end or not 0 <= join.durable_end <= join.log_end or join.window_bytes <= 0:
        raise InvalidRequestError(
            f"invalid join of partition {join.partition} of topic {join.topic_id.hex()[:32]}: log start "
            f"{join.log_start}, log end {join.log_end}, durable end {join.durable_end}, window_bytes "
            f"{join.window_bytes}; each start or durable end must be from 0 to the log end, the window above 0"
        )
