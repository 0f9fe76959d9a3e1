"""Targets: bytes of values with schemas, and texts of Avro schemas.

``schema_values``: a value for one of several schemas. The compiled codec reads it or raises Damaged; what it reads it
writes again, and fastavro reads the same. ``schema_texts``: a schema and a reader's schema, from which an encoder and a
decoder are built, or an error says why not. ``schema_messages``: whole keys and values for the deserializers of all
types, whose errors are SerializationErrors.
"""

# ruff: noqa: PT017 - a typed error is one of the right answers here, and its path is checked
from __future__ import annotations

import base64
import contextlib
import io
import json
import math
from functools import cache
from typing import Any

import fastavro

from headrace.errors import SerializationError
from headrace.schemas import (
    RegistryDeserializer,
    ResolvedSchema,
    Schema,
    SchemaRegistry,
    SchemaType,
    UnknownSchemaIdError,
    avro,
    plain,
    wire,
)
from tests.fuzz.fuzz_engine import Target


def _record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


SCHEMAS: list[Any] = [
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string"],
    {"type": "array", "items": "null"},
    {"type": "array", "items": {"type": "array", "items": _record("Empty")}},
    {"type": "map", "values": ["null", "long"]},
    _record("Tree", ("value", "long"), ("left", ["null", "Tree"]), ("right", ["null", "Tree"])),
    _record(
        "Order",
        ("id", "long"),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
        ("hash", {"type": "fixed", "name": "Hash", "size": 3}),
        ("items", {"type": "array", "items": _record("Item", ("sku", "string"), ("count", "int"))}),
    ),
    _record(
        "Times",
        ("day", {"type": "int", "logicalType": "date"}),
        ("time", {"type": "long", "logicalType": "time-micros"}),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("id", {"type": "string", "logicalType": "uuid"}),
    ),
]


@cache
def _codecs(number: int) -> tuple[avro.Encoder, avro.Decoder, avro.Decoder, Any]:
    parsed = avro.parse_document(SCHEMAS[number])
    empty = avro.parse_document(["null", _record("Nothing"), {"type": "map", "values": "bytes"}])
    with contextlib.suppress(avro.Unresolvable):
        return avro.encoder(parsed), avro.decoder(parsed), avro.decoder(parsed, empty), SCHEMAS[number]
    return avro.encoder(parsed), avro.decoder(parsed), avro.decoder(parsed), SCHEMAS[number]


def schema_values(data: bytes) -> None:
    if not data:
        return
    encoder, decoder, other, schema = _codecs(data[0] % len(SCHEMAS))
    with contextlib.suppress(avro.Damaged):
        other.decode(data, 1)
    try:
        found = decoder.decode(data, 1)
    except avro.Damaged:
        return
    try:
        again = decoder.decode(encoder.encode(found))
    except avro.Mismatch as error:  # like Java, a reader does not count the digits of a decimal; fastavro rounds them
        assert error.path == "price", error
        return
    assert _same(again, found), f"{found!r} became {again!r}"
    theirs = fastavro.schemaless_reader(io.BytesIO(data[1:]), fastavro.parse_schema(schema), None)
    assert _same(theirs, found), f"fastavro reads {theirs!r}, headrace {found!r}"


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, where NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def schema_texts(data: bytes) -> None:
    writer, _, reader = data.decode("utf-8", "replace").partition("\n")
    parsed = []
    for text in (writer, reader or writer):
        try:
            parsed.append(avro.parse(text))
        except avro.AvroSchemaError:
            return
    for build in (lambda: avro.encoder(parsed[0]), lambda: avro.decoder(*parsed)):
        with contextlib.suppress(avro.Unresolvable):
            build()


class _Known(SchemaRegistry):
    """A registry of three schemas, which needs no server."""

    def resolved(self, schema_id: int, *, serialized: bool = False, may_wait: bool = True) -> ResolvedSchema:
        from google.protobuf import type_pb2

        text = base64.b64encode(type_pb2.DESCRIPTOR.serialized_pb).decode()
        known = {
            1: Schema(json.dumps(SCHEMAS[5])),
            2: Schema(text, SchemaType.PROTOBUF),
            3: Schema('{"type": "object"}', SchemaType.JSON),
        }
        if schema_id not in known:
            raise UnknownSchemaIdError(f"no schema with id {schema_id}", schema_id=schema_id)
        return ResolvedSchema(schema_id, known[schema_id])


@cache
def _deserializer() -> RegistryDeserializer:
    return RegistryDeserializer(_Known("http://127.0.0.1:1"))


def schema_messages(data: bytes) -> None:
    with contextlib.suppress(SerializationError):
        json.dumps(plain(_deserializer()("topic", data)))


def _values() -> list[bytes]:
    order = {"id": 1, "kind": "B", "hash": b"abc", "items": [{"sku": "a", "count": 2}] * 3}
    tree = {"value": 1, "left": {"value": 2, "left": None, "right": None}, "right": None}
    written: list[tuple[int, Any]] = [
        (0, 5), (0, "text"), (0, 1.5), (1, [None] * 5), (2, [[{}], []]), (3, {"a": 1, "b": None}), (4, tree),
        (5, order),
    ]  # fmt: skip
    times = (
        bytes([6]) + b"\x02" + b"\x04" + b"\x06" + b"\x04\x01\x02" + b"\x48" + b"12345678-1234-1234-1234-123456789abc"
    )
    return [bytes([number]) + _codecs(number)[0].encode(value) for number, value in written] + [times]


def _texts() -> list[bytes]:
    texts = [json.dumps(each) for each in SCHEMAS]
    return [text.encode() for text in texts] + [
        f"{one}\n{other}".encode() for one in texts[3:6] for other in texts[3:6]
    ]


def _messages() -> list[bytes]:
    order = _codecs(5)[0].encode({"id": 1, "kind": "B", "hash": b"abc", "items": []})
    return [
        wire.header(1) + order,
        wire.header(2) + wire.write_indexes([1]) + b"\x18\x03\x22\x01x",
        wire.header(2) + wire.write_indexes([0]) + b"\x0a\x01x",
        wire.header(3) + b'{"a": [1, 2.5, null]}',
    ]


TARGETS = (
    Target("schema_values", schema_values, _values),
    Target("schema_texts", schema_texts, _texts),
    Target("schema_messages", schema_messages, _messages),
)
