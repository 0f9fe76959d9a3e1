"""Topics with schema validation in a cluster with a registry: the SDK, Arrow, transactions, Kafka's clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer as KafkaProducer

from headrace import Admin, ConfigResource, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import InvalidConfigError, InvalidRecordError
from headrace.schemas import AvroDeserializer, AvroSerializer, SchemaRegistry
from tests.worlds.waiting import until

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, registries=1, mode="inprocess") as running:
        yield running


@pytest.fixture(scope="module")
def registry(cluster: LocalCluster) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(cluster.registry_urls) as client:
        yield client


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions=1, config={"value.schema.validation": "true"})])
    return name


def values_of(cluster: LocalCluster, topic: str, registry: SchemaRegistry, count: int) -> list[Any]:
    """All values of a topic that has ``count`` committed records."""
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        value_deserializer=AvroDeserializer(registry),
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[Any] = []
        until(lambda: found.extend(record.value for record in consumer.poll(0.2)) or len(found) >= count)
        return found


def serializer_of(registry: SchemaRegistry) -> AvroSerializer:
    return AvroSerializer(registry, ORDER, auto_register_schemas=True)


def test_serializers_write_and_plain_bytes_are_refused(
    cluster: LocalCluster, registry: SchemaRegistry, topic: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=serializer_of(registry)) as producer:
        assert producer.send(topic, {"id": 1}).result(30).offset == 0
        assert producer.send(topic, None).result(30).offset == 1
    with Producer(bootstrap_servers=cluster.bootstrap_servers, retries=0) as plain:
        with pytest.raises(InvalidRecordError, match="record 0 of a batch: the value does not begin with a magic byte"):
            plain.send(topic, b"plain").result(30)
        with pytest.raises(InvalidRecordError, match="schema id 99, which the schema registry does not have"):
            plain.send(topic, b"\0\0\0\0\x63rest").result(30)
    assert values_of(cluster, topic, registry, 2) == [{"id": 1}, None]


def test_rows_of_arrow_are_checked(cluster: LocalCluster, registry: SchemaRegistry, topic: str) -> None:
    encode = serializer_of(registry)
    values = [encode(topic, {"id": number}) for number in range(100)]
    with Producer(bootstrap_servers=cluster.bootstrap_servers, compression_type="zstd") as producer:
        producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())})).result(30)
        mixed = pa.table({"value": pa.array([*values, b"plain"], pa.binary())})
        with pytest.raises(InvalidRecordError, match="record 100 of a batch"):
            producer.send_arrow(topic, mixed).result(30)
    assert values_of(cluster, topic, registry, 100) == [{"id": number} for number in range(100)]


def test_a_transaction_with_a_refused_record_can_be_aborted(
    cluster: LocalCluster, registry: SchemaRegistry, topic: str
) -> None:
    encode = serializer_of(registry)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, encode(topic, {"id": 1}))
        producer.begin_transaction()
        with pytest.raises(InvalidRecordError):
            producer.send(topic, b"plain").result(30)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, encode(topic, {"id": 2}))
    assert values_of(cluster, topic, registry, 2) == [{"id": 1}, {"id": 2}]


def test_kafkas_clients_get_invalid_record(cluster: LocalCluster, registry: SchemaRegistry, topic: str) -> None:
    answers: list[Any] = []
    producer = KafkaProducer({"bootstrap.servers": cluster.kafka_bootstrap_servers})
    for value in (serializer_of(registry)(topic, {"id": 1}), b"plain", None):
        producer.produce(topic, value, key=b"k", on_delivery=lambda error, _: answers.append(error and error.name()))
        assert producer.flush(30) == 0
    assert answers == [None, "INVALID_RECORD", None]


def test_the_keys_are_shown_and_can_be_altered(cluster: LocalCluster, registry: SchemaRegistry, topic: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        resource = ConfigResource("topic", topic)
        configs = admin.describe_configs([resource])[resource]
        assert configs["value.schema.validation"].value == "true"
        assert configs["value.subject.name.strategy"].value == "TopicNameStrategy"
        with pytest.raises(InvalidConfigError, match="TopicNameStrategy, RecordNameStrategy, TopicRecordNameStrategy"):
            admin.alter_configs({resource: {"value.subject.name.strategy": "mine"}})
        admin.alter_configs({resource: {"value.schema.validation": "false"}})
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            assert producer.send(topic, b"plain").result(30).offset == 0
