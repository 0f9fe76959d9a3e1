"""What a Spark job with a quota gets over half a minute, and what its neighbour notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic, QuotaEntity
from tests.worlds.readers import Neighbour

pytestmark = pytest.mark.timeout(300)

RATE, SECONDS, VALUE_BYTES = 5_000_000, 30, 10_000
ROWS = RATE * SECONDS // VALUE_BYTES
EXACT = pytest.approx(RATE, rel=0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One broker, which leads all partitions: the tasks of a job share the quota of their client id there."""
    with LocalCluster(brokers=1, controllers=1, coordinators=1) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("measured", partitions=2), NewTopic("warm", partitions=2), "beside"])
            slow = {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}
            admin.alter_client_quotas({QuotaEntity(client_id="slow"): slow})
        yield running


def bytes_per_s(job: Callable[[str, int, str], None]) -> float:
    began = time.monotonic()
    job("measured", ROWS, "slow")
    return ROWS * VALUE_BYTES / (time.monotonic() - began)


def test_a_job_gets_its_rate_when_it_writes_and_when_it_reads(spark: Any, cluster: LocalCluster) -> None:
    server = {"headrace.bootstrap.servers": cluster.bootstrap_servers}

    def write(topic: str, rows: int, client_id: str) -> None:
        frame = spark.range(0, rows, 1, 2).selectExpr(f"cast(repeat('x', {VALUE_BYTES}) as binary) as value")
        options = {**server, "topic": topic, "headrace.client.id": client_id}
        frame.write.format("headrace").options(**options).mode("append").save()

    def read(topic: str, rows: int, client_id: str) -> None:
        options = {**server, "subscribe": topic, "headrace.client.id": client_id}
        frame = spark.read.format("headrace").options(**options).load()
        assert frame.selectExpr("sum(length(value)) as bytes").first().bytes == rows * VALUE_BYTES

    write("warm", 100, "other")  # Spark's workers start
    read("warm", 100, "other")
    for job in (write, read):
        with Neighbour(cluster) as neighbour:
            rate = bytes_per_s(job)
        p99_ms = neighbour.latency_s(0.99) * 1_000
        print(f"{job.__name__}: {rate / 1e6:.2f} MB/s; the neighbour's p99 {p99_ms:.1f} ms")
        assert rate == EXACT
        assert neighbour.throttled_ms == 0
