"""The leader's side of one stream to one follower (pure): it makes pushes and applies acknowledgements.

A follower joins partitions on the stream; the number of a join is its handle. From the join on, the leader pushes the
records after the follower's log end::

                      acknowledged          position                 leader's log end
        ------------------|---------------------|---------------------------|
                          |<---- in flight ---->|<------- owed ------------>|
                           at most the window

Each partition that the follower has joined is in one of six states::

    CALM      nothing is owed                                        -> the log grows
    READY     something is owed, and there is room: in ``ready``     -> its turn comes in ``next``
    FULL      its window is full                                     -> an acknowledgement
    READING   what it is owed is not in the page cache: on a thread  -> ``was_read``
    PACED     the throttle delays it, because it is out of sync      -> time
    ENDED     left, ended, or replaced by a later join: queues skip it

``next`` makes one message, with some records of each partition in ``ready``. Partitions with more records than fit into
the message move to the end of the queue. An idle partition costs nothing, no partition starves another, and small
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
from typing import NamedTuple, Protocol

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    StaleBrokerEpochError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.types import NO_EPOCH, TopicPartition
from headrace_protos.v1.replication_pb2 import (
    REPLICATION_LANE_CATCH_UP,
    REPLICATION_LANE_LIVE,
    FollowAck,
    FollowEnded,
    FollowHello,
    FollowJoin,
    FollowJoined,
    FollowRequest,
    FollowResponse,
)

from .leader import PartitionLeader
from .matching import match
from .pacing import Pacer
from .versions import check_epoch

LIVE, CATCH_UP = REPLICATION_LANE_LIVE, REPLICATION_LANE_CATCH_UP  #: The two kinds of streams.

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
#: Maximum number of items in a request; a larger request would block the event loop for seconds.
REQUEST_ITEMS_MAX = 200_000


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
    """The methods of a led partition that a PushStream calls; it may read the partition's log up to
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
    """A request to read records that are not in the page cache. The caller reads the records on a thread and
    calls ``was_read``."""

    replica: JoinedReplica
    source: LedPartition
    offset: int
    max_bytes: int


JoinedReplicaKey = tuple[bytes, int, int]  #: A joined replica: (topic id, partition, follower's broker id).


class JoinedReplica:
    """A follower's replica of one partition, joined on one stream. The JoinedReplica watches the partition's log
    (``LogWatcher``)."""

    __slots__ = (
        "handle",
        "holds_read",
        "in_flight",
        "in_flight_bytes",
        "key",
        "leader",
        "position",
        "sent_high_watermark",
        "sent_log_start",
        "source",
        "stash",
        "state",
        "stream",
        "window_bytes",
    )

    def __init__(self, stream: PushStream, join: FollowJoin, source: LedPartition) -> None:
        self.stream = stream
        self.handle = join.handle
        self.key = (join.topic_id, join.partition, stream.broker_id)
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
            self.state = State.READY
            self.stream.ready.append(self)
            self.stream.wake()

    def high_watermark_moved(self, partition: TopicPartition) -> None:
        stream = self.stream
        if not stream.updates:
            stream.updates_due_ms = int(stream.now_ms()) + UPDATE_DELAY_MS
            stream.wake_at(stream.updates_due_ms)
        stream.updates[self] = None

    def leadership_ended(self, partition: TopicPartition) -> None:
        # The join ends with the next message, not now: the leader is calling its watchers, whose list must not change.
        self.stream.resigned.append(self)
        self.stream.wake()


class Outgoing(NamedTuple):
    """A message to the follower, its approximate size for the stream's queue, and the bytes of its records."""

    response: FollowResponse
    size: int
    record_bytes: int


class PushStream:
    """The leader's state of one stream, from its hello to its end. Call all methods in one event loop; times are
    monotonic milliseconds."""

    def __init__(
        self,
        hello: FollowHello,
        *,
        find: Callable[[bytes, int], LedPartition],
        is_throttled: Callable[[PartitionLeader, int], bool],
        joined: dict[JoinedReplicaKey, JoinedReplica],
        pacer: Pacer,
        now_ms: Callable[[], float],
        wake: Callable[[], None],
        wake_at: Callable[[int], None],
    ) -> None:
        """The caller has checked ``hello`` against the metadata; all streams share ``pacer`` and ``joined``,
        the latest join of each replica on any stream: it replaces an earlier one, and a late leave on the old stream
        does not end it.

        ``find`` returns the partition of a topic id and number, if this broker leads it; it raises the errors of
        ``PartitionTable.leader``, UnknownTopicIdError, InconsistentTopicIdError. ``is_throttled``: whether the leader's
        throttle applies to the replica of a broker, which is out of sync (KIP-73). ``wake`` is called, perhaps often,
        when ``next`` may have a new message. ``wake_at`` is called with the time at which ``next`` may have a message.

        Raises InvalidRequestError if the hello's limit of unacknowledged bytes is not above 0."""
        if hello.window_bytes <= 0:
            raise InvalidRequestError(f"broker {hello.broker_id}: window_bytes={hello.window_bytes}: must be above 0")
        self.broker_id = hello.broker_id
        self.broker_epoch = hello.broker_epoch
        self.is_catch_up = hello.lane == CATCH_UP
        self.is_closed = False
        self._window_bytes = min(hello.window_bytes, WINDOW_BYTES_MAX)
        self.in_flight_bytes = 0  #: Bytes of the records that the follower has not acknowledged.
        self._sends_heartbeats = hello.sends_heartbeats
        self._find = find
        self._is_throttled = is_throttled
        self._joined = joined
        self._pacer = pacer
        self.now_ms = now_ms
        self.wake = wake
        self.wake_at = wake_at
        self.heard()
        self._replicas: dict[int, JoinedReplica] = {}
        self.ready: deque[JoinedReplica] = deque()
        self.paced: deque[JoinedReplica] = deque()  #: Replicas that the throttle delays.
        self._cold: deque[JoinedReplica] = deque()
        #: Reads that the caller must take and run on threads; it passes each result to ``was_read``.
        self.cold_reads: list[ColdRead] = []
        self.resigned: list[JoinedReplica] = []
        #: Number of the stream's joined replicas with a disk read in progress, or with records that were read and not
        #: sent.
        self._reading = 0
        self.answers: deque[FollowJoined] = deque()  #: Answers to joins that are not sent yet.
        #: Partitions whose followers must restart with an empty log, by the handle of the queued answer.
        self._beginning: dict[int, tuple[bytes, int]] = {}
        self.endings: deque[FollowEnded] = deque()  #: Ends of joins that are not sent yet.
        #: Replicas with offsets to send, and the time at which they are sent without records.
        self.updates: dict[JoinedReplica, None] = {}
        self.updates_due_ms = 0

    def received(self, request: FollowRequest) -> None:
        """Process a request after the hello. Raises InvalidRequestError, which ends the stream."""
        if request.HasField("hello"):
            raise InvalidRequestError("a Follow stream has a second hello")
        count = len(request.joins) + len(request.leaves) + len(request.acks) + len(request.cannot_append)
        if count > REQUEST_ITEMS_MAX:
            raise InvalidRequestError(
                f"the request has {count} joins, leaves and acknowledgements, at most {REQUEST_ITEMS_MAX} are allowed"
            )
        self._last_contact_ms = int(self.now_ms())
        cannot_append = frozenset(request.cannot_append) if request.leaves else ()
        for handle in request.leaves:
            # (The leader may have ended the join already.) A replica whose log takes no appends is out of sync from
            # now on.
            replica = self._replicas.get(handle)
            if replica is not None:
                self.forget(replica, cannot_append=handle in cannot_append)
        for ack in request.acks:
            self._acked(ack)
        for join in request.joins:
            self._join(join)

    def _join(self, join: FollowJoin) -> None:
        """Process a join; a later ``next`` returns the answer. Raises InvalidRequestError for an invalid join."""
        if join.handle in self._replicas:
            raise InvalidRequestError(
                f"broker {self.broker_id}: join handle {join.handle} is already in use on this replication stream"
            )
        _check(join)
        self._forget_ended()
        try:
            answer = self._answer(join)
        except HeadraceError as error:
            answer = FollowJoined(handle=join.handle, error=error_to_proto(error))
        self.answers.append(answer)
        if answer.out_of_range:
            self._beginning[join.handle] = (join.topic_id, join.partition)
        self.wake()

    def _answer(self, join: FollowJoin) -> FollowJoined:
        source = self._find(join.topic_id, join.partition)
        leader = source.leader
        if join.leader_epoch == NO_EPOCH:
            raise InvalidRequestError(f"{leader.partition}: broker {self.broker_id} joined without a leader epoch")
        check_epoch(leader, join.leader_epoch)
        before = self._joined.get((join.topic_id, join.partition, self.broker_id))
        if before is not None and before.stream.broker_epoch > self.broker_epoch:
            raise StaleBrokerEpochError(
                f"{leader.partition}: broker {self.broker_id} joined with broker epoch {self.broker_epoch}, but is "
                f"already joined with the newer epoch {before.stream.broker_epoch}: the broker has restarted"
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
        answer = FollowJoined(
            handle=join.handle,
            high_watermark=leader.high_watermark,
            log_start=source.log_start,
            log_end=leader.log_end,
            diverging=found.diverging,
            out_of_range=not found.matches and found.diverging is None,
            other_lane=found.matches and self._belongs_elsewhere(source, join.log_end),
        )
        now_ms = int(self.now_ms())
        if not found.matches or answer.other_lane:
            leader.follower_tried(self.broker_id, now_ms)
            return answer
        if before is not None:
            before.stream.forget(before)
        if not leader.follower_joined(
            self.broker_id,
            self.broker_epoch,
            log_end=join.log_end,
            durable_end=join.durable_end,
            log_start=join.log_start,
            now_ms=now_ms,
        ):
            raise self._not_among(leader)
        replica = JoinedReplica(self, join, source)
        self._replicas[join.handle] = replica
        self._joined[replica.key] = replica
        leader.watch_log(replica)
        answer.high_watermark, answer.log_start = leader.high_watermark, leader.log_start
        replica.sent_high_watermark, replica.sent_log_start = leader.high_watermark, leader.log_start
        if replica.position < leader.log_end:
            replica.log_grew(replica.partition)
        return answer

    def _not_among(self, leader: PartitionLeader) -> NotLeaderOrFollowerError:
        return NotLeaderOrFollowerError(
            f"{leader.partition}: broker {self.broker_id} (broker epoch {self.broker_epoch}) is not a replica in "
            f"the metadata of broker {leader.leader_id}, which has {list(leader.replicas)}; retry"
        )

    def _acked(self, ack: FollowAck) -> None:
        """Apply an acknowledgement; a late acknowledgement of an ended join is ignored. Raises InvalidRequestError if
        an acknowledged end is beyond the pushed records, because the high watermark would advance beyond existing
        records."""
        replica = self._replicas.get(ack.handle)
        if replica is None:
            return
        log_start, log_end, durable_end = ack.log_start, ack.log_end, ack.durable_end
        if not 0 <= log_start <= log_end <= replica.position or not 0 <= durable_end <= log_end:
            raise InvalidRequestError(
                f"{replica.partition}: broker {self.broker_id} acknowledged offsets {log_start} to {log_end}, durable "
                f"end {durable_end}, but was sent offsets below {replica.position} only"
            )
        in_flight = replica.in_flight
        while in_flight and in_flight[0][0] <= log_end:
            size = in_flight.popleft()[1]
            replica.in_flight_bytes -= size
            self.in_flight_bytes -= size
        if not replica.leader.follower_acked(
            self.broker_id,
            self.broker_epoch,
            durable_end=durable_end,
            log_end=log_end,
            log_start=log_start,
            now_ms=self._last_contact_ms,
        ):
            # The replica was removed from the partition, and perhaps added again, after the follower joined: the
            # follower's acknowledgements do not count.
            self.end(replica, self._not_among(replica.leader))
        elif replica.state is State.FULL and replica.in_flight_bytes < replica.window_bytes:
            replica.state = State.CALM
            replica.log_grew(replica.partition)
        elif self.ready:
            self.wake()  # the stream's own window may have been full

    def heard(self) -> None:
        """Record that the connection to the follower works."""
        self._last_contact_ms = int(self.now_ms())

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
        for queue in (self.ready, self.paced, self._cold, self.answers, self.endings):
            queue.clear()
        for kept in (self.cold_reads, self.resigned, self.updates):
            kept.clear()

    def end(self, replica: JoinedReplica, error: HeadraceError | None, *, other_lane: bool = False) -> None:
        """End the join of the replica, with a message to the follower. ``other_lane``: it belongs on the other
        stream."""
        if self.forget(replica):
            ended = FollowEnded(handle=replica.handle, error=error_to_proto(error), other_lane=other_lane)
            self.endings.append(ended)
            self.wake()

    def forget(self, replica: JoinedReplica, *, cannot_append: bool = False, broken: bool = False) -> bool:
        """Remove the replica without a message to the follower; returns True if the replica was on this stream.
        ``broken``: the replica's stream has ended."""
        if self._replicas.get(replica.handle) is not replica:
            return False
        del self._replicas[replica.handle]
        was_reading = replica.state is State.READING
        replica.state = State.ENDED
        self.in_flight_bytes -= replica.in_flight_bytes
        replica.in_flight.clear()
        replica.in_flight_bytes = 0
        replica.stash = None
        self.updates.pop(replica, None)
        if replica.holds_read and not was_reading:
            self._read_done(replica)  # a read in progress ends by itself
        leader = replica.leader
        leader.unwatch_log(replica)
        if self._joined.get(replica.key) is replica:
            del self._joined[replica.key]
            leader.follower_left(self.broker_id, int(self.now_ms()), cannot_append=cannot_append, broken=broken)
        if self.ready:
            self.wake()  # the bytes in flight of the ended join are now free for other partitions
        return True

    def next(self) -> Outgoing | None:
        """The next message to the follower; None if there is no message now. Call again after ``wake``, or at the time
        that was passed to ``wake_at``."""
        if not (self.ready or self.updates or self.answers or self.endings or self.resigned or self.paced):
            return None
        now_ms = int(self.now_ms())
        if self.resigned:
            self._end_resigned()
        if self.paced:
            self._unpace(now_ms)
        response, size, record_bytes = FollowResponse(), 0, 0
        if self.answers:
            size = self._add_answers(response)
        # While answers to joins are queued, push no records: a follower needs the answer to its join of a partition
        # before the partition's records.
        if not self.answers:
            if self.ready:
                record_bytes = self._add_pushes(response, now_ms)
            if self.updates and now_ms >= self.updates_due_ms:
                self._add_updates(response)
        for _ in range(min(len(self.endings), ITEMS_MAX)):
            response.ended.append(self.endings.popleft())
        if self.paced and (due_ms := self.due_ms()) is not None:
            self.wake_at(due_ms)
        elif self.updates:
            self.wake_at(self.updates_due_ms)
        items = len(response.joined) + len(response.pushes) + len(response.updates) + len(response.ended)
        if not items:
            return None
        return Outgoing(response, size + record_bytes + ITEM_BYTES * (items + 1), record_bytes)

    def _add_answers(self, response: FollowResponse) -> int:
        """Add the next answers to joins; returns the bytes of producer state in them.

        A follower that must restart at the log's start cannot learn all producers from records, so its answer has the
        log's producers. They are added only now, so that queued answers stay small."""
        size = 0
        while self.answers and len(response.joined) < ITEMS_MAX and size < MESSAGE_BYTES:
            answer = response.joined.add()
            answer.CopyFrom(self.answers.popleft())
            beginning = self._beginning.pop(answer.handle, None)
            if beginning is None:
                continue
            try:
                source = self._find(*beginning)
            except HeadraceError as error:  # this broker no longer leads the partition
                answer.CopyFrom(FollowJoined(handle=answer.handle, error=error_to_proto(error)))
                continue
            answer.log_start = source.log_start
            producers = source.producers_at(answer.log_start)
            if len(producers) <= PRODUCERS_MAX:
                answer.producers = producers
                size += len(producers)
        return size

    def _add_pushes(self, response: FollowResponse, now_ms: int) -> int:
        """Add records of the ready partitions, visiting each partition at most once; returns the bytes of the
        records."""
        ready, size = self.ready, 0
        is_limited = not self._pacer.is_unlimited  # once: usually no throttle is set
        for _ in range(min(len(ready), ITEMS_MAX)):
            room = min(MESSAGE_BYTES - size, self._window_bytes - self.in_flight_bytes)
            if room <= 0 or not ready:
                break
            replica = ready.popleft()
            if replica.state is not State.READY:
                continue  # the join of this replica ended while the replica was in the queue
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
                if replica.position < replica.leader.log_end:
                    replica.log_grew(replica.partition)
                continue
            if size and size + len(records) > MESSAGE_BYTES + SHARE_BYTES_MIN:
                replica.stash = found  # only a message's first batch may exceed the message size
                ready.appendleft(replica)
                break
            size += len(records)
            self._push(response, replica, found)
            if is_limited and self._is_throttled(replica.leader, self.broker_id):
                self._pacer.take(len(records), now_ms)
        return size

    def _may_go(self, replica: JoinedReplica, now_ms: int) -> bool:
        """Whether the throttle allows a push to the replica now; if not, the replica's state becomes PACED."""
        if not self._is_throttled(replica.leader, self.broker_id) or self._pacer.ready_in_ms(now_ms) == 0.0:
            return True
        replica.state = State.PACED
        self.paced.append(replica)
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
            self.end(replica, error)
            return None
        if found is None:
            self._read_cold(replica)
        elif found.next_offset <= replica.position:
            replica.state = State.CALM
            return None
        return found

    def _push(self, response: FollowResponse, replica: JoinedReplica, found: Slice) -> None:
        """Add the records to the response, at once in their final message: a finished submessage would be copied."""
        leader, records, end = replica.leader, found.records, found.next_offset
        size = len(records)
        replica.position = end
        replica.in_flight.append((end, size))
        replica.in_flight_bytes += size
        self.in_flight_bytes += size
        high_watermark, log_start = leader.high_watermark, leader.log_start
        replica.sent_high_watermark, replica.sent_log_start = high_watermark, log_start
        self.updates.pop(replica, None)
        response.pushes.add(handle=replica.handle, records=records, high_watermark=high_watermark, log_start=log_start)
        if self.is_catch_up and replica.source.bytes_from(end) < HAND_OVER_BYTES:
            self.end(replica, None, other_lane=True)
        elif end >= leader.log_end:
            replica.state = State.CALM
        elif replica.in_flight_bytes >= replica.window_bytes:
            replica.state = State.FULL
        else:
            replica.state = State.READY
            self.ready.append(replica)

    def _add_updates(self, response: FollowResponse) -> None:
        for replica in list(itertools.islice(self.updates, ITEMS_MAX)):
            del self.updates[replica]
            high_watermark, log_start = replica.leader.high_watermark, replica.leader.log_start
            if (high_watermark, log_start) != (replica.sent_high_watermark, replica.sent_log_start):
                replica.sent_high_watermark, replica.sent_log_start = high_watermark, log_start
                response.updates.add(handle=replica.handle, high_watermark=high_watermark, log_start=log_start)

    def due_ms(self) -> int | None:
        """Time at which ``next`` may have a message without a call of ``wake``; None if only ``wake`` announces a
        message."""
        due_ms = self.updates_due_ms if self.updates else None
        if self.paced:
            now_ms = int(self.now_ms())
            wait_ms = self._pacer.ready_in_ms(now_ms)
            if wait_ms is None or wait_ms > PACED_LOOK_MS:
                # Check the throttle again soon, because an operator may raise the rate or remove the throttle before
                # the computed time.
                wait_ms = PACED_LOOK_MS
            paced_ms = now_ms + math.ceil(wait_ms)
            due_ms = paced_ms if due_ms is None else min(due_ms, paced_ms)
        return due_ms

    @property
    def unsent(self) -> int:
        """Number of unsent answers; above a limit, the caller stops reading requests from the stream."""
        return len(self.answers) + len(self.endings)

    def partition_of(self, handle: int) -> TopicPartition | None:
        """The partition of a join; None if the join has ended."""
        replica = self._replicas.get(handle)
        return None if replica is None else replica.partition

    def replicas(self) -> list[JoinedReplica]:
        return list(self._replicas.values())

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
            self.ready.appendleft(replica)
            self.wake()

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
        self.cold_reads.append(ColdRead(replica, replica.source, replica.position, max_bytes))
        self.wake()

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
        resigned, self.resigned = self.resigned, []
        for replica in resigned:
            try:
                replica.leader.check_serving()
            except HeadraceError as error:
                self.end(replica, error)

    def _unpace(self, now_ms: int) -> None:
        """Check all PACED replicas again, because the throttle may no longer apply to some replicas."""
        for _ in range(len(self.paced)):
            replica = self.paced.popleft()
            if replica.state is State.PACED and self._may_go(replica, now_ms):
                replica.state = State.READY
                self.ready.append(replica)

    def _forget_ended(self) -> None:
        """Remove ended joins from the queues, because a follower may join and leave often while no message can be
        sent."""
        for queue in (self.ready, self.paced, self._cold):
            if len(queue) > 2 * len(self._replicas) + ENDED_QUEUED_MAX:
                live = [replica for replica in queue if replica.state is not State.ENDED]
                queue.clear()
                queue.extend(live)


def hello_of(request: FollowRequest) -> FollowHello:
    """The hello of a stream's first request. Raises InvalidRequestError if it has no valid hello."""
    if not request.HasField("hello"):
        raise InvalidRequestError("a Follow stream must begin with a hello message")
    hello = request.hello
    if hello.lane not in (LIVE, CATCH_UP):
        raise InvalidRequestError(
            f"the first request of broker {hello.broker_id} on a Follow stream has the unknown lane {hello.lane}: it "
            "must be 1 (LIVE) or 2 (CATCH_UP)"
        )
    if request.joins or request.leaves or request.acks:
        raise InvalidRequestError(f"the hello of broker {hello.broker_id} has fields that a hello must not have")
    return hello


def _check(join: FollowJoin) -> None:
    if not 0 <= join.log_start <= join.log_end or not 0 <= join.durable_end <= join.log_end or join.window_bytes <= 0:
        raise InvalidRequestError(
            f"invalid join of partition {join.partition} of topic {join.topic_id.hex()[:32]}: log start "
            f"{join.log_start}, log end {join.log_end}, durable end {join.durable_end}, window_bytes "
            f"{join.window_bytes}; each start or durable end must be from 0 to the log end, the window above 0"
        )
