"""Serializers and deserializers: the wire format, subjects, the choice of a schema, objects, and typed errors."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pickle
import time
import uuid
from typing import Any

import pydantic
import pytest
from google.protobuf import descriptor_pb2, struct_pb2

from headrace.errors import InvalidConfigError, SerializationError
from headrace.schemas import (
    AvroDeserializer,
    AvroSerializer,
    CorruptValueError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    InvalidValueError,
    JsonDeserializer,
    JsonSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Reference,
    RegistryDeserializer,
    RegistryUnavailableError,
    Schema,
    SchemaNotFoundError,
    SchemaRegistry,
    SchemaType,
    UnknownSchemaIdError,
    WrongMagicByteError,
    plain,
    wire,
)
from headrace.schemas.protobuf_depth import may_be_too_deep
from headrace.serializers import WouldWait, deserializer, serializer
from headrace_core import exact_json
from headrace_core.errors import InvalidArgumentError
from tests.worlds.registries import FakeRegistry, generated
from tests.worlds.waiting import check_spent, until

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "com.acme",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}
ORDER_2 = ORDER | {"fields": [*ORDER["fields"], {"name": "total", "type": "double", "default": 0.5}]}  # type: ignore[misc]
ORDER_JSON = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "items": {"type": "array", "items": {"type": "object", "required": ["sku"]}},
        "code": {"type": "string", "pattern": "^(a+)+$"},
    },
    "required": ["id"],
}


# --- the wire format --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indexes", "data"),
    [
        ([0], b"\x00"),
        ([1], b"\x02\x02"),
        ([0, 0], b"\x04\x00\x00"),
        ([1, 0, 64], b"\x06\x02\x00\x80\x01"),
    ],
)
def test_protobuf_indexes_are_zigzag_varints(indexes: list[int], data: bytes) -> None:
    assert wire.write_indexes(indexes) == data
    assert wire.read_indexes(b"xx" + data + b"rest", 2) == (tuple(indexes), 2 + len(data))


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x80", b"\x01", b"\xff\xff\xff\xff\xff\x01", b"\x42", b"\x02\x01"])
def test_damaged_protobuf_indexes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptValueError):
        wire.read_indexes(data, 0)


def test_a_list_of_one_index_zero_is_read_in_its_long_form_too() -> None:
    assert wire.read_indexes(b"\x02\x00", 0) == ((0,), 2)


# --- subjects and the choice of a schema ------------------------------------------------------------------------------


def test_a_value_begins_with_magic_byte_and_id(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    for _ in range(299):
        fake.schemas.append(("", "", ()))
    assert fake.add_avro("orders-value", ORDER) == 300
    assert AvroSerializer(registry, ORDER)("orders", {"id": 1}) == b"\x00\x00\x00\x01\x2c\x02\x00"


def test_a_schema_is_not_registered_unless_the_setting_says_so(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    with pytest.raises(SchemaNotFoundError) as refused:
        AvroSerializer(registry, ORDER)("orders", {"id": 1})
    assert refused.value.subject == "orders-value"
    assert "headrace schemas register orders-value FILE" in refused.value.message
    assert fake.subjects == {}
    AvroSerializer(registry, ORDER, {"auto.register.schemas": "true"})("orders", {"id": 1})
    assert fake.subjects == {"orders-value": [1]}


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "orders-value"),
        ("record", "com.acme.Order"),
        ("topic-record", "orders-com.acme.Order"),
        ("TopicRecordNameStrategy", "orders-com.acme.Order"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "com.acme.Order"),
        (lambda topic, field, record: f"{record}/{field}/{topic}", "com.acme.Order/value/orders"),
    ],
)
def test_the_strategy_names_the_subject(
    fake: FakeRegistry, registry: SchemaRegistry, strategy: Any, subject: str
) -> None:
    AvroSerializer(registry, ORDER, auto_register_schemas=True, subject_name_strategy=strategy)("orders", {"id": 1})
    assert list(fake.subjects) == [subject]


def test_names_come_from_titles_and_messages_and_a_schema_without_a_name_is_refused(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    settings: Any = {"auto_register_schemas": True, "subject_name_strategy": "record"}
    JsonSerializer(registry, ORDER_JSON, **settings)("orders", {"id": 1})
    ProtobufSerializer(registry, **settings)("orders", generated().Customer(name="x"))
    assert {"Order", "headrace.tests.shop.Customer"} <= set(fake.subjects)
    with pytest.raises(InvalidConfigError, match="need a schema with a name"):
        AvroSerializer(registry, "long", **settings)("orders", 1)


def test_a_client_tells_the_serializer_whether_it_writes_keys(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    both = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    for name in ("key", "value"):
        waited(serializer(both, f"{name}.serializer"), "orders", {"id": 1})
    AvroSerializer(registry, ORDER, auto_register_schemas=True, is_key=True)("refunds", {"id": 1})
    assert sorted(fake.subjects) == ["orders-key", "orders-value", "refunds-key"]


def test_the_latest_version_writes_and_a_newer_one_takes_over(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url, latest_cache_ttl_ms=0)
    fake.add_avro("orders-value", ORDER)
    write = AvroSerializer(registry, use_latest_version=True)
    read = AvroDeserializer(registry)
    assert read("orders", write("orders", {"id": 1, "total": 2.0})) == {"id": 1, "note": None}
    fake.add_avro("orders-value", ORDER_2)
    until(lambda: "total" in read("orders", write("orders", {"id": 1, "total": 2.0})))


def test_a_schema_may_be_named_by_its_id(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    assert fake.add_avro("other", ORDER_2) == 1
    data = AvroSerializer(registry, use_schema_id=1)("orders", {"id": 1})
    assert AvroDeserializer(registry)("orders", data) == {"id": 1, "note": None, "total": 0.5}


def test_normalize_schemas_goes_to_the_registry(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    AvroSerializer(registry, ORDER, auto_register_schemas=True, normalize_schemas=True)("orders", {"id": 1})
    assert ("POST", "/subjects/orders-value/versions?normalize=true") in fake.requests


def test_after_the_first_value_the_registry_is_not_asked(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    message = generated().Order(id=5)
    pairs: list[tuple[Any, Any, Any]] = [
        (AvroSerializer(registry, ORDER, auto_register_schemas=True), AvroDeserializer(registry), {"id": 1}),
        (JsonSerializer(registry, ORDER_JSON, auto_register_schemas=True), JsonDeserializer(registry), {"id": 1}),
        (
            ProtobufSerializer(registry, auto_register_schemas=True),
            ProtobufDeserializer(registry, generated().Order),
            message,
        ),
    ]
    for topic, (write, read, value) in zip("ajp", pairs, strict=True):
        read(topic, write(topic, value))
    fake.stop()
    for topic, (write, read, value) in zip("ajp", pairs, strict=True):
        assert read(topic, write(topic, value)) is not None
        with pytest.raises(RegistryUnavailableError) as refused:
            write(f"{topic}2", value)
        assert refused.value.retriable


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda r: AvroSerializer(r), "needs a schema, or use_latest_version=True"),
        (lambda r: AvroSerializer(None), "needs a SchemaRegistry, not None"),
        (lambda r: AvroDeserializer("http://x"), "needs a SchemaRegistry"),
        (lambda r: AvroSerializer(r, 5), "must be a text, a dict, or a Schema"),
        (lambda r: AvroSerializer(r, Schema("{}", SchemaType.JSON)), "must be of type AVRO"),
        (lambda r: AvroSerializer(r, ORDER, subject_name_strategy="x"), "must be topic, record, topic-record"),
        (lambda r: AvroSerializer(r, ORDER, {"auto.registr.schemas": True}), "did you mean 'auto.register.schemas'"),
        (lambda r: AvroSerializer(r, ORDER, use_latest_version=True, auto_register_schemas=True), "leave auto"),
        (lambda r: AvroSerializer(r, use_schema_id=1, use_latest_version=True), "use.schema.id names one schema"),
        (lambda r: AvroDeserializer(r, into=5), "must be a dataclass, a pydantic model, or a callable"),
        (lambda r: ProtobufSerializer(r, dict), "must be a generated Protobuf class"),
    ],
)
def test_wrong_arguments_are_refused_at_once(registry: SchemaRegistry, make: Any, text: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        make(registry)
    assert text in str(refused.value)


def test_a_wrong_schema_is_refused_at_once(registry: SchemaRegistry) -> None:
    for make in (AvroSerializer, AvroDeserializer, JsonSerializer):
        with pytest.raises(InvalidSchemaError, match="the given schema is no"):
            make(registry, '{"type": ')  # type: ignore[operator]


# --- typed errors -----------------------------------------------------------------------------------------------------


def test_errors_name_subject_version_and_field(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.add_avro("orders-value", "string")
    fake.add_avro("orders-value", ORDER)
    write, read = AvroSerializer(registry, ORDER), AvroDeserializer(registry)
    with pytest.raises(InvalidValueError) as invalid:
        write("orders", {"id": "1"})
    assert vars(invalid.value) | {"topic": "orders", "field": "value", "subject": "orders-value", "version": 2} | {
        "schema_id": 2,
        "path": "id",
    } == vars(invalid.value)
    assert str(invalid.value) == "field id must be a long, not str '1' (schema: orders-value version 2 (id 2))"
    good = write("orders", {"id": 1, "note": "x"})
    assert good is not None
    with pytest.raises(CorruptValueError) as corrupt:
        read("orders", good[:-1])
    assert (corrupt.value.subject, corrupt.value.version, corrupt.value.path) == ("orders-value", 2, "note")
    with pytest.raises(WrongMagicByteError, match="the first byte is 123") as magic:
        read("orders", b'{"id": 1}')
    assert magic.value.subject == "orders-value"
    with pytest.raises(WrongMagicByteError, match="3 bytes are too short"):
        read("orders", b"\0\0\0")
    with pytest.raises(UnknownSchemaIdError) as unknown:
        read("orders", b"\0\0\0\0\x63abc")
    assert (unknown.value.subject, unknown.value.schema_id) == ("orders-value", 99)
    wrong = AvroDeserializer(registry, ORDER | {"fields": [{"name": "id", "type": "int"}]})  # type: ignore[operator]
    with pytest.raises(IncompatibleSchemaError) as incompatible:
        wrong("orders", good)
    assert (incompatible.value.version, incompatible.value.path) == (2, "id")
    assert all(isinstance(each.value, SerializationError) for each in (invalid, corrupt, magic, unknown))


def test_a_schema_of_another_type_is_refused(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    data = JsonSerializer(registry, ORDER_JSON, auto_register_schemas=True)("orders", {"id": 1})
    with pytest.raises(InvalidSchemaError, match="is of type JSON, and AvroDeserializer needs AVRO"):
        AvroDeserializer(registry)("orders", data)


def test_a_schema_that_the_registry_has_and_nobody_can_read_is_an_error(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    fake.add("orders-value", {"schema": '{"type": "record"}'})
    with pytest.raises(InvalidSchemaError, match=r"version 1 \(id 1\) is not a valid Avro schema") as refused:
        AvroDeserializer(registry)("orders", b"\0\0\0\0\1a")
    assert (refused.value.subject, refused.value.version, refused.value.schema_id) == ("orders-value", 1, 1)


def test_a_clients_wrapper_keeps_the_class_of_the_error(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    call = deserializer(AvroDeserializer(registry), "key.deserializer")
    assert call is not None
    with pytest.raises(WrongMagicByteError) as refused:
        call("orders", b"xxxxxx")
    assert (refused.value.topic, refused.value.field, refused.value.subject) == ("orders", "key", "orders-key")
    assert refused.value.message.startswith("key.deserializer failed for topic 'orders': ")


def waited(call: Any, *arguments: Any) -> tuple[Any, int]:
    """The result of a client's wrapper, and how many requests it needed."""
    requests = 0
    while True:
        try:
            return call(*arguments), requests
        except WouldWait as waiting:
            waiting.block(time.monotonic() + 30)
            requests += 1


def test_a_clients_wrapper_never_waits_itself(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    write = serializer(AvroSerializer(registry, ORDER, auto_register_schemas=True), "value.serializer")
    read = deserializer(AvroDeserializer(registry), "value.deserializer")
    assert write is not None
    fake.gate.clear()
    with pytest.raises(WouldWait):
        write("orders", {"id": 1})
    fake.gate.set()
    data, requests = waited(write, "orders", {"id": 1})
    assert requests <= 1
    assert waited(read, "orders", data) == ({"id": 1, "note": None}, 1)
    assert waited(read, "orders", data) == ({"id": 1, "note": None}, 0)


# --- values -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Item:
    sku: str
    count: int = 1


class Size(enum.Enum):
    SMALL = "S"
    LARGE = "L"


@dataclasses.dataclass
class Order:
    id: int
    items: list[Item]
    by_name: dict[str, Item] = dataclasses.field(default_factory=dict)
    gift: Item | None = None
    size: Size = Size.SMALL
    parent: Order | None = None


ITEM_AVRO = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
NESTED = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "items", "type": {"type": "array", "items": ITEM_AVRO}},
        {"name": "by_name", "type": {"type": "map", "values": "Item"}},
        {"name": "gift", "type": ["null", "Item"]},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}},
        {"name": "parent", "type": ["null", "Order"]},
    ],
}


def test_dataclasses_go_in_and_come_out(registry: SchemaRegistry) -> None:
    order = Order(1, [Item("a", 2)], {"x": Item("b")}, Item("c"), Size.LARGE, parent=Order(0, []))
    data = AvroSerializer(registry, NESTED, auto_register_schemas=True)("orders", order)
    assert AvroDeserializer(registry, into=Order)("orders", data) == order


class Model(pydantic.BaseModel):
    id: int
    note: str | None = None
    when: datetime.date = datetime.date(2013, 1, 1)


def test_pydantic_models_go_in_and_come_out(registry: SchemaRegistry) -> None:
    date = {"name": "when", "type": {"type": "int", "logicalType": "date"}}
    schema = ORDER | {"fields": [*ORDER["fields"], date]}  # type: ignore[misc]
    data = AvroSerializer(registry, schema, auto_register_schemas=True)("orders", Model(id=1))
    assert AvroDeserializer(registry, into=Model)("orders", data) == Model(id=1)
    as_json = JsonSerializer(registry, Model.model_json_schema(), auto_register_schemas=True)("models", Model(id=1))
    assert as_json is not None
    assert json.loads(as_json[5:]) == {"id": 1, "note": None, "when": "2013-01-01"}
    assert JsonDeserializer(registry, into=Model)("models", as_json) == Model(id=1)


def test_an_object_that_cannot_be_made_is_an_error_with_the_schema(registry: SchemaRegistry) -> None:
    data = AvroSerializer(registry, ORDER, auto_register_schemas=True)("orders", {"id": 1})
    with pytest.raises(InvalidValueError, match="the callable of into= failed for a value of orders-value"):
        AvroDeserializer(registry, into=Item)("orders", data)


def test_any_object_may_be_converted_first(registry: SchemaRegistry) -> None:
    write = AvroSerializer(registry, ORDER, auto_register_schemas=True, to_dict=lambda number: {"id": number})
    assert AvroDeserializer(registry, into=lambda found: found["id"])("orders", write("orders", 7)) == 7


def test_null_is_a_tombstone(registry: SchemaRegistry) -> None:
    for write in (AvroSerializer(registry, ORDER), JsonSerializer(registry, ORDER_JSON), ProtobufSerializer(registry)):
        assert write("orders", None) is None
    for read in (AvroDeserializer(registry), JsonDeserializer(registry), ProtobufDeserializer(registry)):
        assert read("orders", None) is None
    assert RegistryDeserializer(registry)("orders", None) is None


def test_a_readers_schema_gets_old_and_new_values(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.add_avro("orders-value", ORDER)
    fake.add_avro("orders-value", ORDER_2)
    old, new = AvroSerializer(registry, ORDER), AvroSerializer(registry, ORDER_2)
    read = AvroDeserializer(registry, ORDER_2)
    assert read("orders", old("orders", {"id": 1})) == {"id": 1, "note": None, "total": 0.5}
    assert read("orders", new("orders", {"id": 2, "total": 3.0})) == {"id": 2, "note": None, "total": 3.0}


def test_avro_schemas_may_refer_to_others(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.add_avro("item", ITEM_AVRO)
    text = json.dumps({"type": "array", "items": "Item"})
    schema = Schema(text, SchemaType.AVRO, (Reference("Item", "item", 1),))
    data = AvroSerializer(registry, schema, auto_register_schemas=True)("orders", [{"sku": "a", "count": 2}])
    assert AvroDeserializer(registry)("orders", data) == [{"sku": "a", "count": 2}]
    assert AvroDeserializer(registry, schema)("orders", data) == [{"sku": "a", "count": 2}]


def test_deserializers_are_pickled_with_their_settings(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url)
    write = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    data = write("orders", {"id": 1})
    write, read = pickle.loads(pickle.dumps((write, AvroDeserializer(registry, ORDER, into=Model))))
    assert write("orders", {"id": 1}) == data
    assert read("orders", data) == Model(id=1)


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_values_are_validated_with_their_path(registry: SchemaRegistry) -> None:
    write = JsonSerializer(registry, ORDER_JSON, auto_register_schemas=True)
    assert write("orders", {"id": 1, "items": [Item("a")]}) == b'\0\0\0\0\1{"id":1,"items":[{"sku":"a","count":1}]}'
    for value, path, reason in (
        ({}, "", '"id" is a required property'),
        ({"id": "x"}, "id", 'is not of type "integer"'),
        ({"id": 1, "items": [{"sku": "a"}, {}]}, "items[1]", '"sku" is a required property'),
        ({"id": 1, "more": object()}, "", "the value is not valid JSON: a object cannot be written as JSON"),
        ({"id": 1, "x": float("nan")}, "x", "the value is not valid JSON: nan is not a JSON number"),
        ({"id": 1, "x": [{"y": float("-inf")}]}, "x[0].y", "-inf is not a JSON number"),
        ({"id": 1, "x": {1: 1, "1": 2}}, "x", "two keys become '1'"),
        ({"id": 1, "x": ["\ud800"]}, "x[0]", "half of a surrogate pair"),
        ({"id": 1, "x": 10**5_000}, "x", "an integer of this many digits"),
        ({"id": 1, "x": Item("a"), "y": {uuid.UUID(int=1): 1, str(uuid.UUID(int=1)): 2}}, "", "become one in JSON"),
    ):
        with pytest.raises(InvalidValueError) as refused:
            write("orders", value)
        assert reason in refused.value.message
        assert (refused.value.path, refused.value.subject, refused.value.version) == (path, "orders-value", 1)


def test_json_that_was_written_without_validation_is_refused_by_the_reader(registry: SchemaRegistry) -> None:
    write = JsonSerializer(registry, ORDER_JSON, auto_register_schemas=True, validate=False)
    data = write("orders", {"id": "x"})
    with pytest.raises(InvalidValueError, match=r'field id: "x" is not of type "integer"'):
        JsonDeserializer(registry)("orders", data)
    assert JsonDeserializer(registry, validate=False)("orders", data) == {"id": "x"}
    assert JsonDeserializer(registry, {"type": "object"})("orders", data) == {"id": "x"}


def test_what_is_validated_is_what_is_written(registry: SchemaRegistry) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "number"}}
    write = JsonSerializer(registry, schema, auto_register_schemas=True)
    assert write("t", {1: 5}) == b'\0\0\0\0\1{"1":5}'
    for value in ({"d": decimal.Decimal("1.5")}, {"u": uuid.UUID(int=1)}, {1: "x"}, {"s": Size.SMALL}):
        with pytest.raises(InvalidValueError, match='is not of type "number"'):
            write("t", value)


@pytest.mark.parametrize("body", [b"NaN", b"{", b"\xff", b"[" * 100_000, b"1" * 5_000])
def test_bytes_that_are_no_json_are_refused(registry: SchemaRegistry, body: bytes) -> None:
    JsonSerializer(registry, ORDER_JSON, auto_register_schemas=True)("orders", {"id": 1})
    with pytest.raises(CorruptValueError, match="the bytes are not valid JSON"):
        JsonDeserializer(registry)("orders", b"\0\0\0\0\1" + body)


@pytest.mark.parametrize("schema", ['{"enum": [1e400]}', '{"maximum": 1e999999999}', '{"const": -1e309}'])
def test_a_number_of_a_schema_that_no_double_has_is_refused(registry: SchemaRegistry, schema: str) -> None:
    with pytest.raises(InvalidSchemaError, match="is too large for a double"):
        JsonSerializer(registry, schema, auto_register_schemas=True)("t", 1)


def test_a_pattern_cannot_make_the_reader_hang(registry: SchemaRegistry) -> None:
    """``^(a+)+$`` takes a backtracking engine 2^60 steps."""
    write = JsonSerializer(registry, ORDER_JSON, auto_register_schemas=True)
    with pytest.raises(InvalidValueError) as refused:
        write("orders", {"id": 1, "code": "a" * 60 + "!"})
    assert refused.value.path == "code"


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^(?!.*\.\.)[a-z./]+$", "docs/a.txt", "docs/../a"),
        (r"^(?=.*[0-9])[a-z0-9]+$", "a1", "ab"),
        (r"(?<=-)x$", "a-x", "ax"),
        (r"(?<!-)x$", "ax", "a-x"),
        (r"^(['\"]).*\1$", "'x'", "'x\""),
    ],
)
def test_patterns_have_look_around_and_back_references(
    registry: SchemaRegistry, pattern: str, good: str, bad: str
) -> None:
    """The patterns of JSON Schema are those of ECMA 262."""
    for schema, values in (
        ({"properties": {"text": {"pattern": pattern}}}, [{"text": good}, {"text": bad}]),
        ({"patternProperties": {pattern: {}}, "additionalProperties": False}, [{good: 1}, {bad: 1}]),
    ):
        read, write = JsonDeserializer(registry), JsonSerializer(registry, schema, auto_register_schemas=True)
        topic = f"texts{len(values[0])}{'text' in values[0]}"
        data = write(topic, values[0])
        assert read(topic, data) == values[0]
        with pytest.raises(InvalidValueError):
            write(topic, values[1])
        with pytest.raises(InvalidValueError):
            read(topic, data[:5] + json.dumps(values[1]).encode())


def test_a_named_back_reference_is_refused_with_the_reason(registry: SchemaRegistry) -> None:
    schema = {"pattern": r"^(?<quote>['\"]).*\k<quote>$"}
    with pytest.raises(InvalidSchemaError, match=r"named back references.* are not supported; use a number such as "):
        JsonSerializer(registry, schema, auto_register_schemas=True)("texts", "'x'")


def test_a_back_reference_cannot_make_the_reader_hang(registry: SchemaRegistry) -> None:
    schema = {"properties": {"text": {"pattern": r"^(?=a)(a|a)*\1b$"}}}
    write = JsonSerializer(registry, schema, auto_register_schemas=True)
    began_s = time.thread_time()
    with pytest.raises(InvalidValueError, match="limit for backtracking") as refused:
        write("texts", {"text": "a" * 60})
    assert refused.value.path == "text"
    check_spent(began_s, 5)


def test_json_references_come_from_the_registry_and_never_from_the_network(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    item = {"type": "object", "required": ["sku"]}
    fake.add("item", {"schema": json.dumps(item), "schemaType": "JSON"})
    text = json.dumps({"type": "array", "items": {"$ref": "item.json"}})
    schema = Schema(text, SchemaType.JSON, (Reference("item.json", "item", 1),))
    write = JsonSerializer(registry, schema, auto_register_schemas=True)
    assert JsonDeserializer(registry)("items", write("items", [{"sku": "a"}])) == [{"sku": "a"}]
    with pytest.raises(InvalidValueError, match="sku"):
        write("items", [{}])
    before = len(fake.requests)
    outside = {"$ref": f"{fake.url}/subjects"}
    with pytest.raises(InvalidSchemaError, match="is not a reference of the schema"):
        JsonSerializer(registry, outside, auto_register_schemas=True)("other", 1)
    assert [path for method, path in fake.requests[before:] if method == "GET"] == []


def test_the_expressions_of_a_schema_have_a_limit_of_memory(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    """A schema of 15 KB once took a consumer 20 s and 2.7 GB."""
    many = {f"field{number}": {"pattern": rf"\pL{{100}}{number}"} for number in range(300)}
    fake.add("orders-value", {"schema": json.dumps({"properties": many}), "schemaType": "JSON"})
    began_s = time.thread_time()
    with pytest.raises(InvalidSchemaError, match=r'not a "regex" that compiles to at most 447392 bytes \(.* 300 expr'):
        JsonDeserializer(registry)("orders", b'\0\0\0\0\1{"field1": "a"}')
    check_spent(began_s, 15)
    some = {
        f"^{letter}": {"type": "string", "pattern": rf"^\pL{{1,40}}{letter}?$"} for letter in "abcdefghijklmnopqrst"
    }
    write = JsonSerializer(registry, {"patternProperties": some}, auto_register_schemas=True)
    assert JsonDeserializer(registry)("names", write("names", {"alpha": "ä"})) == {"alpha": "ä"}
    with pytest.raises(InvalidValueError, match="alpha"):
        write("names", {"alpha": "1"})


def test_plain_values_are_jsons_types() -> None:
    value = {
        "d": decimal.Decimal("1.50"), "t": datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC), "b": b"\xff",
        "u": uuid.UUID(int=1), "s": Size.LARGE, "l": (1, None, True), "i": Item("a"), "m": Model(id=1),
    }  # fmt: skip
    found = plain(value)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "d": "1.50", "t": "2013-01-01T00:00:00+00:00", "b": "/w==", "u": str(uuid.UUID(int=1)), "s": "L",
        "l": [1, None, True], "i": {"sku": "a", "count": 1}, "m": {"id": 1, "note": None, "when": "2013-01-01"},
    }  # fmt: skip


# --- Protobuf ---------------------------------------------------------------------------------------------------------


def test_protobuf_messages_go_in_and_come_out(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    shop = generated()
    write = ProtobufSerializer(registry, auto_register_schemas=True)
    order = shop.Order(id=1, total={"units": 5, "currency": "EUR"}, items=[{"sku": "a", "size": {"cm": 3}}])
    values = [order, shop.Order.Item(sku="x"), shop.Order.Item.Size(cm=1), shop.Order.Gift(text="y"), shop.Customer()]
    paths = [b"\2\2", b"\4\2\0", b"\6\2\0\0", b"\4\2\2", b"\0"]
    read_own = ProtobufDeserializer(registry, [type(each) for each in values])
    read_any = ProtobufDeserializer(registry)
    as_dict = ProtobufDeserializer(registry, into=dict)
    for value, path in zip(values, paths, strict=True):
        data = write("orders", value)
        assert data == b"\0\0\0\0\2" + path + value.SerializeToString()
        found = read_own("orders", data)
        assert (type(found), found) == (type(value), value)
        dynamic = read_any("orders", data)
        assert dynamic.DESCRIPTOR.full_name == value.DESCRIPTOR.full_name
        assert dynamic.SerializeToString() == value.SerializeToString()
    assert as_dict("orders", write("orders", order)) == {
        "id": "1",
        "total": {"units": "5", "currency": "EUR"},
        "items": [{"sku": "a", "size": {"cm": 3}}],
    }
    assert sorted(fake.subjects) == ["headrace_tests_money.proto", "orders-value"]
    assert registry.version("orders-value").schema.references == (
        Reference("headrace_tests_money.proto", "headrace_tests_money.proto", 1),
    )


def test_a_protobuf_serializer_of_one_class_takes_dicts(registry: SchemaRegistry) -> None:
    shop = generated()
    write = ProtobufSerializer(registry, shop.Customer, auto_register_schemas=True)
    assert ProtobufDeserializer(registry, shop.Customer)("t", write("t", {"name": "Ann"})) == shop.Customer(name="Ann")
    with pytest.raises(InvalidValueError, match=r"is not a headrace\.tests\.shop\.Customer"):
        write("t", {"nam": "Ann"})
    for name in (math.inf, "\ud800", 7, [], {"a": object()}):
        with pytest.raises(InvalidValueError, match=r"is not a headrace\.tests\.shop\.Customer"):
            write("t", {"name": name})
    kind = ProtobufSerializer(registry, descriptor_pb2.FieldDescriptorProto, auto_register_schemas=True)
    for label in (math.inf, math.nan, "\ud800", 5_000_000_000, {}):
        with pytest.raises(InvalidValueError, match=r"is not a google\.protobuf\.FieldDescriptorProto"):
            kind("t", {"label": label})
    with pytest.raises(InvalidValueError, match=r"must be a headrace\.tests\.shop\.Customer or a dict, not Order"):
        write("t", shop.Order())


def test_another_message_than_expected_is_refused(registry: SchemaRegistry) -> None:
    shop = generated()
    data = ProtobufSerializer(registry, auto_register_schemas=True)("t", shop.Order.Item(sku="a"))
    with pytest.raises(IncompatibleSchemaError, match=r"the value is a headrace\.tests\.shop\.Order\.Item") as refused:
        ProtobufDeserializer(registry, shop.Order)("t", data)
    assert (refused.value.subject, refused.value.version) == ("t-value", 1)


def test_damaged_protobuf_values_are_refused(registry: SchemaRegistry) -> None:
    shop = generated()
    data = ProtobufSerializer(registry, auto_register_schemas=True)("t", shop.Customer(name="Ann"))
    assert data is not None
    read = ProtobufDeserializer(registry, shop.Customer)
    for body in (b"\0\x0a\x7fx", b"\x02\x40", b"\x04\x02\x40", b"", b"\x80"):
        with pytest.raises(CorruptValueError) as refused:
            read("t", data[:5] + body)
        assert (refused.value.subject, refused.value.version, refused.value.schema_id) == ("t-value", 1, 2)


def test_a_message_that_is_nested_too_deep_for_readers_is_refused(registry: SchemaRegistry) -> None:
    write = ProtobufSerializer(registry, auto_register_schemas=True)
    message = descriptor_pb2.DescriptorProto()
    inner = message
    for _ in range(100):
        inner = inner.nested_type.add()
    assert ProtobufDeserializer(registry, descriptor_pb2.DescriptorProto)("t", write("t", message)) == message
    inner.nested_type.add()
    with pytest.raises(InvalidValueError, match="nested more than 100 messages deep") as refused:
        write("t", message)
    assert refused.value.path.startswith("nested_type[0].nested_type[0]")
    value = struct_pb2.Struct()
    within = value
    for _ in range(40):  # a map's entry is a level too, and so is the Value
        within = within.fields["k"].struct_value
    within.fields["end"].null_value = 0
    with pytest.raises(InvalidValueError, match=r"fields\[k\]\.struct_value"):
        write("s", value)


def test_only_types_that_can_be_too_deep_are_read_back() -> None:
    assert not may_be_too_deep(generated().Order.DESCRIPTOR)
    assert may_be_too_deep(struct_pb2.Struct.DESCRIPTOR)
    assert may_be_too_deep(descriptor_pb2.FieldOptions.DESCRIPTOR)  # has extensions


def test_a_message_without_a_required_field_is_refused(registry: SchemaRegistry) -> None:
    write = ProtobufSerializer(registry, auto_register_schemas=True)
    with pytest.raises(InvalidValueError) as refused:
        write("t", generated().strict.Strict())
    assert refused.value.path == "name"


def test_the_latest_protobuf_version_gives_the_path(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    """In the registry's version another message comes first."""
    from google.protobuf import descriptor_pb2

    shop = generated()
    file = descriptor_pb2.FileDescriptorProto()
    shop.strict.DESCRIPTOR.CopyToProto(file)
    file.message_type.insert(0, descriptor_pb2.DescriptorProto(name="First"))
    fake.add("t-value", {"schema": base64.b64encode(file.SerializeToString()).decode(), "schemaType": "PROTOBUF"})
    write = ProtobufSerializer(registry, use_latest_version=True)
    assert write("t", shop.strict.Strict(name="a")) == b"\0\0\0\0\1\2\2\x0a\1a"
    with pytest.raises(IncompatibleSchemaError, match=r"has no message headrace\.tests\.shop\.Customer"):
        write("t", shop.Customer())


@pytest.mark.parametrize("text", ['syntax = "proto3";', "AAAA", ""])
def test_a_protobuf_schema_that_is_no_descriptor_is_refused(
    fake: FakeRegistry, registry: SchemaRegistry, text: str
) -> None:
    fake.add("t-value", {"schema": text, "schemaType": "PROTOBUF"})
    with pytest.raises((InvalidSchemaError, CorruptValueError)):
        ProtobufDeserializer(registry)("t", b"\0\0\0\0\1\0")


# --- any type ---------------------------------------------------------------------------------------------------------


def test_one_deserializer_reads_every_type(registry: SchemaRegistry) -> None:
    read = RegistryDeserializer(registry)
    avro = AvroSerializer(registry, ORDER, auto_register_schemas=True)("a", {"id": 1})
    as_json = JsonSerializer(registry, ORDER_JSON, auto_register_schemas=True)("j", {"id": 2})
    protobuf = ProtobufSerializer(registry, auto_register_schemas=True)("p", generated().Customer(name="Ann"))
    for _ in range(2):
        assert [read("t", each) for each in (avro, as_json, protobuf)] == [
            {"id": 1, "note": None},
            {"id": 2},
            {"name": "Ann"},
        ]


def test_a_reader_of_every_type_keeps_the_digits_of_json_numbers_if_asked(registry: SchemaRegistry) -> None:
    header = JsonSerializer(registry, {"type": "object"}, auto_register_schemas=True)("j", {})
    assert header is not None
    text = '{"price":0.1234567890123456789,"small":1.0E-30,"zero":-0,"many":[1e400,12345678901234567890]}'
    data = header[: wire.HEADER_BYTES] + text.encode()
    read = pickle.loads(pickle.dumps(RegistryDeserializer(registry, number=exact_json.Number)))
    assert exact_json.dumps(plain(read("j", data)), separators=(",", ":")) == text
    assert RegistryDeserializer(registry, number=decimal.Decimal)("j", data)["price"] == decimal.Decimal(
        "0.1234567890123456789"
    )
    with pytest.raises(CorruptValueError):
        RegistryDeserializer(registry, number=decimal.Decimal)(
            "j", header[: wire.HEADER_BYTES] + b"[1e9999999999999999999]"
        )
    with pytest.raises(InvalidArgumentError, match="validate=False"):
        JsonDeserializer(registry, number=decimal.Decimal)
