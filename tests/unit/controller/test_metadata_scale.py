"""100,000 partitions: the cost of a decision depends on its changes, not on the total."""

from __future__ import annotations

import time

import pytest

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import CreateTopics, NewTopic
from headrace_controller.cluster.sessions import Contact
from headrace_core.metadata import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    BrokerChangeRecord,
    BrokerEndpoint,
    ClusterRecord,
    ImageBuilder,
    MetadataImage,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tests.worlds.cluster_world import CLUSTER, id16
from tests.worlds.waiting import check_spent

BROKERS, TOPICS, PARTITIONS = 30, 1_000, 100
SESSION_MS = 9_000


@pytest.fixture(scope="module")
def image() -> MetadataImage:
    """Partition n has its replicas on brokers n, n + 1 and n + 2, modulo 30."""
    builder = ImageBuilder(EMPTY_IMAGE)
    builder.replay(ClusterRecord(CLUSTER, METADATA_VERSION))
    for number in range(BROKERS):
        endpoints = (BrokerEndpoint("client", "h", number),)
        builder.replay(RegisterBrokerRecord(number, number, id16(number), (id16(number),), endpoints))
        builder.replay(BrokerChangeRecord(number, number, fenced=False))
    for topic in range(TOPICS):
        builder.replay(TopicRecord(f"t{topic}", id16(topic)))
        for number in range(PARTITIONS):
            replicas = tuple((topic * PARTITIONS + number + step) % BROKERS for step in range(3))
            directories = tuple(map(id16, replicas))
            builder.replay(PartitionRecord(id16(topic), number, replicas, replicas, replicas[0], 0, 0, directories))
    return builder.finish(200_000, 1)[0]


@pytest.fixture
def core(image: MetadataImage) -> ClusterCore:
    ids = iter(range(5_000_000, 6_000_000))
    settings = ClusterSettings(broker_session_timeout_ms=SESSION_MS)
    core = ClusterCore(settings, new_id=lambda: id16(next(ids)))
    core.replay(image)
    core.lead(0)
    return core


def test_the_partitions_of_a_broker_are_found(image: MetadataImage) -> None:
    begun = time.thread_time()
    found = list(image.partitions_on(7))
    check_spent(begun, 0.5)  # 6 ms on an idle machine
    everywhere = [partition for topic in image.topics.values() for partition in topic.partitions]
    assert len(found) == sum(7 in partition.replicas for partition in everywhere) > 10_000
    assert all(7 in partition.replicas and topic.partitions[number] is partition for topic, number, partition in found)
    assert [(topic.topic_id, number) for topic, number, _ in found] == sorted(
        (topic.topic_id, number) for topic, number, _ in found
    )
    assert list(image.partitions_on(99)) == []


def test_what_follows_when_a_broker_dies_is_decided_in_well_under_a_second(core: ClusterCore) -> None:
    for broker_id in range(BROKERS):
        if broker_id != 7:
            core.sessions.note(Contact(broker_id, broker_id, SESSION_MS))
    begun = time.thread_time()
    records = 0
    while (decision := core.upkeep(SESSION_MS + 1)).records:
        end = core.speculative.next_offset + len(decision.records)
        core.accept(decision, end, 1)
        core.commit(end)
        records += len(decision.records)
    check_spent(begun, 1.0)  # 0.06 s on an idle machine
    after = core.committed
    assert records > 10_000
    assert not any(p.leader == 7 or 7 in p.isr for topic in after.topics.values() for p in topic.partitions)


def test_two_thousand_topics_are_made_one_by_one_in_seconds(core: ClusterCore) -> None:
    begun = time.thread_time()
    for number in range(2_000):
        request = CreateTopics((NewTopic(name=f"new-{number}", partitions=1, replication_factor=3),))
        decision = core.decide(request, 1)
        end = core.speculative.next_offset + len(decision.records)
        core.accept(decision, end, 1)
        core.commit(end)
    check_spent(begun, 4.0)  # 0.25 s on an idle machine; 1.1 s were seen on a busy one
    assert len(core.committed.topics) == TOPICS + 2_000
