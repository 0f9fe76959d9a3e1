"""A log that is truncated, filled and rolled again while it is compacted has the same segments with other records."""

from __future__ import annotations

from collections.abc import Callable

from cleaning_world import Ledger


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
