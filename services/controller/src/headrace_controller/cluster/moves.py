"""The steps of one partition's reassignment (KIP-455), and their records. reassignment.py decides when each step
happens.

    replicas            adding   removing   isr
    ------------------  -------  ---------  ----------
    1 2 3                                   1 2 3
    1 4 5 2 3           4 5      2 3        1 2 3        begun: targets first, then the replicas to remove
    1 4 5 2 3           4 5      2 3        1 2 3 4 5    the new replicas have caught up (AlterPartition)
    1 4 5                                   1 4 5        complete; the leader is among the targets

A leader that is among the targets of a reassignment stays leader, as in Kafka, unless the first target is a new
replica. If the first target of a reassignment is a new replica, the new replica becomes leader in the last step. A last
step that removes replicas increments the leader epoch even without a new leader. A new broker
that is the first target thus becomes leader in the reassignment itself. It need not wait until the imbalance of leaders
exceeds ``leader.imbalance.per.broker.percentage``.

Another reassignment of the partition may replace a reassignment in progress. The replicas that only the replaced
reassignment was adding leave at once, so ``removing`` has original replicas only, and cancelling restores them. The
abandoned replicas stay, as ``removing``, if too few in-sync replicas would remain without them (``is_enough``).

Cancelling a reassignment restores the replicas that are not ``adding``. After a cancelled reassignment the original
order of the replicas is lost, as in Kafka: the targets come first.

elections.py decides ISR and leader after each step. The removal of a replica increments the leader epoch, so that later
fetches of the removed replica are fenced (as in Kafka).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace_core.errors import InvalidReplicaAssignmentError
from headrace_core.metadata import PartitionChangeRecord, PartitionImage, TopicImage

from .directories import first_directories
from .elections import Election, Electorate, partition_change

Key = tuple[bytes, int]  #: (topic id, partition number)


def added_by(partition: PartitionImage, targets: Sequence[int]) -> tuple[int, ...]:
    """Targets that must be copied, including targets whose copy is in progress."""
    return tuple(each for each in targets if each not in partition.replicas or each in partition.adding)


def begun(
    electorate: Electorate, key: Key, targets: tuple[int, ...], *, elects: bool = False
) -> PartitionChangeRecord | None:
    """The record that begins or replaces a reassignment; None if the partition already has the replicas ``targets``.
    ``elects``: if only the order of the replicas changes, elect the new first replica."""
    topic, partition = _found(electorate, key)
    leaving = tuple(each for each in partition.replicas if each not in targets)
    original = tuple(each for each in leaving if each not in partition.adding)
    removing = original if is_enough(electorate, topic, partition, (*targets, *original)) else leaving
    added = added_by(partition, targets)
    wanted = _with_replicas(electorate, partition, (*targets, *removing), added, removing)
    how = Election.PREFERRED if elects and not (added or removing) else Election.KEEP
    return partition_change(electorate, topic, key[1], wanted, how=how)


def cancelled(electorate: Electorate, key: Key) -> PartitionChangeRecord | None:
    """The record that cancels a reassignment and restores the partition's old replicas. Raises
    InvalidReplicaAssignmentError if only replicas that are about to be removed are in sync. If no replica is in sync,
    the same holds for the eligible leader replicas, then for the last known leader."""
    topic, partition = _found(electorate, key)
    stay = tuple(each for each in partition.replicas if each not in partition.adding)
    complete = partition.isr or partition.elr or partition.last_known_elr
    if complete and not set(complete).intersection(stay):
        raise InvalidReplicaAssignmentError(
            f"cannot cancel the reassignment of {topic.name}-{key[1]}: only its new replicas (broker "
            f"{', '.join(map(str, complete))}) have all committed records; wait until an old replica has caught up, or "
            "let the reassignment finish"
        )
    return partition_change(electorate, topic, key[1], _with_replicas(electorate, partition, stay))


def completed(electorate: Electorate, key: Key) -> PartitionChangeRecord | None:
    """The record of a reassignment's last step; None if the step's conditions are not met, or if there is no
    reassignment."""
    topic, partition = _found(electorate, key)
    if not (partition.adding or partition.removing):
        return None
    targets = tuple(each for each in partition.replicas if each not in partition.removing)
    if not (have_arrived(partition) and is_enough(electorate, topic, partition, targets)):
        return None
    how = Election.PREFERRED if targets[0] in partition.adding else Election.KEEP
    return partition_change(electorate, topic, key[1], _with_replicas(electorate, partition, targets), how=how)


def have_arrived(partition: PartitionImage) -> bool:
    """Guard: whether all replicas that a reassignment added are in sync. Without the guard for added replicas, complete
    replicas would be removed while only incomplete replicas remain."""
    return set(partition.adding) <= set(partition.isr)


def is_enough(electorate: Electorate, topic: TopicImage, partition: PartitionImage, targets: tuple[int, ...]) -> bool:
    """Guard: whether the replicas that remain after a step of a reassignment are enough to lead and to commit records.
    At least one in-sync replica that works must remain. The replicas that remain must be enough for acks=all, if the
    present replicas are enough."""
    stay = [each for each in partition.isr if each in targets and electorate.works(partition, each)]
    needed = electorate.minimum(topic, msgspec.structs.replace(partition, replicas=targets))
    return bool(stay) and (len(stay) >= needed or len(partition.isr) < needed)


def _found(electorate: Electorate, key: Key) -> tuple[TopicImage, PartitionImage]:
    topic = electorate.image.topics[key[0]]
    return topic, topic.partitions[key[1]]


def _with_replicas(
    electorate: Electorate,
    partition: PartitionImage,
    replicas: tuple[int, ...],
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionImage:
    return msgspec.structs.replace(
        partition,
        replicas=replicas,
        directories=tuple(_directory(electorate, partition, each) for each in replicas),
        adding=adding,
        removing=removing,
        last_known_elr=tuple(each for each in partition.last_known_elr if each in replicas),
    )


def _directory(electorate: Electorate, partition: PartitionImage, replica: int) -> bytes:
    if replica in partition.replicas:
        return partition.directory_of(replica)
    return first_directories(electorate.image, (replica,))[0]
