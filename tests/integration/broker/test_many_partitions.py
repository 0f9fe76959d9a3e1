"""Many partitions on a real broker with few descriptors."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from tests.worlds.readers import read_to_end

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = 240
FILES_MAX = 20


def log_descriptors(pid: int) -> int:
    """The number of a process's descriptors that are files of the topic's logs."""
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found += "/many-" in os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def broker_pid(cluster: LocalCluster) -> int:
    return next(int(node["pid"]) for node in cluster.ps() if node["role"] == "broker")


def open_files_limit(pid: int) -> tuple[str, str]:
    """The limits of open files of a process, as (soft, hard)."""
    line = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open"))
    soft, hard = line.split()[3:5]
    return soft, hard


def produce(cluster: LocalCluster, life: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        futures = [
            producer.send("many", b"%d of life %d" % (number, life), partition=number) for number in range(PARTITIONS)
        ]
        for future in futures:
            future.result(timeout=60)


def consumed(cluster: LocalCluster) -> set[tuple[int, bytes]]:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("many", number) for number in range(PARTITIONS)])
        return {(record.partition, record.value or b"") for record in read_to_end(consumer)}


def test_every_partition_is_written_and_read_through_few_descriptors():
    with LocalCluster(brokers=1, controllers=1, coordinators=0, config={"log.open.files.max": FILES_MAX}) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("many", partitions=PARTITIONS, replication_factor=1)])
        assert log_descriptors(broker_pid(cluster)) <= FILES_MAX
        produce(cluster, 1)
        expected = {(number, b"%d of life 1" % number) for number in range(PARTITIONS)}
        assert consumed(cluster) == expected
        assert log_descriptors(broker_pid(cluster)) <= FILES_MAX
        cluster.kill("broker", 1)
        cluster.restart("broker", 1)
        assert log_descriptors(broker_pid(cluster)) <= FILES_MAX
        produce(cluster, 2)
        cluster.restart("broker", 1)
        expected |= {(number, b"%d of life 2" % number) for number in range(PARTITIONS)}
        assert consumed(cluster) == expected
        assert log_descriptors(broker_pid(cluster)) <= FILES_MAX


def test_a_broker_takes_all_the_descriptors_that_it_may_have():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # This process keeps a reserve of its own: earlier tests may have left many descriptors open.
    soft = len(os.listdir("/proc/self/fd")) + 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        with LocalCluster(brokers=1, controllers=1, coordinators=0) as cluster:
            assert open_files_limit(broker_pid(cluster)) == (str(before[1]), str(before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
