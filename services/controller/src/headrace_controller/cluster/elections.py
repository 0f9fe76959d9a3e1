"""Who leads when brokers come and go. A leader is elected from the in-sync replicas only.

The in-sync set never becomes empty: its last member stays in it when it goes, because it alone is known to have every
acknowledged record, and the partition waits for it without a leader (KIP-497's rules; unclean election and the
eligible leader replicas of KIP-966 come with replication).
"""

from __future__ import annotations

from collections.abc import Callable

from headrace_core.metadata import MetadataImage, PartitionChangeRecord, PartitionImage
from headrace_core.types import NO_LEADER


def after_broker_left(image: MetadataImage, broker_id: int) -> list[PartitionChangeRecord]:
    """The broker is no longer active: it leaves in-sync sets that have another member, and leads nothing."""
    active = {broker.broker_id for broker in image.brokers.values() if broker.active} - {broker_id}
    return _changes(image, broker_id, lambda partition: _without(partition, broker_id, active))


def after_broker_came(image: MetadataImage, broker_id: int) -> list[PartitionChangeRecord]:
    """The broker is active again: it leads what has no leader and counts it as in sync."""

    def change(partition: PartitionImage) -> tuple[int, tuple[int, ...]]:
        if partition.leader == NO_LEADER and broker_id in partition.isr:
            return broker_id, partition.isr
        return partition.leader, partition.isr

    return _changes(image, broker_id, change)


def _without(partition: PartitionImage, gone: int, active: set[int]) -> tuple[int, tuple[int, ...]]:
    """(leader, isr) once ``gone`` is gone."""
    isr = tuple(member for member in partition.isr if member != gone) or partition.isr
    if partition.leader != gone:
        return partition.leader, isr
    return next((replica for replica in partition.replicas if replica in isr and replica in active), NO_LEADER), isr


def _changes(
    image: MetadataImage, broker_id: int, change: Callable[[PartitionImage], tuple[int, tuple[int, ...]]]
) -> list[PartitionChangeRecord]:
    records = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if broker_id not in partition.replicas:
                continue
            leader, isr = change(partition)
            if leader == partition.leader and isr == partition.isr:
                continue
            moved = leader != partition.leader
            records.append(
                PartitionChangeRecord(
                    topic_id=topic.topic_id,
                    partition=number,
                    partition_epoch=partition.partition_epoch + 1,
                    leader=leader if moved else None,
                    leader_epoch=partition.leader_epoch + 1 if moved else None,
                    isr=isr if isr != partition.isr else None,
                )
            )
    return records
