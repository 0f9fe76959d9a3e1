"""The bytes of a batch, field by field, and the builder's guarantees."""

from __future__ import annotations

import struct

import pytest

from headrace_core.errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidTimestampError,
)
from headrace_core.records import Compression, with_base, with_log_append_time
from headrace_core.types import TimestampType

#: One record with value "123", as a Kafka broker wrote it (kafka-python's tests have it too).
FROM_KAFKA = (
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00;\x00\x00\x00\x01\x02\x03\x18\xa2p\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x01]\xff{\x06<\x00\x00\x01]\xff{\x06<\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x01"
    b"\x12\x00\x00\x00\x01\x06123\x00"
)


def test_batch_written_by_kafka_is_read_and_written_again_to_the_same_bytes(codec):
    header = codec.check_batch(FROM_KAFKA)
    (record,) = codec.decode_batch(FROM_KAFKA, topic="t", partition=2)

    assert (record.key, record.value, record.headers, record.offset) == (None, b"123", [], 0)
    assert record.timestamp_ms == header.base_timestamp_ms == 1503229838908
    assert record.leader_epoch == header.leader_epoch == 1
    assert codec.encode_batch([(1503229838908, None, b"123", [])], leader_epoch=1) == FROM_KAFKA


def test_every_field_stands_where_the_format_says(codec):
    batch = codec.encode_batch(
        [(1_000, b"k", b"v", [("h", b"x"), ("n", None)]), (990, None, None, None)],
        base_offset=7,
        leader_epoch=3,
        producer_id=11,
        producer_epoch=2,
        base_sequence=5,
        transactional=True,
    )
    assert batch[:17] == struct.pack(">qiib", 7, len(batch) - 12, 3, 2)
    assert batch[21:61] == struct.pack(">hiqqqhii", 0x10, 1, 1_000, 1_000, 11, 2, 5, 2)
    first = bytes([0, 0, 0, 2, *b"k", 2, *b"v", 4, 2, *b"h", 2, *b"x", 2, *b"n", 1])
    second = bytes([0, 19, 2, 1, 1, 0])  # timestamp delta -10, offset delta 1, two nulls, no headers
    assert batch[61:] == bytes([len(first) << 1]) + first + bytes([len(second) << 1]) + second


def test_header_properties_follow_the_attributes(codec):
    batch = codec.encode_batch(
        [(1, None, b"x", None)] * 3,
        base_offset=40,
        compression=Compression.GZIP,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        control=True,
    )
    header = codec.read_header(batch)
    assert header.size == len(batch)
    assert (header.last_offset, header.next_offset, header.record_count) == (42, 43, 3)
    assert header.compression is Compression.GZIP
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_control
    assert not header.is_transactional


def test_max_timestamp_is_the_largest_and_base_the_first(codec):
    header = codec.read_header(
        codec.encode_batch([(50, None, b"", None), (80, None, b"", None), (20, None, b"", None)])
    )
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (50, 80)


def test_builder_refuses_what_does_not_fit_but_never_the_first_record(codec):
    builder = codec.BatchBuilder(200)
    assert builder.append(1, None, b"x" * 500, None) == 0
    assert builder.append(1, None, b"", None) == -1
    assert len(codec.decode_batch(builder.build())) == 1

    indexes = []
    while (index := builder.append(1, None, b"y" * 20)) >= 0:
        indexes.append(index)
    assert indexes == list(range(builder.count))
    assert builder.size <= 200 < builder.size + 27  # 27: one more such record
    assert builder.size == len(builder.build())


def test_builder_is_empty_after_build_and_after_clear(codec):
    builder = codec.BatchBuilder(1 << 20)
    builder.append(5, b"a", b"b")
    first = builder.build()
    assert (builder.count, builder.size) == (0, 61)
    builder.append(5, b"a", b"b")
    assert builder.build() == first
    builder.append(9, None, b"z" * 5000)
    builder.clear()
    assert (builder.count, builder.size) == (0, 61)
    with pytest.raises(IllegalStateError, match="nothing was appended"):
        builder.build()


def test_builder_keeps_its_records_when_a_build_fails(codec):
    builder = codec.BatchBuilder(1 << 20)
    builder.append(5, b"a", b"b")
    with pytest.raises(InvalidArgumentError, match="level 99"):
        builder.build(compression=Compression.ZSTD, level=99)
    assert builder.count == 1
    assert codec.decode_batch(builder.build())[0].value == b"b"


def test_append_many_takes_values_pairs_and_triples_and_says_where_it_stopped(codec):
    records = [b"v", (b"k", b"w"), (None, None, [("h", b"1")]), bytearray(b"x"), *([b"y" * 50] * 10)]
    one, many = codec.BatchBuilder(300), codec.BatchBuilder(300)
    one.append(8, None, b"v")
    one.append(8, b"k", b"w")
    one.append(8, None, None, [("h", b"1")])
    one.append(8, None, b"x")
    while one.append(8, None, b"y" * 50) >= 0:
        pass
    stopped = many.append_many(records, 0, 8)
    assert stopped == many.count == one.count < len(records)
    assert many.build() == one.build()
    assert many.append_many(records, stopped, 8) - stopped == many.count > 0


def test_keys_and_values_may_be_any_contiguous_buffer(codec):
    expected = codec.encode_batch([(1, b"key", b"value", [("h", b"x")])])
    assert codec.encode_batch([(1, bytearray(b"key"), memoryview(b"value"), (("h", memoryview(b"x")),))]) == expected


@pytest.mark.parametrize(
    "record", [(1, "text", b"", None), (1, None, 5, None), (1, None, b"", [(b"h", b"x")]), (1, None, b"", [("h", "x")])]
)
def test_what_is_not_bytes_is_a_type_error_and_leaves_no_trace(codec, record):
    builder = codec.BatchBuilder(1000)
    with pytest.raises(TypeError):
        builder.append(*record)
    assert (builder.count, builder.size) == (0, 61)


@pytest.mark.parametrize("timestamp_ms", [2**63, -(2**63) - 1, -(2**70)])
def test_impossible_timestamps_are_refused(codec, timestamp_ms):
    with pytest.raises(InvalidTimestampError):
        codec.BatchBuilder(1000).append(timestamp_ms, None, b"")


@pytest.mark.parametrize(
    "times_ms",
    [(-2,), (-(2**63),), (-5, -3, -9), (-86_400_000, -1, 7), (-(2**62), 2**62 - 1), (3, -(2**63) + 3), (-1, -1)],
)
def test_times_before_1970_are_kept(codec, times_ms):
    builder = codec.BatchBuilder(1000)
    for _ in range(2):  # the second batch of a builder has its own largest time
        for time_ms in times_ms:
            builder.append(time_ms, None, b"")
        batch = builder.build()
        assert tuple(record.timestamp_ms for record in codec.decode_batch(batch)) == times_ms
        header = codec.check_batch(batch)
        assert (header.base_timestamp_ms, header.max_timestamp_ms) == (times_ms[0], max(times_ms))
        times_ms = (times_ms[0] - 1, *times_ms[1:]) if times_ms[0] > -(2**62) else times_ms


def test_timestamps_too_far_apart_for_one_batch_are_refused(codec):
    builder = codec.BatchBuilder(1000)
    builder.append(-1, None, b"")
    with pytest.raises(InvalidTimestampError, match="too far"):
        builder.append(2**63 - 1, None, b"")


@pytest.mark.parametrize("max_bytes", [0, 61, 2**31])
def test_builder_sizes_that_cannot_work_are_refused(codec, max_bytes):
    with pytest.raises(InvalidArgumentError):
        codec.BatchBuilder(max_bytes)


def test_header_iterables_that_append_to_the_same_builder_do_no_harm(codec):
    builder = codec.BatchBuilder(1 << 20)

    def headers():
        for _ in range(100):
            builder.append(3, None, b"inner" * 20)
        yield "h", b"x"

    index = builder.append(1, None, b"outer", headers())
    records = codec.decode_batch(builder.build())
    assert index == 100
    assert [record.value for record in records] == [b"inner" * 20] * 100 + [b"outer"]
    assert records[100].headers == [("h", b"x")]


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [(None, None, None), (b"", b"", []), (b"k" * 200, b"v" * 70_000, [("name" * 50, b"c" * 300), ("ü", None)])],
)
def test_record_bytes_max_is_an_upper_bound(codec, key, value, headers):
    builder = codec.BatchBuilder(1 << 30)
    builder.append(0, None, b"")
    before = builder.size
    builder.append(2**62, key, value, headers)
    taken = builder.size - before
    assert taken <= codec.record_bytes_max(key, value, headers) <= taken + 40 + 10 * len(headers or ())


def test_with_base_patches_only_what_the_crc_does_not_cover(codec):
    batch = codec.encode_batch([(1, None, b"x", None)])
    patched = b"junk" + with_base(b"junk" + batch, 4, 1234, 9) + batch[16:]
    header = codec.check_batch(patched, 4)
    assert (header.base_offset, header.leader_epoch, header.size) == (1234, 9, len(batch))


def test_log_append_time_rewrites_every_timestamp(codec):
    batch = codec.encode_batch([(1, None, b"x", None), (99, None, b"y", None)], compression=Compression.LZ4)
    stamped = with_log_append_time(batch, 5_000)
    header = codec.check_batch(stamped)
    assert (header.timestamp_type, header.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, 5_000)
    for record in codec.decode_batch(stamped):
        assert (record.timestamp_ms, record.timestamp_type) == (5_000, TimestampType.LOG_APPEND_TIME)
