"""A broker starts although its disk is full to the last byte. The broker serves reads and refuses writes, and accepts
writes again when the disk has room."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Consumer, Producer, TopicPartition
from headrace.errors import HeadraceError
from tests.system import small_disk
from tests.system.faulty_cluster import TIMEOUT_S, FaultyCluster, eventually

TOPIC, RECORDS = "kept", 300
BROKER = "broker-1"


@pytest.fixture
def cluster(tmp_path: Path, rng: random.Random) -> Iterator[FaultyCluster]:
    """One broker, whose data directory is a small disk."""
    disks, directory = small_disk.SmallDisks(), tmp_path / "cluster"
    try:
        name = disks.mount(directory, BROKER)
        with FaultyCluster(
            directory,
            brokers=1,
            controllers=1,
            config={"log.dir.reserve.bytes": str(1 << 20)},
            rng=rng,
            small_disk=name,
        ) as made:
            yield made
    finally:
        disks.unmount()


def written(cluster: FaultyCluster, timeout_s: float) -> str:
    """The code of the error of one record, or "" if it was acknowledged."""
    settings = {**cluster.client, "delivery.timeout.ms": int(timeout_s * 1000)}
    with Producer({**settings, "request.timeout.ms": int(timeout_s * 500), "linger.ms": 0}) as producer:
        try:
            producer.send(TOPIC, b"more").result(TIMEOUT_S)
        except HeadraceError as error:
            print(f"refused: {error}")
            return error.code
    return ""


def read(cluster: FaultyCluster, count: int) -> list[bytes]:
    with Consumer(cluster.client, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        found: list[bytes] = []
        eventually(lambda: found.extend(r.value or b"" for r in consumer.poll(0.5)) or len(found) >= count)
        return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_broker_that_starts_on_a_full_disk_serves_reads_and_recovers_by_itself(
    cluster: FaultyCluster, stop: signal.Signals
) -> None:
    small_disk.broker_of(cluster)
    cluster.make_topic(TOPIC, copies=1)
    values = [b"%d" % number * 200 for number in range(RECORDS)]
    with Producer(cluster.client) as producer:
        producer.send_many(TOPIC, values)
    if stop == signal.SIGKILL:
        cluster.kill(BROKER)
    with small_disk.full(cluster):
        if stop == signal.SIGTERM:
            cluster.stop(BROKER)  # a clean stop also needs disk space, and must damage no file
        cluster.start(BROKER)
        assert read(cluster, RECORDS) == values
        assert written(cluster, 5.0) != ""
        assert cluster.node(BROKER).alive()
        assert read(cluster, RECORDS) == values
    eventually(lambda: written(cluster, 20.0) == "", "no record is written although there is room")
    found = read(cluster, RECORDS + 1)
    assert found[:RECORDS] == values
    assert set(found[RECORDS:]) == {b"more"}
