"""Serializers beside confluent-kafka's: microseconds per record, both in one run on the same registry in memory.

    .venv/bin/python bench/schemas.py [-o json]

Both registry clients answer from their caches, so the benchmark measures one call of the serializer (or deserializer)
per record. The two libraries take turns in short rounds, and the best round of each counts, so that a busy machine
affects both equally.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fastavro

from headrace.schemas import AvroDeserializer, AvroSerializer, JsonDeserializer, JsonSerializer, SchemaRegistry
from tests.worlds.fake_registry import fake_registry

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry import avro as their_avro
    from confluent_kafka.schema_registry import json_schema as their_json
    from confluent_kafka.schema_registry import protobuf as their_protobuf
    from confluent_kafka.serialization import MessageField, SerializationContext

#: Many short rounds: on a busy machine only some of them run without an interruption.
ROUNDS = 200
ROUND_S = 0.004

FLAT = {
    "type": "record",
    "name": "Point",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "value", "type": "double"},
    ],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": {"type": "enum", "name": "Currency", "symbols": ["EUR", "USD"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
                },
            },
        },
    ],
}
POINT = {"id": 123_456, "name": "a point", "value": 12.5}
VALUE = {
    "id": 123_456,
    "customer": "c-881",
    "amount": 12.5,
    "currency": "EUR",
    "note": None,
    "at": 1_700_000_000_000,
    "items": [{"sku": "abc", "count": 2}, {"sku": "def", "count": 1}],
}
ORDER_JSON = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string", "minLength": 1},
        "amount": {"type": "number", "minimum": 0},
        "items": {"type": "array", "items": {"type": "object", "required": ["sku", "count"]}},
    },
    "required": ["id", "customer"],
}


def fastavro_calls(schema: Any, value: Any, data: bytes) -> tuple[Callable[[], bytes], Callable[[], Any]]:
    """The minimum work of a serializer based on fastavro: header and value to bytes, and back."""
    parsed, header = fastavro.parse_schema(schema), data[:5]

    def write() -> bytes:
        out = io.BytesIO()
        out.write(header)
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    def read() -> Any:
        source = io.BytesIO(data)
        source.read(5)
        return fastavro.schemaless_reader(source, parsed, None)

    return write, read


def per_call_us(*calls: Callable[[], Any]) -> list[float]:
    """The best round of each call, in microseconds; the calls take turns."""
    counts = []
    for call in calls:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < ROUND_S:
            call()
            count += 1
        counts.append(max(count, 10))
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for at, call in enumerate(calls):
            began = time.perf_counter()
            for _ in range(counts[at]):
                call()
            best[at] = min(best[at], (time.perf_counter() - began) / counts[at] * 1e6)
    return best


def compare(url: str) -> dict[str, dict[str, float]]:
    from google.protobuf import type_pb2

    ours, theirs = SchemaRegistry(url), SchemaRegistryClient({"url": url})
    found: dict[str, dict[str, float]] = {}

    def pair(name: str, our_call: Callable[[], Any], their_call: Callable[[], Any], *others: Callable[[], Any]) -> None:
        our_us, their_us, *other_us = per_call_us(our_call, their_call, *others)
        found[name] = {"headrace_us": our_us, "confluent_us": their_us, "times": their_us / our_us}
        if other_us:
            found[name]["fastavro_us"] = other_us[0]

    register: Any = {"auto_register_schemas": True}

    def avro_pairs(name: str, schema: Any, value: Any) -> None:
        at = SerializationContext(name, MessageField.VALUE)
        write = AvroSerializer(ours, schema, **register)
        their_write = their_avro.AvroSerializer(theirs, json.dumps(schema))
        data = write(name, value)
        assert data is not None
        assert data == their_write(value, at)
        bare_write, bare_read = fastavro_calls(schema, value, data)
        assert data == bare_write()
        pair(f"avro {name} serialize", lambda: write(name, value), lambda: their_write(value, at), bare_write)
        read, their_read = AvroDeserializer(ours), their_avro.AvroDeserializer(theirs)
        assert read(name, data) == their_read(data, at)
        pair(f"avro {name} deserialize", lambda: read(name, data), lambda: their_read(data, at), bare_read)

    avro_pairs("flat", FLAT, POINT)
    avro_pairs("order", ORDER, VALUE)
    at = SerializationContext("json", MessageField.VALUE)
    write_json = JsonSerializer(ours, ORDER_JSON, **register)
    their_write_json = their_json.JSONSerializer(json.dumps(ORDER_JSON), theirs)
    data = write_json("json", VALUE)
    pair("json order serialize", lambda: write_json("json", VALUE), lambda: their_write_json(VALUE, at))
    read_json, their_read_json = JsonDeserializer(ours), their_json.JSONDeserializer(json.dumps(ORDER_JSON))
    assert read_json("json", data) == their_read_json(data, at)
    pair("json order deserialize", lambda: read_json("json", data), lambda: their_read_json(data, at))

    from headrace.schemas import ProtobufDeserializer, ProtobufSerializer

    kind = type_pb2.Field
    message = kind(name="customer", number=3, json_name="c", type_url="type.googleapis.com/x")
    at = SerializationContext("protobuf", MessageField.VALUE)
    settings = {"use.deprecated.format": False}
    write_message = ProtobufSerializer(ours, kind, **register)
    their_write_message = their_protobuf.ProtobufSerializer(kind, theirs, settings)
    data = write_message("protobuf", message)
    pair(
        "protobuf serialize",
        lambda: write_message("protobuf", message),
        lambda: their_write_message(message, at),
    )
    read_message = ProtobufDeserializer(ours, kind)
    their_read_message = their_protobuf.ProtobufDeserializer(kind, settings)
    assert read_message("protobuf", data) == their_read_message(data, at)
    pair(
        "protobuf deserialize",
        lambda: read_message("protobuf", data),
        lambda: their_read_message(data, at),
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    given = parser.parse_args()
    with fake_registry() as registry:
        found = compare(registry.url)
    if given.output == "json":
        print(json.dumps(found))
        return
    print(f"{'':26}{'headrace':>12}{'confluent':>12}{'times':>8}{'fastavro alone':>18}")
    for name, row in found.items():
        bare = f"{row['fastavro_us']:>15.2f} us" if "fastavro_us" in row else ""
        print(f"{name:26}{row['headrace_us']:>9.2f} us{row['confluent_us']:>9.2f} us{row['times']:>8.1f}{bare}")


if __name__ == "__main__":
    main()
