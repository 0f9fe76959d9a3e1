"""Target ``change_events``: Debezium's events in Avro become JSON, or get a reason; the schema may be hostile, too.

The JSON is what the decoder of Avro reads. Nothing but an error of Headrace is raised, and no number is NaN.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from headrace.schemas import ResolvedSchema, Schema, wire
from headrace_core.errors import HeadraceError
from headrace_pipelines.cdc.avro import Converter
from headrace_pipelines.cdc.columns import columns_of_key, columns_of_row
from tests.fuzz.fuzz_engine import Target

_DECIMAL = {
    "type": "bytes", "scale": 2, "precision": 64, "logicalType": "decimal",
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}  # fmt: skip
_ROW = {
    "type": "record", "name": "Value",
    "fields": [
        {"name": "id", "type": {"type": "int", "connect.type": "int16"}},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": ["null", _DECIMAL], "default": None},
        {"name": "many", "type": {"type": "array", "items": ["null", "double"]}},
        {"name": "more", "type": {"type": "map", "values": "bytes"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date", "connect.name": "io.debezium.time.Date"}},
    ],
}  # fmt: skip
_EVENT = {
    "type": "record", "name": "Envelope", "namespace": "shop.public.t",
    "fields": [
        {"name": "before", "type": ["null", _ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
}  # fmt: skip


class _Registry:
    """The part of a client that Converter uses."""

    def __init__(self, text: str) -> None:
        self._text = text

    def resolved(self, schema_id: int) -> ResolvedSchema:
        return ResolvedSchema(schema_id, Schema(self._text))


def change_events(data: bytes) -> None:
    """``data``: the length of the schema's text (2 bytes), the text, and the value."""
    size = int.from_bytes(data[:2], "big")
    text, value = data[2 : 2 + size].decode("utf-8", "replace"), data[2 + size :]
    converter = Converter(_Registry(text))  # type: ignore[arg-type]
    for is_key in (False, True):
        found, reason = converter.json_of(wire.header(1) + value, is_key=is_key)
        assert (found is None) is (reason is not None)
        if found is None:
            continue
        event = json.loads(found, parse_constant=_refuse)
        assert event.keys() == {"schema", "payload"}
        if not is_key:
            assert event["payload"].keys() <= {"op", "after", "source"}
        try:
            (columns_of_key if is_key else columns_of_row)(json.dumps(event["schema"]))
        except HeadraceError:
            continue


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def _seeds() -> list[bytes]:
    row = {
        "id": 1, "name": "ü\n", "price": None, "many": [1.5, None, float("inf")], "more": {"a": b"\0"}, "kind": "B",
        "hash": b"ab", "day": 7,
    }  # fmt: skip
    made = []
    for schema, value in ((_EVENT, {"before": None, "after": row, "op": "c"}), (_ROW, row)):
        out = io.BytesIO()
        plain = json.loads(json.dumps(schema).replace('"logicalType": "decimal", ', ""))
        fastavro.schemaless_writer(out, plain, value)
        text = json.dumps(schema, separators=(",", ":")).encode()
        made.append(len(text).to_bytes(2, "big") + text + out.getvalue())
    return made


TARGETS = (Target("change_events", change_events, _seeds),)
