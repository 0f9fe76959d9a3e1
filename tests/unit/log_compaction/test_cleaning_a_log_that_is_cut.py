"""A log that is truncated, filled and rolled again while it is compacted has the same segments with other records."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from headrace_core.records import encode_batch, split_batches
from tests.worlds.compaction_world import Ledger


def test_what_was_read_before_a_cut_is_not_swapped_in_behind_it() -> None:
    ledger = Ledger()
    ledger.fill(30)
    values, was_cut = [record.value for record in ledger.records()], False

    def cut_first(action: Callable[[], bool]) -> bool:
        nonlocal values, was_cut
        if not was_cut:
            was_cut = True
            segment = ledger.log.segments[0]
            ledger.log.truncate_to(ledger.log.segments[1].base_offset - 1)
            ledger.put(("key-1", "after the cut"))
            ledger.log.roll()
            ledger.put(("active", "after the cut"))
            assert ledger.log.segments[0] is segment
            values = [record.value for record in ledger.records()]
        return action()

    report = ledger.clean(execute=cut_first)
    assert report.is_interrupted
    assert [record.value for record in ledger.records()] == values
    assert b"after the cut" in values


def _batches(ledger: Ledger) -> list[tuple[int, int]]:
    """(base offset, next offset) of all existing batches."""
    found, log = [], ledger.log
    for segment in log.segments:
        data = segment.log.pread(segment.size, 0)
        found += [(span.base_offset, span.last_offset + 1) for span in split_batches(data)]
    return found


def _gap(ledger: Ledger) -> tuple[int, int]:
    """The first gap between two batches of a segment: (its first offset, the offset after it)."""
    batches = _batches(ledger)
    return next((end, base) for (_, end), (base, _) in pairwise(batches) if base > end + 1)


@pytest.mark.parametrize("straddles", [False, True], ids=["in the gap", "in the batch behind it"])
def test_a_log_that_is_cut_in_a_gap_is_found_again_by_a_start_after_a_crash(straddles: bool) -> None:
    """Only an unclean election truncates compacted records. The log then ends with its last batch, as a start would
    find it. The leader sends records again that compaction removed because of the truncated records."""
    ledger = Ledger()
    for _ in range(3):
        ledger.put(*[(f"once-{number}", "x") for number in range(3)])
        ledger.put(*[("often", f"value {number}") for number in range(6)])
        ledger.put(*[("often", f"value {number}") for number in range(6)])
    ledger.put(*[(f"last-{number}", "x") for number in range(4)])
    ledger.log.roll()
    ledger.put(("active", "stays"))
    ledger.log.flush()
    ledger.clean()
    begin, end = _gap(ledger)
    before = [pair for pair in _batches(ledger) if pair[1] <= begin]
    ledger.log.truncate_to(end + 1 if straddles else (begin + end) // 2)
    assert _batches(ledger) == before
    assert ledger.log.log_end_offset == ledger.log.flushed_end == begin
    again = ledger.open(ledger.fs.crash_clone(), recovery_point=ledger.log.recovery_point)
    assert again.log_end_offset == begin
    assert again.append(encode_batch([(ledger.clock.now_ms(), b"often", b"again", None)]), 1).base_offset == begin
