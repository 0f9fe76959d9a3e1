"""Events in Avro as JSON: the columns and values of Connect's JsonConverter, and reasons for what has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.schemas import (
    AvroSerializer,
    RegistryRefusedError,
    RegistryUnavailableError,
    Schema,
    SchemaRegistry,
    SchemaType,
    wire,
)
from headrace_pipelines.cdc.avro import Converter
from headrace_pipelines.cdc.columns import columns_of_key, columns_of_row
from tests.worlds.registries import FakeRegistry, fake_registry

DECIMAL = {
    "type": "bytes", "scale": 2, "precision": 64, "logicalType": "decimal", "connect.version": 1,
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}  # fmt: skip
DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
CONNECTS_DATE = {"type": "int", "logicalType": "date", "connect.name": "org.apache.kafka.connect.data.Date"}
FREE = {
    "type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}  # fmt: skip
SMALL = {"type": "int", "connect.type": "int16"}
MANY = {"type": "array", "items": ["null", "int"]}
TEXT = 'quote " and \\ and ü and \U0001f600 and \n'
PAIRS = {"type": "map", "values": ["null", "string"]}


def envelope(*fields: tuple[str, Any]) -> dict[str, Any]:
    """The schema of a value as Debezium and a converter write it: ``after`` refers to the record of ``before``."""
    row = {"type": "record", "name": "Value", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    fields_of_source = [{"name": "lsn", "type": ["null", "long"]}, {"name": "ts_ms", "type": "long"}]
    source = {"type": "record", "name": "Source", "namespace": "io.debezium", "fields": fields_of_source}
    return {
        "type": "record", "name": "Envelope", "namespace": "shop.public.things", "connect.version": 2,
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
        ],
    }  # fmt: skip


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


@pytest.fixture
def registry(fake: FakeRegistry) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(fake.url, request_timeout_ms=2_000) as client:
        yield client


def written(fake: FakeRegistry, registry: SchemaRegistry, schema: Any, value: Any) -> bytes:
    fake.add_avro("things-value", schema)
    return AvroSerializer(registry, schema).serialize("things", value) or b""


def row_of(fake: FakeRegistry, registry: SchemaRegistry, kind: Any, value: Any) -> tuple[Any, Any]:
    """The column of a type, and the value in JSON."""
    event = {"before": None, "after": {"x": value}, "source": {"lsn": 7, "ts_ms": 9}, "op": "c"}
    text, reason = Converter(registry).json_of(written(fake, registry, envelope(("x", kind)), event), is_key=False)
    assert reason is None
    assert text is not None
    found = json.loads(text, parse_float=str)
    assert (found["payload"]["op"], found["payload"]["source"]) == ("c", {"lsn": 7, "ts_ms": 9})
    assert found["payload"].keys() == {"op", "after", "source"}
    (column,) = columns_of_row(json.dumps(found["schema"]))
    return column, found["payload"]["after"]["x"]


@pytest.mark.parametrize(
    ("kind", "value", "json_type", "json_value"),
    [
        ("long", 2**60, "BIGINT", 2**60),
        ("int", -1, "INT", -1),
        (SMALL, -3, "INT", -3),
        ("boolean", True, "BOOLEAN", True),
        ("float", 1.25, "FLOAT", "1.25"),
        ("double", 1e-300, "DOUBLE", "1e-300"),
        ("double", float("nan"), "DOUBLE", "NaN"),
        ("double", float("-inf"), "DOUBLE", "-Infinity"),
        ("string", TEXT, "STRING", TEXT),
        ("bytes", b"\x00\xff", "STRING", "AP8="),
        (DATE, 20_512, "INT", 20_512),
        (MANY, [1, None], "ARRAY<INT>", [1, None]),
        (PAIRS, {"a": None, "b": "c"}, "STRING", {"a": None, "b": "c"}),
        (FREE, {"scale": 2, "value": b"\x01"}, "STRING", {"scale": 2, "value": "AQ=="}),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "STRING", "B"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_nullable", [False, True])
def test_types_are_those_of_connects_json(
    fake: FakeRegistry,
    registry: SchemaRegistry,
    kind: Any,
    value: Any,
    json_type: str,
    json_value: Any,
    is_nullable: bool,
) -> None:
    column, found = row_of(fake, registry, ["null", kind] if is_nullable else kind, value)
    assert (column.json, column.is_nullable) == (json_type, is_nullable)
    assert found == json_value
    assert column.is_base64 == (kind == "bytes")
    if is_nullable:
        assert row_of(fake, registry, ["null", kind], None)[1] is None


@pytest.mark.parametrize(
    ("unscaled", "text"),
    [(-1_234_567, "-12345.67"), (5, "0.05"), (-5, "-0.05"), (0, "0.00"), (10**11, "1000000000.00")],
)
def test_decimals_are_exact_numbers(fake: FakeRegistry, registry: SchemaRegistry, unscaled: int, text: str) -> None:
    raw = unscaled.to_bytes(12, "big", signed=True)
    known = fake.add_avro("things-value", envelope(("x", DECIMAL)))
    without = {name: each for name, each in DECIMAL.items() if name != "logicalType"}
    event = {"before": None, "after": {"x": raw}, "source": {"lsn": 1, "ts_ms": 1}, "op": "c"}
    body = AvroSerializer(registry, envelope(("x", without)), auto_register_schemas=True).serialize("other", event)
    assert body is not None
    for schema_id in (known, wire.schema_id(body)):
        data = wire.header(schema_id) + body[wire.HEADER_BYTES :]
        found, reason = Converter(registry).json_of(data, is_key=False)
        assert reason is None
        assert found is not None
        assert f'"x":{text}}}' in found
        (column,) = columns_of_row(json.dumps(json.loads(found)["schema"]))
        assert column.json == "DECIMAL(10,2)"


def test_a_decimal_of_avro_alone_has_its_own_precision(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    from decimal import Decimal

    column, found = row_of(
        fake, registry, {"type": "bytes", "logicalType": "decimal", "precision": 7, "scale": 0}, Decimal(42)
    )
    assert (column.json, found) == ("DECIMAL(7,0)", 42)


def test_logical_types_of_connect_stay_numbers(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    from datetime import date

    column, found = row_of(fake, registry, CONNECTS_DATE, date(1970, 1, 3))
    assert (column.json, str(column.cast), found) == ("INT", "date32[day]", 2)


def test_a_key_has_all_its_columns(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    key = {
        "type": "record",
        "name": "Key",
        "fields": [{"name": "id", "type": "int"}, {"name": "part", "type": "string"}],
    }
    text, _ = Converter(registry).json_of(written(fake, registry, key, {"id": 1, "part": "a"}), is_key=True)
    assert text is not None
    found = json.loads(text)
    assert [column.name for column in columns_of_key(json.dumps(found["schema"]))] == ["id", "part"]
    assert found["payload"] == {"id": 1, "part": "a"}


def test_what_is_not_in_avro_is_left_alone(registry: SchemaRegistry) -> None:
    for data in (None, b"", b'{"schema": {}}', b"\0\0\0"):
        assert Converter(registry).json_of(data, is_key=False) == (None, None)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]},
            "an Avro union of several",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "R"]}]}, "R contains itself"),
        ("string", "is not an Avro record"),
    ],
)
def test_schemas_that_are_no_tables_are_reasons(
    fake: FakeRegistry, registry: SchemaRegistry, schema: Any, reason: str
) -> None:
    number = fake.add_avro("things-value", schema)
    text, found = Converter(registry).json_of(wire.header(number) + b"\0", is_key=False)
    assert text is None
    assert reason in (found or "")


@pytest.mark.parametrize("scale", ["-1000000000", "39", "x", None])
def test_a_decimal_with_a_wrong_scale_is_a_reason(fake: FakeRegistry, registry: SchemaRegistry, scale: Any) -> None:
    kind = {"type": "bytes", "connect.name": DECIMAL["connect.name"], "connect.parameters": {"scale": scale}}
    number = fake.add_avro("things-value", envelope(("x", kind)))
    text, reason = Converter(registry).json_of(wire.header(number) + b"\0", is_key=False)
    assert text is None
    assert "scale" in (reason or "")


def test_a_name_of_connect_on_another_type_is_no_decimal(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    kind = {"type": "string", "connect.name": DECIMAL["connect.name"]}
    event = {"before": None, "after": {"x": "1"}, "source": {"lsn": 1, "ts_ms": 1}, "op": "c"}
    text, _ = Converter(registry).json_of(written(fake, registry, envelope(("x", kind)), event), is_key=False)
    assert '"after":{"x":"1"}' in (text or "")


def test_an_unknown_id_a_damaged_value_and_another_type_are_reasons(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    converter = Converter(registry)
    assert "9" in (converter.json_of(wire.header(9) + b"\0", is_key=False)[1] or "")
    number = fake.add_avro("things-value", envelope(("x", "int")))
    assert f"schema id {number}" in (converter.json_of(wire.header(number) + b"\2", is_key=False)[1] or "")
    other = registry.register("json-value", Schema('{"type": "object"}', type=SchemaType.JSON))
    assert "must be in Avro" in (converter.json_of(wire.header(other.id) + b"{}", is_key=False)[1] or "")


def test_a_registry_that_is_down_or_refuses_the_client_is_an_error_and_no_reason(fake: FakeRegistry) -> None:
    number = fake.add_avro("things-value", envelope(("x", "int")))
    fake.stop()
    with SchemaRegistry(fake.url, request_timeout_ms=500) as client, pytest.raises(RegistryUnavailableError):
        Converter(client).json_of(wire.header(number) + b"\0", is_key=False)
    with fake_registry() as refusing:
        refusing.answers["GET", "/schemas/ids/1"] = (401, {"error_code": 401, "message": "log in"})
        with SchemaRegistry(refusing.url) as client, pytest.raises(RegistryRefusedError):
            Converter(client).json_of(wire.header(1) + b"\0", is_key=False)
