"""Both codecs write the same bytes, read the same records, and read back every written record."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headrace_core.errors import HeadraceError
from headrace_core.records import (
    BatchHeader,
    DecodeLimits,
    _compiled,
    _pure,
    recompress,
    with_base,
    with_log_append_time,
    with_max_timestamps,
)
from headrace_core.testing.batches import resealed
from headrace_core.testing.strategies import batch_fields, compressions, record_lists, records
from headrace_core.types import TimestampType
from tests.worlds.this_process import examples


def _content(record):
    return record.timestamp_ms, record.key, record.value, record.headers


@given(record_lists, batch_fields, compressions)
def test_both_codecs_write_the_same_bytes(written, fields, compression):
    expected = _pure.encode_batch(written, compression=compression, **fields)
    assert _compiled.encode_batch(written, compression=compression, **fields) == expected


@given(record_lists, batch_fields, compressions)
def test_what_is_written_is_read(written, fields, compression):
    batch = _compiled.encode_batch(written, compression=compression, **fields)
    base = fields.get("base_offset", 0)
    for codec in (_pure, _compiled):
        read = codec.decode_batch(batch, topic="t", partition=4)
        assert [record.offset for record in read] == list(range(base, base + len(written)))
        if fields.get("timestamp_type") is TimestampType.LOG_APPEND_TIME:
            assert {record.timestamp_ms for record in read} == {max(record[0] for record in written)}
        else:
            assert [_content(record) for record in read] == written
        assert all(record.leader_epoch == fields.get("leader_epoch", -1) for record in read)
        header = codec.check_batch(batch)
        assert header.producer_id == fields.get("producer_id", -1)
        assert header.is_control == fields.get("control", False)


@given(st.lists(record_lists, min_size=1, max_size=4), compressions, st.integers(0, 200), st.integers(1, 30))
def test_iterators_hand_out_the_same_records_and_positions(batches, compression, start, step):
    log, offset = [], 3
    for written in batches:
        log.append(_pure.encode_batch(written, compression=compression, base_offset=offset))
        offset += len(written) + 2  # two unused offsets
    one = _pure.RecordIterator(log, start_offset=start)
    other = _compiled.RecordIterator(b"".join(log), start_offset=start)
    while True:
        expected, found = one.take(step), other.take(step)
        assert [record._fields() for record in expected] == [record._fields() for record in found]
        assert one.position == other.position
        if not expected:
            break
    assert one.position == max(start, offset - 2)


@given(record_lists, st.integers(70, 2_000))
def test_builders_cut_at_the_same_record_and_keep_their_limit(written, max_bytes):
    built = {}
    for codec in (_pure, _compiled):
        builder, batches = codec.BatchBuilder(max_bytes), []
        for record in written:
            if builder.append(*record) < 0:
                batches.append(builder.build())
                assert builder.append(*record) == 0
        batches.append(builder.build())
        built[codec] = batches
    assert built[_pure] == built[_compiled]
    for batch in built[_pure]:
        assert len(batch) <= max_bytes or _pure.read_header(batch).record_count == 1
    assert [_content(r) for batch in built[_pure] for r in _pure.decode_batch(batch)] == written


@given(record_lists, compressions, compressions, st.integers(0, 2**40))
def test_rewriting_keeps_the_records(written, first, second, now_ms):
    batch = _compiled.encode_batch(written, compression=first, base_offset=17)
    changed = recompress(batch, second)
    assert _compiled.decode_batch(changed) == _compiled.decode_batch(batch)
    stamped = with_log_append_time(changed, now_ms)
    assert {record.timestamp_ms for record in _compiled.decode_batch(stamped)} == {now_ms}
    moved = with_base(stamped, 0, 99, 5) + stamped[16:]
    assert _compiled.check_batch(moved)[:3] == (99, len(stamped) - 12, 5)


@given(record_lists, compressions, batch_fields)
def test_validation_accepts_what_producers_write_and_both_codecs_agree(written, compression, fields):
    batch = _compiled.encode_batch(written, compression=compression, **fields)
    outcomes = []
    for codec in (_pure, _compiled):
        try:
            outcomes.append(codec.validate_batches(batch))
        except HeadraceError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]
    if not fields.keys() & {"timestamp_type", "producer_id", "transactional", "control"}:
        assert outcomes[0] == [_pure.check_batch(batch)]
        assert with_max_timestamps(batch, outcomes[0]) is batch


LIMITS = DecodeLimits(max_decompressed_bytes=1 << 20, max_records=10_000, max_headers=1_000)


def _outcome(act):
    """The result of an action, or the kind of its error, in a form that is equal for both codecs."""
    try:
        return [item if isinstance(item, BatchHeader) else item._fields() for item in act()]
    except HeadraceError as error:
        return type(error)


def _assert_agreement(data: bytes) -> None:
    for read in (
        lambda codec: codec.decode_batch(data, limits=LIMITS),
        lambda codec: codec.RecordIterator(data, limits=LIMITS),
        lambda codec: codec.validate_batches(data, limits=LIMITS),
    ):
        assert _outcome(lambda read=read: read(_pure)) == _outcome(lambda read=read: read(_compiled))


@settings(max_examples=examples(300))
@given(
    st.lists(records, min_size=1, max_size=5),
    compressions,
    st.lists(st.tuples(st.integers(16, 2_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damage_under_a_right_crc_is_judged_alike(written, compression, damage):
    batch = bytearray(_pure.encode_batch(written, compression=compression))
    for position, value in damage:
        batch[16 + (position - 16) % (len(batch) - 16)] = value
    _assert_agreement(resealed(batch))


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.integers(0, 40), st.integers(0, 6))
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 0, 0)
def test_random_bytes_in_the_place_of_records_are_judged_alike(body, last, spare):
    head = bytearray(_pure.encode_batch([(1, None, None, None)])[:61])
    head[26], head[60] = last, max(last + 1 - spare, 0)
    _assert_agreement(resealed(bytes(head) + body))


@settings(max_examples=examples(200))
@given(st.binary(max_size=300))
def test_random_bytes_are_typed_errors(data):
    assume(data)
    for codec in (_pure, _compiled):
        for read in (codec.check_batch, codec.decode_batch, codec.split_batches, codec.validate_batches):
            with pytest.raises(HeadraceError):
                read(data)
