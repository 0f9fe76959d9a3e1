"""Metadata, DescribeTopicPartitions and DescribeCluster, from an image. Every answer is written and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import BrokerImage, MetadataDelta, MetadataImage, PartitionImage, TopicImage
from headrace_core.metadata.records import BrokerEndpoint
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers.cluster import describe_cluster
from headrace_kafka.handlers.metadata import describe_topic_partitions, metadata
from headrace_kafka.handlers.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_kafka.wire.schema import NO_UUID, Message, request_body, response_body

LEADER_NOT_AVAILABLE, REPLICA_NOT_AVAILABLE = 5, 9


def broker(broker_id: int, *, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        broker_id=broker_id,
        broker_epoch=1,
        incarnation_id=bytes(16),
        directory_ids=(),
        endpoints=(BrokerEndpoint("client", "broker", 9095), BrokerEndpoint("kafka", "broker", 19090 + broker_id)),
        rack="a",
        fenced=fenced,
        in_controlled_shutdown=False,
    )


def partition(leader: int = 1, isr: tuple[int, ...] = (1, 2), **more: Any) -> PartitionImage:
    return PartitionImage(
        replicas=(1, 2), isr=isr, leader=leader, leader_epoch=4, partition_epoch=5, directories=(bytes(16),) * 2, **more
    )


def image_of(*topics: TopicImage, fenced: int = 0) -> MetadataImage:
    return MetadataImage(
        next_offset=9,
        cluster_id="cluster",
        brokers={each: broker(each, fenced=each == fenced) for each in (1, 2)},
        topics={each.topic_id: each for each in topics},
        topic_ids={each.name: each.topic_id for each in topics},
    )


def topic(name: str, *partitions: PartitionImage) -> TopicImage:
    return TopicImage(name=name, topic_id=name.encode().ljust(16, b"\0")[:16], partitions=partitions)


def ask(
    handler: Callable[[Call, Message], Awaitable[dict[str, Any] | None]],
    image: MetadataImage,
    api: Api,
    version: int | None = None,
    *,
    limit: int = 2_000,
    **fields: Any,
) -> Message:
    """The answer to a request, as a client of the version reads it (default: the newest)."""
    version = VERSIONS[api].high if version is None else version
    state = MetadataState()
    state.advance(image, MetadataDelta(0, image.next_offset))
    client = Client(host="10.0.0.1", listener="kafka")
    settings = KafkaSettings(described_partitions_max=limit)
    call = Call(client, api, version, "", Cluster(state), cast("Any", None), settings)
    request = request_body(api, version).read(bytes(request_body(api, version).write(fields)))
    answer = asyncio.run(cast("Any", handler(call, request)))
    body = response_body(api, version)
    return body.read(bytes(body.write(answer)))


def test_all_topics_are_an_empty_list_in_version_0_and_null_later() -> None:
    image = image_of(topic("a", partition()), topic("b", partition()))
    assert [each.name for each in ask(metadata, image, Api.METADATA, 0, topics=[]).topics] == ["a", "b"]
    assert ask(metadata, image, Api.METADATA, 1, topics=[]).topics == []
    assert [each.name for each in ask(metadata, image, Api.METADATA, topics=None).topics] == ["a", "b"]


def test_a_partition_shows_its_leader_its_epoch_and_its_offline_replicas() -> None:
    image = image_of(topic("a", partition(), partition(leader=-1, isr=(2,))), fenced=2)
    first, second = ask(metadata, image, Api.METADATA, topics=None).topics[0].partitions
    assert (first.error_code, first.leader_id, first.leader_epoch, first.offline_replicas) == (0, 1, 4, [2])
    assert (second.error_code, second.leader_id, second.isr_nodes) == (LEADER_NOT_AVAILABLE, -1, [2])


def test_version_0_names_only_brokers_that_are_alive() -> None:
    image = image_of(topic("a", partition(), partition(leader=-1)), fenced=2)
    first, second = ask(metadata, image, Api.METADATA, 0, topics=[]).topics[0].partitions
    assert (first.error_code, first.replica_nodes, first.isr_nodes) == (REPLICA_NOT_AVAILABLE, [1], [1])
    assert second.error_code == LEADER_NOT_AVAILABLE


def test_brokers_are_the_unfenced_ones_at_the_gateways_ports() -> None:
    answer = ask(metadata, image_of(fenced=2), Api.METADATA, topics=[])
    assert [(each.node_id, each.host, each.port, each.rack) for each in answer.brokers] == [(1, "broker", 19091, "a")]
    assert (answer.cluster_id, answer.controller_id) == ("cluster", 1)


def test_topics_that_are_named_twice_are_answered_once() -> None:
    names = [{"name": "a", "topic_id": NO_UUID}] * 3
    image = image_of(topic("a", partition()))
    answer = ask(metadata, image, Api.METADATA, topics=names, allow_auto_topic_creation=False)
    assert [each.name for each in answer.topics] == ["a"]


def test_internal_topics_are_marked() -> None:
    image = image_of(topic("__consumer_offsets", partition()), topic("a", partition()))
    answer = ask(metadata, image, Api.METADATA, topics=None)
    assert {each.name: each.is_internal for each in answer.topics} == {"__consumer_offsets": True, "a": False}


@pytest.mark.parametrize("asked", [False, True])
def test_operations_are_in_the_answer_if_the_client_asks(asked: bool) -> None:
    image = image_of(topic("a", partition()))
    answer = ask(
        metadata,
        image,
        Api.METADATA,
        10,
        topics=None,
        include_topic_authorized_operations=asked,
        include_cluster_authorized_operations=asked,
    )
    assert answer.topics[0].topic_authorized_operations == (TOPIC_OPERATIONS if asked else NOT_ASKED)
    assert answer.cluster_authorized_operations == (CLUSTER_OPERATIONS if asked else NOT_ASKED)


# -- DescribeTopicPartitions ------------------------------------------------------------------------------------------

DESCRIBE = Api.DESCRIBE_TOPIC_PARTITIONS


def pages(image: MetadataImage, names: list[str], limit: int) -> list[list[tuple[str, list[int]]]]:
    """All pages of an answer: (topic, partition numbers) for each topic of each page."""
    found, cursor = [], None
    while True:
        asked = [{"name": each} for each in names]
        answer = ask(describe_topic_partitions, image, DESCRIBE, limit=limit, topics=asked, cursor=cursor)
        found.append([(each.name, [every.partition_index for every in each.partitions]) for each in answer.topics])
        if answer.next_cursor is None:
            return found
        following = answer.next_cursor
        cursor = {"topic_name": following.topic_name, "partition_index": following.partition_index}


def test_partitions_are_described_in_pages_in_the_order_of_names() -> None:
    image = image_of(topic("b", *[partition()] * 3), topic("a", *[partition()] * 2))
    for names in (["b", "a"], []):
        assert pages(image, names, 3) == [[("a", [0, 1]), ("b", [0])], [("b", [1, 2])]]
        assert pages(image, names, 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2])]]
        assert pages(image, names, 100) == [[("a", [0, 1]), ("b", [0, 1, 2])]]


def test_unknown_and_illegal_topics_are_errors_only_if_they_are_named() -> None:
    image = image_of(topic("a", partition()))
    asked = [{"name": "none"}, {"name": "no/topic"}, {"name": "a"}]
    answer = ask(describe_topic_partitions, image, DESCRIBE, topics=asked)
    assert {each.name: each.error_code for each in answer.topics} == {"a": 0, "no/topic": 17, "none": 3}


def test_a_cursor_of_a_deleted_topic_continues_with_the_next_one() -> None:
    image = image_of(topic("a", partition()), topic("c", partition(), partition()))
    cursor = {"topic_name": "b", "partition_index": 1}
    answer = ask(describe_topic_partitions, image, DESCRIBE, topics=[], cursor=cursor)
    assert [(each.name, len(each.partitions)) for each in answer.topics] == [("c", 2)]


@pytest.mark.parametrize(("index", "expected"), [(-1, [(42, 0)]), (7, [(0, 0)])])
def test_a_cursor_outside_of_the_topic(index: int, expected: list[tuple[int, int]]) -> None:
    image = image_of(topic("a", partition()))
    cursor = {"topic_name": "a", "partition_index": index}
    answer = ask(describe_topic_partitions, image, DESCRIBE, topics=[{"name": "a"}], cursor=cursor)
    assert [(each.error_code, len(each.partitions)) for each in answer.topics] == expected
    assert answer.next_cursor is None


def test_eligible_leader_replicas_are_described() -> None:
    image = image_of(topic("a", partition(leader=-1, isr=(), elr=(2,), last_known_elr=(1,))))
    (found,) = ask(describe_topic_partitions, image, DESCRIBE, topics=[]).topics[0].partitions
    assert (found.eligible_leader_replicas, found.last_known_elr) == ([2], [1])
    assert found.error_code == LEADER_NOT_AVAILABLE


# -- DescribeCluster --------------------------------------------------------------------------------------------------


def test_the_cluster_is_described_with_fenced_brokers_on_request() -> None:
    for asked, expected in ((False, [(1, False)]), (True, [(1, False), (2, True)])):
        image = image_of(fenced=2)
        answer = ask(describe_cluster, image, Api.DESCRIBE_CLUSTER, endpoint_type=1, include_fenced_brokers=asked)
        assert [(each.broker_id, each.is_fenced) for each in answer.brokers] == expected
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "cluster", 1)


@pytest.mark.parametrize(("kind", "code"), [(2, 114), (9, 115)])
def test_endpoints_of_another_type_are_refused(kind: int, code: int) -> None:
    answer = ask(describe_cluster, image_of(), Api.DESCRIBE_CLUSTER, endpoint_type=kind)
    assert (answer.error_code, answer.brokers) == (code, [])
