"""read_committed on fetched bytes: batches of aborted transactions are removed, all others stay, damage is reported."""

from __future__ import annotations

import random

import pytest

from headrace.consumer.isolation import without_aborted
from headrace.errors import CorruptMessageError
from headrace_core.records import ABORT, COMMIT, RecordIterator, encode_batch, read_header
from tests.worlds.transactional_log import Row, TransactionalLog


def rows_of(data: bytes, start: int = 0) -> list[Row]:
    return [Row(each.offset, each.key or b"", each.value or b"") for each in RecordIterator([data], start_offset=start)]


def read_committed(log: TransactionalLog, rng: random.Random) -> list[Row]:
    """Read the log with fetches that are cut at random batches, each from a random position within its first batch."""
    stable = [batch for batch in log.batches if read_header(batch).next_offset <= log.last_stable_offset]
    found: list[Row] = []
    while stable:
        count = rng.randint(1, len(stable))
        taken, stable = stable[:count], stable[count:]
        first, last = read_header(taken[0]), read_header(taken[-1])
        start = rng.choice((first.base_offset, first.last_offset))
        aborted = [(each.producer_id, each.first_offset) for each in log.aborted_between(start, last.next_offset)]
        rng.shuffle(aborted)
        kept = without_aborted(b"".join(taken), aborted, check_crc=True)
        expected_below = [row for row in log.committed if first.base_offset <= row.offset < start]
        found += [*expected_below, *rows_of(kept, start)]
    return found


@pytest.mark.parametrize("chunk", range(4))
def test_read_committed_returns_the_committed_records_once_and_in_order(chunk: int) -> None:
    read = 0
    for seed in range(100 * chunk, 100 * chunk + 100):
        log = TransactionalLog.random(seed)
        for cuts in range(5):
            assert read_committed(log, random.Random(f"{seed}-{cuts}")) == log.committed, f"seed {seed}, cuts {cuts}"
        read += len(log.committed)
        assert len(log.committed) < len(log.rows) or not log.aborted
    assert read > 2_000, "the histories commit too little to prove anything"


def aborted_then_committed() -> TransactionalLog:
    """Producer 7: offset 0 and 1 aborted (marker 2), offset 3 committed (marker 4). Producer 8: offset 5."""
    log = TransactionalLog()
    log.write(2, producer_id=7)
    log.end(7, ABORT)
    log.write(producer_id=7)
    log.end(7, COMMIT)
    log.write(producer_id=8)
    log.end(8, COMMIT)
    return log


def test_without_aborted_transactions_the_bytes_are_not_touched() -> None:
    data = b"".join(aborted_then_committed().batches)
    assert without_aborted(data, [], check_crc=True) is data
    assert without_aborted(data, [(9, 0)], check_crc=True) is data


def test_only_whole_batches_of_the_transaction_are_removed() -> None:
    log = aborted_then_committed()
    assert without_aborted(b"".join(log.batches), [(7, 0)], check_crc=True) == b"".join(log.batches[1:])


def test_a_result_that_is_wholly_aborted_becomes_empty() -> None:
    log = TransactionalLog()
    log.write(3, producer_id=7)
    log.write(3, producer_id=7)
    assert without_aborted(b"".join(log.batches), [(7, 0)], check_crc=True) == b""


def test_an_empty_or_unreadable_control_batch_ends_no_transaction() -> None:
    """Compaction empties markers; the broker ignores records that it cannot read. The ABORT marker comes after them."""
    log = TransactionalLog()
    log.write(producer_id=7)
    own = {"producer_id": 7, "producer_epoch": 0, "transactional": True, "control": True}
    others = [
        encode_batch([(0, key, b"", None)], base_offset=at, **own)
        for at, key in enumerate((b"\0", b"\0\0\0\x63"), log.end_offset)
    ]
    log.end_offset += len(others)
    log.write(producer_id=7)
    log.end(7, ABORT)
    log.write(producer_id=7)
    first, second, *rest = log.batches
    data = b"".join([first, *others, second, *rest])
    assert without_aborted(data, [(7, 0)], check_crc=True) == b"".join([*others, *rest])


def flipped(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


def test_a_damaged_batch_of_an_aborted_transaction_is_reported_where_it_lies() -> None:
    log = TransactionalLog()
    log.write()
    log.write(producer_id=7)
    log.end(7, ABORT)
    plain, aborted, marker = log.batches
    data = plain + flipped(aborted, len(aborted) - 1) + marker
    kept = without_aborted(data, [(7, 1)], check_crc=True)
    iterator = RecordIterator([kept])
    assert [record.offset for record in iterator.take(10)] == [0]
    with pytest.raises(CorruptMessageError):
        iterator.take(10)
    assert without_aborted(data, [(7, 1)], check_crc=False) == plain + marker


@pytest.mark.parametrize("from_end", range(1, 17))
def test_without_crc_checks_a_damaged_marker_hides_no_later_transaction(from_end: int) -> None:
    log = aborted_then_committed()
    log.write(producer_id=7)
    log.end(7, ABORT)
    log.write()
    data, marker, *rest = log.batches
    marker = flipped(marker, len(marker) - from_end)
    aborted = [(each.producer_id, each.first_offset) for each in log.aborted]
    kept = without_aborted(b"".join([data, marker, *rest]), aborted, check_crc=False)
    assert kept == b"".join([marker, *rest[:-3], *rest[-2:]])


def test_a_flipped_bit_does_not_make_a_committed_batch_look_aborted() -> None:
    log = TransactionalLog()
    log.write(producer_id=7)
    log.write(producer_id=6)
    log.end(7, ABORT)
    log.end(6, COMMIT)
    aborted, committed, *markers = log.batches
    data = b"".join([aborted, flipped(committed, 50), *markers])  # producer id 6 becomes 7
    assert read_header(data, len(aborted)).producer_id == 7
    kept = without_aborted(data, [(7, 0)], check_crc=True)
    with pytest.raises(CorruptMessageError):
        rows_of(kept)


def test_a_part_of_a_batch_is_left_to_the_decoder() -> None:
    log = aborted_then_committed()
    data = b"".join(log.batches)[:-1]
    kept = without_aborted(data, [(7, 0)], check_crc=True)
    assert kept == data[len(log.batches[0]) :]
    with pytest.raises(CorruptMessageError):
        rows_of(kept)
