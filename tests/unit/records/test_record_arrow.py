"""Arrow in and out: types, nulls, chunks, slices, pruning, ranges, sizes; on both backends."""

from __future__ import annotations

import datetime
import random

import pyarrow as pa
import pytest

from headrace_core.errors import (
    CorruptMessageError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from headrace_core.records import (
    Compression,
    DecodeLimits,
    RecordIterator,
    _arrow_decode,
    _arrow_encode,
    _arrow_pure,
    _pure,
    arrow,
    with_base,
    with_log_append_time,
)
from headrace_core.testing.batches import batch_of, patched

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(params=["pure", "native"], autouse=True)
def backend(request, monkeypatch):
    native = request.param == "native"
    monkeypatch.setattr(arrow, "BACKEND", request.param)
    monkeypatch.setattr(arrow, "Encoder", (_arrow_encode if native else _arrow_pure).Encoder)
    monkeypatch.setattr(arrow, "Decoder", (_arrow_decode if native else _arrow_pure).Decoder)
    return request.param


def _encode(table, **options):
    return arrow.encode_arrow(table, **({"max_batch_bytes": 1 << 20, "now_ms": NOW} | options))


def _records(batches):
    return [record for data, _ in batches for record in _pure.decode_batch(data)]


def _decode(slices, **options):
    batch = arrow.decode_arrow(slices, **({"topic": "t", "partition": 3} | options))
    batch.validate(full=True)
    return batch


def test_columns_become_records():
    table = pa.table(
        {
            "key": pa.array([b"k", None, b""]),
            "value": pa.array(["one", None, ""]),
            "headers": pa.array([[("h", b"x"), ("n", None)], None, []], HEADERS),
            "timestamp": pa.array([5, None, 7], pa.int64()),
            "color": pa.array([1, 2, 3]),
        }
    )
    ((data, count),) = _encode(table)
    assert count == 3
    assert data == _pure.encode_batch(
        [(5, b"k", b"one", [("h", b"x"), ("n", None)]), (NOW, None, None, []), (7, b"", b"", [])]
    )


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(3),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_binary()),
        pa.dictionary(pa.uint32(), pa.string_view()),
        pa.dictionary(pa.uint64(), pa.binary_view()),
        pa.run_end_encoded(pa.int16(), pa.string()),
        pa.run_end_encoded(pa.int32(), pa.binary_view()),
        pa.run_end_encoded(pa.int64(), pa.dictionary(pa.int8(), pa.string())),
        pa.json_(),
    ],
)
def test_every_type_of_bytes_and_text_is_taken_with_nulls_and_slices(kind):
    plain = pa.array(["abc", None, "xyz", "   " if kind == pa.binary(3) else "", None, "end"])
    if pa.types.is_dictionary(kind):
        encoded = plain.dictionary_encode()
        values = encoded.dictionary.cast(kind.value_type)
        column = pa.DictionaryArray.from_arrays(encoded.indices.cast(kind.index_type), values)
    elif pa.types.is_run_end_encoded(kind):
        ends = pa.array([1, 2, 3, 4, 5, 6], kind.run_end_type)
        values = plain.dictionary_encode() if pa.types.is_dictionary(kind.value_type) else plain.cast(kind.value_type)
        column = pa.RunEndEncodedArray.from_arrays(ends, values)
    elif isinstance(kind, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(kind, plain)
    else:
        column = plain.cast(pa.binary()).cast(kind)
        column = pa.concat_arrays([column, column.slice(1, 2)])
    expected = [None if v is None else v.encode() if isinstance(v, str) else v for v in column.to_pylist()]
    for start in range(len(column)):
        records = _records(_encode(pa.table({"value": column.slice(start), "key": column.slice(start)})))
        assert [record.value for record in records] == expected[start:]
        assert [record.key for record in records] == expected[start:]


def test_chunks_of_different_columns_need_not_meet():
    table = pa.table(
        {
            "value": pa.chunked_array([[b"a", b"b"], [b"c"], [], [b"d", b"e"]], pa.binary()),
            "key": pa.chunked_array([[b"1"], [b"2", None, b"4", b"5"]], pa.binary()),
        }
    )
    assert [(r.key, r.value) for r in _records(_encode(table))] == [
        (b"1", b"a"), (b"2", b"b"), (None, b"c"), (b"4", b"d"), (b"5", b"e"),
    ]  # fmt: skip
    assert [r.value for r in _records(_encode(table, rows=[4, 0, 0, 3]))] == [b"e", b"a", b"a", b"d"]
    assert [r.value for r in _records(_encode(table.to_batches()[0]))] == [b"a"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_become_milliseconds(unit):
    moment = datetime.datetime(2013, 1, 1, 10, 0, 7, tzinfo=datetime.UTC)
    column = pa.array([moment, None, moment]).cast(pa.timestamp(unit, tz="UTC")).slice(0, 3)
    table = pa.table({"value": pa.array([b"", b"", b""]), "timestamp": column})
    expected = int(moment.timestamp()) * 1000
    assert [record.timestamp_ms for record in _records(_encode(table))] == [expected, NOW, expected]
    assert [record.timestamp_ms for record in _records(_encode(table.slice(1)))] == [NOW, expected]


def test_fractions_of_a_millisecond_are_cut_off():
    for unit, per_ms in (("us", 1_000), ("ns", 1_000_000)):
        column = pa.array([per_ms * 5 + per_ms - 1, -1, -per_ms], pa.int64()).cast(pa.timestamp(unit))
        table = pa.table({"value": pa.array([b"", b"", b""]), "timestamp": column})
        assert [record.timestamp_ms for record in _records(_encode(table))] == [5, -1, -1]


def test_headers_in_slices_and_other_list_types_are_taken():
    lists = [[("a", b"1")], [], None, [("b", None), ("ü", b"")]]
    column = pa.array([[("skipped", b"x")], *lists], HEADERS).slice(1)
    wide = column.cast(pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])))
    views = pa.array(column.to_pylist(), pa.list_view(pa.struct([("key", pa.string_view()), ("value", pa.binary())])))
    names = pa.array(["a", "b", "ü"]).dictionary_encode()
    values = pa.array([b"1", None, b""])
    by_name = pa.StructArray.from_arrays([values, names], ["value", "key"])  # (struct fields go by their names)
    encoded = pa.ListArray.from_arrays([0, 1, 1, 1, 3], by_name, mask=pa.array([False, False, True, False]))
    as_map = pa.MapArray.from_arrays([0, 1, 1, 1, 3], names, values, mask=pa.array([False, False, True, False]))
    for headers in (column, wide, views, encoded, as_map):
        table = pa.table({"value": pa.array([b""] * 4), "headers": headers})
        for start in range(4):
            records = _records(_encode(table.slice(start)))
            assert [record.headers for record in records] == [pairs or [] for pairs in lists[start:]]


def test_batches_are_cut_at_their_limit_and_hold_every_row_once():
    values = [b"%04d" % i * (i % 13) for i in range(2_000)]
    table = pa.table({"value": pa.chunked_array([values[:700], values[700:]], pa.binary())})
    for limit in (300, 1_000, 65_536):
        batches = _encode(table, max_batch_bytes=limit)
        assert [record.value for record in _records(batches)] == values
        assert all(len(data) <= limit for data, _ in batches)
        assert sum(count for _, count in batches) == 2_000
        builder, expected = _pure.BatchBuilder(limit), []
        for value in values:
            if builder.append(NOW, None, value) < 0:
                expected.append(builder.build())
                builder.append(NOW, None, value)
        assert [data for data, _ in batches] == [*expected, builder.build()]


def test_a_row_too_large_is_named():
    table = pa.table({"value": pa.chunked_array([[b"x", b"y"], [b"z", b"z" * 500]], pa.binary())})
    with pytest.raises(RecordTooLargeError, match="row 3 alone needs more than 400 bytes"):
        _encode(table, max_batch_bytes=400)
    with pytest.raises(RecordTooLargeError, match="row 1 "):
        _encode(table, max_batch_bytes=400, rows=[2, 3, 0])
    assert len(_encode(table, max_batch_bytes=600)) == 1


def test_a_row_above_the_limit_of_a_batch_is_alone_in_its_batch():
    limits = {"max_batch_bytes": 400, "max_row_bytes": 9_100}
    for values, counts in (
        ([b"a", b"b" * 5_000, b"c" * 700, b"d", b"e" * 9_000], [1, 1, 1, 1, 1]),
        ([b"e" * 9_000, b"f", b"g"], [1, 2]),
        ([b"f", b"g", b"e" * 9_000], [2, 1]),
    ):
        batches = _encode(pa.table({"value": values}), **limits)
        assert [count for _, count in batches] == counts
        assert [record.value for record in _records(batches)] == values
    with pytest.raises(RecordTooLargeError, match="row 1 alone needs more than 9100 bytes"):
        _encode(pa.table({"value": [b"a", b"b" * 9_100]}), **limits)


def test_a_record_that_fits_to_the_byte_is_taken_and_one_more_byte_is_not():
    exact = len(_pure.encode_batch([(NOW, None, b"x" * 100, None)]))
    assert len(_encode(pa.table({"value": [b"x" * 100]}), max_batch_bytes=exact)[0][0]) == exact
    with pytest.raises(RecordTooLargeError):
        _encode(pa.table({"value": [b"x" * 100]}), max_batch_bytes=exact - 1)


@pytest.mark.parametrize("compression", list(Compression))
def test_compressed_batches_hold_the_same_records(compression):
    table = pa.table({"value": [b"value" * 20] * 500})
    plain, packed = (
        _encode(table, max_batch_bytes=9_000),
        _encode(table, max_batch_bytes=9_000, compression=compression),
    )
    assert [count for _, count in packed] == [count for _, count in plain]
    assert _records(packed) == _records(plain)
    for data, _ in packed:
        assert _pure.validate_batches(data)[0].compression is compression


def test_producer_fields_go_into_every_batch():
    (data, _), *_ = _encode(
        pa.table({"value": [b"x"]}), producer_id=4, producer_epoch=2, base_sequence=9, leader_epoch=6
    )
    header = _pure.check_batch(data)
    assert header[9:12] == (4, 2, 9)
    assert header.leader_epoch == 6


DAMAGED = pa.DictionaryArray.from_arrays(pa.array([5], pa.int32()), pa.array(["a"]), safe=False)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (pa.table({"key": [b"x"]}), "no column 'value'"),
        (pa.table({"value": [1]}), "'value' has type int64"),
        (pa.table({"value": [[b"x"]]}), "'value' has type list"),
        (pa.table({"value": pa.array([1, 2]).dictionary_encode()}), "'value' has type int64"),
        (pa.table({"value": [b"x"], "timestamp": [1.5]}), "'timestamp' has type double"),
        (pa.table({"value": [b"x"], "timestamp": pa.array(["2013"])}), "'timestamp' has type string"),
        (pa.table({"value": [b"x"], "headers": [b"h"]}), "'headers' has type binary"),
        (pa.table({"value": [b"x"], "headers": [[1]]}), "'headers' has type list"),
        (pa.table({"value": pa.array([1], pa.decimal32(5))}), "'value' has type decimal32.*cast the column"),
        (pa.table({"value": pa.array([1.0], pa.float16())}), "'value' has type .*cast the column"),
        (pa.table({"value": pa.array([1], pa.duration("s"))}), "'value' has type duration.*cast the column"),
        (pa.table({"value": pa.array([None], pa.month_day_nano_interval())}), "'value' has type month_day_nano"),
        (pa.table({"value": pa.array([["a"]], pa.list_view(pa.string()))}), "'value' has type list"),
        (pa.table({"value": DAMAGED}), "column 'value' of type dictionary.* cannot be read: Index 5 out of bounds"),
        (pa.table([pa.array([b"x"]), pa.array([b"y"])], names=["value", "value"]), "2 columns named 'value'"),
        (pa.table({"value": [b"x"], "headers": pa.array([[(None, b"x")]], HEADERS)}), "row 0: a header has no name"),
    ],
)
def test_tables_that_cannot_be_encoded_say_why(table, text):
    with pytest.raises(InvalidArgumentError, match=text):
        _encode(table)


@pytest.mark.parametrize("rows", [[0, 3], [-1], [None], ["a"]])
def test_row_numbers_that_the_table_does_not_have_are_refused(rows):
    with pytest.raises((InvalidArgumentError, pa.ArrowInvalid)):
        _encode(pa.table({"value": [b"x"] * 3}), rows=rows)


def test_impossible_timestamps_name_their_row():
    table = pa.table({"value": [b"x"] * 3, "timestamp": pa.array([-5, 1, 2**63 - 1], pa.int64())})
    with pytest.raises(InvalidTimestampError, match="row 2"):
        _encode(table)


@pytest.mark.parametrize(
    ("kind", "times", "kept_ms"),
    [
        (pa.int64(), [-86_400_000, -2, -1, 1], [-86_400_000, -2, -1, 1]),
        (pa.timestamp("s"), [-86_400, -1, 1], [-86_400_000, -1_000, 1_000]),
        (pa.timestamp("ms", "UTC"), [-5, -3, -9], [-5, -3, -9]),
        (pa.timestamp("us"), [-1, -1_001, -2_000], [-1, -2, -2]),
        (pa.timestamp("ns"), [-1_000_001, -(2**62)], [-2, -(2**62) // 1_000_000]),
    ],
)
def test_times_before_1970_are_kept_in_whole_milliseconds(kind, times, kept_ms):
    table = pa.table({"value": [b"x"] * len(times), "timestamp": pa.array(times, kind)})
    ((batch, _),) = _encode(table)
    assert [record.timestamp_ms for record in _pure.decode_batch(batch)] == kept_ms
    assert _pure.check_batch(batch).max_timestamp_ms == max(kept_ms)
    decoded = _decode([batch]).column("timestamp").cast(pa.int64())
    assert decoded.to_pylist() == [time_ms * 1_000 for time_ms in kept_ms]


def test_an_empty_table_makes_no_batch():
    assert _encode(pa.table({"value": pa.array([], pa.binary())})) == []
    assert _encode(pa.table({"value": [b"x"]}), rows=[]) == []


def _log(*counts: int, compression: Compression = Compression.NONE) -> list[bytes]:
    slices, offset = [], 0
    for count in counts:
        records = [
            (1_000 + i, None if i % 3 else b"k%d" % i, None if i % 5 == 0 else b"v%d" % i, [("h", b"%d" % i)] * (i % 3))
            for i in range(offset, offset + count)
        ]
        slices.append(_pure.encode_batch(records, base_offset=offset, compression=compression, leader_epoch=1))
        offset += count
    return slices


def test_records_become_the_schema_of_sparks_kafka_source():
    batch = _decode(_log(2), include_headers=True)
    assert batch.schema == pa.schema(
        [
            ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
            ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC")), ("timestampType", pa.int32()),
            ("headers", HEADERS),
        ]
    )  # fmt: skip
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert batch.to_pylist() == [
        {
            "key": b"k0", "value": None, "topic": "t", "partition": 3, "offset": 0,
            "timestamp": epoch + datetime.timedelta(milliseconds=1_000), "timestampType": 0, "headers": None,
        },
        {
            "key": None, "value": b"v1", "topic": "t", "partition": 3, "offset": 1,
            "timestamp": epoch + datetime.timedelta(milliseconds=1_001), "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}],
        },
    ]  # fmt: skip
    assert batch.schema == arrow.arrow_schema(None, True)


@pytest.mark.parametrize("compression", list(Compression))
def test_many_slices_become_one_batch_equal_to_the_records(compression):
    slices = _log(10, 1, 30, compression=compression)
    joined = [slices[0] + slices[1], slices[2]]
    records = [record for data in slices for record in _pure.decode_batch(data)]
    batch = _decode(joined, include_headers=True)
    assert batch.num_rows == 41
    assert batch.column("offset").to_pylist() == list(range(41))
    assert batch.column("key").to_pylist() == [record.key for record in records]
    assert batch.column("value").to_pylist() == [record.value for record in records]
    headers = [[{"key": k, "value": v} for k, v in record.headers] or None for record in records]
    assert batch.column("headers").to_pylist() == headers


def test_ranges_of_offsets_cut_batches_at_both_ends():
    slices = _log(10, 10, 10)
    for start, end in [(0, 30), (4, 16), (10, 20), (12, 13), (29, 99), (30, 40), (5, 5)]:
        offsets = _decode(slices, start_offset=start, end_offset=end, columns=["offset"]).column("offset").to_pylist()
        assert offsets == list(range(start, min(end, 30)))


@pytest.mark.parametrize("name", [*arrow.COLUMNS, "headers"])
def test_each_column_comes_alone_and_in_any_order(name):
    slices = _log(5, 6)
    full = _decode(slices, include_headers=True)
    assert _decode(slices, columns=[name]).column(name).equals(full.column(name))
    pair = _decode(slices, columns=[name, "offset"] if name != "offset" else ["offset"])
    assert pair.schema.names[0] == name


def test_no_columns_leave_the_count_of_rows():
    assert _decode(_log(5, 6), columns=["partition"]).num_rows == 11


def test_unknown_and_repeated_columns_are_refused():
    with pytest.raises(InvalidArgumentError, match="no column 'colour'"):
        _decode(_log(1), columns=["colour"])
    with pytest.raises(InvalidArgumentError, match="twice"):
        _decode(_log(1), columns=["key", "key"])


def test_control_batches_are_left_out():
    control = _pure.encode_batch([(5, b"\0\0\0\1", None, None)], control=True, base_offset=2)
    data = _log(2)[0] + control + with_base(_log(2)[0], 0, 3, 0) + _log(2)[0][16:]
    assert _decode(data).column("offset").to_pylist() == [0, 1, 3, 4]


def test_nothing_is_an_empty_batch_of_the_schema():
    for slices in ([], [b""], _log(3)):
        batch = _decode(slices, start_offset=50, include_headers=True)
        assert batch.num_rows == 0
        assert batch.schema == arrow.arrow_schema(None, True)


def test_log_append_time_shows_in_both_timestamp_columns():
    batch = _decode(with_log_append_time(_log(2)[0], 5))
    assert batch.column("timestampType").to_pylist() == [1, 1]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [5_000, 5_000]


def test_large_and_tiny_topics_of_constant_columns_agree():
    many = _pure.encode_batch([(1, None, None, None)] * 3_000)
    for topic, partition in (("a", 0), ("b" * 249, 2**31 - 1)):
        batch = _decode([many], topic=topic, partition=partition)
        assert batch.column("topic").unique().to_pylist() == [topic]
        assert batch.column("partition").unique().to_pylist() == [partition]
        assert batch.num_rows == 3_000


def test_header_names_that_are_no_utf8_are_replaced():
    data = patched(_pure.encode_batch([(1, None, None, [("ab", b"x")])]), 61 + 8, b"\xff")
    assert _decode(data, columns=["headers"]).to_pylist() == [{"headers": [{"key": "\ufffdb", "value": b"x"}]}]
    text = _pure.encode_batch([(1, None, None, [("größe", b"x")])])
    assert _decode(text, columns=["headers"]).to_pylist()[0]["headers"][0]["key"] == "größe"


def test_what_does_not_fit_into_one_batch_is_split_or_refused():
    slices = _log(100, 100, 100)
    options = {"topic": "t", "partition": 3}
    for max_bytes, parts in ((len(slices[2]), 3), (2 * len(slices[2]), 2), (3 * len(slices[2]), 1)):
        batches = arrow.decode_arrow_split([slices[0] + slices[1], slices[2]], max_bytes=max_bytes, **options)
        assert len(batches) == parts
        assert pa.Table.from_batches(batches).column("offset").to_pylist() == list(range(300))
    with pytest.raises(InvalidRecordError, match=r"the limit 100|100 bytes, the limit"):
        arrow.decode_arrow_split(slices, max_bytes=100, **options)


SIZES = [0, 1, 10, 40, 500, 3_000]


@pytest.mark.parametrize("seed", range(12))
def test_iteration_bounds_the_decoded_bytes_and_keeps_every_row(seed):
    """Rows of other sizes in batches of other sizes; small when compressed."""
    chance = random.Random(seed)
    slices, offset = [], 0
    for _ in range(chance.randint(1, 8)):
        rows = [
            (
                NOW,
                chance.choice([None, b"k" * chance.choice(SIZES)]),
                chance.choice([None, bytes(chance.choice(SIZES))]),
                [("h", bytes(chance.choice(SIZES)))] if chance.random() < 0.2 else [],
            )
            for _ in range(chance.randint(1, 40))
        ]
        slices.append(_pure.encode_batch(rows, base_offset=offset, compression=chance.choice(list(Compression))))
        offset += len(rows)
    whole = _decode(slices, include_headers=True)
    start = chance.randrange(offset)
    for max_bytes in (1, 100, 2_000, 20_000, 1 << 20):
        found = list(
            arrow.iterate_arrow(
                slices, topic="t", partition=3, start_offset=start, include_headers=True, max_bytes=max_bytes
            )
        )
        assert pa.Table.from_batches(found).equals(pa.Table.from_batches([whole.slice(start)]))
        assert all(arrow.data_bytes(batch) <= max_bytes or batch.num_rows == 1 for batch in found)


def test_iteration_decodes_no_more_than_the_bound_ahead(monkeypatch):
    """Whatever the compression: 60 batches of 100,000 bytes are less than 20 kB of log."""
    slices = [
        _pure.encode_batch([(NOW, None, bytes(100_000), [])], base_offset=number, compression=Compression.ZSTD)
        for number in range(60)
    ]
    assert sum(map(len, slices)) < 20_000
    found = arrow.iterate_arrow([b"".join(slices)], topic="t", partition=3, max_bytes=250_000)
    assert [batch.num_rows for batch in found] == [2] * 30


@pytest.mark.parametrize("iterator", [_pure.RecordIterator, RecordIterator])
def test_taken_records_are_bounded_by_their_bytes(iterator):
    rows = [(NOW, b"kk", bytes(1_000), [("h", b"xx")]), (NOW, None, None, []), (NOW, None, bytes(5_000), [])]
    data = _pure.encode_batch(rows * 10, compression=Compression.ZSTD)
    records = iterator([data])
    assert len(records.take(30)) == 30
    assert records.taken_bytes == 10 * (2 + 1_000 + 3 + 5_000)
    records = iterator([data])
    assert [len(records.take(30, 1)) for _ in range(4)] == [1, 2, 1, 2]  # a record without bytes does not count
    assert len(records.take(30, 6_006)) == 4
    assert records.taken_bytes == 7_010
    assert records.take(30, 0) == []
    assert len(records.take(2, 1 << 20)) == 2


def test_damage_is_found_and_named():
    good = _log(3)[0]
    for damaged, error in [
        (good[:-1], CorruptMessageError),
        (good[:-1] + b"\xff", CorruptMessageError),
        (patched(good, 61, b"\x08"), InvalidRecordError),
        (batch_of([0, 1, 1], last=2), InvalidRecordError),
        (batch_of([0], count=2**31 - 1, last=2**31 - 2), InvalidRecordError),
        (batch_of([0], last=1, count=2, body=b"\x0c\0\0\2\1\1\2"), InvalidRecordError),
    ]:
        with pytest.raises(error):
            _decode([good, damaged], include_headers=True)


def test_limits_hold_for_arrow_too():
    data = _pure.encode_batch([(1, None, b"x" * 50, [("a", None)] * 3)] * 5, compression=Compression.ZSTD)
    for limits in (DecodeLimits(max_records=4), DecodeLimits(max_decompressed_bytes=100), DecodeLimits(max_headers=2)):
        with pytest.raises(InvalidRecordError):
            _decode(data, limits=limits)


def test_timestamps_beyond_microseconds_are_refused_where_they_are_asked_for():
    data = _pure.encode_batch([(2**62, None, b"x", None)])
    assert _decode(data, columns=["value"]).num_rows == 1
    with pytest.raises(InvalidRecordError, match="microseconds"):
        _decode(data)


def test_columns_outlive_the_slices_they_came_from():
    slices = [bytearray(data) for data in _log(100)]
    batch = _decode(slices)
    before = batch.to_pylist()
    for data in slices:
        data[:] = bytes(len(data))
    assert batch.to_pylist() == before
