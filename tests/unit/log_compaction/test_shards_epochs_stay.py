"""A compacted shard log keeps the largest epoch that was written. The last batch keeps its header with the epoch when
all its records are replaced, and so do batches that lose some of their records."""

from __future__ import annotations

import pytest

from headrace_core.errors import FencedShardEpochError
from headrace_core.log import Append, AppendInfo
from headrace_core.log.fencing import Fence, epoch_of, largest_epoch
from headrace_core.records import Compression, encode_batch
from tests.worlds.compaction_world import Ledger


def commit(ledger: Ledger, epoch: int, *keys: str, compression: Compression = Compression.NONE) -> None:
    records = [(ledger.clock.now_ms(), key.encode(), b"v" * 60, None) for key in keys]
    data = encode_batch(records, base_sequence=epoch, compression=compression)
    (outcome,) = ledger.log.append_many([Append(data=data, leader_epoch=0, fence=Fence(epoch))])
    assert isinstance(outcome, AppendInfo), outcome


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_claim_stays_known_when_everything_under_it_was_replaced(compression: Compression) -> None:
    ledger = Ledger()
    for number in range(40):
        commit(ledger, 1 + number // 10, f"key-{number % 3}", f"key-{number % 5}", compression=compression)
    ledger.log.roll()
    commit(ledger, 4, "key-0", "key-1", "key-2", "key-3", "key-4", compression=compression)
    before = ledger.log.log_end_offset
    ledger.log.roll()
    ledger.log.flush()
    ledger.clock.advance(10_000)
    ledger.clean()
    assert len(ledger.records()) == 5, "all but the last values are gone"
    assert ledger.log.active.size == 0, "the batch that tells it was compacted too"
    assert largest_epoch(ledger.log.segments) == 4
    late = encode_batch([(0, b"k", b"v", None)], base_sequence=3)
    (outcome,) = ledger.log.append_many([Append(data=late, leader_epoch=0, fence=Fence(3))])
    assert isinstance(outcome, FencedShardEpochError)
    commit(ledger, 4, "key-1")
    assert ledger.log.log_end_offset == before + 1


def test_batches_that_lose_records_keep_their_epoch() -> None:
    ledger = Ledger(segment_bytes=100_000)
    commit(ledger, 2, "a", "b", "c")
    commit(ledger, 3, "a")
    commit(ledger, 7, "c")
    ledger.log.roll()
    ledger.put(("active", "stays"))
    ledger.log.flush()
    ledger.clean()
    first = ledger.log.segments[0]
    kept = [(header.record_count, epoch_of(header)) for _, header in first.places(0, first.size)]
    assert kept == [(1, 2), (1, 3), (1, 7)]
