"""One partition's reassignment, step by step (KIP-455): what each step writes. Decided in reassignment.py.

    replicas            adding   removing   isr
    ------------------  -------  ---------  ----------
    1 2 3                                   1 2 3
    1 4 5 2 3           4 5      2 3        1 2 3        begun: targets first, then those that will go
    1 4 5 2 3           4 5      2 3        1 2 3 4 5    the new ones have caught up (AlterPartition)
    1 4 5                                   1 4 5        complete; the leader is among the targets

Cancelled, it goes back to the replicas that are not ``adding``. The order that they had is not known any more, as with
Kafka: those that were to stay come first.

A replica that leaves takes a leader epoch with it: whatever it still sends or fetches is fenced (Kafka does the same).
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_core.errors import InvalidReplicaAssignmentError
from headrace_core.metadata import MetadataImage, PartitionChangeRecord, PartitionImage
from headrace_core.metadata.configs import topic_value
from headrace_core.types import NO_LEADER

from .directories import first_directories

#: (topic id, partition number)
Key = tuple[bytes, int]


def added_by(partition: PartitionImage, targets: Sequence[int]) -> tuple[int, ...]:
    """The targets that would have to be copied: those that are on their way already count, until they arrive."""
    return tuple(each for each in targets if each not in partition.replicas or each in partition.adding)


def begun(image: MetadataImage, key: Key, targets: tuple[int, ...]) -> PartitionChangeRecord | None:
    """The reassignment begins, or another takes its place; None: the partition is so already."""
    partition = image.topics[key[0]].partitions[key[1]]
    adding = added_by(partition, targets)
    removing = tuple(each for each in partition.replicas if each not in targets)
    replicas = (*targets, *removing)
    if (replicas, adding, removing) == (partition.replicas, partition.adding, partition.removing):
        return None
    return PartitionChangeRecord(
        topic_id=key[0],
        partition=key[1],
        partition_epoch=partition.partition_epoch + 1,
        replicas=replicas,
        directories=tuple(_directory(image, partition, each) for each in replicas),
        adding=adding,
        removing=removing,
    )


def cancelled(image: MetadataImage, key: Key) -> PartitionChangeRecord:
    """Back to where it was. InvalidReplicaAssignmentError: only replicas that would go are in sync."""
    partition = image.topics[key[0]].partitions[key[1]]
    stay = tuple(each for each in partition.replicas if each not in partition.adding)
    isr = tuple(each for each in partition.isr if each in stay)
    if not isr:
        raise InvalidReplicaAssignmentError(
            f"the reassignment cannot be cancelled: only broker {', '.join(map(str, partition.isr))} is in sync, which "
            "it is bringing; wait until one of the former replicas has caught up, or let it go on"
        )
    return _settled(image, key, partition, stay, isr)


def completed(image: MetadataImage, key: Key) -> PartitionChangeRecord | None:
    """The last step, if everything that it waits for is so; None: not yet, or nothing is under way."""
    partition = image.topics[key[0]].partitions[key[1]]
    if not (partition.adding or partition.removing):
        return None
    targets = tuple(each for each in partition.replicas if each not in partition.removing)
    isr = tuple(each for each in partition.isr if each in targets)
    if not (have_arrived(partition) and is_enough(image, key, partition, targets, isr)):
        return None
    if not any(image.is_available(partition, each) for each in isr):
        return None  # there would be no leader; the replica that leads now goes on
    return _settled(image, key, partition, targets, isr)


def have_arrived(partition: PartitionImage) -> bool:
    """Guard: all that is added is in sync. Without it, replicas that have everything make room for some that do not."""
    return set(partition.adding) <= set(partition.isr)


def is_enough(
    image: MetadataImage, key: Key, partition: PartitionImage, targets: tuple[int, ...], isr: tuple[int, ...]
) -> bool:
    """Guard: the in-sync set of what stays has a member, and is not too small for acks=all if it is not so now."""
    needed = min(topic_value(image, image.topics[key[0]].name, "min.insync.replicas"), len(targets))
    return bool(isr) and (len(isr) >= needed or len(partition.isr) < needed)


def _settled(
    image: MetadataImage, key: Key, partition: PartitionImage, replicas: tuple[int, ...], isr: tuple[int, ...]
) -> PartitionChangeRecord:
    """No reassignment any more: ``replicas`` stay, and nobody else is in sync, eligible, or leads."""
    leader = partition.leader
    if leader not in isr:
        able = (each for each in replicas if each in isr and image.is_available(partition, each))
        leader = next(able, NO_LEADER)
    someone_left = set(replicas) < set(partition.replicas)
    fences = someone_left or leader != partition.leader
    elr = tuple(each for each in partition.elr if each in replicas)
    last_known = tuple(each for each in partition.last_known_elr if each in replicas)
    return PartitionChangeRecord(
        topic_id=key[0],
        partition=key[1],
        partition_epoch=partition.partition_epoch + 1,
        leader=leader if fences else None,
        leader_epoch=partition.leader_epoch + 1 if fences else None,
        isr=isr if isr != partition.isr else None,
        replicas=replicas,
        directories=tuple(partition.directory_of(each) for each in replicas),
        elr=elr if elr != partition.elr else None,
        last_known_elr=last_known if last_known != partition.last_known_elr else None,
        adding=(),
        removing=(),
    )


def _directory(image: MetadataImage, partition: PartitionImage, replica: int) -> bytes:
    if replica in partition.replicas:
        return partition.directory_of(replica)
    return first_directories(image, (replica,))[0]
