"""The schema ids that a broker collects from a producer's batches (Confluent's wire format)."""

from __future__ import annotations

import random

import pytest

from headrace_core.errors import InvalidRecordError
from headrace_core.records import NO_SCHEMA, SCHEMA_IDS_MAX, BatchSchemas, Compression, SchemaIds
from headrace_core.records.types import SCHEMA_PLACES_MAX


def framed(schema_id, rest=b"rest"):
    return b"\0" + (schema_id & 0xFFFFFFFF).to_bytes(4, "big") + rest


def schemas_of(codec, data, **sides):
    schemas = SchemaIds(**sides)
    codec.validate_batches(data, schemas=schemas)
    return schemas.batches


@pytest.mark.parametrize("compression", list(Compression))
def test_the_ids_of_keys_and_values_come_with_the_places_of_their_records(codec, compression):
    records = [
        (1, framed(1), framed(7), None),
        (1, None, framed(8, b""), [("h", b"v")]),
        (1, framed(2), None, None),
        (1, framed(1), framed(7), None),
    ]
    batch = codec.encode_batch(records, compression=compression)
    assert schemas_of(codec, batch, of_keys=True) == [BatchSchemas({1: [0, 3], 2: [2]}, {7: [0, 3], 8: [1]})]
    assert schemas_of(codec, batch) == [BatchSchemas({}, {7: [0, 3], 8: [1]})]
    assert schemas_of(codec, batch, of_keys=True, of_values=False) == [BatchSchemas({1: [0, 3], 2: [2]}, {})]


@pytest.mark.parametrize(
    "value", [b"", b"\0", framed(5)[:4], b"\1" + framed(5)[1:], b'{"a": 1}', framed(-1), framed(-(2**31))]
)
def test_a_value_without_magic_byte_and_id_has_no_schema(codec, value):
    batch = codec.encode_batch([(1, None, framed(5), None), (1, None, value, None)])
    assert schemas_of(codec, batch) == [BatchSchemas({}, {5: [0], NO_SCHEMA: [1]})]


def test_each_batch_has_its_own_entry(codec):
    first, second = (codec.encode_batch([(1, None, framed(n), None)] * n) for n in (1, 2))
    assert schemas_of(codec, first + second) == [BatchSchemas({}, {1: [0]}), BatchSchemas({}, {2: [0, 1]})]


def test_the_places_of_one_id_are_bounded(codec):
    values = [framed(3), *[framed(4)] * (SCHEMA_PLACES_MAX + 9), framed(3), framed(4)]
    batch = codec.encode_batch([(1, None, value, None) for value in values])
    assert schemas_of(codec, batch) == [
        BatchSchemas({}, {3: [0, SCHEMA_PLACES_MAX + 10], 4: list(range(1, SCHEMA_PLACES_MAX + 1))})
    ]


def test_a_batch_with_too_many_ids_is_refused_with_the_record_that_has_the_first_id_too_many(codec):
    enough = codec.encode_batch([(1, None, framed(n), None) for n in range(SCHEMA_IDS_MAX)])
    assert len(schemas_of(codec, enough)[0].values) == SCHEMA_IDS_MAX
    values = [framed(n) for n in range(SCHEMA_IDS_MAX)] + [framed(0), framed(SCHEMA_IDS_MAX)]
    batch = codec.encode_batch([(1, None, value, None) for value in values])
    with pytest.raises(InvalidRecordError, match="more than 1000 different schema ids") as raised:
        schemas_of(codec, batch)
    assert [index for index, _ in raised.value.faults] == [SCHEMA_IDS_MAX + 1]
    assert codec.validate_batches(batch)  # without the check the ids are only bytes


def test_both_codecs_collect_the_same_from_random_records():
    from headrace_core.records import _compiled, _pure

    chance = random.Random(20261126)
    choices = [None, b"", b"\0\0", *[framed(n) for n in range(-2, 6)], b"\1\0\0\0\1"]
    for _ in range(200):
        records = [(1, chance.choice(choices), chance.choice(choices), None) for _ in range(chance.randrange(1, 60))]
        batch = _pure.encode_batch(records, compression=chance.choice(list(Compression)))
        assert schemas_of(_pure, batch, of_keys=True) == schemas_of(_compiled, batch, of_keys=True)
