"""Retention on a directory: the deleted records, the time when their files are deleted, and a crash at every step."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from headrace_core.errors import OffsetOutOfRangeError, ServerBusyError
from headrace_core.log import LogConfig, LogDirectory, PartitionLog
from headrace_core.records import encode_batch
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.worlds.log_world import (
    NOW_MS,
    ORDERS,
    PAYMENTS,
    ROOT,
    TOPIC_ID,
    batch,
    formatted,
    open_directory,
    values_of,
)
from tests.worlds.this_process import steps

HOUR_MS = 3_600_000
#: A segment holds two of the batches that ``filled`` appends.
TINY = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=10 * HOUR_MS, file_delete_delay_ms=60_000)


def filled(
    fs: CrashingFileSystem, clock: ManualClock, config: LogConfig = TINY, batches: int = 12
) -> tuple[LogDirectory, PartitionLog]:
    """A batch of one record for each hour, the last batch an hour old."""
    directory = open_directory(fs, config, clock)
    log = directory.create(ORDERS, TOPIC_ID, config)
    for number in range(batches):
        log.append(batch(f"v{number}", timestamp_ms=clock.now_ms(), pad=100), 0)
        log.flush()
        clock.advance(HOUR_MS)
    return directory, log


def expire(directory: LogDirectory, *logs: PartitionLog) -> int:
    """One retention pass, as in the broker; returns how many logs lost records."""
    verdicts = [(log, log.expired(log.flushed_end)) for log in logs]
    return len(directory.expire([(log, verdict) for log, verdict in verdicts if verdict is not None]))


def deleted_files(fs: CrashingFileSystem) -> list[str]:
    return [path for path in fs.files() if path.endswith(".deleted") or "-delete/" in path]


def test_old_segments_go_and_their_files_stay_for_the_delay() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, log = filled(fs, clock)
    reader = log.segments[0]
    before = len(log.segments)
    clock.advance(5 * HOUR_MS)  # the oldest records are 17 hours old
    assert expire(directory, log) == 1
    assert log.log_start_offset == log.segments[0].base_offset == 6
    assert len(log.segments) == before - 3
    assert values_of(log) == [f"v{number}" for number in range(6, 12)]
    with pytest.raises(OffsetOutOfRangeError):
        log.read(5, 1000)
    assert reader.log.pread(61, 0), "a reader at work goes on"
    assert len(deleted_files(fs)) == 9
    assert directory.deleted.size_bytes > 0
    clock.advance(59_999)
    assert directory.remove_deleted().names == 0
    clock.advance(1)
    assert directory.remove_deleted().names == 9
    assert deleted_files(fs) == []
    assert directory.deleted.next_due_ms is None


@pytest.mark.parametrize(("spared", "gone"), [(-1, 2), (0, 2), (1, 1)])
def test_a_log_never_gets_smaller_than_its_retention_bytes(spared: int, gone: int) -> None:
    config = replace(TINY, retention_ms=None)
    directory, log = filled(formatted(), ManualClock(NOW_MS), config)
    sizes, third = [each.size for each in log.segments], log.segments[2].base_offset
    log.config = replace(config, retention_bytes=sum(sizes[2:]) + spared)
    assert expire(directory, log) == 1
    assert [each.size for each in log.segments] == sizes[gone:]
    assert (log.log_start_offset == third) is (gone == 2)


def test_a_full_disk_gets_back_what_was_deleted_at_once() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, log = filled(fs, clock)
    directory.create(PAYMENTS, TOPIC_ID, TINY)
    clock.advance(5 * HOUR_MS)
    expire(directory, log)
    directory.delete(PAYMENTS)
    assert deleted_files(fs)
    removed = directory.remove_deleted(everything=True)
    assert removed.names == 10
    assert removed.size > 0
    assert deleted_files(fs) == []


def test_an_idle_log_loses_its_last_records_too_and_goes_on_at_its_end() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, log = filled(fs, clock)
    clock.advance(100 * HOUR_MS)
    expire(directory, log)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (12, 12, 0)
    assert log.expired(12) is None
    log.append(batch("again"), 0)
    assert values_of(log) == ["again"]
    log.flush()
    fs.crash()
    log = open_directory(fs, TINY, clock).logs[ORDERS]
    assert (log.log_start_offset, values_of(log)) == (12, ["again"])


@pytest.mark.parametrize("came", [1, 7])  # into the segment that was active, and into others
def test_records_that_came_after_the_verdict_are_not_among_what_it_deletes(came: int) -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, log = filled(fs, clock)
    clock.advance(100 * HOUR_MS)
    verdict = log.expired(log.flushed_end)
    assert verdict is not None
    assert verdict.roll_first
    for number in range(came):
        log.append(batch(f"new{number}", timestamp_ms=clock.now_ms(), pad=100), 0)
    log.flush()
    directory.expire([(log, verdict)])
    assert values_of(log)[-came:] == [f"new{number}" for number in range(came)]
    assert 10 <= log.log_start_offset <= 12


def test_a_verdict_on_a_log_that_is_gone_or_was_cut_does_nothing() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, log = filled(fs, clock)
    clock.advance(5 * HOUR_MS)
    verdict = log.expired(log.flushed_end)
    assert verdict is not None
    directory.truncate(log, 3)
    assert directory.expire([(log, verdict)]) == []
    assert values_of(log) == ["v0", "v1", "v2"]
    directory.delete(ORDERS)
    again = directory.create(ORDERS, TOPIC_ID, TINY)
    assert directory.expire([(log, verdict)]) == []
    assert again.log_start_offset == 0


def test_a_segment_that_was_cut_and_filled_again_is_not_as_old_as_it_was_judged() -> None:
    config = LogConfig(retention_ms=60_000)
    directory = open_directory(formatted(), config)
    log = directory.create(ORDERS, TOPIC_ID, config)
    for number in range(3):
        log.append(batch(f"old {number}", timestamp_ms=NOW_MS - 3_600_000), 0)
    log.roll()
    log.append(batch("young"), 0)
    log.flush()
    verdict = log.expired(log.log_end_offset)
    assert verdict is not None
    assert verdict.log_start_offset == 3
    directory.truncate(log, 1)
    log.append(batch("new 1", "new 2", "new 3"), 1)
    log.flush()
    assert directory.expire([(log, verdict)]) == []
    assert values_of(log) == ["old 0", "new 1", "new 2", "new 3"]


def test_records_without_a_time_are_as_old_as_their_file() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    fs.clock = clock
    directory = open_directory(fs, TINY, clock)
    log = directory.create(ORDERS, TOPIC_ID, TINY)
    for number in range(6):
        log.append(encode_batch([(-1, None, b"v%d" % number + b"." * 100, None)]), 0)
        log.flush()
    clock.advance(10 * HOUR_MS)
    assert log.expired(6) is None
    clock.advance(HOUR_MS)
    assert expire(directory, log) == 1
    assert log.log_start_offset == 6


def test_a_record_far_in_the_future_holds_a_log_no_longer_than_its_file_is_old() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    fs.clock = clock
    lax = replace(TINY, timestamp_after_max_ms=2**63 - 1)
    directory = open_directory(fs, lax, clock)
    log = directory.create(ORDERS, TOPIC_ID, lax)
    log.append(batch("from the year 2100", timestamp_ms=NOW_MS + 75 * 365 * 24 * HOUR_MS, pad=200), 0)
    for number in range(4):
        log.append(batch(f"v{number}", timestamp_ms=clock.now_ms(), pad=100), 0)
    log.flush()
    clock.advance(20 * HOUR_MS)
    assert log.expired(5) is None, "a topic that allows any future gets Kafka's rule"
    log.reconfigure(TINY)
    assert expire(directory, log) == 1
    assert log.log_start_offset == 5


def test_segments_of_a_compacted_log_only_go_below_its_start() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    config = replace(TINY, cleanup_compact=True, cleanup_delete=False)
    directory = open_directory(fs, config, clock)
    log = directory.create(ORDERS, TOPIC_ID, config)
    for number in range(12):
        log.append(encode_batch([(clock.now_ms(), b"k%d" % number, b"." * 100, None)]), 0)
    log.flush()
    clock.advance(1000 * HOUR_MS)
    assert log.expired(12) is None
    directory.delete_records(log, 5)
    assert log.segments[0].base_offset == 4


def test_an_active_segment_that_waits_for_compaction_says_so() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    config = LogConfig(cleanup_compact=True, cleanup_delete=False, max_compaction_lag_ms=HOUR_MS)
    log = open_directory(fs, config, clock).create(ORDERS, TOPIC_ID, config)
    assert not log.waits_for_compaction()
    log.append(encode_batch([(clock.now_ms(), b"k", b"v", None)]), 0)
    clock.advance(HOUR_MS)
    assert not log.waits_for_compaction()
    clock.advance(1)
    assert log.waits_for_compaction()
    log.roll()
    assert not log.waits_for_compaction()
    log.append(encode_batch([(1000, b"k", b"of long ago", None)]), 0)
    assert not log.waits_for_compaction(), "it came just now"
    clock.advance(HOUR_MS + 1)
    assert log.waits_for_compaction()


def test_retention_needs_no_room_on_a_full_disk() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, log = filled(fs, clock)
    clock.advance(5 * HOUR_MS)
    fs.fail("create", errno.ENOSPC, times=1000)
    fs.fail("write", errno.ENOSPC, times=1000)
    assert expire(directory, log) == 1
    assert log.log_start_offset == 6
    assert directory.remove_deleted(everything=True).names == 9
    fs.crash()
    log = open_directory(fs, TINY, clock).logs[ORDERS]
    assert log.log_start_offset == 6
    assert values_of(log) == [f"v{number}" for number in range(6, 12)]


def test_an_active_segment_that_cannot_be_rolled_stays_and_the_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, log = filled(fs, clock)
    clock.advance(100 * HOUR_MS)
    for error in (ServerBusyError("no descriptor"), OSError(errno.ENOSPC, "full")):

        def roll(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(log, "roll", roll)
        expire(directory, log)
        assert log.log_start_offset == log.active.base_offset == 10
        assert values_of(log) == ["v10", "v11"]
    monkeypatch.undo()
    expire(directory, log)
    assert log.log_start_offset == 12


def test_a_topic_is_deleted_on_a_full_disk() -> None:
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory, _ = filled(fs, clock)
    directory.write_recovery_points()
    directory.compaction.truncated(ORDERS, 5)
    fs.fail("create", errno.ENOSPC, times=1000)
    fs.fail("write", errno.ENOSPC, times=1000)
    assert directory.delete(ORDERS)
    assert directory.remove_deleted(everything=True).names == 1
    fs.faults.clear()
    again = directory.create(ORDERS, TOPIC_ID, TINY)
    again.append(batch("new"), 0)
    again.flush()
    fs.crash()
    assert values_of(open_directory(fs, TINY, clock).logs[ORDERS]) == ["new"]


# ---------------------------------------------------------------------------------------------- crashes


def retain(fs: CrashingFileSystem, clock: ManualClock, starts: list[int], *, full: bool, idle: bool) -> None:
    """A log, two retention passes with appends in between, files removed. ``starts``: every log start that was
    durable."""
    directory, log = filled(fs, clock)
    clock.advance(2 * HOUR_MS)
    if full:
        fs.fail("create", errno.ENOSPC, times=1000, path_contains="log-start-offset-checkpoint")
    for _ in range(2):
        expire(directory, log)
        starts.append(log.log_start_offset)
        directory.remove_deleted(everything=True)
        if not idle:
            log.append(batch(f"v{log.log_end_offset}", timestamp_ms=clock.now_ms(), pad=100), 0)
            log.flush()
        clock.advance(200 * HOUR_MS if idle else 3 * HOUR_MS)
    directory.close()


@pytest.mark.parametrize("loss", list(Loss), ids=lambda loss: loss.value)
@pytest.mark.parametrize(("full", "idle"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_crash_at_every_step_leaves_a_log_without_a_gap_and_brings_nothing_back(
    loss: Loss, full: bool, idle: bool
) -> None:
    whole = formatted()
    before = whole.operations
    retain(whole, ManualClock(NOW_MS), [], full=full, idle=idle)
    count = whole.operations - before
    assert count > 50
    for number in steps(0, count - 1):
        for seed in range(1 if loss in (Loss.ALL, Loss.NONE) else 2):
            fs, clock, starts = formatted(), ManualClock(NOW_MS), [0]
            fs.crash_at(fs.operations + number)
            with pytest.raises(SimulatedCrash):
                retain(fs, clock, starts, full=full, idle=idle)
            fs.crash(random.Random(seed), loss)
            try:
                check_recovered(fs, clock, starts)
            except BaseException as error:
                error.add_note(f"crash at operation {number} of {count}, {loss}, seed {seed}")
                raise


def check_recovered(fs: CrashingFileSystem, clock: ManualClock, starts: list[int]) -> None:
    directory = open_directory(fs, TINY, clock)
    assert not directory.quarantined
    log = directory.get(ORDERS)
    if log is None:
        return
    assert log.log_start_offset >= starts[-1], f"records below {starts[-1]} came back"
    assert values_of(log) == [f"v{offset}" for offset in range(log.log_start_offset, log.log_end_offset)]
    bases = [segment.base_offset for segment in log.segments]
    assert all(base > log.log_start_offset for base in bases[1:]), "a segment below the start is still there"
    assert all(entry.start_offset >= log.log_start_offset for entry in log.epochs.entries)
    directory.remove_deleted()
    assert deleted_files(fs) == []
    again = fs.crash_clone()  # records that recovery reported as durable
    recovered = open_directory(again, TINY, clock).get(ORDERS)
    assert recovered is not None
    assert values_of(recovered) == values_of(log)


def test_segments_below_a_durable_start_are_no_gap_whichever_of_them_are_left() -> None:
    """A crash during a deletion may leave any of the files, in any order."""
    for left in range(1, 8):
        fs, clock = formatted(), ManualClock(NOW_MS)
        directory, log = filled(fs, clock)
        directory.delete_records(log, 1)  # its checkpoint is there; the segment stays
        names = [segment.base_offset for segment in log.segments[:3]]
        directory._log_starts[ORDERS] = 6
        directory._write("log-start-offset-checkpoint", directory._log_starts)
        for place, base in enumerate(names):
            if not left >> place & 1:
                fs.unlink(f"{ROOT}/orders-0/{base:020d}.log")
        fs.sync_directory(f"{ROOT}/orders-0")
        fs.crash()
        again = open_directory(fs, TINY, clock)  # no recovery point was ever written, so recovery scans the whole log
        assert not again.quarantined
        assert values_of(again.logs[ORDERS]) == [f"v{number}" for number in range(6, 12)]
        assert again.logs[ORDERS].segments[0].base_offset == 6
