"""The table of producers, and Kafka's snapshot file of the table."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from headrace_core.errors import CorruptLogError
from headrace_core.log.producer_state import (
    BATCHES_KEPT,
    SEQUENCE_MAX,
    Check,
    LastRecord,
    ProducerBatch,
    ProducerEntry,
    ProducerTable,
    sequence_after,
)
from headrace_core.records import BatchHeader, encode_batch, read_header


def batch(
    offset: int, sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    return read_header(
        encode_batch(
            [(1000 + offset, None, b"v", None)] * count,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def marker(offset: int, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return read_header(
        encode_batch(
            [(1000 + offset, b"\0\0\0\1", b"\0" * 6, None)],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=True,
            control=True,
        )
    )


def table(*headers: BatchHeader) -> ProducerTable:
    made = ProducerTable()
    for header in headers:
        made.appended(header)
    return made


def test_batches_of_a_producer_follow_each_other() -> None:
    found = table(batch(0, 0, 3))
    assert found.check(batch(9, 3)).check is Check.NEXT
    assert found.check(batch(9, 4)).check is Check.OUT_OF_ORDER
    assert "received sequence 4, expected 3" in found.check(batch(9, 4)).why
    assert found.check(batch(9, 2)).check is Check.OUT_OF_ORDER


def test_a_batch_sent_again_is_known_by_the_last_five() -> None:
    found = table(*(batch(10 * number, 2 * number, 2) for number in range(7)))
    for number in range(7 - BATCHES_KEPT, 7):
        checked = found.check(batch(999, 2 * number, 2))
        assert checked.check is Check.DUPLICATE
        assert checked.batch is not None
        assert checked.batch.base_offset == 10 * number
    assert found.check(batch(999, 2, 2)).check is Check.OUT_OF_ORDER
    assert found.check(batch(999, 12, 1)).check is Check.OUT_OF_ORDER, "a part of a batch is not that batch"


def test_sequences_begin_again_after_the_largest() -> None:
    assert sequence_after(SEQUENCE_MAX) == 0
    found = table(batch(0, SEQUENCE_MAX - 1, 3))
    entry = found.get(7)
    assert entry is not None
    assert entry.last_batch == ProducerBatch(0, 2, 2, 1000)
    assert entry.last_batch.first_sequence == SEQUENCE_MAX - 1
    assert found.check(batch(3, 1)).check is Check.NEXT
    assert found.check(batch(3, SEQUENCE_MAX - 1, 3)).check is Check.DUPLICATE


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_with_zero() -> None:
    found = table(batch(0, 0, epoch=3))
    assert found.check(batch(1, 1, epoch=2)).check is Check.FENCED
    assert found.check(batch(1, 1, epoch=4)).check is Check.OUT_OF_ORDER
    assert found.check(batch(1, 0, epoch=4)).check is Check.NEXT
    found.appended(batch(1, 0, epoch=4))
    assert found.check(batch(2, 1, epoch=3)).check is Check.FENCED
    assert found.check(batch(2, 1, epoch=4)).check is Check.NEXT


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerTable().check(batch(0, 41)).check is Check.NEXT


def test_an_open_transaction_holds_the_stable_offset_until_its_marker() -> None:
    found = table(batch(3, 0, transactional=True), batch(4, 1, transactional=True))
    found.appended(batch(5, 0, producer_id=8, transactional=True))
    assert found.first_unstable_offset == 3
    assert found.marker_appended(marker(6), coordinator_epoch=2) == 3
    assert found.first_unstable_offset == 5
    assert found.marker_appended(marker(7, producer_id=8), coordinator_epoch=2) == 5
    assert found.first_unstable_offset is None
    assert found.marker_appended(marker(8), coordinator_epoch=2) is None
    assert found.next_offset == 9


def test_a_marker_with_a_newer_epoch_fences_and_begins_sequences_anew() -> None:
    found = table(batch(0, 0, transactional=True))
    found.marker_appended(marker(1, epoch=1), coordinator_epoch=0)
    assert found.check(batch(2, 1, epoch=0)).check is Check.FENCED
    assert found.check(batch(2, 0, epoch=1)).check is Check.NEXT
    assert found.check(batch(2, 1, epoch=1)).check is Check.OUT_OF_ORDER
    assert found.last_records() == {7: LastRecord(None, 1)}


def test_compaction_knows_each_producer_s_last_record() -> None:
    found = table(batch(0, 0), batch(5, 1, 2), batch(9, 0, producer_id=8))
    assert found.last_records() == {7: LastRecord(6, 0), 8: LastRecord(9, 0)}


def test_idle_producers_are_forgotten_but_not_in_a_transaction() -> None:
    found = table(batch(900, 0), batch(1, 0, producer_id=8, transactional=True))
    found.local_ms = 1_500.0
    found.appended(batch(0, 0, producer_id=9))
    assert found.expire(now_ms=1_900, expiration_ms=500) == [7], "by the time of the append, not of the record"
    assert [entry.producer_id for entry in found] == [8, 9]


# ---------------------------------------------------------------------------------------------- the file


def test_the_snapshot_has_kafka_s_bytes() -> None:
    found = table(batch(4, 10, 2, epoch=1, transactional=True))
    entry = struct.pack(">qhiqiqiq", 7, 1, 11, 5, 1, 1004, -1, 4)
    body = struct.pack(">i", 1) + entry
    assert found.snapshot() == struct.pack(">hI", 1, crc32c(body)) + body


def _random_table(rng: random.Random) -> ProducerTable:
    entries = []
    for producer_id in rng.sample(range(2**62), rng.randrange(12)):
        entry = ProducerEntry(producer_id, rng.randrange(-1, 2**15))
        entry.coordinator_epoch = rng.randrange(-1, 2**31)
        entry.last_timestamp_ms = rng.randrange(-1, 2**62)
        entry.transaction_first_offset = rng.choice([None, rng.randrange(2**62)])
        if rng.random() < 0.7:
            entry.batches = (
                ProducerBatch(rng.randrange(2**31), rng.randrange(2**62), rng.randrange(1000), entry.last_timestamp_ms),
            )
        entries.append(entry)
    return ProducerTable(entries, next_offset=5)


def test_a_snapshot_gives_the_table_back(rng: random.Random) -> None:
    for _ in range(100):
        made = _random_table(rng)
        found = ProducerTable.from_snapshot(made.snapshot(), "x.snapshot", 5)
        assert list(found) == list(made)
        assert found.next_offset == 5


def test_every_flipped_byte_and_every_cut_of_a_snapshot_is_found(rng: random.Random) -> None:
    data = table(batch(0, 0), batch(5, 0, producer_id=8)).snapshot()
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= rng.randrange(1, 256)
        with pytest.raises(CorruptLogError, match=r"9\.snapshot"):
            ProducerTable.from_snapshot(bad, "9.snapshot", 9)
        with pytest.raises(CorruptLogError, match=r"9\.snapshot"):
            ProducerTable.from_snapshot(data[:position], "9.snapshot", 9)
