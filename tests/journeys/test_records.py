"""Records through a replicated cluster of real processes whose leaders are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from tests.worlds.readers import read_to_end

PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=0, mode="process") as running:
        yield running


def make_topic(cluster: LocalCluster, name: str) -> list[TopicPartition]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS, replication_factor=3)])
    return [TopicPartition(name, number) for number in range(PARTITIONS)]


def leader_of(cluster: LocalCluster, topic: str, partition: int) -> int:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return int(admin.describe_topics([topic])[0].partitions[partition].leader)


def test_what_is_acknowledged_while_a_leader_is_killed_is_read_once_and_in_order(cluster: LocalCluster) -> None:
    everywhere = make_topic(cluster, "orders")
    sent: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        futures = []
        for number in range(3_000):
            if number == 1_000:
                futures[-1].result(60)
                victim = leader_of(cluster, "orders", 0)
                cluster.kill("broker", victim)
            if number == 2_000:
                cluster.restart("broker", victim)
            partition, value = number % PARTITIONS, b"%d" % number
            futures.append(producer.send("orders", value, partition=partition))
            sent[partition].append(value)
        for future in futures:
            future.result(60)
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(everywhere)
        read: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        for record in read_to_end(consumer):
            read[record.partition].append(record.value)
    assert read == sent


def test_an_arrow_table_comes_back_as_it_went_in(cluster: LocalCluster) -> None:
    everywhere = make_topic(cluster, "tables")
    table = pa.table(
        {
            "key": pa.array([b"a", None, b"c"], pa.binary()),
            "value": pa.array([b"1", b"2", None], pa.binary()),
            "partition": pa.array([2, 2, 2], pa.int32()),
        }
    )
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_arrow("tables", table).result(60)
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(everywhere)
        rows: list[dict[str, object]] = []
        while len(rows) < 3:
            rows += consumer.fetch_arrow(timeout=1.0).select(["key", "value", "partition", "offset"]).to_pylist()
    expected = table.append_column("offset", pa.array([0, 1, 2])).to_pylist()
    assert rows == expected
