"""Consumers of a compacted log get no response of empty batches while records follow.

A cleaned segment keeps its last batch, and a producer's last batch, even without records. kafka-go that gets only such
a batch fetches from offset 1 again.
"""

from __future__ import annotations

import pytest

from headrace_broker.leader_replica import read_for
from headrace_core.log import ReadResult
from headrace_core.log.producer_state import LastRecord
from headrace_core.records import encode_batch, read_header
from tests.worlds.compaction_world import Ledger, at_once

_BYTES = 1 << 20


def read(ledger: Ledger, offset: int, up_to: int, *, committed: bool) -> ReadResult:
    found = read_for(ledger.log, offset, _BYTES, up_to, committed=committed, wait=True)
    assert found is not None
    return found


@pytest.mark.parametrize("committed", [False, True])
def test_a_read_goes_on_after_segments_without_records(committed: bool) -> None:
    ledger = Ledger()
    ledger.fill(100)
    ledger.clean()
    end = ledger.log.log_end_offset
    raw = ledger.log.read(0, _BYTES)
    assert raw is not None
    assert read_header(raw.records).record_count == 0, "the first segment has an empty batch"
    for offset in range(95):
        found = read(ledger, offset, end, committed=committed)
        header = read_header(found.records)
        assert (header.base_offset, header.record_count) == (95, 1)
        assert found.next_offset > 95


def test_a_read_keeps_a_producer_s_empty_batch_before_records_of_the_same_segment() -> None:
    """The bytes are those of the file, as in Kafka."""
    ledger = Ledger(segment_bytes=100_000)
    record = (ledger.clock.now_ms(), b"key-1", b"old", None)
    ledger.log.append(encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=0), 0)
    ledger.fill(10)
    manager = ledger.manager()
    producers = {7: LastRecord(0, 0)}
    manager.clean(ledger.cleaner(), ledger.log, ledger.target(manager), execute=at_once, producers=producers)
    raw = ledger.log.read(0, _BYTES)
    assert raw is not None
    assert (read_header(raw.records).base_offset, read_header(raw.records).record_count) == (0, 0)
    found = read(ledger, 0, ledger.log.log_end_offset, committed=False)
    assert (found.records, found.next_offset) == (raw.records, raw.next_offset)


def test_empty_batches_are_returned_when_nothing_follows() -> None:
    ledger = Ledger()
    ledger.fill(100)
    ledger.clean()
    found = read(ledger, 0, 50, committed=False)
    assert read_header(found.records).record_count == 0
    assert 0 < found.next_offset <= 50
