"""A consumer group on real processes, whose member and coordinator go away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from tests.worlds.waiting import until

PARTITIONS = 4
EVERYWHERE = {TopicPartition("jobs", number) for number in range(PARTITIONS)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="process") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("jobs", partitions=PARTITIONS)])
        yield running


def member(cluster: LocalCluster) -> Consumer:
    consumer = Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="workers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe(["jobs"])
    return consumer


def produce(cluster: LocalCluster, first: int, count: int) -> set[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        sent = [producer.send("jobs", value, partition=at % PARTITIONS) for at, value in enumerate(values)]
        for future in sent:
            future.result(60)
    return set(values)


def test_members_share_partitions_and_go_on_where_others_committed(cluster: LocalCluster) -> None:
    expected = produce(cluster, 0, 400)
    done: list[bytes] = []

    def work(*members: Consumer) -> None:
        for each in members:
            done.extend(record.value or b"" for record in each.poll(timeout=0.1, max_records=50))
            each.commit()

    with member(cluster) as first:
        with member(cluster) as second:

            def shared() -> bool:
                work(first, second)
                mine, others = set(first.assignment()), set(second.assignment())
                return bool(mine and others) and mine | others == EVERYWHERE and not mine & others

            until(shared, "two members share the partitions")
        cluster.kill("coordinator", 1)
        cluster.restart("coordinator", 1)
        expected |= produce(cluster, 400, 400)

        def finished() -> bool:
            work(first)
            return len(done) >= len(expected) and set(first.assignment()) == EVERYWHERE

        until(finished, "the member that is left has all partitions and reads the rest")
        assert sorted(done) == sorted(expected), "each record once"
        positions = first.committed(sorted(EVERYWHERE))
    with Consumer(bootstrap_servers=cluster.bootstrap_servers) as plain:
        ends = plain.end_offsets(sorted(EVERYWHERE))
    assert {partition: found.offset for partition, found in positions.items() if found} == dict(ends)
