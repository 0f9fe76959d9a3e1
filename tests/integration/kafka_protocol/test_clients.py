"""Kafka's clients on a cluster: records, groups of both protocols, transactions, administration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer

import headrace
from headrace import Consumer, LocalCluster, Producer
from headrace_kafka.handlers.configs import DESCRIBED_AT_ONCE
from tests.worlds.kafka_protocol import topic_name

WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, controllers=1, coordinators=2, kafka=True, mode="inprocess") as running:
        yield running


@pytest.fixture
def kafka(cluster: LocalCluster) -> str:
    return cluster.kafka_bootstrap_servers


@pytest.fixture
def topic(kafka: str, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, made by Kafka's protocol."""
    name = topic_name(request)
    admin = AdminClient({"bootstrap.servers": kafka})
    created = admin.create_topics([NewTopic(name, 4, 2, config={"retention.ms": "3600000"})])
    created[name].result(WAIT_S)
    return name


def produced(kafka: str, topic: str, count: int, **config: Any) -> list[Any]:
    """Produce ``count`` records; returns the acknowledged messages."""
    done: list[Any] = []
    errors: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        (errors if error is not None else done).append(error or message)

    producer = confluent_kafka.Producer({"bootstrap.servers": kafka, **config})
    for number in range(count):
        producer.produce(topic, key=f"k{number % 7}", value=f"v{number}", headers={"h": b"1"}, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert errors == []
    return done


@contextlib.contextmanager
def consumer(kafka: str, topic: str, group: str, **config: Any) -> Iterator[Any]:
    made = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        | config
    )
    made.subscribe([topic])
    try:
        yield made
    finally:
        made.close()


def consumed(member: Any, count: int) -> list[Any]:
    """Poll until the member has ``count`` messages."""
    found: list[Any] = []
    while len(found) < count:
        messages = member.consume(count - len(found), WAIT_S)
        assert messages, f"{len(found)} of {count} messages"
        assert [each.error() for each in messages if each.error()] == []
        found += messages
    return found


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_come_back_as_they_were(kafka: str, topic: str, compression: str) -> None:
    sent = produced(kafka, topic, 500, **{"compression.type": compression, "linger.ms": 20})
    with consumer(kafka, topic, f"group-{compression}") as member:
        found = consumed(member, 500)
    assert sorted(each.value() for each in found) == sorted(f"v{number}".encode() for number in range(500))
    assert {each.headers()[0] for each in found} == {("h", b"1")}
    at = {(each.partition(), each.offset()): each.timestamp() for each in sent}
    assert {(each.partition(), each.offset()): each.timestamp() for each in found} == at


def test_an_idempotent_producer_keeps_the_order_with_five_requests_in_flight(kafka: str, topic: str) -> None:
    produced(kafka, topic, 5_000, **{"enable.idempotence": True, "batch.num.messages": 50, "linger.ms": 0})
    with consumer(kafka, topic, "ordered") as member:
        found = consumed(member, 5_000)
    by_key: dict[bytes, list[int]] = {}
    for each in found:
        by_key.setdefault(each.key(), []).append(int(each.value()[1:]))
    assert all(numbers == sorted(set(numbers)) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 5_000


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_commits_and_the_next_member_goes_on_from_there(kafka: str, topic: str, protocol: str) -> None:
    produced(kafka, topic, 100)
    group = f"go-on-{protocol}"
    with consumer(kafka, topic, group, **{"group.protocol": protocol}) as member:
        consumed(member, 100)
        member.commit(asynchronous=False)
    produced(kafka, topic, 10)
    with consumer(kafka, topic, group, **{"group.protocol": protocol}) as member:
        assert len(consumed(member, 10)) == 10
        committed = member.committed([TopicPartition(topic, number) for number in range(4)], WAIT_S)
        assert sum(each.offset for each in committed) == 100


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_members_share_the_partitions_and_one_takes_over_from_the_other(
    kafka: str, topic: str, protocol: str
) -> None:
    produced(kafka, topic, 400)
    given = {"group.protocol": protocol}
    with consumer(kafka, topic, f"two-{protocol}", **given) as first:
        with consumer(kafka, topic, f"two-{protocol}", **given) as second:
            while sorted(map(len, (first.assignment(), second.assignment()))) != [2, 2]:
                first.poll(0.05)
                second.poll(0.05)
            owned = {each.partition for each in first.assignment()} | {each.partition for each in second.assignment()}
            assert owned == {0, 1, 2, 3}
        while len(first.assignment()) != 4:
            first.poll(0.05)


def test_a_group_of_one_member_of_kafkas_and_one_of_ours_moves_partitions_both_ways(
    cluster: LocalCluster, kafka: str, topic: str
) -> None:
    """KIP-848: only records after the last commit may be read twice."""
    read: list[tuple[int, int]] = []
    produced(kafka, topic, 400)
    settings = {"group_id": "mixed", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, **settings) as ours:
        ours.subscribe([topic])

        def ours_reads() -> None:
            read.extend((record.partition, record.offset) for record in ours.poll(0.05))
            ours.commit()

        while len(read) < 400:
            ours_reads()
        with consumer(kafka, topic, "mixed", **{"group.protocol": "consumer"}) as theirs:

            def theirs_reads() -> None:
                found = [each for each in theirs.consume(100, 0.05) if each.error() is None]
                read.extend((each.partition(), each.offset()) for each in found)
                if found:
                    theirs.commit(asynchronous=False)

            while sorted((len(ours.assignment()), len(theirs.assignment()))) != [2, 2]:
                ours_reads()
                theirs_reads()
            produced(kafka, topic, 400)
            while len(read) < 800:
                ours_reads()
                theirs_reads()
            ours.unsubscribe()
            while len(theirs.assignment()) != 4:
                theirs_reads()
            produced(kafka, topic, 400)
            while len(read) < 1_200:
                theirs_reads()
            ours.subscribe([topic])
            while len(ours.assignment()) != 2:
                ours_reads()
                theirs_reads()
        while len(ours.assignment()) != 4:
            ours_reads()
    assert len(set(read)) == len(read) == 1_200


def test_kafka_pythons_group_reads_what_its_producer_wrote(kafka: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka, acks="all")
    assert [future.get(WAIT_S).offset for future in [producer.send(topic, b"x", partition=1) for _ in range(50)]] == [
        *range(50)
    ]
    producer.close()
    reader = KafkaConsumer(
        topic, bootstrap_servers=kafka, group_id="kp", auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    try:
        for number, record in enumerate(reader, start=1):
            assert record.offset == number - 1
            if number == 50:
                break
        reader.commit()
    finally:
        reader.close()


def test_transactions_are_seen_whole_or_not_at_all(cluster: LocalCluster, kafka: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka, "transactional.id": "tx"})
    producer.init_transactions(WAIT_S)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(topic, f"t{number}", partition=0)
        producer.commit_transaction(WAIT_S) if number % 2 == 0 else producer.abort_transaction(WAIT_S)
    with consumer(kafka, topic, "committed", **{"isolation.level": "read_committed"}) as member:
        assert [each.value() for each in consumed(member, 2)] == [b"t0", b"t2"]
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 3)], member.consumer_group_metadata(), WAIT_S)
        producer.commit_transaction(WAIT_S)
        assert member.committed([TopicPartition(topic, 0)], WAIT_S)[0].offset == 3
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as ours:
        ours.assign([headrace.TopicPartition(topic, 0)])
        found: list[bytes] = []
        while len(found) < 2:
            found += [record.value or b"" for record in ours.poll(timeout=WAIT_S)]
    assert found == [b"t0", b"t2"], "our SDK sees the same"


def test_a_second_producer_of_the_same_transactional_id_fences_the_first(kafka: str, topic: str) -> None:
    old, new = (confluent_kafka.Producer({"bootstrap.servers": kafka, "transactional.id": "fenced"}) for _ in range(2))
    old.init_transactions(WAIT_S)
    old.begin_transaction()
    old.produce(topic, b"zombie")
    new.init_transactions(WAIT_S)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        old.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()


def test_records_of_our_sdk_and_of_kafkas_clients_land_in_the_same_partitions(
    cluster: LocalCluster, kafka: str, topic: str
) -> None:
    theirs = produced(kafka, topic, 70, partitioner="murmur2_random")
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        ours = [
            producer.send(topic, key=f"k{number}".encode(), value=b"x").result(timeout=WAIT_S) for number in range(7)
        ]
    place = {each.key(): each.partition() for each in theirs}
    assert {f"k{number}".encode(): each.partition for number, each in enumerate(ours)} == place


def test_topics_are_described_altered_and_deleted(kafka: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(WAIT_S)
    assert len(admin.list_topics(topic, WAIT_S).topics[topic].partitions) == 6
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (described,) = admin.describe_configs([resource]).values()
    assert described.result(WAIT_S)["retention.ms"].value == "3600000"
    resource.add_incremental_config(ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET))
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(WAIT_S)
    (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    assert described.result(WAIT_S)["retention.ms"].value == "7200000"
    admin.delete_topics([topic])[topic].result(WAIT_S)
    assert topic not in admin.list_topics(timeout=WAIT_S).topics


def test_many_configurations_are_described_in_one_request(kafka: str) -> None:
    """A topic that is missing, and a resource that the broker refuses, cost only their own results."""
    admin = AdminClient({"bootstrap.servers": kafka})
    kept_ms = {f"described-{number}": str(60_000 + number % 3) for number in range(2 * DESCRIBED_AT_ONCE + 1)}
    made = admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": ms}) for name, ms in kept_ms.items()])
    for each in made.values():
        each.result(WAIT_S)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in kept_ms]
    wrong = [ConfigResource(ResourceType.TOPIC, name) for name in ("described-no", "?")]
    described = admin.describe_configs([wrong[0], *resources, wrong[1]], request_timeout=WAIT_S)
    assert all(isinstance(described[each].exception(WAIT_S), KafkaException) for each in wrong)
    assert {each.name: described[each].result(WAIT_S)["retention.ms"].value for each in resources} == kept_ms
    for each in admin.delete_topics(list(kept_ms)).values():
        each.result(WAIT_S)


def test_groups_are_listed_described_and_deleted(kafka: str, topic: str) -> None:
    produced(kafka, topic, 1)
    with consumer(kafka, topic, "to-describe") as member:
        consumed(member, 1)
        member.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": kafka})
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert [each.group_id for each in listed.valid if each.group_id == "to-describe"] == ["to-describe"]
    described = admin.describe_consumer_groups(["to-describe"])["to-describe"].result(WAIT_S)
    assert described.state == ConsumerGroupState.EMPTY
    assert not described.authorized_operations
    asked = admin.describe_consumer_groups(["to-describe"], include_authorized_operations=True)
    operations = asked["to-describe"].result(WAIT_S).authorized_operations
    assert {each.name for each in operations} == {"READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
    admin.delete_consumer_groups(["to-describe"])["to-describe"].result(WAIT_S)
    assert "to-describe" not in [each.group_id for each in admin.list_consumer_groups().result(WAIT_S).valid]
