"""The columns of a lake table, from the schemas that Kafka Connect puts into each event.

| PostgreSQL | in the event | in the lake |
|---|---|---|
| smallint, integer; bigint | int16, int32; int64 | INT; BIGINT |
| real, double precision, boolean, text | float, double, boolean, string | FLOAT, DOUBLE, BOOLEAN, STRING |
| numeric(p, s) | Connect's Decimal, a JSON number | DECIMAL(p, s) |
| bytea | bytes, as base64 | BINARY |
| date | Debezium's Date: days since 1970 | DATE |
| timestamp | Debezium's Timestamp or MicroTimestamp | TIMESTAMP_NTZ |
| timestamptz | Debezium's ZonedTimestamp: ISO 8601 | TIMESTAMP |
| arrays of these, without bytea | array | ARRAY |
| time; interval | microseconds, as int64 | BIGINT |
| uuid, json, enum and others | string | STRING |
| numeric without precision, hstore, point | struct or map | STRING: the value as JSON |

Sources: Debezium's documentation of the connector for PostgreSQL (data type mappings); Kafka's JsonConverter.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace_core.errors import InvalidArgumentError

#: Maximum number of columns of a table; PostgreSQL has at most 1,600.
COLUMNS_MAX = 1_600
#: The field that contains the whole JSON text if the text does not fit its schema (events.py).
CORRUPT = "__corrupt"
#: Prefix of the columns that the pipeline adds.
_OWN = "__"
#: Maximum precision of a decimal column.
DIGITS_MAX = 38
_PLAIN = {
    "int8": "INT", "int16": "INT", "int32": "INT", "int64": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "boolean": "BOOLEAN", "string": "STRING",
}  # fmt: skip
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
#: Maps the types that Debezium and Connect use for times, which are numbers, to the type of the lake's column.
_TIMES = {
    "io.debezium.time.Date": pa.date32(),
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "io.debezium.time.Timestamp": pa.timestamp("ms"),
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("ms"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
}
_ZONED = "io.debezium.time.ZonedTimestamp"
#: The type that the values of a time have in the event.
_KINDS_OF_TIMES = {
    _ZONED: "string",
    **{meaning: "int32" if pa.types.is_date(cast) else "int64" for meaning, cast in _TIMES.items()},
}


class EventSchemaError(InvalidArgumentError):
    """The schema in a change event does not describe a table."""

    code = "EVENT_SCHEMA"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``json``: the type of the column's values in the event's JSON, as DDL; with STRING, an object stays
    JSON text. ``is_json``: a value of another type is written as JSON text. ``cast``: the Arrow type to which a number
    that represents a date or a time is converted. ``is_base64``: the text represents bytes."""

    name: str
    json: str
    is_nullable: bool = True
    cast: pa.DataType | None = None
    is_base64: bool = False
    is_json: bool = False


def columns_of_row(value_schema: str) -> tuple[Column, ...]:
    """The columns of the row ``after`` in an event, from the schema of the event's value. Raises EventSchemaError."""
    fields = _fields(_schema(value_schema), "the schema of the value")
    rows = [field for field in fields if field.get("field") == "after"]
    if len(rows) != 1:
        raise EventSchemaError("the schema of the value has no field 'after'; check that Debezium writes this topic")
    return _columns(rows[0], "the schema of 'after'")


def columns_of_key(key_schema: str) -> tuple[Column, ...]:
    """The columns of the primary key, from the schema of the event's key. Raises EventSchemaError."""
    return _columns(_schema(key_schema), "the schema of the key")


def _schema(text: str) -> Mapping[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EventSchemaError(f"the schema of the event is not readable: {error}") from error
    if not isinstance(schema, dict):
        raise EventSchemaError("the schema of the event is null: set schemas.enable=true for Connect's JsonConverter")
    return schema


def _fields(schema: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
    fields = schema.get("fields")
    if schema.get("type") != "struct" or not isinstance(fields, list) or not all(isinstance(f, dict) for f in fields):
        raise EventSchemaError(f"{what} is not a struct with fields; check that Debezium writes this topic")
    return fields


def _columns(schema: Mapping[str, Any], what: str) -> tuple[Column, ...]:
    fields = _fields(schema, what)
    if not 0 < len(fields) <= COLUMNS_MAX:
        raise EventSchemaError(f"{what} has {len(fields)} fields: a table has 1 to {COLUMNS_MAX}")
    columns = tuple(map(_column, fields))
    for column in columns:
        if column.name.startswith(_OWN) or "`" in column.name:
            raise EventSchemaError(
                f"the column {column.name!r} has a backtick in its name, or begins with {_OWN!r} like the columns that "
                "the pipeline adds; rename it"
            )
    twice = [name for name, count in Counter(column.name.lower() for column in columns).items() if count > 1]
    if twice:
        raise EventSchemaError(
            f"two columns are named {twice[0]!r}, and a lake ignores the case of names; rename one of them"
        )
    return columns


def _column(field: Mapping[str, Any]) -> Column:
    name, kind, meaning = field.get("field"), field.get("type"), field.get("name")
    if not isinstance(name, str) or not name or not isinstance(kind, str):
        raise EventSchemaError("a field of the event's schema has no name, or no type")
    is_nullable = field.get("optional") is not False
    if kind == "array":
        element = _element(field.get("items"))
        if element is not None:
            cast = None if element.cast is None else pa.list_(element.cast)
            return Column(name, f"ARRAY<{element.json}>", is_nullable, cast)
    if kind in ("array", "struct", "map"):
        try:
            nested = _nested(field) or ""
        except EventSchemaError:
            nested = ""  # it is kept as text, whatever is in it
        if "DECIMAL(" in nested:
            return Column(name, nested, is_nullable, is_json=True)
        return Column(name, "STRING", is_nullable)
    if meaning == _DECIMAL:
        return Column(name, _decimal(name, field.get("parameters")), is_nullable)
    if kind == "bytes":
        return Column(name, "STRING", is_nullable, is_base64=True)
    if isinstance(meaning, str) and (expected := _KINDS_OF_TIMES.get(meaning, kind)) != kind:
        raise EventSchemaError(f"the column {name!r} is a {meaning}, which needs the type {expected!r}, not {kind!r}")
    if meaning == _ZONED:
        return Column(name, "TIMESTAMP", is_nullable)
    if kind not in _PLAIN:
        raise EventSchemaError(f"the column {name!r} has the type {kind!r}, which is not a type of Kafka Connect")
    return Column(name, _PLAIN[kind], is_nullable, _TIMES.get(meaning) if isinstance(meaning, str) else None)


def _element(items: Any) -> Column | None:
    """The column type of an array's elements; None if the array stays a JSON text."""
    if not isinstance(items, dict) or items.get("type") in ("array", "struct", "map"):
        return None
    element = _column({**items, "field": "element"})
    return None if element.is_base64 else element


def _nested(schema: Any) -> str | None:
    """The type of a nested value, as DDL, with which its decimals are read exactly; None if Spark has no such type.

    In a STRING field Spark writes an object anew, with its decimals as doubles.
    """
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "array":
        item = _nested(schema.get("items"))
        return item and f"ARRAY<{item}>"
    if kind == "map":
        valued = _nested(schema.get("values")) if _nested(schema.get("keys")) == "STRING" else None
        return valued and f"MAP<STRING, {valued}>"
    if kind == "struct":
        fields = _fields(schema, "a nested value")
        names = [str(field.get("field")).replace("`", "``") for field in fields]
        types = [_nested(field) for field in fields]
        if None in types or len({name.lower() for name in names}) < len(names):
            return None
        return f"STRUCT<{', '.join(f'`{name}`: {each}' for name, each in zip(names, types, strict=True))}>"
    if kind == "bytes":
        return _decimal("nested", schema.get("parameters")) if schema.get("name") == _DECIMAL else "STRING"
    return _PLAIN.get(kind) if isinstance(kind, str) else None


def _decimal(name: str, parameters: Any) -> str:
    known = parameters if isinstance(parameters, dict) else {}
    try:
        scale = int(known["scale"])
        precision = int(known.get("connect.decimal.precision", DIGITS_MAX))
    except (KeyError, TypeError, ValueError) as error:
        raise EventSchemaError(f"the schema of the event has no scale for the decimal column {name!r}") from error
    if not 0 <= scale <= precision <= DIGITS_MAX:
        raise EventSchemaError(
            f"the column {name!r} is numeric({precision}, {scale}), and a lake's column has at most {DIGITS_MAX} "
            "digits; set Debezium's decimal.handling.mode=string"
        )
    return f"DECIMAL({precision},{scale})"
