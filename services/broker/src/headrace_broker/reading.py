"""Replicas from which consumers read: the leader, or a follower near the consumer (KIP-392).

A follower returns records up to its own high watermark, which follows the leader's high watermark with a short delay. A
fetch beyond the follower's high watermark gets OFFSET_NOT_AVAILABLE instead of OFFSET_OUT_OF_RANGE, because the offset
may exist on the leader.

The leader calls ``nearer_replica`` to choose a replica by the consumer's rack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from headrace_core.log import PartitionLog, ReadResult
from headrace_core.types import TopicPartition

from .partition.leader import PartitionLeader, PartitionWatcher
from .partition.versions import Versioned
from .threads import WorkThreads
from .traffic import TopicTraffic


class ReadState(Versioned, Protocol):
    """The readable range of a log: consumers may read from ``log_start`` up to ``high_watermark``, exclusive, as in
    ``PartitionLeader``."""

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    def check_serving(self) -> None: ...

    def subscribe(self, watcher: PartitionWatcher) -> None: ...

    def unsubscribe(self, watcher: PartitionWatcher) -> None: ...


class Readable(Protocol):
    """A replica from which a consumer may read: ``LeaderReplica`` or ``FollowerReplica``."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def log(self) -> PartitionLog: ...

    @property
    def reads(self) -> ReadState: ...

    @property
    def last_stable_offset(self) -> int: ...

    @property
    def traffic(self) -> TopicTraffic: ...

    def read(self, offset: int, max_bytes: int, up_to: int, *, committed: bool = False) -> ReadResult | None: ...

    @property
    def threads(self) -> WorkThreads:
        """The threads that may call ``read_cold``."""

    def read_cold(self, offset: int, max_bytes: int, up_to: int, *, committed: bool) -> ReadResult: ...

    def check_not_truncated(self, offset: int, last_fetched_epoch: int) -> None: ...


class _Candidate(NamedTuple):
    """A follower from which a consumer could read. The best follower has the highest log end; among followers with the
    same log end, the latest caught-up time decides (Kafka's ReplicaView.comparator)."""

    log_end: int
    caught_up_ms: int
    broker_id: int


def nearer_replica(leader: PartitionLeader, offset: int, rack: str, racks: Callable[[int], str | None]) -> int | None:
    """Broker id of an in-sync follower in the consumer's ``rack`` that has ``offset``. The result is None if the leader
    is in the consumer's rack too, or if no follower qualifies (KIP-392, RackAwareReplicaSelector). ``racks`` returns
    the rack of an active broker, and None for any other broker."""
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
