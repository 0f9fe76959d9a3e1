"""Schemas on real processes: a registry that stores them in the cluster, and serializers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Consumer, LocalCluster, Producer, TopicPartition
from headrace.errors import HeadraceError
from headrace.schemas import AvroDeserializer, AvroSerializer, SchemaRegistry

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WITH_NOTE = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "none"}]}  # type: ignore[misc]
WITH_CODE = {**ORDER, "fields": [*ORDER["fields"], {"name": "code", "type": "int"}]}  # type: ignore[misc]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, registries=1, mode="process") as running:
        yield running


def test_old_records_are_read_with_a_newer_schema_and_an_incompatible_one_is_refused(cluster: LocalCluster) -> None:
    with SchemaRegistry(cluster.registry_urls) as registry:
        for schema, value in ((ORDER, {"id": 1}), (WITH_NOTE, {"id": 2, "note": "two"})):
            with Producer(
                bootstrap_servers=cluster.bootstrap_servers,
                value_serializer=AvroSerializer(registry, schema, auto_register_schemas=True),
            ) as producer:
                producer.send("orders", value, partition=0).result(60)
        with (
            Producer(
                bootstrap_servers=cluster.bootstrap_servers,
                value_serializer=AvroSerializer(registry, WITH_CODE, auto_register_schemas=True),
            ) as producer,
            pytest.raises(HeadraceError, match="code"),
        ):
            producer.send("orders", {"id": 3, "code": 3}, partition=0).result(60)
        with Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            value_deserializer=AvroDeserializer(registry, WITH_NOTE),
        ) as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            read: list[object] = []
            while len(read) < 2:
                read += [record.value for record in consumer.poll(timeout=1.0)]
    assert read == [{"id": 1, "note": "none"}, {"id": 2, "note": "two"}]
