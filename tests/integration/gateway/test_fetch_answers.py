"""Answers to Fetch: the offsets of partitions for whose records an answer has no room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Admin, LocalCluster, NewTopic
from headrace_core.records import encode_batch
from headrace_gateway.app import Gateway
from headrace_gateway.wire.apis import Api
from headrace_gateway.wire.schema import Message
from tests.worlds.gateways import running_gateway
from tests.worlds.kafka_wire import KafkaWire

PARTITIONS, BATCHES = 3, 4


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with LocalCluster(brokers=1, controllers=1, coordinators=0, mode="inprocess") as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", partitions=PARTITIONS)])
        with running_gateway(cluster) as gateway:
            with KafkaWire(gateway.bootstrap_servers) as wire:
                for _ in range(BATCHES):
                    batch = encode_batch([(1_700_000_000_000, b"key", b"x" * 1_000, ())])
                    partitions = [{"index": index, "records": batch} for index in range(PARTITIONS)]
                    topics = [{"name": "orders", "partition_data": partitions}]
                    wire.ask(Api.PRODUCE, 9, acks=-1, timeout=10_000, topic_data=topics)
            yield gateway


@pytest.mark.parametrize("version", [4, 12, 18])
def test_each_partition_has_its_offsets_although_the_answer_has_room_for_one(gateway: Gateway, version: int) -> None:
    with KafkaWire(gateway.bootstrap_servers) as wire:
        partitions = fetch(wire, version, 0)
        assert [each.high_watermark for each in partitions] == [BATCHES] * PARTITIONS
        assert [each.last_stable_offset for each in partitions] == [BATCHES] * PARTITIONS
        assert [len(each.records) > 0 for each in partitions].count(True) == 1
        if version >= 5:
            assert [each.log_start_offset for each in partitions] == [0] * PARTITIONS


def test_a_seek_keeps_the_offsets_of_a_partition(gateway: Gateway) -> None:
    with KafkaWire(gateway.bootstrap_servers) as wire:
        for offset in (0, 2, 1, 3, 0):
            assert [each.high_watermark for each in fetch(wire, 12, offset)] == [BATCHES] * PARTITIONS


def fetch(wire: KafkaWire, version: int, offset: int) -> list[Message]:
    """The partitions of an answer that has room for one batch, without a fetch session."""
    name: dict[str, object] = {"topic": "orders"}
    if version >= 13:
        (topic,) = wire.ask(Api.METADATA, topics=[{"name": "orders"}]).topics
        name = {"topic_id": topic.topic_id}
    partitions = [
        {"partition": index, "current_leader_epoch": -1, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
        for index in range(PARTITIONS)
    ]
    answer = wire.ask(
        Api.FETCH,
        version,
        max_wait=0,
        min_bytes=0,
        max_bytes=1,
        session_id=0,
        session_epoch=-1,
        topics=[{**name, "partitions": partitions}],
    )
    (topic,) = answer.responses
    return sorted(topic.partitions, key=lambda each: int(each.partition_index))
