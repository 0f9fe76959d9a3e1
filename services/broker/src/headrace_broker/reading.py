"""Replicas from which consumers read: the leader, or a follower near the consumer (KIP-392).

A follower returns records up to its own high watermark, which follows the leader's high watermark with a short delay. A
fetch beyond the follower's high watermark gets OFFSET_NOT_AVAILABLE instead of OFFSET_OUT_OF_RANGE, because the offset
may exist on the leader.

The leader calls ``nearer_replica`` to choose a replica by the consumer's rack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .leader_replica import LeaderReplica
from .partition.leader import PartitionLeader
from .replication.follower_replica import FollowerReplica

#: A replica from which a consumer may read.
Readable = LeaderReplica | FollowerReplica


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
