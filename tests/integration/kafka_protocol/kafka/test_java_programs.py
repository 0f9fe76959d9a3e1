"""Java programs of Kafka tutorials, compiled with an old and the current kafka-clients, run against brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, Record, TopicPartition
from tests.integration.kafka_protocol.java_programs import JavaPrograms
from tests.worlds.kafka_protocol import topic_name
from tests.worlds.waiting import until

RECORDS = 30
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=1, kafka=True, mode="process") as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(cluster: LocalCluster) -> str:
    return cluster.kafka_bootstrap_servers


@pytest.fixture(scope="module", params=["3.5.0", "4.3.0"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaPrograms:
    return JavaPrograms(tmp_path_factory.mktemp("classes"), request.param)


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions, three replicas each; its name is the test's."""
    name = topic_name(request)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions=3, replication_factor=3)])
    return name


def test_a_producer_retries_nothing_and_a_group_reads_its_records(
    programs: JavaPrograms, cluster: LocalCluster, bootstrap: str, topic: str
) -> None:
    *sent, retries = programs.run("StringProducer", bootstrap, topic, str(RECORDS))
    assert len(sent) == RECORDS
    assert retries == ["record-retry-total", "0.0"]
    lines = programs.run("GroupConsumer", bootstrap, topic, f"{topic}-group", str(RECORDS))
    read = [line[1:] for line in lines if line[0] == "read"]
    assert lines[-1] == ["left", "0"]
    assert sorted((key, partition, offset) for key, _, partition, offset, _ in read) == sorted(
        (key, partition, offset) for _, key, partition, offset in sent
    )
    assert all(value == f"value-{number}" for _, value, _, _, number in read)
    ours = read_by_the_sdk(cluster, topic, RECORDS)
    assert sorted((str(each.partition), str(each.offset), (each.key or b"").decode()) for each in ours) == sorted(
        (partition, offset, key) for _, key, partition, offset in sent
    )
    assert sum(int(line[2]) for line in lines if line[0] == "committed") == RECORDS
    monitor = dict(programs.run("HealthMonitor", bootstrap, f"{topic}-group"))
    state = monitor.pop("state")  # 3.5.0 prints "Empty", 4.3.0 prints the same or the enum's name
    assert (monitor, state.upper()) == (
        {"offline": "0", "under-replicated": "0", "partitions": "3", "lag": "0"},
        "EMPTY",
    )
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        placed = {key: producer.send(topic, b"ours", key=key.encode()).result(WAIT_S) for _, key, _, _ in sent}
    assert {(key, str(metadata.partition)) for key, metadata in placed.items()} == {
        (key, partition) for _, key, partition, _ in sent
    }, "the SDK and Kafka's producer give a key the same partition"


def test_an_admin_creates_describes_and_widens_a_topic(
    programs: JavaPrograms, bootstrap: str, request: pytest.FixtureRequest
) -> None:
    lines = programs.run("TopicAdmin", bootstrap, f"admin-{request.node.callspec.params['programs']}")
    assert lines[0] == ["listed", "true"]
    counts = [line[1] for line in lines if line[0] == "partitions"]
    assert counts == ["3", "6"]
    assert all(line[2:] == ["leader", "true", "replicas", "3", "isr", "3"] for line in lines if line[0] == "partition")
    configs = {line[1] for line in lines if line[0] == "config"}
    assert {"cleanup.policy=delete", "min.insync.replicas=2", "retention.ms=86400000"} <= configs
    assert lines[-1] == ["nodes", "3"]


def test_a_partitioner_of_the_program_chooses_the_partition(programs: JavaPrograms, bootstrap: str, topic: str) -> None:
    lines = programs.run("FirstLetterPartitioner", bootstrap, topic)
    assert lines == [["apple", "0"], ["banana", "1"], ["cherry", "2"], ["date", "2"]]


def test_a_reader_of_files_finds_an_offset_by_binary_search(
    programs: JavaPrograms, cluster: LocalCluster, bootstrap: str, topic: str
) -> None:
    sent = programs.run("StringProducer", bootstrap, topic, str(RECORDS))[:-1]
    key, partition, offset = next(line[1:] for line in sent if line[3] == "3")
    segments = sorted(Path(cluster.directory).rglob(f"{topic}-{partition}/{0:020}.log"))
    assert len(segments) == 3, f"no replica of {key}'s partition has a segment: {segments}"
    for segment in segments:
        lines = {line[0]: line[1:] for line in programs.run("SegmentReader", str(segment), offset)}
        assert lines["batch"] == [offset, "1", "magic", "2"]


def test_a_transactional_copy_shows_no_record_of_its_aborted_transaction(
    programs: JavaPrograms, cluster: LocalCluster, bootstrap: str, topic: str
) -> None:
    target = f"{topic}-copy"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(target, partitions=3, replication_factor=3)])
    programs.run("StringProducer", bootstrap, topic, str(RECORDS))
    copied = programs.run("ExactlyOnceCopy", bootstrap, topic, target, f"{topic}-group", f"{topic}-id", str(RECORDS))
    assert copied[0][0] == "aborted"
    assert copied[-1] == ["left", "0"]
    both = programs.run("CopyReader", bootstrap, target)
    committed = [line[1:] for line in both if line[0] == "read_committed"]
    everything = [line for line in both if line[0] == "read_uncommitted"]
    assert sorted(committed) == sorted([f"key-{number}", f"VALUE-{number}"] for number in range(RECORDS))
    assert len(everything) == RECORDS + int(copied[0][1])
    ours = [
        read_by_the_sdk(cluster, target, len(rows), isolation_level=isolation)
        for isolation, rows in (("read_committed", committed), ("read_uncommitted", everything))
    ]
    seen = [sorted([(each.key or b"").decode(), (each.value or b"").decode()] for each in rows) for rows in ours]
    assert seen == [sorted(committed), sorted(line[1:] for line in everything)], "the SDK sees the transactions alike"


def read_by_the_sdk(
    cluster: LocalCluster, topic: str, count: int, isolation_level: str = "read_uncommitted"
) -> list[Record]:
    """The records of a topic, which must be exactly ``count``."""
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, isolation_level=isolation_level) as consumer:
        parts = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(parts)
        consumer.seek_to_beginning(parts)
        ends = consumer.end_offsets(parts)
        found: list[Record] = []

        def is_at_the_end() -> bool:
            found.extend(consumer.poll(0.1))
            return all(consumer.position(part) >= ends[part] for part in parts)

        until(is_at_the_end, "the SDK has read the topic to its end", WAIT_S)
    assert len(found) == count
    return found
