"""librdkafka against real processes: an idempotent producer, a group, a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import Consumer, LocalCluster, TopicPartition
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import until

COUNT = 500
PARTITIONS = {"plain": 3, "atomic": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, mode="process") as running:
        admin = AdminClient({"bootstrap.servers": running.kafka_bootstrap_servers})
        topics = [NewTopic(name, count, 1) for name, count in PARTITIONS.items()]
        for created in admin.create_topics(topics).values():
            created.result(60)
        yield running


def produce(cluster: LocalCluster, topic: str, values: list[bytes], **config: Any) -> confluent_kafka.Producer:
    errors: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka_bootstrap_servers, **config})
    if "transactional.id" in config:
        producer.init_transactions(60)
        producer.begin_transaction()
    for number, value in enumerate(values):  # (librdkafka's own choice of partitions is random)
        part = number % PARTITIONS[topic]
        producer.produce(topic, value, None, part, lambda error, _: errors.append(error) if error else None)
    assert producer.flush(60) == 0
    assert errors == []
    return producer


def test_a_group_reads_what_an_idempotent_producer_wrote(cluster: LocalCluster) -> None:
    expected = [b"%d" % number for number in range(COUNT)]
    produce(cluster, "plain", expected, **{"enable.idempotence": True})
    config = {"bootstrap.servers": cluster.kafka_bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe(["plain"])
    read: list[bytes] = []

    def finished() -> bool:
        for message in consumer.consume(100, 0.5):
            assert message.error() is None, message.error()
            read.append(message.value())
        return len(read) >= COUNT

    until(finished, "librdkafka reads all records")
    committed = consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(read) == sorted(expected)
    assert sum(each.offset for each in committed) == COUNT


def test_a_transaction_of_librdkafka_is_seen_by_our_reader_when_it_commits(cluster: LocalCluster) -> None:
    dropped = produce(cluster, "atomic", [b"aborted"], **{"transactional.id": "t"})
    dropped.abort_transaction(60)
    kept = produce(cluster, "atomic", [b"kept"], **{"transactional.id": "t"})

    def read() -> list[bytes]:
        with Consumer(
            bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([TopicPartition("atomic", 0)])
            return [record.value or b"" for record in read_to_end(consumer)]

    assert read() == []
    kept.commit_transaction(60)
    until(lambda: read() == [b"kept"], "the committed record, and no other")
