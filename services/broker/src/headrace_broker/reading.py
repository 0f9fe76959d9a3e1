"""Replicas as consumers read them: one that leads, or one that follows, for consumers that are nearer to it (KIP-392).

A follower hands out what it knows to be committed: up to its high watermark, which comes a moment after the leader's.
What a reader wants beyond that is OFFSET_NOT_AVAILABLE, not out of range, as long as nobody can tell.

``nearer_replica`` is the leader's part: which replica a consumer had better read from, by its rack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from headrace_core.errors import (
    CorruptLogError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    OffsetNotAvailableError,
    StorageError,
    UnknownLeaderEpochError,
)
from headrace_core.log import PartitionLog, ReadResult
from headrace_core.types import NO_EPOCH, TopicPartition

from .partition.leader import PartitionLeader, PartitionWatcher
from .replica import check_not_truncated
from .replication.follower_replica import FollowerReplica, OnDamage
from .threads import WorkThreads


class ReadState(Protocol):
    """What is readable: [``log_start``, ``high_watermark``) of a log that ends at ``log_end``. ``PartitionLeader`` is
    one."""

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    def check_serving(self) -> None: ...

    def check_topic_id(self, topic_id: bytes) -> None: ...

    def check_epoch(self, current_leader_epoch: int) -> None: ...

    def subscribe(self, watcher: PartitionWatcher) -> None: ...

    def unsubscribe(self, watcher: PartitionWatcher) -> None: ...


class Readable(Protocol):
    """A replica that a consumer may read. ``Replica`` (it leads) and ``FollowerReader`` are."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def log(self) -> PartitionLog: ...

    @property
    def reads(self) -> ReadState: ...

    def read(self, offset: int, max_bytes: int) -> ReadResult | None: ...

    def read_cold(self, offset: int, max_bytes: int) -> asyncio.Future[ReadResult | None]: ...

    def check_not_truncated(self, offset: int, last_fetched_epoch: int) -> None: ...


class FollowerReader:
    """A replica that follows, as a consumer reads it (``Readable``, and its own ``ReadState``). It ends with the leader
    epoch, like the replica."""

    __slots__ = ("_on_damage", "_replica", "_threads")

    def __init__(self, replica: FollowerReplica, threads: WorkThreads, on_damage: OnDamage) -> None:
        self._replica = replica
        self._threads = threads
        self._on_damage = on_damage

    @property
    def partition(self) -> TopicPartition:
        return self._replica.partition

    @property
    def log(self) -> PartitionLog:
        return self._replica.log

    @property
    def reads(self) -> ReadState:
        return self

    # -- ReadState ---------------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        return self._replica.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The high watermark as long as there are no transactions."""
        return self._replica.high_watermark

    @property
    def log_start(self) -> int:
        return self._replica.log.log_start_offset

    @property
    def log_end(self) -> int:
        return self._replica.follower.log_end

    def check_serving(self) -> None:
        """Raises why it follows no more."""
        self._replica.check_serving()

    def check_topic_id(self, topic_id: bytes) -> None:
        """``topic_id`` empty: not checked. Raises InconsistentTopicIdError when the topic was created anew."""
        if topic_id and topic_id != self._replica.topic_id:
            raise InconsistentTopicIdError(
                f"{self.partition}: the request is for topic id {topic_id.hex()}, but the topic's id is "
                f"{self._replica.topic_id.hex()}: it was deleted and created anew"
            )

    def check_epoch(self, current_leader_epoch: int) -> None:
        """KIP-320: the epoch a client believes in, -1: none. Raises FencedLeaderEpochError, UnknownLeaderEpochError."""
        present = self._replica.leader_epoch
        if current_leader_epoch in (NO_EPOCH, present):
            return
        said = f"{self.partition}: leader epoch {current_leader_epoch}, but the one that is followed here is {present}"
        if current_leader_epoch < present:
            raise FencedLeaderEpochError(f"{said}; refresh the metadata")
        raise UnknownLeaderEpochError(f"{said}; retry")

    def subscribe(self, watcher: PartitionWatcher) -> None:
        self._replica.subscribe(watcher)

    def unsubscribe(self, watcher: PartitionWatcher) -> None:
        self._replica.unsubscribe(watcher)

    # -- Readable ----------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> ReadResult | None:
        """As ``Replica.read``; OffsetNotAvailableError beyond the high watermark."""
        try:
            return self._replica.read(offset, max_bytes)
        except OSError as error:
            raise StorageError(f"{self.partition}: the log cannot be read: {error}") from error

    def read_cold(self, offset: int, max_bytes: int) -> asyncio.Future[ReadResult | None]:
        """The same from a thread that may wait for the disk."""
        log, up_to = self._replica.log, self._replica.high_watermark

        def read() -> ReadResult | None:
            try:
                return log.read(offset, max_bytes, up_to)
            except CorruptLogError as error:
                damage = error
                self._threads.call_soon(lambda: self._on_damage(log, damage))
                raise
            except OSError as error:
                raise StorageError(f"{self.partition}: the log cannot be read: {error}") from error

        return self._threads.run(read)

    def check_not_truncated(self, offset: int, last_fetched_epoch: int) -> None:
        """KIP-320. What is beyond its end may be with the leader: OffsetNotAvailableError."""
        if offset > self.log_end:
            raise OffsetNotAvailableError(
                f"{self.partition}: offset {offset} has not come here yet, the log ends at {self.log_end}; retry, or "
                "read from the leader"
            )
        check_not_truncated(self._replica.log, offset, last_fetched_epoch)


class _Candidate(NamedTuple):
    """The best one is the farthest, then the one that was seen at the end last (Kafka's ReplicaView.comparator)."""

    log_end: int
    caught_up_ms: int
    broker_id: int


def nearer_replica(leader: PartitionLeader, offset: int, rack: str, racks: Callable[[int], str | None]) -> int | None:
    """The broker id of an in-sync follower in the consumer's ``rack`` that has ``offset``; None: the leader is as near
    as any (KIP-392, RackAwareReplicaSelector). ``racks``: of a broker that is there, None of any other."""
    if not rack or racks(leader.leader_id) == rack:
        return None
    found = [
        _Candidate(replica.log_end, replica.caught_up_ms, replica.broker_id)
        for replica in leader.progress[1:]
        if replica.is_in_sync
        and replica.is_joined
        and replica.log_start <= offset <= replica.log_end
        and racks(replica.broker_id) == rack
    ]
    return max(found).broker_id if found else None
