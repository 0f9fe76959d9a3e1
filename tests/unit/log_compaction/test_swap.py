"""Opening a log after a crash in a swap. (The property test covers every crash point of real cleanings.)"""

from __future__ import annotations

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.log.swap import finish_swaps
from headrace_core.testing.crashing_fs import CrashingFileSystem, TraceEntry
from tests.worlds.compaction_world import Ledger


class PowerLost(BaseException):
    pass


def crashed_at(ledger: Ledger, operation: str, path_ends: str) -> CrashingFileSystem:
    """The disk just before the first operation of the given kind of a cleaning. All operations before this operation
    are durable."""
    found: list[CrashingFileSystem] = []

    def crash(entry: TraceEntry) -> None:
        if entry.operation == operation and entry.path.endswith(path_ends):
            ledger.fs.on_operation = None
            ledger.fs.sync_directory(ledger.directory)
            found.append(ledger.fs.crash_clone())
            raise PowerLost

    ledger.fs.on_operation = crash
    with pytest.raises(PowerLost):
        ledger.clean()
    return found[0]


def names(fs: CrashingFileSystem, ledger: Ledger) -> set[str]:
    return {name.partition(".")[2] for name in fs.listdir(ledger.directory)}


def test_before_the_log_is_named_swap_the_old_segments_count() -> None:
    ledger = Ledger()
    ledger.fill(100)
    fs = crashed_at(ledger, "rename", ".log.swap")
    assert "index.swap" in names(fs, ledger)
    log = ledger.open(fs)
    assert log.log_end_offset == 101
    assert [segment.base_offset for segment in log.segments] == [segment.base_offset for segment in ledger.log.segments]
    assert not names(fs, ledger) & {"log.cleaned", "log.swap", "index.swap", "timeindex.swap"}


def test_after_it_the_new_one_counts() -> None:
    ledger = Ledger()
    ledger.fill(100)
    fs = crashed_at(ledger, "rename", ".log")
    assert "log.swap" in names(fs, ledger)
    first = ledger.log.segments[0]
    log = ledger.open(fs)
    assert log.segments[0].size < first.size
    assert log.segments[0].indexes_fit()
    assert finish_swaps(fs, ledger.directory) == [], "once is enough"


def test_a_swapped_segment_that_cannot_be_read_leaves_everything_as_it_is() -> None:
    ledger = Ledger()
    ledger.fill(100)
    fs = crashed_at(ledger, "rename", ".log")
    (swapped,) = [name for name in fs.listdir(ledger.directory) if name.endswith(".log.swap")]
    fs.flip(f"{ledger.directory}/{swapped}", 16)
    before = fs.files()
    with pytest.raises(CorruptLogError, match=r"\.log\.swap, position 0: .*magic"):
        ledger.open(fs)
    assert fs.files() == before
