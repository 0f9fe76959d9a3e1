"""Records from batches: offsets with gaps, the position where reading starts and continues, and the skipped batches."""

from __future__ import annotations

import threading

import pytest

from headrace_core.errors import CorruptMessageError, InvalidRecordError
from headrace_core.records import (
    Compression,
    DecodeLimits,
    _compiled,
    iterate_headers,
    recompress,
    whole_batches_end,
    with_base,
    with_log_append_time,
)
from headrace_core.testing.batches import batch_of, patched, resealed


def _at(batch: bytes, base_offset: int, leader_epoch: int = 0) -> bytes:
    return with_base(batch, 0, base_offset, leader_epoch) + batch[16:]


def _log(codec, *counts: int, compression: Compression = Compression.NONE) -> bytes:
    """Consecutive batches with these numbers of records. Each value is its offset as text."""
    out, offset = b"", 0
    for count in counts:
        records = [(1_000 + i, None, b"%d" % i, None) for i in range(offset, offset + count)]
        out += codec.encode_batch(records, base_offset=offset, compression=compression)
        offset += count
    return out


def _values(records) -> list[int]:
    return [int(record.value) for record in records]


def test_compacted_batches_with_gaps_keep_their_offsets(codec):
    batch = batch_of([0, 3, 4, 9], last=12, base_offset=100, leader_epoch=5)
    records = codec.decode_batch(batch, topic="t", partition=6)
    assert [(r.offset, r.value) for r in records] == [(100, b"v0"), (103, b"v3"), (104, b"v4"), (109, b"v9")]
    assert {(r.topic, r.partition, r.leader_epoch) for r in records} == {("t", 6, 5)}

    iterator = codec.RecordIterator(batch, start_offset=101)
    assert [record.offset for record in iterator] == [103, 104, 109]
    assert iterator.position == 113  # past the offsets that compaction has emptied


def test_a_batch_that_compaction_emptied_yields_nothing_and_moves_the_position(codec):
    batch = batch_of([], last=7, base_offset=10)
    assert codec.decode_batch(batch) == []
    iterator = codec.RecordIterator(batch, start_offset=10)
    assert list(iterator) == []
    assert iterator.position == 18


@pytest.mark.parametrize("compression", list(Compression))
def test_reading_starts_in_the_middle_of_a_batch(codec, compression):
    log = _log(codec, 5, 5, 5, compression=compression)
    assert _values(codec.RecordIterator(log, start_offset=7)) == list(range(7, 15))
    second = next(position for position, header in iterate_headers(log) if header.base_offset == 5)
    assert _values(codec.decode_batch(log, second, start_offset=8)) == [8, 9]


def test_position_is_the_next_offset_at_every_step(codec):
    log = _log(codec, 2, 1, 3)
    iterator = codec.RecordIterator([log, _at(_log(codec, 2), 6)], start_offset=1)
    assert iterator.position == 1
    for record in iterator:
        assert iterator.position == record.offset + 1
    assert iterator.position == 8


def test_take_hands_out_at_most_so_many(codec):
    iterator = codec.RecordIterator(_log(codec, 4, 4), topic="t")
    assert _values(iterator.take(3)) == [0, 1, 2]
    assert iterator.position == 3
    assert iterator.take(0) == []
    assert _values(iterator.take(100)) == [3, 4, 5, 6, 7]
    assert iterator.take(100) == []


def test_control_batches_are_skipped_unless_asked_for(codec):
    control = _at(codec.encode_batch([(5, b"\0\0\0\1", b"\0\0\0\0\0\0", None)], control=True), 2)
    log = _log(codec, 2) + control + _at(_log(codec, 1), 3)
    iterator = codec.RecordIterator(log)
    assert _values(iterator) == [0, 1, 0]
    assert iterator.position == 4
    assert [r.offset for r in codec.RecordIterator(log, include_control=True)] == [0, 1, 2, 3]


def test_position_passes_a_control_batch_at_the_end(codec):
    log = _log(codec, 2) + _at(codec.encode_batch([(5, b"\0\0\0\1", None, None)], control=True), 2)
    iterator = codec.RecordIterator(log)
    assert iterator.take(10)[-1].offset == 1
    assert iterator.position == 3


def test_an_error_is_raised_again_and_what_is_sound_comes_first(codec):
    log = bytearray(_log(codec, 3, 3))
    log[-1] ^= 1
    iterator = codec.RecordIterator(bytes(log))
    assert _values(iterator.take(100)) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(CorruptMessageError, match="CRC-32C"):
            iterator.take(100)
        with pytest.raises(CorruptMessageError):
            next(iterator)
    assert iterator.position == 3


def test_an_error_in_the_middle_of_a_batch_keeps_the_position_before_it(codec):
    batch = batch_of([0, 1, 1], last=2, base_offset=50)
    iterator = codec.RecordIterator(batch)
    assert [next(iterator).offset, next(iterator).offset] == [50, 51]
    for _ in range(2):
        with pytest.raises(InvalidRecordError, match="record 2 of the batch with base offset 50"):
            next(iterator)
    assert iterator.position == 52


def test_unchecked_crc_is_possible_and_only_on_request(codec):
    batch = bytearray(codec.encode_batch([(1, None, b"x", None)]))
    batch[17] ^= 1
    assert codec.decode_batch(bytes(batch), check_crc=False)[0].value == b"x"
    assert next(codec.RecordIterator(bytes(batch), check_crc=False)).value == b"x"
    with pytest.raises(CorruptMessageError):
        codec.decode_batch(bytes(batch))


def test_header_names_that_are_no_utf8_are_readable(codec):
    batch = patched(codec.encode_batch([(1, None, None, [("ab", b"x")])]), 61 + 8, b"\xff")
    assert codec.decode_batch(batch)[0].headers == [("\ufffdb", b"x")]


def test_timestamps_with_negative_deltas_and_at_the_ends_of_the_range(codec):
    times = [2**62, 0, -1, 2**63 - 2]
    records = codec.decode_batch(codec.encode_batch([(t, None, b"", None) for t in times]))
    assert [record.timestamp_ms for record in records] == times


def test_whole_batches_end_leaves_a_partial_batch_out(codec):
    log = _log(codec, 2, 3)
    ends = [0, codec.split_batches(log)[0].size, len(log)]
    for cut in range(len(log) + 1):
        assert whole_batches_end(log[:cut]) == max(end for end in ends if end <= cut)


def test_split_batches_tells_positions_and_offsets(codec):
    log = _log(codec, 2, 3)
    first, second = codec.split_batches(log)
    assert (first.position, first.base_offset, first.last_offset) == (0, 0, 1)
    assert (second.position, second.base_offset, second.last_offset) == (first.size, 2, 4)
    assert first.size + second.size == len(log)
    assert codec.split_batches(b"") == []
    with pytest.raises(CorruptMessageError, match=r"only \d+ are there"):
        codec.split_batches(log[:-1])


@pytest.mark.parametrize("target", list(Compression))
def test_recompressing_changes_the_codec_and_nothing_else(codec, target):
    batch = codec.encode_batch(
        [(5, b"k", b"v" * 100, [("h", b"x")])] * 50, base_offset=9, producer_id=4, producer_epoch=1, base_sequence=2
    )
    for source in Compression:
        changed = recompress(recompress(batch, source), target)
        header, before = codec.check_batch(changed), codec.check_batch(batch)
        assert header.compression is target
        assert header[6:] == before[6:]
        assert header[0] == before[0]
        assert codec.decode_batch(changed) == codec.decode_batch(batch)
    assert recompress(recompress(batch, Compression.LZ4), Compression.NONE) == batch


def test_log_append_time_of_a_stamped_batch_is_every_records_time(codec):
    batch = with_log_append_time(_log(codec, 3), 77)
    assert [record.timestamp_ms for record in codec.RecordIterator(batch)] == [77, 77, 77]


@pytest.mark.parametrize(
    "limits", [DecodeLimits(max_records=4), DecodeLimits(max_decompressed_bytes=100), DecodeLimits(max_headers=2)]
)
def test_limits_are_enforced(codec, limits):
    batch = codec.encode_batch([(1, None, b"x" * 50, [("a", None)] * 3)] * 5, compression=Compression.ZSTD)
    assert len(codec.decode_batch(batch)) == 5
    for read in (
        lambda: codec.decode_batch(batch, limits=limits),
        lambda: list(codec.RecordIterator(batch, limits=limits)),
        lambda: codec.validate_batches(batch, limits=limits),
    ):
        with pytest.raises(InvalidRecordError):
            read()


def test_slices_may_be_any_buffer_and_positions_within_it(codec):
    log = _log(codec, 2, 2)
    for data in (log, bytearray(log), memoryview(log)):
        assert _values(codec.RecordIterator(data)) == [0, 1, 2, 3]
        assert _values(codec.decode_batch(data, codec.split_batches(data)[1].position)) == [2, 3]
    with pytest.raises(CorruptMessageError):
        codec.decode_batch(log, len(log))
    with pytest.raises(CorruptMessageError):
        codec.decode_batch(log, -1)


def test_empty_slices_are_passed_over(codec):
    log = _log(codec, 1)
    assert _values(codec.RecordIterator([b"", log, b"", b""])) == [0]
    assert list(codec.RecordIterator([])) == []


def test_two_threads_on_one_iterator_meet_an_error_and_not_each_other():
    codec = _compiled  # the reference codec has no state that threads could corrupt
    big = codec.encode_batch([(1, None, b"x" * 1000, None)] * 2000, compression=Compression.ZSTD)
    iterator = codec.RecordIterator([big] * 40)
    seen: list[int] = []
    errors: list[BaseException] = []

    def drain() -> None:
        while True:
            try:
                taken = iterator.take(1500)
            except Exception as error:  # noqa: BLE001
                errors.append(error)
                continue
            if not taken:
                return
            seen.append(len(taken))

    threads = [threading.Thread(target=drain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(seen) == 2000  # all forty copies cover the same offsets
    assert all(type(error).__name__ == "IllegalStateError" for error in errors)


def test_resealed_batches_of_the_test_kit_are_sound(codec):
    assert codec.check_batch(resealed(_log(codec, 2))).record_count == 2
