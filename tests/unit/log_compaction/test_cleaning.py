"""A cleaning of one log: remaining records, concurrent readers, and the events that stop a cleaning."""

from __future__ import annotations

import asyncio
import errno
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    InvalidConfigError,
    ServerShuttingDownError,
)
from headrace_core.log import Append, DirectoryWriter, LogDirectory, RealFileSystem, format_directory
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.compaction.manager import CLEANER_OFFSETS, CleanerManager
from headrace_core.log.compaction.planning import CleanerConfig
from headrace_core.log.compaction.windows import RateLimiter
from headrace_core.log.dump import Problem, dump
from headrace_core.records import encode_batch, read_header
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import Fault
from headrace_core.types import TopicPartition
from tests.worlds.compaction_world import LEDGER, ROOT, Ledger, at_once, read_on


def leftovers(ledger: Ledger) -> list[str]:
    return [name for name in ledger.fs.listdir(ledger.directory) if name.endswith((".cleaned", ".swap"))]


def test_the_latest_value_of_each_key_stays_at_its_offset() -> None:
    ledger = Ledger()
    ledger.fill(100)
    report = ledger.clean()
    assert [(record.offset, record.key) for record in ledger.records()] == [
        (95, b"key-0"),
        (96, b"key-1"),
        (97, b"key-2"),
        (98, b"key-3"),
        (99, b"key-4"),
        (100, b"active"),
    ]
    assert (report.clean_offset, report.records_read, report.records_kept) == (100, 100, 5)
    assert report.bytes_written < report.bytes_read
    assert leftovers(ledger) == []


def test_keys_of_the_log_that_was_cleaned_before_replace_nothing() -> None:
    first, second = Ledger(), Ledger()
    cleaner, manager = first.cleaner(), second.manager()
    first.fill(100)
    first.clean(cleaner=cleaner)
    second.fill(20)
    second.clean(manager)
    for number in range(20):
        second.put((f"other-{number}", "." * 60))
    second.log.roll()
    cleaner.fs = second.fs
    assert second.clean(manager, cleaner=cleaner).records_kept == 26
    assert [record.offset for record in second.records()] == list(range(15, 41))


def test_small_segments_become_one_in_a_later_cleaning() -> None:
    ledger = Ledger()
    manager = ledger.manager()
    ledger.fill(100)
    before = len(ledger.log.segments)
    ledger.clean(manager)
    ledger.fill(100)
    report = ledger.clean(manager)
    assert before > 8
    assert report.segments_after < report.segments_before - 6
    assert len(ledger.log.segments) == report.segments_after + 1
    assert [record.offset for record in ledger.records()] == [100, 196, 197, 198, 199, 200, 201]
    reopened = ledger.open(ledger.fs.crash_clone())
    assert read_on(reopened, 0, 1 << 20) == ledger.records()


def test_the_active_segment_is_never_touched() -> None:
    ledger = Ledger()
    ledger.fill(100)
    for _ in range(3):
        ledger.put(("key-0", "newer, in the active segment"))
    active = ledger.log.active
    path, size = active.path, active.size
    written = ledger.fs.files()[path]
    ledger.clean()
    assert ledger.log.active is active
    assert (ledger.fs.files()[path], active.size) == (written, size)
    assert 95 in [record.offset for record in ledger.records()], "what only the active segment supersedes stays"


def test_readers_at_work_keep_their_files_and_never_see_a_gap_or_a_record_twice() -> None:
    ledger = Ledger()
    ledger.fill(100)
    before = {record.offset: record for record in ledger.records()}
    old = ledger.log.segments
    seen = read_on(ledger.log, 0, 300)[:20]
    offset = seen[-1].offset + 1

    def execute(action: Callable[[], bool]) -> bool:
        nonlocal offset
        done = action()
        if offset < ledger.log.log_end_offset:  # a consumer continues in the middle of the log
            result = ledger.log.read(offset, 300)
            assert result is not None
            assert result.next_offset > offset
            offset = result.next_offset
        return done

    ledger.clean(execute=execute)
    assert ledger.log.segments[0] is not old[0]
    for segment, following in pairwise(old):
        segment.unload_indexes()  # the indexes are rebuilt from their own log, not loaded from another log's file
        for wanted in range(segment.base_offset, following.base_offset):
            assert segment.find(wanted).header.base_offset == before[wanted].offset
        assert segment.log.pread(segment.size, 0), "its file is open as long as somebody has it"


def test_a_tombstone_stays_for_its_retention_and_then_goes() -> None:
    ledger = Ledger()
    manager = ledger.manager()
    ledger.put(("gone", "value"), ("kept", "value"))
    ledger.put(("gone", None))
    ledger.fill(20, keys=1)
    ledger.clean(manager)
    assert [(record.key, record.value) for record in ledger.records()][:2] == [(b"kept", b"value"), (b"gone", None)]
    ledger.clock.advance(999)
    ledger.fill(40, keys=1)
    ledger.clean(manager)
    assert b"gone" in {record.key for record in ledger.records()}
    ledger.clock.advance(1)
    ledger.fill(80, keys=1)
    ledger.clean(manager)
    assert b"gone" not in {record.key for record in ledger.records()}


def test_a_map_that_is_too_small_takes_several_cleanings() -> None:
    ledger = Ledger()
    manager = ledger.manager()
    for number in range(200):
        ledger.put((f"key-{number % 50}", f"value {number}" + "." * 50))
    ledger.log.roll()
    small = ledger.cleaner(dedupe_buffer_bytes=24 * 30)
    report = ledger.clean(manager, cleaner=small)
    assert report.is_partial
    assert 0 < report.clean_offset < 200
    rounds = 1
    ledger.log.reconfigure(replace(ledger.config, min_dirty_ratio=0.0))
    while manager.clean_offset(LEDGER) != 200:
        ledger.clean(manager, cleaner=small)
        rounds += 1
    assert rounds > 3
    assert [record.offset for record in ledger.records()] == list(range(150, 200))


def test_a_batch_that_no_map_holds_is_named_with_the_setting() -> None:
    ledger = Ledger(segment_bytes=100_000)
    ledger.put(*((f"key-{number}", "v") for number in range(50)))
    ledger.log.roll()
    manager = ledger.manager()
    with pytest.raises(InvalidConfigError, match=r"more records than the 27 keys.*dedupe\.buffer\.size=720"):
        ledger.clean(manager, cleaner=ledger.cleaner(dedupe_buffer_bytes=720))
    assert LEDGER in manager.uncleanable
    assert len(ledger.records()) == 50


def test_a_damaged_segment_is_left_alone_and_the_others_go_on() -> None:
    bad = Ledger()
    good = Ledger(partition=TopicPartition("sound", 0), fs=bad.fs)
    bad.fill(100)
    good.fill(100)
    manager = bad.manager()
    path = bad.log.segments[3].path
    bad.fs.flip(path, 200)
    before = {name: data for name, data in bad.fs.files().items() if name.startswith(bad.directory)}
    with pytest.raises(CorruptLogError, match=r"\.log, in the \d+ bytes from position"):
        bad.clean(manager)
    assert list(manager.uncleanable) == [LEDGER]
    assert {name: data for name, data in bad.fs.files().items() if name.startswith(bad.directory)} == before
    targets = manager.plan(
        {bad.partition: bad.log, good.partition: good.log},
        stable_offset_of=lambda log: log.log_end_offset,
        now_ms=good.clock.now_ms(),
    )
    assert [target.topic_partition for target in targets] == [good.partition]
    good.clean(manager)
    assert len(good.records()) == 6
    manager.retry(LEDGER)
    assert bad.target(manager).topic_partition == LEDGER


def test_a_full_disk_leaves_the_log_as_it_was_and_is_tried_again() -> None:
    ledger = Ledger()
    ledger.fill(100)
    manager = ledger.manager()
    ledger.fs.faults.append(Fault("write", errno.ENOSPC, path_ends=".log.cleaned", partial_bytes=10))
    with pytest.raises(DiskFullError, match="no space left for a compacted segment"):
        ledger.clean(manager)
    assert leftovers(ledger) == []
    assert manager.uncleanable == {}
    assert len(ledger.records()) == 101
    ledger.clean(manager)
    assert len(ledger.records()) == 6


def test_a_failed_swap_is_final_whatever_the_disk_gives_as_its_reason() -> None:
    ledger = Ledger()
    ledger.fill(100)
    ledger.fs.faults.append(Fault("rename", errno.ENOSPC, path_ends=".log.swap"))
    with pytest.raises(OSError, match="cannot swap in") as failed:
        ledger.clean()
    assert failed.value.errno == errno.EIO


def test_a_cleaning_can_be_asked_to_stop() -> None:
    ledger = Ledger()
    ledger.fill(100)
    manager = ledger.manager()
    swaps = 0

    def execute(action: Callable[[], bool]) -> bool:
        nonlocal swaps
        swaps += 1
        return action()

    with pytest.raises(ServerShuttingDownError):
        ledger.clean(manager, execute=execute, should_stop=lambda: swaps == 3)
    assert manager.uncleanable == {}
    assert manager.clean_offset(LEDGER) is None
    assert ledger.values()["key-4"] == "value 99"
    assert leftovers(ledger) == []


@pytest.mark.parametrize("what", ["truncated", "closed"])
def test_a_log_that_changed_under_a_cleaning_is_not_swapped(what: str) -> None:
    ledger = Ledger()
    ledger.fill(100)
    manager = ledger.manager()

    def execute(action: Callable[[], bool]) -> bool:
        if what == "truncated":
            ledger.log.truncate_to(2)
        else:
            ledger.log.close()
        return action()

    report = ledger.clean(manager, execute=execute)
    assert report.is_interrupted
    assert manager.clean_offset(LEDGER) is None
    assert leftovers(ledger) == []
    if what != "closed":
        assert [record.offset for record in ledger.records()] == [0, 1]


def test_a_transaction_that_is_still_open_ends_the_cleaning_even_if_the_caller_does_not_know() -> None:
    ledger = Ledger()
    ledger.fill(30)
    open_at = ledger.log.log_end_offset
    data = encode_batch([(1, b"key-0", b"never", None)], producer_id=5, producer_epoch=0, transactional=True)
    ledger.log.append_many([Append(data=data, leader_epoch=0, headers=[read_header(data)])])
    ledger.fill(30)
    report = ledger.clean()
    assert 0 < report.clean_offset <= open_at
    assert open_at in [record.offset for record in ledger.records()]
    marker = encode_batch(
        [(1, struct.pack(">hh", 0, 0), b"\0" * 6, None)],
        producer_id=5, producer_epoch=0, transactional=True, control=True,
    )  # fmt: skip
    ledger.log.append_many([Append(data=marker, leader_epoch=0, headers=[read_header(marker)])])
    ledger.clean()
    assert open_at not in [record.offset for record in ledger.records()], "its marker is in the active segment"


def test_a_txn_index_keeps_the_transactions_that_had_data() -> None:
    ledger = Ledger()
    for offset, producer_id in enumerate((5, 6)):
        data = encode_batch([(1, b"k", b"v", None)], producer_id=producer_id, producer_epoch=0, transactional=True)
        assert ledger.log.append_many([Append(data=data, leader_epoch=0, headers=[read_header(data)])])
        assert ledger.log.log_end_offset == offset + 1
    for producer_id in (5, 6):
        marker = encode_batch(
            [(1, struct.pack(">hh", 0, 0), b"\0" * 6, None)],
            producer_id=producer_id, producer_epoch=0, transactional=True, control=True,
        )  # fmt: skip
        ledger.log.append_many([Append(data=marker, leader_epoch=0, headers=[read_header(marker)])])
    ledger.fill(1)
    path = f"{ledger.directory}/{0:020d}.txnindex"
    entries = [struct.pack(">hqqqq", 0, *values) for values in ((5, 0, 2, 1), (6, 1, 3, 4))]
    ledger.log.roll()
    assert ledger.fs.files()[path] == b"".join(entries)
    ledger.clean()
    assert ledger.fs.files()[path] == b"".join(entries), "this cleaning removed the data"
    assert [each.producer_id for each in ledger.log.aborted_transactions(0, 4)] == [5, 6]
    ledger.fill(30)
    ledger.clean()
    assert path not in ledger.fs.files(), "nothing is left that they abort"
    assert ledger.log.aborted_transactions(0, 4) == []


def test_reading_and_writing_are_paced() -> None:
    ledger = Ledger()
    ledger.fill(100)
    clock = ManualClock()
    waits: list[float] = []

    def wait_s(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds * 1000)

    report = ledger.clean(cleaner=ledger.cleaner(RateLimiter(2_000, clock, wait_s=wait_s)))
    spent = report.bytes_read + report.bytes_written
    assert sum(waits) >= spent / 2_000 - 1
    assert max(waits) < 1.0, "in small steps"


def test_how_far_a_log_is_clean_survives_a_restart_and_is_forgotten_with_it() -> None:
    ledger = Ledger()
    ledger.fill(100)
    ledger.clean()
    again = ledger.manager()
    assert again.clean_offset(LEDGER) == 100
    assert ledger.fs.files()[f"{ROOT}/{CLEANER_OFFSETS}"].startswith(b"0\n1\nledger 0 100")
    again.truncated(LEDGER, 200)
    assert again.clean_offset(LEDGER) == 100
    again.truncated(LEDGER, 40)
    assert CleanerManager(ledger.fs, ROOT).clean_offset(LEDGER) == 40
    again.forget([LEDGER, TopicPartition("never", 1)])
    assert CleanerManager(ledger.fs, ROOT).clean_offset(LEDGER) is None


def test_one_log_is_cleaned_by_one_thread_at_a_time() -> None:
    ledger = Ledger()
    ledger.fill(100)
    manager = ledger.manager()
    target = ledger.target(manager)
    second: list[Any] = []

    def execute(action: Callable[[], bool]) -> bool:
        second.append(manager.clean(ledger.cleaner(), ledger.log, target, execute=at_once, producers={}))
        return action()

    ledger.clean(manager, execute=execute)
    assert set(second) == {None}


def test_a_directory_s_writer_runs_the_swaps_while_producers_append_and_consumers_read(tmp_path: Path) -> None:
    fs, root, clock = RealFileSystem(), str(tmp_path), ManualClock(1_700_000_000_000)
    format_directory(fs, root, cluster_id="c", node_id=1)
    template = Ledger()

    async def run() -> None:
        directory = LogDirectory.open(fs, root, clock=clock, config_of=lambda topic, topic_id: template.config)
        writer = DirectoryWriter(directory, clock=clock)
        log = await writer.run(lambda: directory.create(LEDGER, uuid.UUID(int=3), template.config))
        loop = asyncio.get_running_loop()

        async def append(number: int) -> None:
            data = encode_batch([(clock.now_ms(), b"key-%d" % (number % 7), b"%d" % number + b"." * 60, None)])
            await writer.append(log, data, leader_epoch=0)

        for number in range(500):
            await append(number)
        manager = CleanerManager(fs, root)
        (target,) = manager.plan(
            directory.logs,
            stable_offset_of=lambda log: log.flushed_end,
            now_ms=clock.now_ms(),
        )

        def execute(action: Callable[[], bool]) -> bool:
            async def turn() -> bool:
                return await writer.run(action, log=log)

            return asyncio.run_coroutine_threadsafe(turn(), loop).result(60)

        cleaner = Cleaner(fs, CleanerConfig(dedupe_buffer_bytes=1 << 14), clock=clock, secret=bytes(16))
        cleaning = asyncio.create_task(
            asyncio.to_thread(manager.clean, cleaner, log, target, execute=execute, producers={})
        )

        def read_it_all_until_it_is_clean() -> int:
            passes = 0
            while not cleaning.done() or not passes:
                found = read_on(log, 0, 700)  # offsets ascend, and no read fails
                assert {record.key for record in found} == {b"key-%d" % number for number in range(7)}
                passes += 1
            return passes

        reading = asyncio.create_task(asyncio.to_thread(read_it_all_until_it_is_clean))
        number = 500
        while not cleaning.done():
            await append(number)
            number += 1
        report = await cleaning
        assert await reading > 0
        assert report is not None
        assert (report.records_kept, report.is_interrupted) == (7, False)
        found = read_on(log, 0, 500)
        assert [record.offset for record in found if record.offset >= report.clean_offset] == list(
            range(report.clean_offset, number)
        )
        assert {record.key: record.offset for record in found} == {b"key-%d" % (n % 7): n for n in range(number)}
        await writer.close()
        directory.close()

    asyncio.run(run())
    assert not [line for line in dump(f"{root}/{LEDGER}", deep=True) if isinstance(line, Problem)]


def test_a_log_that_was_cut_back_into_a_compacted_segment_opens_after_a_crash() -> None:
    ledger = Ledger()
    for number in range(5):
        ledger.put(("rare" if number == 3 else "key-0", str(number)))
    ledger.fill(100)
    ledger.clean()
    ledger.log.truncate_to(5)
    assert ledger.log.active.header_at(0).base_offset == 3, "the segment that is appended to has a gap now"
    assert ledger.log.log_end_offset == 4, "the end of the last batch, which any start finds"
    ledger.put(("key-0", "other"))
    ledger.log.flush()
    log = ledger.open(ledger.fs.crash_clone())
    assert [record.offset for record in read_on(log, 0, 1 << 20)] == [3, 4]


def test_the_largest_timestamp_is_that_of_a_record_and_not_of_an_emptied_batch() -> None:
    """The header of an emptied batch keeps the timestamp of the removed records. The timestamp in the header of an
    emptied batch must not hide other records from searches by time."""
    ledger = Ledger()
    ledger.clock.jump(1_000_000)
    for number in range(10):  # one whole segment, all of it replaced below
        ledger.put(("key", f"late {number} " + "." * 60))
    ledger.log.roll()
    ledger.clock.jump(-1_000_000)
    ledger.put(("other", "early"))
    early = ledger.put(("key", "earlier than those that it replaces"))
    ledger.log.roll()
    ledger.put(("active", "x"))
    ledger.log.flush()
    ledger.clean()
    empty = [segment for segment in ledger.log.segments if segment.largest_timestamp.timestamp_ms > 1_700_000_000_000]
    assert empty, "an emptied batch is there, with the late time"
    found = ledger.log.offset_of_max_timestamp()
    assert found is not None
    assert found.timestamp_ms == 1_700_000_000_000
    assert found.offset == early - 1


@pytest.mark.parametrize(("groups", "interrupted"), [(1, False), (0, True)])
def test_segments_that_retention_takes_from_the_front_end_no_cleaning(groups: int, interrupted: bool) -> None:
    """If retention ended every cleaning, a large log that is compacted slowly would never be completed. If retention
    deletes only a part of a group, the cleaning is interrupted."""
    ledger = Ledger(delete_retention_ms=0)
    ledger.fill(100, keys=90)  # hardly anything is replaced: groups of one segment each
    swaps = 0

    def execute(action: Callable[[], bool]) -> bool:
        nonlocal swaps
        if swaps == 0:
            ledger.log.delete_records(ledger.log.segments[2 if groups else 1].base_offset)
            ledger.log.drop_segments_below_start()
        swaps += 1
        return action()

    if not groups:  # the first two segments are one group
        ledger.log.reconfigure(replace(ledger.config, segment_bytes=2500))
    manager = ledger.manager()
    report = ledger.clean(manager, execute=execute)
    assert report.is_interrupted is interrupted
    assert manager.clean_offset(LEDGER) == (None if interrupted else 100)
    offsets = [record.offset for record in ledger.records()]
    assert offsets[0] >= ledger.log.log_start_offset > 0
    assert offsets[-1] == 100
    if not interrupted:
        assert len(ledger.values()) == len(offsets), "each key once"


def test_what_was_cut_while_it_was_cleaned_does_not_count_as_clean() -> None:
    """The last swap is done. The log is truncated below the end of the cleaning and grows again before the cleaning
    reports its end offset."""
    ledger = Ledger()
    ledger.fill(100)
    manager = ledger.manager()
    cuts = 0

    def execute(action: Callable[[], bool]) -> bool:
        nonlocal cuts
        if action.__qualname__.startswith("CleanerManager.") and not cuts:  # no swap: that it is clean
            cuts += 1
            manager.truncated(LEDGER, 10)
            ledger.log.truncate_to(10)
            ledger.fill(120)
        return action()

    report = ledger.clean(manager, execute=execute)
    assert cuts == 1
    assert not report.is_interrupted
    assert ledger.log.log_end_offset > report.clean_offset
    assert manager.clean_offset(LEDGER) is None
    ledger.clean(manager)
    assert len(ledger.values()) == len(ledger.records())
