"""The image as clients see it, and the changes that wake a watcher."""

from __future__ import annotations

import asyncio

import pytest

from headrace_core.membership.metadata_view import MetadataView, concerns
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerChangeRecord,
    BrokerDrainRecord,
    BrokerEndpoint,
    ClusterRecord,
    ConfigRecord,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_protos.v1 import common_pb2, metadata_pb2

A, B = b"a" * 16, b"b" * 16
ALL = metadata_pb2.MetadataRequest(all_topics=True)


def some_image() -> MetadataImage:
    records: list[MetadataRecord] = [ClusterRecord("c", 1)]
    for broker_id in (2, 1):
        endpoints = (
            BrokerEndpoint("client", f"h{broker_id}", 9095),
            BrokerEndpoint("internal", f"h{broker_id}", 19095),
        )
        records.append(RegisterBrokerRecord(broker_id, len(records), A, (bytes([broker_id]) * 16,), endpoints, "r"))
        records.append(BrokerChangeRecord(broker_id, len(records) - 1, fenced=False))
    records += [
        TopicRecord("t", A),
        PartitionRecord(A, 0, (1, 2), (1, 2), 1, 3, 0),
        TopicRecord("__consumer_offsets", B),
        PartitionRecord(B, 0, (2,), (2,), 2, 0, 0),
    ]
    return EMPTY_IMAGE.apply(records, len(records), 1)


def then(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
    return image.apply(records, image.next_offset + len(records), 1)


def answer(view: MetadataView, image: MetadataImage, *names: str) -> metadata_pb2.MetadataResponse:
    request = metadata_pb2.MetadataRequest(topics=names) if names else ALL
    return asyncio.run(view.response(image, request, controller_id=7))


def test_brokers_are_reported_with_the_address_of_the_listener_and_topics_by_name() -> None:
    image = some_image()
    response = answer(MetadataView(), image)
    assert (response.cluster_id, response.controller_id, response.metadata_offset) == ("c", 7, image.next_offset)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (1, "h1", 9095, "r"),
        (2, "h2", 9095, "r"),
    ]
    assert [(topic.name, topic.internal) for topic in response.topics] == [("__consumer_offsets", True), ("t", False)]
    partition = response.topics[1].partitions[0]
    assert (partition.leader_id, partition.leader_epoch, list(partition.isr)) == (1, 3, [1, 2])
    assert response.topics[1].max_message_bytes == 1_048_588
    internal = answer(MetadataView(listener="internal"), image)
    assert [broker.port for broker in internal.brokers] == [19095, 19095]


def test_brokers_that_do_not_live_are_described_on_request() -> None:
    image = some_image()
    gone = BrokerChangeRecord(1, image.brokers[1].broker_epoch, fenced=True)
    image = then(image, gone, BrokerDrainRecord(2, True))
    view = MetadataView()
    assert [each.broker_id for each in answer(view, image).brokers] == [2]
    request = metadata_pb2.MetadataRequest(include_fenced_brokers=True)
    shown = asyncio.run(view.response(image, request, controller_id=7)).brokers
    assert [(each.broker_id, each.fenced, each.draining) for each in shown] == [(1, True, False), (2, False, True)]
    assert [each.broker_id for each in answer(view, image).brokers] == [2], "who does not ask is not told later either"


def test_the_largest_batch_of_a_topic_is_one_that_fits_into_its_segments() -> None:
    image = some_image()
    small = image.apply([ConfigRecord(1, "t", "segment.bytes", "20000")], image.next_offset + 1)
    assert answer(MetadataView(), small, "t").topics[0].max_message_bytes == 20_000


def test_no_batch_is_larger_than_what_one_request_may_have() -> None:
    image = some_image()
    large = image.apply([ConfigRecord(1, "t", "max.message.bytes", "20000000")], image.next_offset + 1)
    assert answer(MetadataView(), large, "t").topics[0].max_message_bytes == 20_000_000
    view = MetadataView(request_bytes_max=16_777_216)
    assert answer(view, large, "t").topics[0].max_message_bytes == 16_777_216


def test_named_topics_keep_the_requests_order_and_errors_are_their_own() -> None:
    response = answer(MetadataView(), some_image(), "nope", "t", "a/b", "t")
    assert [(topic.name, topic.error.code) for topic in response.topics] == [
        ("nope", common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0),
        ("a/b", common_pb2.ERROR_CODE_INVALID_TOPIC_EXCEPTION),
    ]


def test_without_names_only_the_cluster_is_described() -> None:
    response = asyncio.run(MetadataView().response(some_image(), metadata_pb2.MetadataRequest(), controller_id=7))
    assert (len(response.topics), len(response.brokers)) == (0, 2)


def test_a_fenced_broker_is_offline_and_a_leaderless_partition_says_so() -> None:
    view, image = MetadataView(), some_image()
    answer(view, image)
    epoch = image.brokers[1].broker_epoch
    image = then(image, BrokerChangeRecord(1, epoch, fenced=True))
    response = answer(view, image)
    assert [broker.broker_id for broker in response.brokers] == [2]
    assert list(response.topics[1].partitions[0].offline_replicas) == [1]
    image = then(image, PartitionChangeRecord(A, 0, 1, leader=-1, leader_epoch=4))
    partition = answer(view, image, "t").topics[0].partitions[0]
    assert (partition.leader_id, partition.error.code) == (-1, common_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE)


def test_a_leaderless_partition_says_for_whom_it_waits() -> None:
    view, image = MetadataView(), some_image()

    def shown(epoch: int, **fields: tuple[int, ...]) -> tuple[str, list[int], list[int]]:
        nonlocal image
        image = then(image, PartitionChangeRecord(A, 0, epoch, leader=-1, leader_epoch=3 + epoch, isr=(), **fields))
        partition = answer(view, image, "t").topics[0].partitions[0]
        return partition.error.message, list(partition.eligible_leader_replicas), list(partition.last_known_elr)

    message, eligible, last_known = shown(1, elr=(1, 2), last_known_elr=(1,))
    assert "it waits for broker 1 or 2" in message
    assert (eligible, last_known) == ([1, 2], [1])
    assert "it waits for broker 1" in shown(2, elr=())[0]
    assert "an unclean election" in shown(3, last_known_elr=())[0]


def test_a_replica_in_an_offline_directory_is_offline_although_its_broker_serves() -> None:
    view, image = MetadataView(), some_image()
    image = then(image, PartitionChangeRecord(A, 0, 1, directories=(b"\1" * 16, b"\2" * 16)))
    assert [list(topic.partitions[0].offline_replicas) for topic in answer(view, image).topics] == [[], []]
    image = then(image, BrokerChangeRecord(2, image.brokers[2].broker_epoch, offline_directories=(b"\2" * 16,)))
    response = answer(view, image)
    assert [broker.broker_id for broker in response.brokers] == [1, 2]
    internal, topic = response.topics
    assert list(topic.partitions[0].offline_replicas) == [2]
    assert list(internal.partitions[0].offline_replicas) == [], "nobody has said that this one is there"


@pytest.mark.parametrize(
    "record",
    [
        PartitionChangeRecord(A, 0, 1, leader=2, leader_epoch=4),
        ConfigRecord(1, "t", "max.message.bytes", "5"),
        ConfigRecord(2, "", "message.max.bytes", "5"),
        RemoveTopicRecord(A),
        PartitionRecord(A, 1, (1,), (1,), 1, 0, 0),
    ],
    ids=repr,
)
def test_a_kept_answer_is_never_stale(record: MetadataRecord) -> None:
    view, image = MetadataView(), some_image()
    before = answer(view, image, "t")
    image = then(image, record)
    after = answer(view, image, "t")
    assert after == answer(MetadataView(), image, "t")
    assert after.topics != before.topics


def test_what_did_not_change_is_not_built_again() -> None:
    view, image = MetadataView(), some_image()
    answer(view, image)
    kept = {topic_id: message for topic_id, (_, message) in view._topics.items()}
    answer(view, then(image, PartitionChangeRecord(A, 0, 1, leader=2, leader_epoch=4)))
    assert view._topics[B][1] is kept[B]
    assert view._topics[A][1] is not kept[A]


@pytest.mark.parametrize(
    ("record", "t", "everything", "cluster"),
    [
        (PartitionChangeRecord(A, 0, 1, leader=2, leader_epoch=4), True, True, False),
        (PartitionChangeRecord(B, 0, 1, leader=1, leader_epoch=4), False, True, False),
        (RemoveTopicRecord(A), True, True, False),
        (TopicRecord("u", b"c" * 16), False, True, False),
        (ConfigRecord(1, "t", "retention.ms", "5"), True, True, False),
        (ConfigRecord(2, "", "log.retention.ms", "5"), True, True, False),
        (BrokerChangeRecord(1, 3, fenced=True), True, True, True),
        (ClusterRecord("c", 1), False, False, False),
    ],
    ids=repr,
)
def test_a_watcher_is_woken_for_what_concerns_it(
    record: MetadataRecord, t: bool, everything: bool, cluster: bool
) -> None:
    image = some_image()
    after, delta = image.apply_with_delta([record], image.next_offset + 1, 1)
    assert concerns(metadata_pb2.MetadataRequest(topics=["t"]), after, delta) is t
    assert concerns(ALL, after, delta) is everything
    assert concerns(metadata_pb2.MetadataRequest(), after, delta) is cluster
