"""Brokers in racks (`headrace up --racks`): a Kafka consumer with client.rack reads from the replica in its rack
(KIP-392)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from headrace import Admin, LocalCluster, NewTopic
from headrace_kafka.wire.apis import Api
from tests.worlds.kafka_protocol import KafkaWire
from tests.worlds.waiting import until

RACKS = ("a", "b", "c")
TOPIC, PARTITIONS, RECORDS = "orders", 3, 20
CLUSTER_S = 60  #: Seconds for elections, metadata and groups.


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, racks=RACKS, kafka=True, mode="inprocess") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS, replication_factor=3)])
        yield running


def test_clients_learn_the_racks_of_the_brokers(cluster: LocalCluster) -> None:
    for address in cluster.kafka_bootstrap_servers.split(","):
        with KafkaWire(address) as wire:
            found = {each.node_id: each.rack for each in wire.ask(Api.METADATA, topics=[]).brokers}
        assert found == dict(enumerate(RACKS, start=1))


@pytest.mark.parametrize("rack", RACKS)
def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: LocalCluster, rack: str) -> None:
    servers = cluster.kafka_bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"%d" % number, partition=partition)
    assert producer.flush(CLUSTER_S) == 0
    brokers: dict[int, int] = {}  # maps a partition to the broker from which the consumer reads it

    def note(text: str) -> None:
        partitions = json.loads(text)["topics"].get(TOPIC, {"partitions": {}})["partitions"]
        brokers.update({int(number): each["broker"] for number, each in partitions.items() if int(number) >= 0})

    keys = {"group.id": f"readers-{rack}", "auto.offset.reset": "earliest", "statistics.interval.ms": 100}
    consumer = Consumer({"bootstrap.servers": servers, "client.rack": rack, "stats_cb": note, **keys})
    consumer.subscribe([TOPIC])
    near = dict.fromkeys(range(PARTITIONS), RACKS.index(rack) + 1)
    values: list[bytes | None] = []

    def has_moved() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
        return brokers == near

    until(has_moved, lambda: f"to read from {near}, reads from {brokers}", CLUSTER_S)
    producer.produce(TOPIC, b"last", partition=0)
    assert producer.flush(CLUSTER_S) == 0
    until(lambda: has_moved() and b"last" in values, "the record that was sent to a near reader", CLUSTER_S)
    assert brokers == near
    consumer.close()
