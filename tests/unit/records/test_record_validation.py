"""A broker's checks of a producer's batches, and their errors."""

from __future__ import annotations

import struct

import pytest

from headrace_core.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedVersionError,
)
from headrace_core.records import Compression, with_log_append_time, with_max_timestamps
from headrace_core.testing.batches import batch_of, patched, resealed


@pytest.mark.parametrize("compression", list(Compression))
def test_sound_batches_pass_and_their_headers_come_back(codec, compression):
    first = codec.encode_batch([(1, b"k", b"x" * 300, [("h", None)])] * 300, compression=compression)
    second = codec.encode_batch([(9, None, None, None)])
    headers = codec.validate_batches(first + second)
    assert headers == [codec.check_batch(first), codec.check_batch(second)]
    assert with_max_timestamps(first + second, headers) == first + second


def test_a_batch_above_the_size_that_frees_the_gil_is_checked_to_its_last_byte(codec):
    batch = codec.encode_batch([(1, None, b"x" * 1000, None)] * 200)
    assert codec.validate_batches(batch)[0].record_count == 200
    with pytest.raises(InvalidRecordError, match="record 199"):
        codec.validate_batches(patched(batch, len(batch) - 1, b"\x02"))


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (lambda b: b[:-1], CorruptMessageError, "are there"),
        (lambda b: b + b[:40], CorruptMessageError, "a header has 61 bytes"),
        (lambda b: b[:16] + b"\1" + b[17:], CorruptMessageError, "magic is 1"),
        (lambda b: b[:20] + b"\0" + b[21:], CorruptMessageError, "CRC-32C"),
        (lambda b: b[:8] + struct.pack(">i", 48) + b[12:], CorruptMessageError, "too small for its own header"),
        (lambda b: patched(b, 0, b"\xff" * 8), CorruptMessageError, "base offset -1"),
        (lambda b: patched(b, 0, b"\x7f" + b"\xff" * 7), CorruptMessageError, "out of range"),
        (lambda b: patched(b, 22, b"\x05"), CorruptMessageError, "compression 5"),
        (lambda b: patched(b, 23, struct.pack(">i", -1)), CorruptMessageError, "negative"),
        (lambda b: patched(b, 57, struct.pack(">i", 9)), CorruptMessageError, "record count 9"),
        (lambda b: patched(b, 57, struct.pack(">i", 1)), InvalidRecordError, "record count 1 and the last"),
        (lambda b: patched(b, 23, struct.pack(">i", 3)), InvalidRecordError, "last offset delta 3;"),
        (lambda b: resealed(b + b"\0"), InvalidRecordError, "follow"),
        (lambda b: patched(b, 22, b"\x20"), InvalidRecordError, "control"),
        (lambda b: patched(b, 22, b"\x10"), InvalidRecordError, "transaction"),
        (lambda b: patched(b, 43, struct.pack(">q", 7)), UnsupportedVersionError, "producer id 7"),
        (lambda b: with_log_append_time(b, 5), InvalidTimestampError, "LogAppendTime"),
        (lambda b: b"", InvalidRecordError, "data is empty"),
    ],
)
def test_damaged_and_forbidden_batches_are_refused(codec, damage, error, text):
    batch = codec.encode_batch([(1, None, b"x", None)] * 2)
    with pytest.raises(error, match=text):
        codec.validate_batches(damage(batch))


def test_the_second_batch_is_checked_as_the_first(codec):
    sound = codec.encode_batch([(1, None, b"x", None)])
    with pytest.raises(CorruptMessageError, match=f"position {len(sound)}"):
        codec.validate_batches(sound + sound[:20] + b"\xff" + sound[21:])


@pytest.mark.parametrize("deltas", [[1, 2], [0, 2], [0, 1, 1], [0, 2, 1]])
def test_offset_deltas_must_count_from_zero(codec, deltas):
    batch = batch_of(deltas, last=len(deltas) - 1)
    with pytest.raises(InvalidRecordError, match="offset delta"):
        codec.validate_batches(batch)


@pytest.mark.parametrize("count", [0, 2**31 - 1])
def test_counts_that_the_bytes_cannot_hold_are_refused_before_anything_is_allocated(codec, count):
    batch = batch_of([0], count=count, last=max(count - 1, 0))
    with pytest.raises(InvalidRecordError):
        codec.validate_batches(batch)
    with pytest.raises(InvalidRecordError):
        codec.decode_batch(batch)


@pytest.mark.parametrize(
    "body",
    [
        b"\x80",  # a varint that goes on where the batch ends
        b"\xff\xff\xff\xff\x7f",  # more than 32 bits
        b"\xff\xff\xff\xff\xff\x01",  # more than five bytes
        b"\x01",  # length -1
        b"\x0a\0\0\0\1\1",  # length 5: too small for a record
        b"\x0e\0\0\0\1\1\0",  # length 7, six are there
        b"\x0c\0\0\2\1\1\2",  # one header claimed, none there
        b"\x0c\0\0\2\1\1\1",  # -1 headers
        b"\x0c\0\0\2\x03\1\0",  # key length -2
        b"\x0c\0\0\2\1\x7e\0",  # a value longer than the record
        b"\x0e\0\0\2\1\1\0\0",  # a byte too many within the record
        b"\x10\0\0\2\1\1\2\1\1",  # a header without a name
        b"\x10\0\0\2\1\1\2\x03\1",  # a header name of length -2
        b"\x10\0\0\2\1\1\2\0\x03",  # a header value of length -2
        b"\x10\0\0\2\1\1\2\0\x08",  # a header value longer than the record
        b"\x1e\0" + b"\xff" * 10 + b"\2\1\1",  # a timestamp delta of more than ten bytes
        b"\x1e\0" + b"\xff" * 9 + b"\x02\2\1\1\0",  # a timestamp delta of more than 64 bits
    ],
)
def test_malformed_records_are_refused_by_every_reader(codec, body):
    batch = batch_of([0], last=1, count=2, body=body)
    for read in (
        lambda: codec.validate_batches(batch),
        lambda: codec.decode_batch(batch),
        lambda: list(codec.RecordIterator(batch)),
    ):
        with pytest.raises(InvalidRecordError, match="base offset 0"):
            read()


def test_the_smallest_record_is_accepted(codec):
    batch = batch_of([0], last=1, count=2, body=b"\x0c\0\0\2\1\1\0")
    assert codec.validate_batches(batch)[0].record_count == 2


def test_varints_longer_than_they_need_to_be_are_accepted_as_by_kafka(codec):
    batch = batch_of([0], last=1, count=2, body=b"\x0e\0\0\x82\0\1\1\0")
    assert codec.decode_batch(batch)[1].offset == 1


def test_timestamp_deltas_that_overflow_are_refused(codec):
    body = b"\x1e\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\2\1\1\0"  # delta 2**63 - 1
    with pytest.raises(InvalidRecordError, match="timestamp delta"):
        codec.validate_batches(batch_of([0], last=1, count=2, body=body))


def test_wrong_max_timestamps_are_corrected_not_refused(codec):
    good = codec.encode_batch([(100, None, b"x", None), (300, None, b"y", None), (200, None, b"z", None)])
    bad = patched(good, 35, struct.pack(">q", 7))
    headers = codec.validate_batches(good + bad)
    assert [header.max_timestamp_ms for header in headers] == [300, 300]
    fixed = with_max_timestamps(good + bad, headers)
    assert codec.check_batch(fixed, len(good)).max_timestamp_ms == 300
    assert fixed == good + good
    assert with_max_timestamps(good, headers[:1]) is good


def test_timestamps_outside_of_the_topics_bounds_are_refused(codec):
    batch = codec.encode_batch([(100, None, b"x", None), (-1, None, b"", None), (300, None, b"y", None)])
    codec.validate_batches(batch, timestamp_ms_min=100, timestamp_ms_max=300)  # -1 means no timestamp: nothing to check
    with pytest.raises(InvalidTimestampError, match="record 0"):
        codec.validate_batches(batch, timestamp_ms_min=101)
    with pytest.raises(InvalidTimestampError, match="record 2"):
        codec.validate_batches(batch, timestamp_ms_max=299)


def test_a_compacted_topic_demands_keys(codec):
    batch = codec.encode_batch([(1, b"", b"x", None), (1, None, b"y", None)])
    codec.validate_batches(batch)
    with pytest.raises(InvalidRecordError, match=r"record 1 .* no key"):
        codec.validate_batches(batch, require_keys=True)


def test_what_is_allowed_by_argument_passes(codec):
    records = [(1, b"\0\0\0\0", b"x", None)]
    control = codec.encode_batch(
        records, control=True, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0
    )
    headers = codec.validate_batches(control, allow_control=True, allow_transactional=True, allow_producer_id=True)
    assert headers[0].producer_id == 5
    without_sequence = codec.encode_batch(records, producer_id=5, producer_epoch=0, base_sequence=-1)
    with pytest.raises(InvalidRecordError, match="base sequence"):
        codec.validate_batches(without_sequence, allow_producer_id=True)
