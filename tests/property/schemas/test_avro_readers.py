"""What the Avro codec writes, it reads as the same value, and so does fastavro: logical types from raw numbers, bytes
and texts."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from typing import Any

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.avro import Mismatch, decoder, encoder, parse
from tests.worlds.this_process import examples

_LOGICAL: list[tuple[Any, list[st.SearchStrategy[Any]]]] = [
    ({"type": "int", "logicalType": "date"}, [st.integers(-(2**31), 2**31 - 1), st.dates()]),
    ({"type": "int", "logicalType": "time-millis"}, [st.integers(-(10**8), 10**8), st.times()]),
    ({"type": "long", "logicalType": "time-micros"}, [st.integers(-(10**11), 10**11), st.times()]),
    *(
        (
            {"type": "long", "logicalType": f"{local}timestamp-{unit}"},
            [st.integers(-(10**18), 10**18), st.datetimes(timezones=st.just(datetime.UTC))],
        )
        for local in ("", "local-")
        for unit in ("millis", "micros")
    ),
    ({"type": "string", "logicalType": "uuid"}, [st.text(max_size=40), st.uuids(), st.uuids().map(str)]),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        [st.binary(max_size=6), st.decimals(), st.integers()],
    ),
    (
        {"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 2},
        [st.binary(min_size=3, max_size=3), st.decimals(), st.integers()],
    ),
    ("float", [st.integers(), st.floats()]),
    ("double", [st.integers(), st.floats()]),
]


@given(st.data())
@settings(max_examples=examples(1_500))
def test_what_is_written_is_read_by_us_and_by_fastavro_as_the_same_value(data: st.DataObject) -> None:
    schema, values = data.draw(st.sampled_from(_LOGICAL))
    value = data.draw(st.one_of(values))
    try:
        written = encoder(parse(json.dumps(schema))).encode(value)
    except Mismatch:
        return
    ours = decoder(parse(json.dumps(schema))).decode(written)
    theirs = fastavro.schemaless_reader(io.BytesIO(written), fastavro.parse_schema(schema), None)
    assert ours == theirs or (ours != ours and theirs != theirs)  # NaN
    if isinstance(value, int) and isinstance(ours, float | decimal.Decimal):
        assert ours == value
