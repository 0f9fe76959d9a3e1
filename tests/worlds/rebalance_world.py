"""Metadata images for tests of reassignments: brokers with racks, and topics with given replicas, all made by
records."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from headrace_controller.cluster.rebalance import Move
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerChangeRecord,
    BrokerDrainRecord,
    BrokerEndpoint,
    ClusterRecord,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tests.worlds.cluster_world import CLUSTER, id16


def applied(image: MetadataImage, records: Sequence[MetadataRecord]) -> MetadataImage:
    return image.apply(records, image.next_offset + len(records))


def cluster(
    racks: Sequence[str | None], *, fenced: Collection[int] = (), draining: Collection[int] = ()
) -> MetadataImage:
    """Records that register brokers 1, 2, ... in these racks."""
    records: list[MetadataRecord] = [ClusterRecord(CLUSTER, 2)]
    for number, rack in enumerate(racks, start=1):
        endpoints = (BrokerEndpoint("client", "h", number),)
        records.append(RegisterBrokerRecord(number, number, id16(number), (id16(number),), endpoints, rack))
        records.append(BrokerChangeRecord(number, number, fenced=number in fenced))
        if number in draining:
            records.append(BrokerDrainRecord(number, True))
    return applied(EMPTY_IMAGE, records)


def with_topic(image: MetadataImage, name: str, replicas: Iterable[tuple[int, ...]]) -> MetadataImage:
    """Records of a topic whose partitions have these replicas: all are in sync, and the first replica leads."""
    topic_id = id16(10_000 + len(image.topics))
    records: list[MetadataRecord] = [TopicRecord(name, topic_id)]
    records += [PartitionRecord(topic_id, number, each, each, each[0], 0, 0) for number, each in enumerate(replicas)]
    return applied(image, records)


def random_cluster(rng: random.Random) -> MetadataImage:
    """Make a random cluster: 2 to 9 brokers in up to 4 racks, some fenced, some draining, and topics with random
    replicas."""
    count = rng.randint(2, 9)
    numbers = range(1, count + 1)
    names: list[str | None] = rng.choice([[None], ["a", "b"], ["a", "b", "c", "d"], ["a", "b", None]])
    fenced = [each for each in numbers if rng.random() < 0.1]
    draining = [each for each in numbers if rng.random() < 0.15]
    image = cluster([rng.choice(names) for _ in numbers], fenced=fenced, draining=draining)
    holders = rng.sample(list(numbers), rng.randint(1, count))
    for topic in range(rng.randint(1, 5)):
        factor = rng.randint(1, min(3, len(holders)))
        image = with_topic(image, f"t{topic}", [tuple(rng.sample(holders, factor)) for _ in range(rng.randint(1, 12))])
    return image


def after_moves(image: MetadataImage, moves: Sequence[Move]) -> MetadataImage:
    """The image after all these reassignments are completed."""
    records = []
    for move in moves:
        partition = image.topics[move.topic_id].partitions[move.partition]
        leader = partition.leader if partition.leader in move.targets else move.targets[0]
        records.append(
            PartitionChangeRecord(
                move.topic_id,
                move.partition,
                partition.partition_epoch + 1,
                leader=leader,
                leader_epoch=partition.leader_epoch + 1,
                isr=move.targets,
                replicas=move.targets,
                adding=(),
                removing=(),
            )
        )
    return applied(image, records)


def rack_count(image: MetadataImage, replicas: Iterable[int]) -> int:
    return len({image.brokers[each].rack or each for each in replicas})


def replica_counts(image: MetadataImage) -> Counter[int]:
    return Counter(
        replica for topic in image.topics.values() for partition in topic.partitions for replica in partition.replicas
    )


def leader_counts(image: MetadataImage) -> Counter[int]:
    return Counter(partition.replicas[0] for topic in image.topics.values() for partition in topic.partitions)
