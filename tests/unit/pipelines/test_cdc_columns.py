"""The columns of a lake table from the schemas in Debezium's events."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace_pipelines.cdc.columns import Column, EventSchemaError, columns_of_key, columns_of_row


def field(column: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": True, "field": column, **more}


def row_schema(*fields: dict[str, Any]) -> str:
    after = {"type": "struct", "optional": True, "field": "after", "fields": list(fields)}
    return json.dumps({"type": "struct", "fields": [{**after, "field": "before"}, after]})


def one(kind: str, **more: Any) -> Column:
    (column,) = columns_of_row(row_schema(field("x", kind, **more)))
    return column


@pytest.mark.parametrize(
    ("kind", "meaning", "json_type", "cast"),
    [
        ("int16", None, "INT", None),
        ("int64", None, "BIGINT", None),
        ("float", None, "FLOAT", None),
        ("boolean", None, "BOOLEAN", None),
        ("string", "io.debezium.data.Uuid", "STRING", None),
        ("int32", "io.debezium.time.Date", "INT", pa.date32()),
        ("int64", "io.debezium.time.MicroTimestamp", "BIGINT", pa.timestamp("us")),
        ("int64", "io.debezium.time.Timestamp", "BIGINT", pa.timestamp("ms")),
        ("int64", "io.debezium.time.MicroTime", "BIGINT", None),
        ("string", "io.debezium.time.ZonedTimestamp", "TIMESTAMP", None),
        ("struct", "io.debezium.data.VariableScaleDecimal", "STRING", None),
        ("map", None, "STRING", None),
    ],
)
def test_each_type_of_an_event_has_a_column(
    kind: str, meaning: str | None, json_type: str, cast: pa.DataType | None
) -> None:
    assert one(kind, name=meaning) == Column("x", json_type, True, cast)


def test_bytes_are_base64_and_decimals_have_their_precision() -> None:
    assert one("bytes") == Column("x", "STRING", True, is_base64=True)
    decimal = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    assert one("bytes", **decimal).json == "DECIMAL(38,2)"
    decimal["parameters"] = {"scale": "2", "connect.decimal.precision": "10"}
    assert one("bytes", **decimal).json == "DECIMAL(10,2)"


def test_arrays_keep_the_types_of_their_elements_unless_these_are_nested_or_bytes() -> None:
    assert one("array", items={"type": "int32"}).json == "ARRAY<INT>"
    days = one("array", items={"type": "int32", "name": "io.debezium.time.Date"})
    assert (days.json, days.cast) == ("ARRAY<INT>", pa.list_(pa.date32()))
    for items in ({"type": "array", "items": {"type": "int32"}}, {"type": "bytes"}, {"type": "struct"}, None):
        assert one("array", items=items) == Column("x", "STRING")


def test_nested_values_with_decimals_are_read_by_their_type_and_kept_as_json() -> None:
    rate = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "18"}}
    text, whole = {"type": "string"}, {"type": "int64"}
    fields = [rate | {"field": "a`b"}, whole | {"field": "n"}, {"type": "bytes", "field": "raw"}]
    for kind, more, ddl in (
        ("array", {"items": {"type": "array", "items": rate}}, "ARRAY<ARRAY<DECIMAL(38,18)>>"),
        ("map", {"keys": text, "values": rate}, "MAP<STRING, DECIMAL(38,18)>"),
        ("struct", {"fields": fields}, "STRUCT<`a``b`: DECIMAL(38,18), `n`: BIGINT, `raw`: STRING>"),
    ):
        assert one(kind, **more) == Column("x", ddl, is_json=True)
    for kind, more in (
        ("map", {"keys": whole, "values": rate}),  # written as pairs
        ("struct", {"fields": [*fields, rate | {"field": "N"}]}),
        ("struct", {"fields": [rate | {"field": "a", "parameters": {}}]}),
        ("struct", {"fields": [{"type": "struct", "field": "a"}, rate | {"field": "b"}]}),
    ):
        assert one(kind, **more) == Column("x", "STRING")


def test_keys_must_not_be_null() -> None:
    schema = json.dumps({"type": "struct", "fields": [field("id", "int64", optional=False), field("part", "string")]})
    assert columns_of_key(schema) == (Column("id", "BIGINT", False), Column("part", "STRING"))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("null", "schemas.enable=true"),
        ("{", "not readable"),
        ("[" * 100_000, "not readable"),
        ('{"type": "string"}', "not a struct"),
        ('{"type": "struct", "fields": 7}', "not a struct"),
        ('{"type": "struct", "fields": [7]}', "not a struct"),
        ('{"type": "struct", "fields": []}', "no field 'after'"),
        (row_schema(), "has 0 fields"),
        (row_schema(*[field(f"c{number}", "int32") for number in range(1_601)]), "has 1601 fields"),
        (row_schema(field("x", "int32"), field("X", "int32")), "two columns are named 'x'"),
        (row_schema(field("__lsn", "int32")), "'__lsn' has a backtick in its name, or begins with '__'"),
        (row_schema(field("a`b", "int32")), "'a`b' has a backtick in its name"),
        (row_schema(field("x", "int128")), "'int128', which is not a type of Kafka Connect"),
        (
            row_schema(field("x", "int32", name="io.debezium.time.MicroTimestamp")),
            "needs the type 'int64', not 'int32'",
        ),
        (row_schema(field("x", "string", name="io.debezium.time.Date")), "needs the type 'int32', not 'string'"),
        (row_schema(field("x", "int64", name="io.debezium.time.ZonedTimestamp")), "needs the type 'string'"),
        (row_schema({"type": "int32"}), "has no name"),
        (row_schema(field("x", "bytes", name="org.apache.kafka.connect.data.Decimal")), "has no scale"),
        (
            row_schema(
                field(
                    "x",
                    "bytes",
                    name="org.apache.kafka.connect.data.Decimal",
                    parameters={"scale": "2", "connect.decimal.precision": "50"},
                )
            ),
            "at most 38 digits",
        ),
    ],
)
def test_a_schema_that_is_none_of_debeziums_is_refused_with_the_reason(schema: str, reason: str) -> None:
    with pytest.raises(EventSchemaError, match=reason):
        columns_of_row(schema)
