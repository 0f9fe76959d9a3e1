"""read_committed on fetched bytes: batches of aborted transactions are removed, all others stay, damage is reported."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import ModuleType

import pytest

from headrace_core.errors import CorruptMessageError
from headrace_core.records import ABORT, COMMIT, Buffer, RecordIterator, encode_batch, read_header, split_batches
from headrace_core.records.arrow import decode_arrow
from tests.worlds.transactional_log import Row, TransactionalLog


def rows_of(parts: Iterable[Buffer], start: int = 0) -> list[Row]:
    return [Row(each.offset, each.key or b"", each.value or b"") for each in RecordIterator(parts, start_offset=start)]


def removed_one_by_one(data: bytes, aborted: Iterable[tuple[int, int]]) -> bytes:
    """A simple, slow filter for comparison: decide for each batch separately, from all markers of its producer."""
    spans = split_batches(data)
    headers = [read_header(data, span.position) for span in spans]
    ends = [
        (header.producer_id, header.base_offset)
        for span, header in zip(spans, headers, strict=True)
        if header.is_control and is_abort(data[span.position : span.position + span.size])
    ]
    kept = b""
    for span, header in zip(spans, headers, strict=True):
        is_aborted = (
            header.is_transactional
            and not header.is_control
            and any(
                producer_id == header.producer_id
                and first <= header.last_offset
                and not any(by == producer_id and first <= at < header.base_offset for by, at in ends)
                for producer_id, first in aborted
            )
        )
        if not is_aborted:
            kept += data[span.position : span.position + span.size]
    return kept


def is_abort(batch: bytes) -> bool:
    (record,) = RecordIterator([batch], include_control=True)
    return bool(record.key) and int.from_bytes(record.key[2:4], "big") == ABORT


def read_committed(codec: ModuleType, log: TransactionalLog, rng: random.Random) -> list[Row]:
    """Read the log in fetches that end at random batches. Each fetch begins at a random offset within its first
    batch."""
    stable = [batch for batch in log.batches if read_header(batch).next_offset <= log.last_stable_offset]
    found: list[Row] = []
    while stable:
        count = rng.randint(1, len(stable))
        taken, stable = stable[:count], stable[count:]
        first, last = read_header(taken[0]), read_header(taken[-1])
        start = rng.choice((first.base_offset, first.last_offset))
        aborted = [(each.producer_id, each.first_offset) for each in log.aborted_between(start, last.next_offset)]
        rng.shuffle(aborted)
        data = b"".join(taken)
        kept = codec.without_aborted(data, aborted, check_crc=rng.random() < 0.5)
        assert b"".join(kept) == removed_one_by_one(data, aborted)
        assert all(kept), "an empty part"
        table = decode_arrow(kept, topic="t", partition=0, start_offset=start, columns=("offset", "key", "value"))
        assert [Row(*row.values()) for row in table.to_pylist()] == rows_of(kept, start)
        expected_below = [row for row in log.committed if first.base_offset <= row.offset < start]
        found += [*expected_below, *rows_of(kept, start)]
    return found


@pytest.mark.parametrize("chunk", range(4))
def test_read_committed_returns_the_committed_records_once_and_in_order(codec: ModuleType, chunk: int) -> None:
    read = 0
    for seed in range(50 * chunk, 50 * chunk + 50):
        log = TransactionalLog.random(seed)
        for cuts in range(5):
            assert read_committed(codec, log, random.Random(f"{seed}-{cuts}")) == log.committed, (
                f"seed {seed}, cuts {cuts}"
            )
        read += len(log.committed)
        assert len(log.committed) < len(log.rows) or not log.aborted
    assert read > 1_000, "the histories commit too little to prove anything"


def aborted_then_committed() -> TransactionalLog:
    """Producer 7 has aborted offsets 0 and 1 (marker 2), and committed offset 3 (marker 4). Producer 8 has offset 5."""
    log = TransactionalLog()
    log.write(2, producer_id=7)
    log.end(7, ABORT)
    log.write(producer_id=7)
    log.end(7, COMMIT)
    log.write(producer_id=8)
    log.end(8, COMMIT)
    return log


def test_without_aborted_transactions_the_bytes_are_not_touched(codec: ModuleType) -> None:
    data = b"".join(aborted_then_committed().batches)
    for aborted in ([], [(9, 0)]):
        (part,) = codec.without_aborted(data, aborted)
        assert part is data


def test_only_whole_batches_of_the_transaction_are_removed(codec: ModuleType) -> None:
    log = aborted_then_committed()
    assert b"".join(codec.without_aborted(b"".join(log.batches), [(7, 0)])) == b"".join(log.batches[1:])


def test_a_result_that_is_wholly_aborted_becomes_empty(codec: ModuleType) -> None:
    log = TransactionalLog()
    log.write(3, producer_id=7)
    log.write(3, producer_id=7)
    assert b"".join(codec.without_aborted(b"".join(log.batches), [(7, 0)])) == b""


def test_an_empty_or_unreadable_control_batch_ends_no_transaction(codec: ModuleType) -> None:
    """Compaction empties markers, and the broker ignores unreadable control records. The real ABORT marker follows
    these records."""
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
    assert b"".join(codec.without_aborted(data, [(7, 0)])) == b"".join([*others, *rest])


def flipped(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


def test_a_damaged_batch_of_an_aborted_transaction_is_reported_where_it_lies(codec: ModuleType) -> None:
    log = TransactionalLog()
    log.write()
    log.write(producer_id=7)
    log.end(7, ABORT)
    plain, aborted, marker = log.batches
    data = plain + flipped(aborted, len(aborted) - 1) + marker
    kept = codec.without_aborted(data, [(7, 1)])
    iterator = RecordIterator(kept)
    assert [record.offset for record in iterator.take(10)] == [0]
    with pytest.raises(CorruptMessageError):
        iterator.take(10)
    assert b"".join(codec.without_aborted(data, [(7, 1)], check_crc=False)) == plain + marker


@pytest.mark.parametrize("from_end", range(1, 17))
def test_without_crc_checks_a_damaged_marker_hides_no_later_transaction(codec: ModuleType, from_end: int) -> None:
    log = aborted_then_committed()
    log.write(producer_id=7)
    log.end(7, ABORT)
    log.write()
    data, marker, *rest = log.batches
    marker = flipped(marker, len(marker) - from_end)
    aborted = [(each.producer_id, each.first_offset) for each in log.aborted]
    kept = codec.without_aborted(b"".join([data, marker, *rest]), aborted, check_crc=False)
    assert b"".join(kept) == b"".join([marker, *rest[:-3], *rest[-2:]])


def test_a_flipped_bit_does_not_make_a_committed_batch_look_aborted(codec: ModuleType) -> None:
    log = TransactionalLog()
    log.write(producer_id=7)
    log.write(producer_id=6)
    log.end(7, ABORT)
    log.end(6, COMMIT)
    aborted, committed, *markers = log.batches
    data = b"".join([aborted, flipped(committed, 50), *markers])  # producer id 6 becomes 7
    assert read_header(data, len(aborted)).producer_id == 7
    kept = codec.without_aborted(data, [(7, 0)])
    with pytest.raises(CorruptMessageError):
        rows_of(kept)


def test_a_part_of_a_batch_is_left_to_the_decoder(codec: ModuleType) -> None:
    log = aborted_then_committed()
    data = b"".join(log.batches)[:-1]
    kept = codec.without_aborted(data, [(7, 0)])
    assert b"".join(kept) == data[len(log.batches[0]) :]
    with pytest.raises(CorruptMessageError):
        rows_of(kept)
