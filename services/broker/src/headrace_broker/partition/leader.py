"""A partition's leader: its log end, durable end and high watermark, and the waiters for these offsets.

The offsets of a partition, in ascending order::

    log start      high watermark      durable end      log end
        |                 |                 |              |
        v                 v                 v              v
    ----[=======================================================)
         readable by consumers: [log start, high watermark)

*Durable end.* On each replica, the records below the durable end have met the topic's flush policy (``log.flush``). The
durable end is the flushed end under ``commit``, and the log end under ``interval`` and ``os`` (the produce response
names the policy). Each follower acknowledges the durable end of its own log. *High watermark.* The high watermark is
the smallest durable end in the maximal ISR (isr.py), which includes the leader (decision 4). The durable end of a
follower that keeps up and may join the ISR also limits the high watermark, as in Kafka. Three rules protect the high
watermark:

    it never goes back under one leader epoch
    it waits for every replica that the controllers may hold to be in sync, confirmed or not       KIP-497
    it does not advance while fewer than min.insync.replicas are in sync, so that the last
    replica to leave the ISR has every committed record (eligible leader replicas)                 KIP-966

A new leader starts with the high watermark that it knew as a follower. A new leader learns the true high watermark from
the followers' first acknowledgements. Until the high watermark has reached ``epoch_start``, queries for the latest
offset fail (KIP-207).

A partition's leader has four kinds of waiters. A producer that wants an acknowledgement waits for the end offset of its
records. The producers' waiters are in a deque, because their end offsets ascend in the order of the appends, except for
duplicate batches. DeleteRecords waits for the low watermark (KIP-107). A fetch session subscribes to the partition and
is notified of the number of bytes that became readable. An idle partition causes no work for its fetch sessions,
because a session acts only on a notification. The replication streams (LogWatcher) are notified of appends before the
flush, so that followers flush at the same time as the leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from headrace_core.errors import (
    HeadraceError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetNotAvailableError,
    RequestTimedOutError,
)
from headrace_core.types import FlushPolicy, TopicPartition

from .isr import BrokerEpochOf, FollowerProgress, InSyncSet, IsrChange

#: Callback of a task that waits for an offset, called once: with None when the offset is committed or deleted, else
#: with the error.
Waiter = Callable[[HeadraceError | None], None]
#: An offset and the callback that waits for it; the callback is None when it was called. (A list, because an object of
#: a class would cost each append a call.)
Waiting = list[Any]

#: Maximum number of uncommitted appends whose sizes are kept separately; beyond this number, the last size includes all
#: later appends. The number of kept sizes is limited, because below min.insync.replicas nothing is committed while
#: acks=1 continues to append.
_UNREAD_MAX = 1_024


class PartitionWatcher(Protocol):
    """A listener for a partition's progress, such as a fetch session. Methods of a watcher must not block, and must not
    call ``subscribe`` or ``unsubscribe``."""

    def partition_advanced(self, partition: TopicPartition, readable_bytes: int) -> None:
        """Called when the high watermark advanced by about ``readable_bytes`` bytes of records."""

    def partition_changed(self, partition: TopicPartition) -> None:
        """Called when the log start advanced, or when this broker stopped leading the partition."""


class LogWatcher(Protocol):
    """A listener that pushes new records to followers of the partition, such as a replication stream. Methods of a
    watcher must not block, and must not call ``watch_log`` or ``unwatch_log``."""

    def log_grew(self, partition: TopicPartition) -> None:
        """Called when the log end advanced: push the new records."""

    def high_watermark_moved(self, partition: TopicPartition) -> None:
        """Called when the high watermark or the log start advanced: send the new offsets."""

    def leadership_ended(self, partition: TopicPartition) -> None:
        """Called when this broker no longer leads the partition, or leads it under a newer epoch."""


class ReplicaProgress(NamedTuple):
    """Offsets and state of a replica, as the leader knows them. A follower's offsets are -1 before its first
    acknowledgement. ``caught_up_ms`` is -1 for the leader; for a follower it is ``FollowerProgress.caught_up_ms``."""

    broker_id: int
    log_end: int
    durable_end: int
    log_start: int
    is_in_sync: bool
    is_joined: bool
    caught_up_ms: int


LAG_TIME_MAX_MS = 30_000  #: Kafka's replica.lag.time.max.ms.


class PartitionLeader:
    """The leader's state of one partition under one leader epoch. Not thread-safe; the caller passes all events and
    receives callbacks.

    ``replicas`` and ``isr`` are broker ids, including the leader's id; empty sequences mean that the leader is the only
    replica. ``high_watermark``: the last value that this broker knew, as a follower or from the checkpoint.
    ``on_isr_due`` is called when a follower fell behind, caught up or left. After ``on_isr_due``, call ``next_due_ms``
    and ``isr_change``. An idle partition causes no call of ``on_isr_due``.
    """

    __slots__ = (
        "_deletions",
        "_in_sync",
        "_is_stirred",
        "_on_isr_due",
        "_resigned",
        "_unread",
        "_waiters",
        "_watchers",
        "durable_end",
        "epoch_start",
        "flush_policy",
        "flushed_end",
        "high_watermark",
        "is_below_min_insync",
        "leader_epoch",
        "leader_id",
        "log_end",
        "log_start",
        "log_watchers",
        "min_insync",
        "partition",
        "topic_id",
    )

    def __init__(
        self,
        partition: TopicPartition,
        *,
        topic_id: bytes,
        leader_id: int,
        leader_epoch: int,
        log_start: int,
        log_end: int,
        flushed_end: int,
        flush_policy: FlushPolicy = FlushPolicy.COMMIT,
        replicas: tuple[int, ...] = (),
        isr: tuple[int, ...] = (),
        partition_epoch: int = 0,
        min_insync: int = 1,
        high_watermark: int = 0,
        lag_time_max_ms: int = LAG_TIME_MAX_MS,
        recovering: bool = False,
        on_isr_due: Callable[[], None] | None = None,
    ) -> None:
        assert 0 <= log_start <= log_end, f"{partition}: log start {log_start} beyond log end {log_end}"
        assert flushed_end <= log_end, f"{partition}: flushed end {flushed_end} beyond log end {log_end}"
        self.partition = partition
        self.topic_id = topic_id
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.flush_policy = flush_policy
        self.log_start = log_start
        self.log_end = log_end
        self.flushed_end = flushed_end
        #: All records below this offset have met the topic's flush policy on this broker.
        self.durable_end = flushed_end if flush_policy is FlushPolicy.COMMIT else log_end
        self.min_insync = min_insync
        #: The log end when this epoch began; every in-sync replica has at least these records.
        self.epoch_start = log_end
        self.high_watermark = min(max(high_watermark, log_start), log_end)
        self._on_isr_due = on_isr_due
        self._is_stirred = False
        self._in_sync = InSyncSet(
            partition,
            leader_id,
            replicas=replicas or (leader_id,),
            isr=isr or (leader_id,),
            partition_epoch=partition_epoch,
            recovering=recovering,
            epoch_start=log_end,
            lag_time_max_ms=lag_time_max_ms,
        )
        #: Whether the ISR is smaller than min.insync.replicas (or than the replica set, if that is smaller), so that no
        #: record is committed.
        self.is_below_min_insync = False
        self.log_watchers: dict[LogWatcher, None] = {}  #: The streams that push this partition to followers.
        self._resigned: HeadraceError | None = None
        #: Uncommitted appends as (end offset, bytes); the last entry may include many appends.
        self._unread: deque[tuple[int, int]] = deque()
        self._waiters: deque[Waiting] = deque()
        self._deletions: dict[Waiter, int] = {}
        self._watchers: dict[PartitionWatcher, None] = {}
        self._set_below_min_insync()
        self._advance_high_watermark()

    @property
    def isr(self) -> tuple[int, ...]:
        """In-sync replicas, as the controllers recorded them."""
        return self._in_sync.committed

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Replicas that are in sync, or may be in sync because an AlterPartition proposal is not answered yet."""
        return self._in_sync.maximal

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._in_sync.replicas

    @property
    def partition_epoch(self) -> int:
        return self._in_sync.partition_epoch

    @property
    def recovering(self) -> bool:
        """Whether this leader was elected uncleanly and the controllers have not recorded its recovery yet
        (KIP-704)."""
        return self._in_sync.recovering

    @property
    def progress(self) -> tuple[ReplicaProgress, ...]:
        """Progress of every replica, the leader first."""
        in_sync = self._in_sync
        own = ReplicaProgress(
            self.leader_id,
            self.log_end,
            self.durable_end,
            self.log_start,
            is_in_sync=self.leader_id in in_sync.committed,
            is_joined=True,
            caught_up_ms=-1,
        )
        others = [
            ReplicaProgress(
                follower.broker_id,
                follower.log_end,
                follower.durable_end,
                follower.log_start,
                is_in_sync=follower.broker_id in in_sync.committed,
                is_joined=follower.joined,
                caught_up_ms=follower.caught_up_ms,
            )
            for follower in in_sync.followers.values()
        ]
        return (own, *others)

    @property
    def follower_ends(self) -> list[tuple[int, int]]:
        """Broker id and log end of each follower."""
        return [(follower.broker_id, follower.log_end) for follower in self._in_sync.followers.values()]

    @property
    def low_watermark(self) -> int:
        """The smallest log start of this replica, the joined followers and the other members of the in-sync set. A
        replica that becomes the leader next has no records below the low watermark. Returns -1 if a member of the
        in-sync set has not joined in this leader epoch."""
        return min((self.log_start, *(follower.log_start for follower in self._deleters())))

    def yet_to_delete(self, offset: int) -> list[int]:
        """Broker ids of the replicas that keep the low watermark below ``offset``."""
        return [follower.broker_id for follower in self._deleters() if follower.log_start < offset]

    def _deleters(self) -> list[FollowerProgress]:
        in_sync = self._in_sync
        return [each for each in in_sync.followers.values() if each.joined or each.broker_id in in_sync.maximal]

    def is_behind(self, broker_id: int) -> bool:
        """Whether the replica on the broker ``broker_id`` is out of sync, so that the leader may throttle pushes to
        this replica."""
        return broker_id not in self._in_sync.committed

    def check_enough_in_sync(self) -> None:
        """Raise an error if the ISR is too small for an append with acks=all. Raises NotEnoughReplicasError."""
        if self.is_below_min_insync:
            raise NotEnoughReplicasError(f"{self.partition}: nothing was written: {self._too_few()}")

    def check_latest_known(self) -> None:
        """Raise OffsetNotAvailableError until the high watermark has reached the start of this epoch. After an election
        the high watermark may be below the previous leader's high watermark (KIP-207)."""
        if self.high_watermark < self.epoch_start:
            raise OffsetNotAvailableError(
                f"{self.partition}: the high watermark {self.high_watermark} has not reached {self.epoch_start}, "
                f"where leader epoch {self.leader_epoch} began: the latest offset is still unknown; retry"
            )

    def late_error(self) -> HeadraceError:
        """The error for a producer whose append was not committed in time. Records of an append that timed out are in
        the log, and may still be committed."""
        if self.is_below_min_insync:
            return NotEnoughReplicasAfterAppendError(
                f"{self.partition}: the leader wrote the records, but {self._too_few()}"
            )
        return RequestTimedOutError(
            f"{self.partition}: the leader wrote the records, but not all of the replicas "
            f"{sorted(self.maximal_isr)} acknowledged them before the timeout; whether they are committed is unknown"
        )

    def _too_few(self) -> str:
        return (
            f"only {len(self.isr)} of the replicas {list(self.replicas)} are in sync, {list(self.isr)}, and "
            f"min.insync.replicas={self.min_insync}; retry when more replicas have caught up"
        )

    def check_serving(self) -> None:
        """Raise the error that was given to ``resign``, if the leader has resigned."""
        if self._resigned is not None:
            raise self._resigned.copy()

    def advanced(self, log_end: int, flushed_end: int, size: int = 0) -> None:
        """Record that the log ends at ``log_end``, after ``size`` more bytes, and is flushed up to ``flushed_end``."""
        assert log_end >= self.log_end, f"{self.partition}: the log end went back from {self.log_end} to {log_end}"
        assert flushed_end <= log_end, f"{self.partition}: flushed {flushed_end} beyond the end {log_end}"
        if log_end > self.log_end:
            somebody_is_behind = self._in_sync.grew(self.log_end)
            self.log_end = log_end
            for stream in self.log_watchers:
                stream.log_grew(self.partition)
            if somebody_is_behind and not self._is_stirred:
                self._stir()
        if size:
            unread = self._unread
            if len(unread) < _UNREAD_MAX:
                unread.append((log_end, size))
            else:
                unread[-1] = (log_end, unread[-1][1] + size)
        if flushed_end > self.flushed_end:
            self.flushed_end = flushed_end
        self.durable_end = self.flushed_end if self.flush_policy is FlushPolicy.COMMIT else log_end
        if self.durable_end > self.high_watermark:
            self._advance_high_watermark()

    def set_flush_policy(self, policy: FlushPolicy) -> None:
        """Apply a new value of the topic's ``log.flush``. The high watermark never decreases."""
        self.flush_policy = policy
        self.advanced(self.log_end, self.flushed_end)

    def advance_log_start(self, offset: int) -> None:
        """Record that the records below ``offset`` were deleted (by retention or DeleteRecords)."""
        if offset <= self.log_start:
            return
        assert offset <= self.high_watermark, f"{self.partition}: log start {offset} above {self.high_watermark}"
        self.log_start = offset
        self._check_deletions()
        for watcher in self._watchers:
            watcher.partition_changed(self.partition)
        for stream in self.log_watchers:
            stream.high_watermark_moved(self.partition)

    def resign(self, reason: HeadraceError) -> None:
        """End the leadership: every waiter gets the error ``reason``, and every later check raises ``reason``."""
        if self._resigned is not None:
            return
        self._resigned = reason
        waiters, self._waiters = self._waiters, deque()
        for waiting in waiters:
            _call(waiting, reason)
        deletions, self._deletions = self._deletions, {}
        for waiter in deletions:
            waiter(reason)
        for watcher in self._watchers:
            watcher.partition_changed(self.partition)
        for stream in self.log_watchers:
            stream.leadership_ended(self.partition)

    def _set_below_min_insync(self) -> None:
        in_sync = self._in_sync
        self.is_below_min_insync = len(in_sync.committed) < min(self.min_insync, len(in_sync.replicas))

    def _advance_high_watermark(self) -> None:
        """Advance the high watermark as far as the replicas' durable ends allow, and tell those who wait for it."""
        durable_end = self.durable_end
        if durable_end <= self.high_watermark or self._resigned is not None or self.is_below_min_insync:
            return
        durable_end = self._in_sync.durable_on_all(durable_end)
        if durable_end <= self.high_watermark:
            return
        self.high_watermark = durable_end
        waiters = self._waiters
        while waiters and waiters[0][0] <= durable_end:
            waiting = waiters.popleft()
            waiter, waiting[1] = waiting[1], None
            if waiter is not None:
                waiter(None)
        # (Bytes from before this leader's epoch are not counted, and a reader that is told of 0 bytes would go on
        # waiting.)
        unread, size = self._unread, 0
        while unread and unread[0][0] <= durable_end:
            size += unread.popleft()[1]
        readable = max(size, 1)
        for watcher in self._watchers:
            watcher.partition_advanced(self.partition, readable)
        for stream in self.log_watchers:
            stream.high_watermark_moved(self.partition)

    def _in_sync_changed(self) -> None:
        """Called when the members of the in-sync set, or the followers that are joined, may have changed."""
        self._set_below_min_insync()
        self._advance_high_watermark()
        self._check_deletions()
        self._stir()

    def follower_joined(
        self,
        broker_id: int,
        broker_epoch: int,
        *,
        log_end: int,
        durable_end: int,
        log_start: int,
        now_ms: int,
    ) -> bool:
        """Record that a follower has joined: its log matches the leader's log up to ``log_end`` (matching.py). Returns
        False for a broker without a replica, and for an outdated broker epoch."""
        follower = self._in_sync.followers.get(broker_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        follower.broker_epoch = broker_epoch
        follower.joined = True
        follower.broken_ms = None
        follower.acked(durable_end, log_end, log_start, self.log_end, now_ms)
        self._in_sync_changed()
        return True

    def follower_acked(
        self,
        broker_id: int,
        broker_epoch: int,
        *,
        durable_end: int,
        log_end: int,
        log_start: int,
        now_ms: int,
    ) -> bool:
        """Apply a follower's acknowledgement. Returns False, without effect, if the follower has not joined or its
        broker epoch is outdated. An acknowledgement from an earlier broker epoch may describe a lost disk (KIP-903)."""
        in_sync = self._in_sync
        follower = in_sync.followers.get(broker_id)
        if follower is None or not follower.joined or broker_epoch != follower.broker_epoch:
            return False
        follower.acked(durable_end, log_end, log_start, self.log_end, now_ms)
        if self.durable_end > self.high_watermark:
            self._advance_high_watermark()
        if self._deletions:
            self._check_deletions()
        if broker_id not in in_sync.maximal:
            self._stir()
        return True

    def follower_left(
        self,
        broker_id: int,
        now_ms: int,
        *,
        cannot_append: bool = False,
        broken: bool = False,
    ) -> None:
        """Called when a follower's stream broke, or when the follower sent a leave. The follower's durable end limits
        the high watermark until the controllers remove the follower from the ISR. ``cannot_append``: the follower's log
        takes no appends, so the leader proposes at once to remove the follower from the ISR. ``broken``: the stream
        broke, so the leader proposes the removal if the follower does not return soon."""
        follower = self._in_sync.followers.get(broker_id)
        if follower is not None and follower.joined:
            follower.seen(self.log_end, now_ms)
            follower.left(cannot_append=cannot_append, is_broken=broken, now_ms=now_ms)
            self._is_stirred = False  # signal again: an earlier signal may have had a less urgent reason
            self._in_sync_changed()

    def follower_tried(self, broker_id: int, now_ms: int) -> None:
        """Record that the follower is alive, although it must truncate its log, or change to the leader's other stream,
        before it can join."""
        follower = self._in_sync.followers.get(broker_id)
        if follower is not None and not follower.joined:
            follower.absent_ms = now_ms

    @property
    def is_isr_pressed(self) -> bool:
        """Whether the in-sync set may have to shrink soon for a reason other than lag."""
        return self._in_sync.is_pressed

    def watch_log(self, watcher: LogWatcher) -> None:
        self.log_watchers[watcher] = None

    def unwatch_log(self, watcher: LogWatcher) -> None:
        self.log_watchers.pop(watcher, None)

    def isr_change(self, now_ms: int, broker_epoch_of: BrokerEpochOf) -> IsrChange | None:
        """The AlterPartition proposal to send now; call ``proposed`` before sending it. The result is None if the
        in-sync set need not change, or if the answer to an earlier proposal is outstanding."""
        if self._resigned is not None:
            return None
        self._is_stirred = False
        change = self._in_sync.next_proposal(
            now_ms, broker_epoch_of, leader_end=self.log_end, high_watermark=self.high_watermark
        )
        self._advance_high_watermark()  # which waits no longer for a follower that stopped catching up
        return change

    def next_due_ms(self, now_ms: int) -> int | None:
        """Time of the next call of ``isr_change``, if no event makes an earlier call necessary. The result is None if
        only an event makes a call necessary, so an idle partition in sync costs nothing."""
        if self._resigned is not None:
            return None
        if self._is_stirred:
            return now_ms
        return self._in_sync.next_due_ms(now_ms, self.log_end)

    @property
    def is_isr_uncertain(self) -> bool:
        """Whether an earlier attempt at the AlterPartition proposal has no definite answer, so that it may still be
        granted."""
        return self._in_sync.is_uncertain

    def proposed(self, change: IsrChange) -> None:
        """Call this before sending ``change``: from now on the high watermark waits for the replicas that ``change``
        adds."""
        self._in_sync.proposed(change)

    def altered(self, isr: tuple[int, ...], partition_epoch: int, leader_epoch: int, recovering: bool = False) -> bool:
        """Apply the controllers' answer to AlterPartition. Returns False if the answer is outdated, or belongs to
        another leader epoch."""
        if leader_epoch != self.leader_epoch or not self._in_sync.altered(isr, partition_epoch, recovering):
            return False
        self._in_sync_changed()
        return True

    def alter_refused(self, error_code: str, *, retriable: bool, now_ms: int) -> None:
        """Called when AlterPartition failed for the partition. ``retriable`` means that the outcome is unknown (no
        answer, or the answer of an inactive controller), so the proposal is repeated unchanged."""
        self._in_sync.refused(error_code, retriable=retriable, now_ms=now_ms)
        self._in_sync_changed()

    def metadata_changed(
        self,
        *,
        isr: tuple[int, ...],
        partition_epoch: int,
        replicas: tuple[int, ...],
        min_insync: int,
        recovering: bool = False,
    ) -> bool:
        """Apply the partition's metadata in this leader epoch. Metadata that is older than the leader's state changes
        only ``min_insync``, which depends on the topic alone; the method then returns False. Metadata of a newer
        partition epoch ends an open proposal."""
        self.min_insync = min_insync
        is_new = self._in_sync.metadata(isr, partition_epoch, replicas, recovering)
        self._in_sync_changed()
        return is_new

    def _stir(self) -> None:
        if not self._is_stirred and self._resigned is None:
            self._is_stirred = True
            if self._on_isr_due is not None:
                self._on_isr_due()

    def when_committed(self, end_offset: int, waiter: Waiter) -> Waiting | None:
        """Call ``waiter`` when the high watermark reaches ``end_offset``, or at once if it has reached that offset.
        Returns None if ``waiter`` was called at once, else the argument for ``give_up``."""
        if self._resigned is not None:
            waiter(self._resigned)
            return None
        if end_offset <= self.high_watermark:
            waiter(None)
            return None
        waiters, waiting = self._waiters, [end_offset, waiter]
        place = len(waiters)
        # Insert in order, because a repeated append waits for the end offset of its first attempt.
        while place and waiters[place - 1][0] > end_offset:
            place -= 1
        if place == len(waiters):
            waiters.append(waiting)
        else:
            waiters.insert(place, waiting)
        return waiting

    def give_up(self, waiting: Waiting, error: HeadraceError) -> None:
        """Call a waiter now with ``error``, unless it was called, and free it. Without this call, the waiter stays
        until the high watermark reaches its offset."""
        _call(waiting, error)
        # Waiters that were called leave with the waiters before them. Most give up in the order of their offsets.
        while self._waiters and self._waiters[0][1] is None:
            self._waiters.popleft()

    def when_deleted(self, offset: int, waiter: Waiter) -> None:
        """Call ``waiter`` when the low watermark reaches ``offset``, or at once if it has reached that offset."""
        if self._resigned is not None:
            waiter(self._resigned)
        elif offset <= self.low_watermark:
            waiter(None)
        else:
            self._deletions[waiter] = offset

    def forget_deletion(self, waiter: Waiter) -> None:
        """Remove a waiter that was passed to ``when_deleted``."""
        self._deletions.pop(waiter, None)

    def _check_deletions(self) -> None:
        if not self._deletions:
            return
        low_watermark = self.low_watermark
        for waiter in [waiter for waiter, offset in self._deletions.items() if offset <= low_watermark]:
            del self._deletions[waiter]
            waiter(None)

    def subscribe(self, watcher: PartitionWatcher) -> None:
        self._watchers[watcher] = None

    def unsubscribe(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)

    @property
    def waiting(self) -> tuple[int, int]:
        """Numbers of waiting producers and of subscribed fetch sessions, for tests and metrics."""
        return len(self._waiters), len(self._watchers)


def _call(waiting: Waiting, error: HeadraceError) -> None:
    waiter, waiting[1] = waiting[1], None
    if waiter is not None:
        waiter(error)
