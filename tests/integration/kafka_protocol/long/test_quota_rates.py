"""What Kafka's clients with a quota get over half a minute, and what their neighbour notices."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from headrace import Admin, LocalCluster, QuotaEntity
from tests.integration.kafka_protocol.kafka_tools import KafkaTools
from tests.worlds.readers import Neighbour
from tests.worlds.waiting import check_took

pytestmark = pytest.mark.timeout(300)

RATE, SECONDS = 5_000_000, 30.0
VALUE = bytes(10_000)
#: Enough for half a minute at the rate, with the burst of one second.
RECORDS = int(RATE * SECONDS) // len(VALUE)
EXACT = pytest.approx(RATE, rel=0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics(["measured", "beside"])
            slow = {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}
            admin.alter_client_quotas({QuotaEntity(client_id="slow"): slow})
        yield running


def beside(cluster: LocalCluster, measured: Callable[[], float]) -> float:
    """The rate of a limited client. Its neighbour is never throttled."""
    with Neighbour(cluster) as neighbour:
        rate = measured()
    p99_ms = neighbour.latency_s(0.99) * 1_000
    print(f"{rate / 1e6:.2f} MB/s; the neighbour's p99 {p99_ms:.1f} ms of {len(neighbour.latencies_s)} records")
    assert neighbour.throttled_ms == 0
    check_took(neighbour.latency_s(0.5), 0.2, "a throttle of 1 MB is 0.2 s")
    return rate


def test_librdkafka_gets_its_rate(cluster: LocalCluster) -> None:
    config = {"bootstrap.servers": cluster.kafka_bootstrap_servers, "client.id": "slow"}

    def produced_per_s() -> float:
        acknowledged = 0

        def count(error: object, _: object) -> None:
            nonlocal acknowledged
            assert error is None, error
            acknowledged += len(VALUE)

        producer = confluent_kafka.Producer({**config, "queue.buffering.max.kbytes": 16_384, "linger.ms": 5})
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            try:
                producer.produce("measured", VALUE, on_delivery=count)
                producer.poll(0)
            except BufferError:
                producer.poll(0.05)
        rate = acknowledged / (time.monotonic() - began)
        producer.flush(60)
        return rate

    def consumed_per_s() -> float:
        consumer = confluent_kafka.Consumer({**config, "group.id": "unused", "auto.offset.reset": "earliest"})
        consumer.assign([confluent_kafka.TopicPartition("measured", 0, 0)])
        began, got, seen_s = time.monotonic(), 0, 0.0
        while seen_s < SECONDS * 0.9:
            got += sum(len(each.value() or b"") for each in consumer.consume(500, 0.1))
            seen_s = time.monotonic() - began
        consumer.close()
        return got / seen_s

    assert beside(cluster, produced_per_s) == EXACT
    assert beside(cluster, consumed_per_s) == EXACT


def test_kafkas_perf_tools_get_their_rate(cluster: LocalCluster, tmp_path: Path) -> None:
    server = cluster.kafka_bootstrap_servers
    (tmp_path / "slow.properties").write_text("client.id=slow\n")
    with KafkaTools(tmp_path) as tools:

        def produce(client_id: str, records: int) -> float:
            size = ("--num-records", str(records), "--record-size", str(len(VALUE)), "--throughput", "-1")
            props = ("--producer-props", f"bootstrap.servers={server}", f"client.id={client_id}", "batch.size=200000")
            printed = tools.run("org.apache.kafka.tools.ProducerPerformance", "--topic", "measured", *size, *props)
            assert f"{records} records sent" in printed.text.splitlines()[-1], printed
            return float(re.findall(r"([\d.]+) records/sec", printed.text)[-1]) * len(VALUE)

        def consume() -> float:
            of = ("--bootstrap-server", server, "--topic", "measured", "--group", "perf")
            config = ("--command-config", str(tmp_path / "slow.properties"))
            printed = tools.run(
                "org.apache.kafka.tools.ConsumerPerformance", *of, "--num-records", str(RECORDS), *config
            )
            fields = [each.strip() for each in printed.text.strip().splitlines()[-1].split(",")]
            assert int(fields[4]) >= RECORDS, printed
            return float(fields[2]) * 2**20 / (int(fields[7]) / 1_000)  # the time without the join of the group

        produce("other", RECORDS // 3)  # the JVM compiles its loops
        assert beside(cluster, lambda: produce("slow", RECORDS)) == EXACT
        assert beside(cluster, consume) == EXACT
