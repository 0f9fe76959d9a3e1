"""Target ``schema_columns``: bytes of several values, decoded to one Arrow array.

The result is a sound array with a reason for each bad row; the codec that reads one value at a time agrees about which
rows are bad. A good row is the same without its neighbours. What was decoded is encoded, and decodes to the same.
"""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import fastavro
import pyarrow as pa

from headrace.schemas import avro
from headrace.schemas.avro.arrow import ArrowDecoder, ArrowEncoder, Layout
from tests.fuzz.fuzz_engine import Reader, Target


def _record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, "type": kind} | ({"default": rest[0]} if rest else {}) for field, kind, *rest in fields
        ],
    }


def _enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)}


_ITEM = _record("Item", ("sku", "string"), ("count", "int"), ("note", ["null", "string"]))
_TREE = _record("Tree", ("value", "int"), ("below", {"type": "array", "items": "Tree"}))

#: A writer's schema and a reader's.
PAIRS: list[tuple[Any, Any]] = [
    (kind, kind)
    for kind in (
        _record("Order", ("id", "long"), ("items", {"type": "array", "items": _ITEM}), ("paid", "boolean")),
        {"type": "map", "values": ["null", "long", "string", _ITEM]},
        {"type": "array", "items": {"type": "array", "items": "null"}},
        _record(
            "Flat",
            ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}),
            ("hash", {"type": "fixed", "name": "Hash", "size": 3}),
            ("x", "float"),
            ("y", ["null", "double"]),
            ("data", "bytes"),
        ),
    )
] + [
    (
        _record("R", ("gone", _TREE), ("n", "int"), ("u", ["int", "string", "null"]), ("e", _enum("A", "B"))),
        _record(
            "R",
            ("n", "double"),
            ("u", ["null", "string", "long"]),
            ("e", _enum("B", "C") | {"default": "C"}),
            ("new", {"type": "array", "items": "string"}, ["x"]),
        ),
    ),
]


@cache
def _codecs(number: int, layout: Layout) -> tuple[ArrowDecoder, ArrowEncoder, avro.Type, avro.Type, avro.Decoder]:
    writer, reader = (avro.parse(json.dumps(each)) for each in PAIRS[number])
    decoder = ArrowDecoder(reader, layout=layout)
    return decoder, ArrowEncoder(reader, decoder.type), writer, reader, avro.decoder(writer, reader)


def schema_columns(data: bytes) -> None:
    source = Reader(data)
    first = source.integer(1)
    layout = Layout.SPARK if first & 1 else Layout.ARROW
    decoder, encoder, writer, reader, one_by_one = _codecs((first >> 1) % len(PAIRS), layout)
    rows = []
    while source.rest and len(rows) < 50:
        rows.append(source.bytes(source.integer(1)))
    found = decoder.decode_bare(pa.array(rows, pa.binary()), writer)
    found.values.validate(full=True)
    assert len(found.values) == len(rows)
    for at, row in enumerate(rows):
        is_good = True
        try:
            one_by_one.decode(row)
        except avro.Damaged:
            is_good = False
        assert is_good is (at not in found.reasons), f"row {at}: {found.reasons.get(at)}"
        if is_good and at % 8 == 0:
            alone = decoder.decode_bare(pa.array([row], pa.binary()), writer).values
            assert repr(alone.to_pylist()) == repr(found.values.slice(at, 1).to_pylist())
    back = encoder.encode(found.values)
    assert back.reasons.keys() <= found.reasons.keys(), back.reasons  # (a dense union has no nulls of its own)
    kept = [row for row in back.values.to_pylist() if row is not None]
    again = decoder.decode_bare(pa.array(kept, pa.binary()), reader)
    assert not again.reasons
    good = [value for at, value in enumerate(found.values.to_pylist()) if at not in found.reasons and value is not None]
    assert repr(again.values.to_pylist()) == repr(good)


def _seeds() -> list[bytes]:
    item = {"sku": "a", "count": 2, "note": None}
    tree = {"value": 1, "below": [{"value": 2, "below": []}]}
    values: list[list[Any]] = [
        [{"id": 1, "items": [item, item], "paid": True}, {"id": 2, "items": [], "paid": False}],
        [{"a": 1, "b": None, "c": "x"}, {}, {"d": item}],
        [[[None, None], []], []],
        [{"kind": "B", "hash": b"abc", "x": 0.5, "y": None, "data": b"\0\1"}],
        [{"gone": tree, "n": 5, "u": "x", "e": "A"}, {"gone": tree, "n": -5, "u": None, "e": "B"}],
    ]
    made = []
    for number, each in enumerate(values):
        for layout in (0, 1):
            parts = [bytes([number << 1 | layout])]
            for value in each:
                out = io.BytesIO()
                fastavro.schemaless_writer(out, PAIRS[number][0], value)
                parts += [bytes([len(out.getvalue())]), out.getvalue()]
            made.append(b"".join(parts))
    return made


TARGETS = (Target("schema_columns", schema_columns, _seeds),)
