"""One partition's reassignment, step by step (KIP-455): what each step writes. Decided in reassignment.py.

    replicas            adding   removing   isr
    ------------------  -------  ---------  ----------
    1 2 3                                   1 2 3
    1 4 5 2 3           4 5      2 3        1 2 3        begun: targets first, then those that will go
    1 4 5 2 3           4 5      2 3        1 2 3 4 5    the new ones have caught up (AlterPartition)
    1 4 5                                   1 4 5        complete; the leader is among the targets

The leader stays when it is among the targets, as with Kafka, unless the first of them has come by this very move: then
that one leads from the last step on, which takes a leader epoch anyhow. So a broker that has joined leads at once what
it was meant to lead, and not when ``leader.imbalance.per.broker.percentage`` is reached.

Cancelled, it goes back to the replicas that are not ``adding``. The order that they had is not known any more, as with
Kafka: those that were to stay come first.

Who is in sync and who leads after each step is elections.py's matter. A replica that leaves takes a leader epoch with
it, so whatever it still sends or fetches is fenced (Kafka does the same).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace_core.errors import InvalidReplicaAssignmentError
from headrace_core.metadata import PartitionChangeRecord, PartitionImage, TopicImage

from .directories import first_directories
from .elections import Election, Electorate, settled

#: (topic id, partition number)
Key = tuple[bytes, int]


def added_by(partition: PartitionImage, targets: Sequence[int]) -> tuple[int, ...]:
    """The targets that would have to be copied: those that are on their way already count, until they arrive."""
    return tuple(each for each in targets if each not in partition.replicas or each in partition.adding)


def begun(
    electorate: Electorate, key: Key, targets: tuple[int, ...], *, elects: bool = False
) -> PartitionChangeRecord | None:
    """The reassignment begins, or another takes its place; None: the partition is so already. ``elects``: when only the
    order of the replicas changes, the one that is first now leads."""
    topic, partition = _found(electorate, key)
    removing = tuple(each for each in partition.replicas if each not in targets)
    added = added_by(partition, targets)
    wanted = _with_replicas(electorate, partition, (*targets, *removing), added, removing)
    how = Election.PREFERRED if elects and not (added or removing) else Election.KEEP
    return settled(electorate, topic, key[1], wanted, how=how)


def cancelled(electorate: Electorate, key: Key) -> PartitionChangeRecord | None:
    """Back to where it was. InvalidReplicaAssignmentError: only replicas that would go are in sync."""
    topic, partition = _found(electorate, key)
    stay = tuple(each for each in partition.replicas if each not in partition.adding)
    if partition.isr and not set(partition.isr).intersection(stay):
        raise InvalidReplicaAssignmentError(
            f"the reassignment of {topic.name}-{key[1]} cannot be cancelled: only broker "
            f"{', '.join(map(str, partition.isr))} is in sync, which it is bringing; wait until one of the former "
            "replicas has caught up, or let it go on"
        )
    return settled(electorate, topic, key[1], _with_replicas(electorate, partition, stay))


def completed(electorate: Electorate, key: Key) -> PartitionChangeRecord | None:
    """The last step, if everything that it waits for is so; None: not yet, or nothing is under way."""
    topic, partition = _found(electorate, key)
    if not (partition.adding or partition.removing):
        return None
    targets = tuple(each for each in partition.replicas if each not in partition.removing)
    if not (have_arrived(partition) and is_enough(electorate, topic, partition, targets)):
        return None
    how = Election.PREFERRED if targets[0] in partition.adding else Election.KEEP
    return settled(electorate, topic, key[1], _with_replicas(electorate, partition, targets), how=how)


def have_arrived(partition: PartitionImage) -> bool:
    """Guard: all that is added is in sync. Without it, replicas that have everything make room for some that do not."""
    return set(partition.adding) <= set(partition.isr)


def is_enough(electorate: Electorate, topic: TopicImage, partition: PartitionImage, targets: tuple[int, ...]) -> bool:
    """Guard: among what stays somebody in sync works, who can lead; and there are enough for acks=all, if there are
    enough now."""
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
