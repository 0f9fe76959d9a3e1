"""A flush fails with EIO, the process ends, the next process continues, and then the power fails.

Linux marks the pages of a failed flush clean: the next process reads them from the cache, and flushing them again does
nothing. The next process must rewrite the data that it accepts before it acknowledges any later record.
"""

from __future__ import annotations

import errno
import random

import pytest

from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.checkpoints import CLEAN_SHUTDOWN
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash, TraceEntry
from tests.worlds.log_world import (
    NOW_MS,
    ORDERS,
    ROOT,
    TOPIC_ID,
    Producers,
    append,
    batch,
    begun,
    formatted,
    idempotent,
    open_directory,
    values_of,
)

#: Small segments and an index entry for nearly every batch, so that a short run rolls and indexes.
TINY = LogConfig(segment_bytes=900, index_interval_bytes=100, segment_index_bytes=120)
#: Batches of several pages, so that some pages of a flush can arrive and others not.
LARGE = LogConfig(segment_bytes=60_000)


class Life:
    """Processes that write the log ``orders-0``, one after the other, on one disk."""

    def __init__(self, fs: CrashingFileSystem, config: LogConfig, pad: int) -> None:
        self.fs = fs
        self.config = config
        self.pad = pad
        #: The records that the log must have after a crash, and all records that it may have.
        self.acknowledged: list[str] = []
        self.sent: list[str] = []
        self.turn = 0

    def open(self) -> PartitionLog:
        """A new process finds all acknowledged records, and only records that were sent."""
        directory = self.directory = open_directory(self.fs, self.config)
        assert not directory.quarantined
        log = directory.get(ORDERS)
        if log is None:
            assert not self.acknowledged
            log = directory.create(ORDERS, TOPIC_ID, self.config)
        values = values_of(log)
        assert values[: len(self.acknowledged)] == self.acknowledged
        assert values == self.sent[: len(values)]
        self.sent = values
        return log

    def write(self, log: PartitionLog, turns: int) -> None:
        for _ in range(turns):
            self.turn += 1
            values = [f"{self.turn}:{i}" for i in range(1 + self.turn % 3)]
            self.sent += values
            pad = self.pad * (self.turn % 5)
            epoch = max(log.epochs.latest_epoch, 0) + (self.turn % 4 == 0)
            log.append(batch(*values, timestamp_ms=NOW_MS + self.turn * 10, pad=pad), epoch)
            log.flush()
            self.acknowledged = list(self.sent)
            if self.turn % 5 == 0:
                self.directory.write_recovery_points()
            if self.turn % 7 == 0:  # a new leader's history diverges from this log
                end = log.end_after_truncating(log.log_end_offset - 9)
                self.acknowledged = self.acknowledged[:end]
                self.directory.truncate(log, end)
                self.sent = list(self.acknowledged)


def run_with(fault: str, nth: int, config: LogConfig, pad: int, rng: random.Random | None = None) -> Life | None:
    """Run a process whose ``nth`` operation of this kind fails and ends the process. Return None if no operation
    failed."""
    life = Life(formatted(), config, pad)
    planned = life.fs.fail(fault, errno.EIO, nth=nth, rng=rng)
    try:
        life.write(life.open(), 16)
    except OSError:
        life.fs.crash(loss=Loss.NONE)  # the process ends, the page cache stays
        return life
    assert planned.seen < nth
    return None


@pytest.mark.parametrize("loss", [Loss.ALL, Loss.PREFIX, Loss.BLOCKS], ids=lambda loss: loss.value)
@pytest.mark.parametrize("fault", ["sync", "sync_directory"])
@pytest.mark.parametrize(("config", "pad"), [(TINY, 17), (LARGE, 2_000)], ids=["tiny", "large"])
def test_acknowledged_records_outlive_a_failed_flush_a_restart_and_a_power_loss(
    fault: str, loss: Loss, config: LogConfig, pad: int
) -> None:
    nth = 0
    while True:
        nth += 1
        rng = random.Random(nth)
        life = run_with(fault, nth, config, pad, rng if nth % 2 else None)
        if life is None:
            break
        if nth % 3 == 0:
            life.fs.evict()  # memory was short meanwhile: the disk's older bytes are read again
        try:
            life.write(life.open(), nth % 3)
            life.fs.crash(rng, loss)
            life.write(life.open(), 1)
            life.fs.crash(rng, loss)
            life.open()
        except BaseException as error:
            error.add_note(f"{fault} number {nth} failed")
            raise
    assert nth > 10


def test_acknowledged_records_outlive_a_kill_at_every_operation_a_restart_and_a_power_loss() -> None:
    """In this test no flush fails: data (and names) that the killed process had not forced are only in the cache."""
    whole = Life(formatted(), TINY, 17)
    before = whole.fs.operations
    whole.write(whole.open(), 16)
    for number in range(before, whole.fs.operations):
        for more in (1, 3):
            life = Life(formatted(), TINY, 17)
            life.fs.crash_at(number)
            with pytest.raises(SimulatedCrash):
                life.write(life.open(), 16)
            life.fs.crash(loss=Loss.NONE)
            try:
                life.write(life.open(), more)
                life.fs.crash(loss=Loss.ALL)
                life.open()
            except BaseException as error:
                error.add_note(f"killed at operation {number}, {more} more")
                raise


def test_pages_that_the_cache_drops_while_recovery_scans_are_not_accepted() -> None:
    """Recovery reads more data than the page cache keeps. Checked data may read as zeros before recovery writes it
    again."""
    fs = formatted()
    log = open_directory(fs).create(ORDERS, TOPIC_ID, LogConfig())
    values = [f"{number}" for number in range(40)]
    log.append(batch(values[0], pad=200_000), 0)
    log.flush()
    fs.fail("sync", path_ends=".log")
    for value in values[1:]:
        log.append(batch(value, pad=200_000), 0)
    with pytest.raises(OSError, match="Input/output"):
        log.flush()
    fs.crash(loss=Loss.NONE)

    def drop_after_the_scan(entry: TraceEntry) -> None:
        if entry.operation in ("write", "truncate", "sync") and entry.path.endswith(".log"):
            fs.on_operation = None
            fs.evict()

    fs.on_operation = drop_after_the_scan
    recovered = open_directory(fs).get(ORDERS)
    assert recovered is not None
    kept = values_of(recovered)
    assert kept == values[: len(kept)]
    assert 1 < len(kept) < len(values)  # the disk has no bytes of the second window
    fs.crash(loss=Loss.ALL)
    again = open_directory(fs).get(ORDERS)
    assert again is not None
    assert values_of(again) == kept


def test_an_unclean_start_rewrites_what_lies_beyond_the_recovery_point_and_nothing_else() -> None:
    fs, directory, log = begun()
    for number in range(6):
        log.append(batch(f"{number}", pad=3_000), 0)
        log.flush()
        if number == 3:
            directory.write_recovery_points()
            persisted = log.size_bytes
    size = log.size_bytes
    fs.crash(loss=Loss.NONE)
    fs.trace.clear()
    directory = open_directory(fs)
    rewritten = [entry for entry in fs.trace if entry.operation == "write" and entry.path.endswith(".log")]
    assert [(entry.position, entry.size) for entry in rewritten] == [(persisted, size - persisted)]
    fs.crash(loss=Loss.NONE)  # all of it is below the recovery point by now: an idle log costs nothing
    fs.trace.clear()
    directory = open_directory(fs)
    assert not [entry for entry in fs.trace if entry.operation in ("write", "sync") and entry.path.endswith(".log")]
    directory.logs[ORDERS].append(batch("more"), 0)
    directory.close()
    fs.trace.clear()
    open_directory(fs)
    assert not [entry for entry in fs.trace if entry.operation == "write" and entry.path.endswith((".log", "index"))]


def test_a_stop_after_a_failed_flush_does_not_count_as_clean() -> None:
    for nth in range(1, 30):
        life = Life(formatted(), TINY, 17)
        log = life.open()
        life.write(log, 3)
        log.append(batch("last"), 9)
        fault = life.fs.fail("sync", nth=nth)
        try:
            life.directory.close(broker_epoch=7)
        except OSError:
            assert f"{ROOT}/{CLEAN_SHUTDOWN}" not in life.fs.files()
        else:
            assert fault.seen < nth
            break
    assert nth > 3


def test_producers_that_only_a_snapshot_knows_outlive_its_failed_flush_and_a_restart() -> None:
    """Retention forces the snapshot before it deletes the batches; the first attempt meets a disk error."""
    config = LogConfig(segment_bytes=900, index_interval_bytes=120, segment_index_bytes=240)
    fs, directory, log = begun(config)
    append(log, idempotent(77, 0, 3))
    others = Producers(random.Random(6))
    while len(log.segments) < 5:
        others.write(log)
    log.flush()
    directory.write_recovery_points()
    start = log.segments[3].base_offset
    fs.fail("sync", path_ends=".snapshot", times=2)
    with pytest.raises(OSError, match="Input/output"):
        directory.delete_records(log, start)
    fs.crash(loss=Loss.NONE)
    directory = open_directory(fs, config)
    log = directory.logs[ORDERS]
    directory.delete_records(log, start)
    fs.crash(loss=Loss.ALL)
    again = open_directory(fs, config).logs[ORDERS]
    assert again.producers.get(77) is not None
