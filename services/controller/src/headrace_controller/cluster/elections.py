"""Who leads when brokers, or the directories of their replicas, come and go. A leader is elected from the in-sync
replicas only, and among them from those that work: the broker is active, the replica's directory online (KIP-858).

The in-sync set never becomes empty: its last member stays in it when it goes, because it alone is known to have every
acknowledged record, and the partition waits for it without a leader (KIP-497's rules; unclean election and the
eligible leader replicas of KIP-966 come with replication).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from headrace_core.metadata import MetadataImage, PartitionChangeRecord, PartitionImage
from headrace_core.types import NO_LEADER


def after_broker_left(image: MetadataImage, broker_id: int) -> list[PartitionChangeRecord]:
    """The broker is no longer active: it leaves in-sync sets that have another member, and leads nothing."""
    return _changes(image, broker_id, lambda partition: _without(image, partition, broker_id))


def after_directories_failed(
    image: MetadataImage, broker_id: int, failed: Collection[bytes]
) -> list[PartitionChangeRecord]:
    """The same for the broker's replicas in the ``failed`` directories, and for no other."""

    def change(partition: PartitionImage) -> tuple[int, tuple[int, ...]]:
        if partition.directory_of(broker_id) not in failed:
            return partition.leader, partition.isr
        return _without(image, partition, broker_id)

    return _changes(image, broker_id, change)


def after_broker_came(image: MetadataImage, broker_id: int) -> list[PartitionChangeRecord]:
    """The broker is active again: it leads what has no leader and counts it as in sync, but for replicas that it cannot
    read, because their directories are offline."""
    broker = image.brokers[broker_id]

    def change(partition: PartitionImage) -> tuple[int, tuple[int, ...]]:
        if (
            partition.leader == NO_LEADER
            and broker_id in partition.isr
            and broker.has_online(partition.directory_of(broker_id))
        ):
            return broker_id, partition.isr
        return partition.leader, partition.isr

    return _changes(image, broker_id, change)


def assigned(
    image: MetadataImage, topic_id: bytes, number: int, broker_id: int, directory: bytes
) -> PartitionChangeRecord | None:
    """The broker's replica of an existing partition is in ``directory``, which may be an offline one; None when that is
    known. The replica is one of the partition's."""
    partition = image.topics[topic_id].partitions[number]
    if partition.directory_of(broker_id) == directory:
        return None
    broker = image.brokers[broker_id]
    leader, isr = partition.leader, partition.isr
    if not broker.has_online(directory):
        leader, isr = _without(image, partition, broker_id)
    elif leader == NO_LEADER and broker.active and broker_id in isr:
        leader = broker_id
    directories = tuple(
        directory if replica == broker_id else before
        for replica, before in zip(partition.replicas, partition.directories, strict=True)
    )
    return _change(topic_id, number, partition, leader, isr, directories)


def _without(image: MetadataImage, partition: PartitionImage, gone: int) -> tuple[int, tuple[int, ...]]:
    """(leader, isr) once the replica on ``gone`` is gone."""
    isr = tuple(member for member in partition.isr if member != gone) or partition.isr
    if partition.leader != gone:
        return partition.leader, isr
    able = (
        replica
        for replica in partition.replicas
        if replica != gone and replica in isr and image.is_available(partition, replica)
    )
    return next(able, NO_LEADER), isr


def _changes(
    image: MetadataImage, broker_id: int, change: Callable[[PartitionImage], tuple[int, tuple[int, ...]]]
) -> list[PartitionChangeRecord]:
    records = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if broker_id not in partition.replicas:
                continue
            leader, isr = change(partition)
            if leader != partition.leader or isr != partition.isr:
                records.append(_change(topic.topic_id, number, partition, leader, isr))
    return records


def _change(
    topic_id: bytes,
    number: int,
    partition: PartitionImage,
    leader: int,
    isr: tuple[int, ...],
    directories: tuple[bytes, ...] | None = None,
) -> PartitionChangeRecord:
    moved = leader != partition.leader
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition=number,
        partition_epoch=partition.partition_epoch + 1,
        leader=leader if moved else None,
        leader_epoch=partition.leader_epoch + 1 if moved else None,
        isr=isr if isr != partition.isr else None,
        directories=directories,
    )
