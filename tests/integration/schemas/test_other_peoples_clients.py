"""Headrace's registry with confluent-kafka's SchemaRegistryClient and serializers, and with ours: each reads what the
other one writes, and both see the same ids."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import LocalCluster
from headrace.schemas import (
    AvroDeserializer,
    AvroSerializer,
    Compatibility,
    IncompatibleSchemaError,
    InvalidSchemaError,
    JsonDeserializer,
    JsonSerializer,
    Mode,
    ProtobufDeserializer,
    ProtobufSerializer,
    Reference,
    RegistryDeserializer,
    RegistryRefusedError,
    Schema,
    SchemaNotFoundError,
    SchemaRegistry,
    SchemaType,
    UnknownSchemaIdError,
)
from tests.worlds.registries import MONEY, generated

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # authlib's, about its own next release
    from confluent_kafka.schema_registry import Schema as TheirSchema
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirAvroDeserializer
    from confluent_kafka.schema_registry.avro import AvroSerializer as TheirAvroSerializer
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer as TheirProtobufDeserializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext


ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "com.acme",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        ],
    }
)
WIDER = json.dumps(json.loads(ORDER) | {"fields": [*json.loads(ORDER)["fields"], {"name": "new", "type": "int"}]})
ORDER_JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, registries=2, mode="process") as running:
        yield running


@pytest.fixture
def ours(cluster: LocalCluster) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(cluster.registry_urls) as client:
        yield client


@pytest.fixture
def theirs(cluster: LocalCluster) -> Iterator[Any]:
    # The replica that ours asks, too: the other one reads a write some milliseconds later.
    with SchemaRegistryClient({"url": cluster.registry_urls.split(",")[0]}) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


def context(topic: str) -> Any:
    return SerializationContext(topic, MessageField.VALUE)


# --- serializers ------------------------------------------------------------------------------------------------------


def test_avro_goes_both_ways(ours: SchemaRegistry, theirs: Any, topic: str) -> None:
    value = {"id": 7, "note": "ä", "at": 0}
    their_write = TheirAvroSerializer(theirs, ORDER)
    data = their_write(value, context(topic))
    our_write = AvroSerializer(ours, ORDER)  # registered by theirs
    assert our_write(topic, value) == data
    read = TheirAvroDeserializer(theirs)(our_write(topic, value), context(topic))
    assert read == AvroDeserializer(ours)(topic, data)
    assert read["id"] == 7


def test_json_goes_both_ways(ours: SchemaRegistry, theirs: Any, topic: str) -> None:
    ours_first = JsonSerializer(ours, ORDER_JSON, auto_register_schemas=True)(topic, {"id": 7})
    assert JSONDeserializer(ORDER_JSON)(ours_first, context(topic)) == {"id": 7}
    data = JSONSerializer(ORDER_JSON, theirs)({"id": 8}, context(topic))
    assert data[:5] == ours_first[:5]
    assert JsonDeserializer(ours)(topic, data) == {"id": 8}


def test_protobuf_goes_both_ways(ours: SchemaRegistry, theirs: Any, topic: str) -> None:
    shop = generated()
    values = [
        shop.Order(id=1, total={"units": 5, "currency": "EUR"}, items=[{"sku": "a", "size": {"cm": 3}}]),
        shop.Order.Item.Size(cm=5),
        shop.Customer(name="Ann"),
    ]
    our_write = ProtobufSerializer(ours, auto_register_schemas=True)
    for value in values:
        kind = type(value)
        data = our_write(topic, value)
        settings = {"use.deprecated.format": False}
        assert TheirProtobufDeserializer(kind, settings)(data, context(topic)) == value
        assert TheirProtobufSerializer(kind, theirs, settings)(value, context(topic)) == data
        assert ProtobufDeserializer(ours, kind)(topic, data) == value
        assert ProtobufDeserializer(ours)(topic, data).SerializeToString() == value.SerializeToString()
    assert ours.versions(f"{topic}-value") == [1]


def test_protobuf_that_they_register_is_read_by_ours(ours: SchemaRegistry, theirs: Any, topic: str) -> None:
    shop = generated()
    order = shop.Order(id=1, total={"units": 5, "currency": "EUR"})
    data = TheirProtobufSerializer(shop.Order, theirs, {"use.deprecated.format": False})(order, context(topic))
    assert RegistryDeserializer(ours)(topic, data) == {"id": "1", "total": {"units": "5", "currency": "EUR"}}
    assert ProtobufSerializer(ours)(topic, order) == data, "found without registering"


def test_a_new_version_is_read_by_the_old_reader(ours: SchemaRegistry, topic: str) -> None:
    ours.set_compatibility(Compatibility.FORWARD, f"{topic}-value")
    old = AvroSerializer(ours, ORDER, auto_register_schemas=True)(topic, {"id": 1})
    new = AvroSerializer(ours, WIDER, auto_register_schemas=True)(topic, {"id": 2, "new": 5})
    read = AvroDeserializer(ours, ORDER)
    assert [read(topic, each)["id"] for each in (old, new)] == [1, 2]
    assert ours.latest(f"{topic}-value").registered.version == 2


# --- the clients of the registry --------------------------------------------------------------------------------------


def test_their_client_sees_what_ours_registers(ours: SchemaRegistry, theirs: Any, topic: str) -> None:
    made = ours.register(topic, Schema(ORDER))
    found = theirs.get_latest_version(topic)
    assert (found.schema_id, found.version, found.subject) == (made.id, made.version, topic)
    assert json.loads(theirs.get_schema(made.id).schema_str) == json.loads(ORDER)
    assert theirs.lookup_schema(topic, TheirSchema(ORDER, "AVRO")).schema_id == made.id
    assert theirs.register_schema(topic, TheirSchema(ORDER, "AVRO")) == made.id
    assert topic in theirs.get_subjects()
    assert theirs.get_versions(topic) == [1]


def test_their_client_and_ours_agree_on_compatibility(ours: SchemaRegistry, theirs: Any, topic: str) -> None:
    ours.register(topic, Schema(ORDER))
    for level in Compatibility:
        theirs.set_compatibility(topic, level.value)
        assert ours.compatibility(topic) is level
        for text in (ORDER, WIDER, '"string"'):
            reasons = ours.check(topic, Schema(text), None)
            assert theirs.test_compatibility(topic, TheirSchema(text, "AVRO")) is (not reasons), (level, text, reasons)
    ours.set_compatibility("BACKWARD", topic)
    with pytest.raises(IncompatibleSchemaError) as refused:
        ours.register(topic, Schema(WIDER))
    assert (refused.value.subject, refused.value.version, refused.value.path) == (topic, 1, "/fields/3")
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.value.reasons[0]
    with pytest.raises(SchemaRegistryError) as theirs_refused:
        theirs.register_schema(topic, TheirSchema(WIDER, "AVRO"))
    assert theirs_refused.value.http_status_code == 409


def test_references_are_resolved(ours: SchemaRegistry, topic: str) -> None:
    kind = json.dumps({"type": "enum", "name": "Kind", "symbols": ["A", "B"]})
    ours.register(f"{topic}-kind", Schema(kind))
    holder = json.dumps({"type": "record", "name": "Holder", "fields": [{"name": "kind", "type": "Kind"}]})
    schema = Schema(holder, SchemaType.AVRO, (Reference("Kind", f"{topic}-kind", 1),))
    data = AvroSerializer(ours, schema, auto_register_schemas=True)(topic, {"kind": "B"})
    assert AvroDeserializer(ours)(topic, data) == {"kind": "B"}


def test_protobuf_text_with_a_reference_is_served_as_a_descriptor(ours: SchemaRegistry, topic: str) -> None:
    ours.register("headrace_tests_money.proto", Schema(MONEY, SchemaType.PROTOBUF))
    text = 'syntax = "proto3"; import "headrace_tests_money.proto"; message Price { headrace.tests.shop.Money m = 1; }'
    schema = Schema(
        text, SchemaType.PROTOBUF, (Reference("headrace_tests_money.proto", "headrace_tests_money.proto", 1),)
    )
    made = ours.register(f"{topic}-value", schema)
    data = b"\0" + made.id.to_bytes(4, "big") + b"\0" + b"\x0a\x02\x08\x05"
    assert RegistryDeserializer(ours)(topic, data) == {"m": {"units": "5"}}


def test_soft_deleted_schemas_are_found_by_id(ours: SchemaRegistry, theirs: Any, topic: str) -> None:
    made = ours.register(topic, Schema(ORDER))
    assert ours.delete_subject(topic) == [1]
    assert topic not in theirs.get_subjects()
    assert topic in ours.subjects(deleted=True)
    assert SchemaRegistry(ours._transport.urls).schema(made.id).type is SchemaType.AVRO
    with pytest.raises(SchemaNotFoundError, match="not found"):
        ours.version(topic)
    assert theirs.delete_subject(topic, permanent=True) == [1]
    assert topic not in ours.subjects(deleted=True)


def test_errors_of_the_service_are_typed(ours: SchemaRegistry, topic: str) -> None:
    with pytest.raises(UnknownSchemaIdError):
        ours.schema(1_000_000)
    with pytest.raises(SchemaNotFoundError):
        ours.versions(topic)
    with pytest.raises(InvalidSchemaError):
        ours.register(topic, Schema('{"type": "strin"}'))
    ours.set_mode(Mode.READONLY, topic)
    with pytest.raises(RegistryRefusedError) as refused:
        ours.register(topic, Schema('"int"'))
    assert refused.value.error_code == 42205
    assert ours.mode(topic) is Mode.READONLY
    with pytest.raises((InvalidSchemaError, RegistryRefusedError)):
        ours.register("big", Schema(json.dumps({"type": "fixed", "name": "F", "size": 1, "doc": "x" * 20_000_000})))
