"""Exactly once on real processes: consume, transform, produce, with an abort and a producer that is fenced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import ProducerFencedError
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import until

INPUT, OUTPUT = TopicPartition("input", 0), TopicPartition("output", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="process") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("input"), NewTopic("output")])
        yield running


def read(cluster: LocalCluster, isolation_level: str) -> list[bytes]:
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", isolation_level=isolation_level
    ) as consumer:
        consumer.assign([OUTPUT])
        return [record.value or b"" for record in read_to_end(consumer)]


def test_each_input_has_one_committed_output_though_a_transaction_is_aborted(cluster: LocalCluster) -> None:
    values = [b"%d" % number for number in range(100)]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many("input", values).result(60)
    aborted = False
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="copies") as out,
        Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            group_id="copiers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as source,
    ):
        source.subscribe(["input"])
        copied = 0
        while copied < len(values):
            records = source.poll(timeout=1.0, max_records=20)
            if not records:
                continue
            try:
                with out.transaction():
                    for record in records:
                        out.send("output", b"copy of " + (record.value or b""))
                    out.send_offsets(source)
                    if copied >= 40 and not aborted:
                        aborted = True
                        out.flush()
                        raise KeyError("the program fails once")
            except KeyError:
                source.seek(INPUT, records[0].offset)
            else:
                copied += len(records)
        assert source.committed([INPUT])[INPUT].offset == len(values)
    until(lambda: len(read(cluster, "read_committed")) >= len(values), "the last marker is written")
    assert read(cluster, "read_committed") == [b"copy of " + value for value in values]
    assert len(read(cluster, "read_uncommitted")) > len(values), "the aborted copies are in the log"


def test_a_second_producer_of_the_same_id_fences_the_first(cluster: LocalCluster) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="only one") as zombie:
        with zombie.transaction():
            zombie.send("output", b"first")
        with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="only one") as successor:
            with successor.transaction():
                successor.send("output", b"second")
            with pytest.raises(ProducerFencedError), zombie.transaction():
                zombie.send("output", b"too late")
    until(lambda: b"second" in read(cluster, "read_committed"))
    assert b"too late" not in read(cluster, "read_committed")
