"""A full disk in the middle of a truncation: the log is truncated or unchanged, and can be truncated again. No leftover
file blocks the truncation later."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from headrace_core.errors import DiskFullError, ServerBusyError
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog
from headrace_core.log.epochs import EpochStart
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from tests.worlds.log_world import ORDERS, append, begun, idempotent, open_directory, values_of

#: Four batches for each segment, and an index entry for nearly each.
SMALL = LogConfig(segment_bytes=320, index_interval_bytes=1)
EPOCHS = (EpochStart(0, 0), EpochStart(1, 3), EpochStart(2, 6), EpochStart(3, 9))
RECORDS = 13
#: Operations after whose failure all later appends fail too.
FINAL = ("sync_directory", "truncate")

#: The operation on the log, and the log's start and end afterwards.
Cut = tuple[Callable[[LogDirectory, PartitionLog], object], int, int]
CUTS: dict[str, Cut] = {
    "in the active segment": (lambda directory, log: directory.truncate(log, 12), 0, 12),
    "where the active segment begins": (lambda directory, log: directory.truncate(log, 8), 0, 8),
    "through several segments": (lambda directory, log: directory.truncate(log, 2), 0, 2),
    "all of it": (lambda directory, log: directory.truncate(log, 0), 0, 0),
    "to begin behind its end": (lambda directory, log: directory.restart(log, 50), 50, 50),
}


def filled() -> tuple[CrashingFileSystem, LogDirectory, PartitionLog]:
    fs, directory, log = begun(SMALL)
    for number in range(RECORDS):
        append(log, idempotent(7, number), leader_epoch=number // 3 if number < 12 else 3)
    log.flush()
    directory.write_recovery_points()
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8, 12]
    assert log.epochs.entries == EPOCHS
    return fs, directory, log


def opened(fs: CrashingFileSystem) -> tuple[LogDirectory, PartitionLog]:
    directory = open_directory(fs, SMALL)
    assert not directory.quarantined, directory.quarantined
    return directory, directory.logs[ORDERS]


def go_on(fs: CrashingFileSystem, log: PartitionLog, start: int, end: int) -> None:
    """Check a truncated log, append until it rolls at the same place, and open it again."""
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
    kept = [f"7:{number}" for number in range(start, end)]
    assert values_of(log) == kept
    epoch = max(log.epochs.latest_epoch, 0)  # the end is the same; a truncated epoch must not return beside it
    for number in range(end, end + RECORDS):
        outcome = append(log, idempotent(7, number), leader_epoch=epoch)
        assert isinstance(outcome, AppendInfo), outcome
        assert not outcome.is_duplicate, "what was cut is not in the log"
    log.flush()
    values = kept + [f"7:{number}" for number in range(end, end + RECORDS)]
    epochs = tuple(entry for entry in EPOCHS if entry.start_offset < min(end, RECORDS)) if start == 0 else ()
    for loss in (Loss.NONE, Loss.ALL):
        fs.crash(loss=loss)
        _, log = opened(fs)
        assert (log.log_start_offset, values_of(log)) == (start, values)
        assert log.epochs.entries == (epochs or (EpochStart(epoch, end),))


@pytest.mark.parametrize("times", [1, 10_000], ids=["once", "and stays full"])
@pytest.mark.parametrize("operation", ["write", "create", "rename", "sync_directory", "truncate"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_cut_that_meets_a_full_disk_is_done_or_can_be_done_again(cut: Cut, operation: str, times: int) -> None:
    act, start, end = cut
    for nth in range(1, 40):
        fs, directory, log = filled()
        fault = fs.fail(operation, errno.ENOSPC, nth=nth, times=times)
        failure: OSError | None = None
        try:
            act(directory, log)
        except OSError as error:
            failure = error
        struck = fault.seen >= nth
        if failure is None and times > 1 and operation not in FINAL:
            outcome = append(log, idempotent(7, end), leader_epoch=max(log.epochs.latest_epoch, 0))
            assert isinstance(outcome, AppendInfo | DiskFullError)
            fs.faults.clear()
            directory.truncate(log, end)
        fs.faults.clear()
        if failure is not None and failure.errno == errno.ENOSPC:
            assert values_of(log) == [f"7:{number}" for number in range(log.log_end_offset - log.log_start_offset)]
            act(directory, log)
        elif failure is not None:  # final: the process ends
            assert failure.errno == errno.EIO
            fs.crash(loss=Loss.NONE)
            directory, log = opened(fs)
            act(directory, log)
        go_on(fs, log, start, end)
        if not struck:
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_disk_that_takes_no_byte_does_not_keep_a_log_from_being_cut(cut: Cut) -> None:
    """Only the directory's checkpoints, which are written first, need space; the truncation itself needs none."""
    act, start, end = cut
    fs, directory, log = filled()
    fs.fail("write", errno.ENOSPC, times=10_000, path_contains="/orders-0/")
    act(directory, log)
    fs.faults.clear()
    go_on(fs, log, start, end)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_cut_without_a_descriptor_is_not_left_half_done(cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    act, start, end = cut
    for nth in range(1, 60):
        fs, directory, log = filled()
        calls = [0]
        whole = fs.open

        def short(*arguments: object, nth: int = nth, calls: list[int] = calls, **named: object) -> object:
            calls[0] += 1
            if calls[0] == nth:
                raise ServerBusyError("no descriptor")
            return whole(*arguments, **named)  # type: ignore[arg-type] # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(fs, "open", short)
            failure: Exception | None = None
            try:
                act(directory, log)
            except (OSError, ServerBusyError) as error:
                failure = error
        if isinstance(failure, OSError):
            assert failure.errno == errno.EIO
            fs.crash(loss=Loss.NONE)
            directory, log = opened(fs)
        if failure is not None:
            act(directory, log)
        go_on(fs, log, start, end)
        if calls[0] < nth:
            return
    pytest.fail("it never came to an end")


def test_retention_on_a_disk_that_cannot_even_rename_removes_the_files_at_once() -> None:
    fs, directory, log = filled()
    directory.delete_records(log, 4)
    fs.fail("rename", errno.ENOSPC, times=100, path_contains="/orders-0/")
    log.delete_records(8)
    assert log.drop_segments_below_start() == []
    assert not [path for path in fs.files() if path.endswith("00000000000000000004.log")]
    assert values_of(log) == [f"7:{number}" for number in range(8, RECORDS)]


@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_first_batch_below_the_start_is_refused_on_a_full_disk_and_taken_later(operation: str) -> None:
    """A segment with a lower base offset replaces the empty segment. The log always has a segment."""
    for nth in range(1, 40):
        fs, directory, log = begun(SMALL)
        directory.restart(log, 50)
        fault = fs.fail(operation, errno.ENOSPC, nth=nth, times=10_000)
        sent = Append(data=idempotent(7, 40, 20, offset=40, leader_epoch=0), leader_epoch=0, replicated=True)
        (outcome,) = log.append_many([sent])
        struck = fault.seen >= nth
        fs.faults.clear()
        if not isinstance(outcome, AppendInfo):
            assert isinstance(outcome, DiskFullError)
            assert not log.is_closed
            (outcome,) = log.append_many([sent])
        assert isinstance(outcome, AppendInfo), outcome
        log.flush()
        fs.crash()
        _, log = opened(fs)
        assert (log.log_start_offset, log.log_end_offset) == (50, 60)
        if not struck:
            return
    pytest.fail("it never came to an end")
