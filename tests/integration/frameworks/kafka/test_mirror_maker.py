"""MirrorMaker 2 between a real Apache Kafka and Headrace: records both ways, and a group that moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace import LocalCluster
from tests.integration.frameworks.java_apps import KAFKA, JavaApp, maven_jars
from tests.integration.interop.kafka_peer import KafkaBroker
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)

PARTITIONS, RECORDS, MORE = 3, 1_500, 300
MIRRORED_S = 120.0
SETTINGS = """
clusters=old, new
old.bootstrap.servers={old}
new.bootstrap.servers={new}
old->new.enabled=true
new->old.enabled=true
old->new.topics=orders
new->old.topics=back
replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
old.config.storage.replication.factor=1
old.offset.storage.replication.factor=1
old.status.storage.replication.factor=1
new.config.storage.replication.factor=3
new.offset.storage.replication.factor=3
new.status.storage.replication.factor=3
old->new.sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
refresh.topics.interval.seconds=2
refresh.groups.interval.seconds=2
offset.lag.max=0
sync.topic.acls.enabled=false
"""


class Row(NamedTuple):
    """A record without its offset."""

    partition: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def create(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)]).values():
        future.result(60)


def write(servers: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in numbers:
        headers: list[tuple[str, Any]] = [("number", b"%d" % number)]
        producer.produce(topic, key=b"k%d" % (number % 50), value=b"%s-%d" % (topic.encode(), number), headers=headers)
    assert producer.flush(60) == 0


def row(message: Any) -> Row:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Row(message.partition(), message.key(), message.value(), headers, message.timestamp()[1])


@contextlib.contextmanager
def consumer(servers: str, group: str) -> Iterator[Consumer]:
    made = Consumer(
        {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        yield made
    finally:
        made.close()


def take(source: Consumer, count: int) -> list[Row]:
    """The next ``count`` records."""
    found: list[Row] = []

    def has() -> bool:
        found.extend(row(each) for each in source.consume(count - len(found), 0.5) if each.error() is None)
        return len(found) >= count

    until(has, lambda: f"{len(found)} of {count} records", within_s=MIRRORED_S)
    return found


def everything(servers: str, topic: str) -> list[Row]:
    with consumer(servers, "measuring") as source:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        count = sum(source.get_watermark_offsets(each, timeout=30)[1] for each in places)
        source.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        return take(source, count)


# A topic that was created a moment ago: its brokers learn of it one after the other, and librdkafka does not ask again.
NEW_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}


def size(servers: str, topic: str) -> int:
    """The number of records; 0 for a topic that does not exist yet, or not yet on all of its leaders."""
    with consumer(servers, "measuring") as source:
        if topic not in source.list_topics(timeout=30).topics:
            return 0
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        try:
            return sum(source.get_watermark_offsets(each, timeout=30)[1] for each in places)
        except KafkaException as error:
            if error.args[0].code() not in NEW_TOPIC:
                raise
            return 0


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    with consumer(servers, group) as member:
        found = member.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=30)
        return {each.partition: each.offset for each in found if each.offset >= 0}


def test_records_go_both_ways_and_a_group_moves(tmp_path: Path) -> None:
    libs = maven_jars("connect", *(("org.apache.kafka", name, KAFKA) for name in (
        "connect-runtime", "connect-file", "connect-json", "connect-transforms", "connect-mirror")))  # fmt: skip
    with (
        LocalCluster(brokers=3, controllers=1, coordinators=1, kafka=True) as cluster,
        KafkaBroker(tmp_path / "kafka") as kafka,
    ):
        old, new = kafka.bootstrap, cluster.kafka_bootstrap_servers
        create(old, "orders")
        create(new, "back")
        write(old, "orders", range(RECORDS))
        write(new, "back", range(RECORDS))
        settings = tmp_path / "mirror.properties"
        settings.write_text(SETTINGS.format(old=old, new=new))
        command = ["org.apache.kafka.connect.mirror.MirrorMaker", str(settings)]
        with JavaApp(f"{libs}/*", command, tmp_path / "mirror.log") as mirror:
            until(lambda: size(new, "old.orders") == RECORDS, "all orders are mirrored", within_s=MIRRORED_S)
            until(lambda: size(old, "new.back") == RECORDS, "all of the way back is mirrored", within_s=MIRRORED_S)
            # MirrorMaker translates offsets that are committed after its start, each to one that is not beyond.
            with consumer(old, "readers") as member:
                member.subscribe(["orders"])
                before = take(member, RECORDS)
                member.commit(asynchronous=False)
            read = committed(old, "readers", "orders")
            until(
                lambda: set(committed(new, "readers", "old.orders")) == set(read),
                lambda: f"translated: {committed(new, 'readers', 'old.orders')}; committed: {read}",
                within_s=MIRRORED_S,
            )
            write(old, "orders", range(RECORDS, RECORDS + MORE))
            until(lambda: size(new, "old.orders") == RECORDS + MORE, "later orders are mirrored", within_s=MIRRORED_S)
            mirror.stop()
        assert sorted(everything(new, "old.orders")) == sorted(everything(old, "orders"))
        assert sorted(everything(old, "new.back")) == sorted(everything(new, "back"))
        translated = committed(new, "readers", "old.orders")
        assert all(0 < offset <= read[partition] for partition, offset in translated.items()), (translated, read)
        with consumer(new, "readers") as member:
            member.subscribe(["old.orders"])
            after = take(member, RECORDS + MORE - sum(translated.values()))
            assert {each.value for each in before + after} == {b"orders-%d" % at for at in range(RECORDS + MORE)}
