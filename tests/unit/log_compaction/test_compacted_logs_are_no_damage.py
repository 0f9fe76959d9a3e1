"""A compacted log (gaps, empty batches, merged segments) is sound for readers, the scrubber and verify. No flipped byte
in a compacted log changes a served record."""

from __future__ import annotations

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.log.dump import Problem, dump
from headrace_core.log.scrubbing import Scrubbed, index_files, replace_index_files, scrub_segment
from headrace_core.log.verify import verify
from tests.worlds.compaction_world import ROOT, Ledger, read_on


@pytest.fixture(params=[0, 1000], ids=["times stand still", "times go on"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    ledger = Ledger()
    for round_ in range(6):
        for number in range(20):
            ledger.clock.advance(request.param)
            ledger.put((f"key-{(number * round_) % 7}", f"value {round_} {number}" + "." * 40))
    ledger.put(("gone", "soon"), ("gone", None))
    ledger.log.roll()
    ledger.put(("active", "stays"))
    ledger.log.flush()
    ledger.clean()
    return ledger


def scrub(ledger: Ledger) -> list[Scrubbed]:
    return [
        scrub_segment(ledger.fs, ledger.log, segment, spend=lambda _: None, should_stop=lambda: False)
        for segment in ledger.log.segments
    ]


def test_a_compacted_log_is_sound(ledger: Ledger) -> None:
    offsets = [record.offset for record in ledger.records()]
    assert len(offsets) < offsets[-1], "there are gaps"
    for max_bytes in (1, 300, 1 << 20):
        assert [record.offset for record in ledger.records(max_bytes)] == offsets
    assert [scrubbed.index_fault for scrubbed in scrub(ledger)] == [None] * len(ledger.log.segments)
    for line in (*verify(ledger.directory, fs=ledger.fs), *dump(ledger.directory, fs=ledger.fs, deep=True)):
        assert not isinstance(line, Problem) or "before it ends at" in line.what, line
    assert not [line for line in verify(ROOT, fs=ledger.fs) if isinstance(line, Problem)]
    for record in ledger.records():
        found = ledger.log.offset_for_timestamp(record.timestamp_ms)
        assert found is not None
        assert found.offset <= record.offset


def test_its_indexes_can_be_made_anew(ledger: Ledger) -> None:
    records = ledger.records()
    for segment in ledger.log.segments[:-1]:
        assert replace_index_files(ledger.fs, ledger.log, segment, index_files(segment))
    assert [scrubbed.index_fault for scrubbed in scrub(ledger)] == [None] * len(ledger.log.segments)
    assert ledger.records() == records
    assert not replace_index_files(ledger.fs, ledger.log, ledger.log.active, (b"", b"")), "the owner writes that one"


def test_no_flipped_byte_changes_what_is_served(ledger: Ledger) -> None:
    """No check covers offsets beside a gap, so this test compares only the records."""
    sound = {record.offset: record.value for record in ledger.records()}
    values, named = set(sound.values()), 0
    segment = max(ledger.log.segments[:-1], key=lambda segment: segment.size)
    path = segment.path
    for position in range(0, len(ledger.fs.files()[path]), 7):
        ledger.fs.flip(path, position, (0x01, 0x80, 0xFF)[position % 3])
        try:
            assert {record.value for record in read_on(ledger.log, 0, 500)} <= values, f"byte {position}"
        except CorruptLogError:
            named += 1
        ledger.fs.flip(path, position, (0x01, 0x80, 0xFF)[position % 3])
        segment.unload_indexes()
    assert named > 50
    assert {record.offset: record.value for record in ledger.records()} == sound
