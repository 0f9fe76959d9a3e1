"""The writer of a log directory: group commit, order, failures, and work after a failure."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace_core.clock import SystemClock
from headrace_core.errors import (
    DiskFullError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    ServerBusyError,
    ServerShuttingDownError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import AppendInfo, DirectoryWriter, LogConfig, PartitionLog, validate
from headrace_core.log.writer import OnAdvanced
from headrace_core.records import encode_batch
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, TraceEntry
from headrace_core.types import FlushPolicy
from tests.worlds.log_world import (
    NOW_MS,
    ORDERS,
    PAYMENTS,
    ROOT,
    TINY,
    TOPIC_ID,
    batch,
    formatted,
    open_directory,
    values_of,
)
from tests.worlds.waiting import in_loop

Given = tuple[CrashingFileSystem, DirectoryWriter, PartitionLog]


@asynccontextmanager
async def writing(config: LogConfig | None = None, **options: object) -> AsyncIterator[Given]:
    fs = formatted()
    directory = open_directory(fs, config)
    writer = DirectoryWriter(directory, clock=ManualClock(NOW_MS), **options)  # type: ignore[arg-type]
    log = await writer.run(lambda: directory.create(ORDERS, TOPIC_ID, config or LogConfig()))
    yield fs, writer, log
    await writer.close()


def operations(fs: CrashingFileSystem, *names: str, ends: str = ".log") -> list[TraceEntry]:
    return [entry for entry in fs.trace if entry.operation in names and entry.path.endswith(ends)]


@in_loop
async def test_appends_that_wait_together_share_one_write_and_one_flush_for_each_partition() -> None:
    async with writing() as (fs, writer, log):
        directory = writer.directory
        other = await writer.run(lambda: directory.create(PAYMENTS, TOPIC_ID, LogConfig()))
        fs.trace.clear()
        infos = await asyncio.gather(
            *(writer.append((log, other)[i % 2], batch(str(i)), leader_epoch=0) for i in range(20))
        )
        assert len(operations(fs, "write")) == 2
        assert len(operations(fs, "sync")) == 2
        assert [info.base_offset for info in infos] == [i // 2 for i in range(20)]
        assert values_of(log) == [str(i) for i in range(0, 20, 2)]
        assert log.durable_end == log.flushed_end == 10


@in_loop
async def test_large_turns_run_on_the_directory_thread_and_small_ones_in_the_loop() -> None:
    async with writing(inline_bytes_max=1000, inline_sync_ms_max=1e9) as (fs, writer, log):
        threads: dict[str, str] = {}
        fs.on_operation = lambda entry: threads.__setitem__(entry.operation, threading.current_thread().name)
        await writer.append(log, batch("small"), leader_epoch=0)
        assert threads["sync"] == threading.main_thread().name
        await writer.append(log, batch("large", pad=2000), leader_epoch=0)
        assert threads["sync"] == "log-data"
        assert values_of(log) == ["small", "large"]


@in_loop
async def test_slow_disk_sends_small_turns_to_the_thread_too() -> None:
    async with writing(inline_sync_ms_max=0.0) as (fs, writer, log):
        await writer.append(log, batch("shows that the disk is slow"), leader_epoch=0)
        threads: list[str] = []
        fs.on_operation = lambda entry: threads.append(threading.current_thread().name)
        await writer.append(log, batch("next"), leader_epoch=0)
        assert set(threads) == {"log-data"}


@in_loop
async def test_what_comes_during_a_flush_is_acknowledged_by_the_next_one_only() -> None:
    async with writing(inline_bytes_max=-1) as (fs, writer, log):
        flushing, go_on = threading.Event(), threading.Event()

        def hold(entry: TraceEntry) -> None:
            if entry.operation == "sync" and entry.path.endswith(".log"):
                flushing.set()
                assert go_on.wait(60)

        fs.on_operation = hold
        first = writer.append(log, batch("first"), leader_epoch=0)
        await asyncio.to_thread(flushing.wait, 10)
        second = writer.append(log, batch("second"), leader_epoch=0)
        assert log.flushed_end == 0
        assert log.log_end_offset == 1, "the second is queued, not written, while a turn is under way"
        go_on.set()
        assert (await first).next_offset == 1
        assert (await second).next_offset == 2
        assert [entry.operation for entry in operations(fs, "write", "sync")] == ["write", "sync"] * 2


@asynccontextmanager
async def large_turn_held(inline_bytes_max: int = 1000) -> AsyncIterator[tuple[Given, PartitionLog, Any, Any]]:
    """A writer whose thread flushes a large append to the log until ``go_on`` is set; a second log; the append."""
    async with writing(inline_bytes_max=inline_bytes_max, inline_sync_ms_max=1e9) as (fs, writer, log):
        other = await writer.run(lambda: writer.directory.create(PAYMENTS, TOPIC_ID, LogConfig()))
        flushing, go_on = threading.Event(), threading.Event()

        def hold(entry: TraceEntry) -> None:
            if entry.operation == "sync" and entry.path.startswith(log.directory) and entry.path.endswith(".log"):
                flushing.set()
                assert go_on.wait(60)

        fs.on_operation = hold
        large = writer.append(log, batch("large", pad=2000), leader_epoch=0)
        await asyncio.to_thread(flushing.wait, 10)
        try:
            yield (fs, writer, log), other, large, go_on
        finally:
            go_on.set()
            fs.on_operation = None


@in_loop
async def test_a_small_append_to_another_log_does_not_wait_for_a_large_turn() -> None:
    async with large_turn_held() as ((_, writer, log), other, large, go_on):
        for number in range(3):
            assert (await writer.append(other, batch(str(number)), leader_epoch=0)).base_offset == number
        assert other.durable_end == 3
        assert (large.done(), log.flushed_end) == (False, 0)
        go_on.set()
        assert (await large).next_offset == 1


@in_loop
async def test_appends_to_the_log_of_a_large_turn_wait_for_it_in_their_order() -> None:
    async with large_turn_held() as ((_, writer, log), other, large, go_on):
        same = [writer.append(log, batch(str(number)), leader_epoch=0) for number in range(3)]
        await writer.append(other, batch("passes them"), leader_epoch=0)
        assert not any(each.done() for each in (large, *same))
        go_on.set()
        assert [(await each).base_offset for each in (large, *same)] == [0, 1, 2, 3]
        assert values_of(log) == ["large", "0", "1", "2"]


@in_loop
async def test_an_action_waits_for_a_large_turn_and_for_the_turn_beside_it() -> None:
    async with large_turn_held() as ((_, writer, _), other, large, go_on):
        before = writer.append(other, batch("before"), leader_epoch=0)
        acted = writer.run(lambda: other.log_end_offset, log=other)
        after = writer.append(other, batch("after"), leader_epoch=0)
        await before
        assert not acted.done()
        assert not after.done()
        go_on.set()
        assert (await acted, (await after).base_offset) == (1, 1)
        await large


@in_loop
async def test_no_turn_runs_beside_an_action() -> None:
    async with writing(inline_sync_ms_max=1e9) as (_, writer, log):
        other = await writer.run(lambda: writer.directory.create(PAYMENTS, TOPIC_ID, LogConfig()))
        acting, go_on = threading.Event(), threading.Event()

        def act() -> int:
            acting.set()
            assert go_on.wait(60)
            return other.log_end_offset

        acted = writer.run(act, log=log)
        await asyncio.to_thread(acting.wait, 10)
        appended = writer.append(other, batch("waits"), leader_epoch=0)
        await asyncio.sleep(0.05)
        assert not appended.done()
        go_on.set()
        assert await acted == 0
        await appended


@in_loop
async def test_closing_waits_for_both_turns() -> None:
    async with large_turn_held() as ((_, writer, _), other, large, go_on):
        beside = writer.append(other, batch("beside"), leader_epoch=0)
        closing = asyncio.ensure_future(writer.close())
        await beside
        assert not closing.done()
        go_on.set()
        await closing
        assert large.done()


@in_loop
async def test_a_failed_turn_beside_takes_the_directory_offline() -> None:
    async with large_turn_held() as ((fs, writer, log), other, large, go_on):
        hold = fs.on_operation
        assert hold is not None

        def fail(entry: TraceEntry) -> None:
            hold(entry)
            if entry.operation == "sync" and entry.path.startswith(other.directory):
                raise OSError(errno.EIO, "planted")

        fs.on_operation = fail
        beside = writer.append(other, batch("beside"), leader_epoch=0)
        waiting = writer.append(log, batch("waiting"), leader_epoch=0)
        for each in (beside, waiting):
            with pytest.raises(StorageError):
                await each
        go_on.set()
        assert (await large).next_offset == 1, "its bytes were forced before"
        with pytest.raises(StorageError):
            writer.append(other, batch("later"), leader_epoch=0)


@in_loop
async def test_cancelled_waiter_leaves_its_write_whole() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with writing(inline_bytes_max=-1) as (_, writer, log):
        before = writer.append(log, batch("before"), leader_epoch=0)
        cancelled = asyncio.ensure_future(asyncio.wait_for(writer.append(log, batch("a", "b"), leader_epoch=0), 60))
        after = writer.append(log, batch("after"), leader_epoch=0)
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(before, after)
        assert cancelled.cancelled()
        assert values_of(log) == ["before", "a", "b", "after"]
        assert not complaints


@in_loop
async def test_refused_append_costs_its_neighbours_nothing() -> None:
    async with writing(LogConfig(message_bytes_max=500)) as (_, writer, log):
        outcomes = await asyncio.gather(
            writer.append(log, batch("one"), leader_epoch=0),
            writer.append(log, batch("too large", pad=600), leader_epoch=0),
            writer.append(log, batch("from the future", timestamp_ms=NOW_MS + 3_600_001), leader_epoch=0),
            writer.append(log, batch("two"), leader_epoch=0),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], RecordTooLargeError)
        assert isinstance(outcomes[2], InvalidTimestampError)
        assert values_of(log) == ["one", "two"]


@in_loop
async def test_actions_keep_their_place_among_the_appends_to_their_log() -> None:
    async with writing() as (_, writer, log):
        directory = writer.directory
        results = await asyncio.gather(
            writer.append(log, batch("a"), leader_epoch=0),
            writer.append(log, batch("b"), leader_epoch=0),
            writer.run(lambda: directory.truncate(log, 1), log=log),
            writer.append(log, batch("c"), leader_epoch=0),
            writer.run(log.roll, log=log),
            writer.append(log, batch("d"), leader_epoch=0),
            writer.run(lambda: directory.delete_records(log, 2), log=log),
            writer.run(lambda: directory.delete_records(log, 99), log=log),
            return_exceptions=True,
        )
        assert isinstance(results[-1], OffsetOutOfRangeError)
        assert log.log_start_offset == 2
        assert values_of(log) == ["d"]
        assert [segment.base_offset for segment in log.segments] == [2]


@in_loop
async def test_full_disk_refuses_the_append_takes_it_back_and_goes_on() -> None:
    async with writing() as (fs, writer, log):
        await writer.append(log, batch("fits"), leader_epoch=0)
        size = len(fs.files()[f"{ROOT}/orders-0/00000000000000000000.log"])
        fs.capacity_bytes = sum(map(len, fs.files().values())) + 50
        with pytest.raises(DiskFullError, match="no space"):
            await writer.append(log, batch("does not fit"), leader_epoch=0)
        assert len(fs.files()[f"{ROOT}/orders-0/00000000000000000000.log"]) == size
        assert values_of(log) == ["fits"]
        fs.capacity_bytes = None
        assert (await writer.append(log, batch("fits again"), leader_epoch=0)).base_offset == 1
        assert writer.failure is None
        assert values_of(log) == ["fits", "fits again"]


@in_loop
async def test_full_disk_while_a_segment_is_begun_refuses_the_append_and_goes_on() -> None:
    async with writing(LogConfig(segment_bytes=200)) as (fs, writer, log):
        await writer.append(log, batch("first", pad=100), leader_epoch=0)
        fs.fail("create", errno.ENOSPC)
        with pytest.raises(DiskFullError):
            await writer.append(log, batch("second", pad=100), leader_epoch=0)
        await writer.append(log, batch("third", pad=100), leader_epoch=0)
        assert values_of(log) == ["first", "third"]
        assert writer.failure is None


@pytest.mark.parametrize(("operation", "error"), [("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC)])
@in_loop
async def test_failed_write_or_flush_takes_the_directory_offline_for_good(operation: str, error: int) -> None:
    failures: list[StorageError] = []
    async with writing(on_failure=failures.append) as (fs, writer, log):
        await writer.append(log, batch("safe"), leader_epoch=0)
        fs.fail(operation, error, path_ends=".log")
        waiting = [writer.append(log, batch(str(i)), leader_epoch=0) for i in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageError] * 3
        assert ROOT in str(outcomes[0])
        assert [failure.message for failure in failures] == [str(outcomes[0])]
        for late in (
            lambda: writer.append(log, batch("late"), leader_epoch=0),
            lambda: writer.run(lambda: None),
        ):
            with pytest.raises(StorageError):
                late()
        assert writer.pending_bytes == 0
        assert log.durable_end == 1, "what was acknowledged before can still be read"


@in_loop
async def test_failure_on_the_thread_reaches_what_is_queued_behind_it() -> None:
    async with writing(inline_bytes_max=-1) as (fs, writer, log):
        flushing, go_on = threading.Event(), threading.Event()

        def hold(entry: TraceEntry) -> None:
            if entry.operation == "sync" and entry.path.endswith(".log"):
                flushing.set()
                assert go_on.wait(60)

        fs.on_operation = hold
        fs.fail("sync", path_ends=".log")
        first = writer.append(log, batch("first"), leader_epoch=0)
        await asyncio.to_thread(flushing.wait, 10)
        second = writer.append(log, batch("second"), leader_epoch=0)
        go_on.set()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageError, StorageError]


@in_loop
async def test_os_policy_acknowledges_without_a_flush_and_flush_messages_bounds_what_is_at_stake() -> None:
    config = LogConfig(flush=FlushPolicy.OS, flush_messages=4)
    async with writing(config) as (fs, writer, log):
        for i in range(3):
            await writer.append(log, batch(str(i)), leader_epoch=0)
        assert not operations(fs, "sync")
        assert (log.flushed_end, log.durable_end) == (0, 3)
        await writer.append(log, batch("3"), leader_epoch=0)
        assert len(operations(fs, "sync")) == 1
        assert log.flushed_end == 4


@in_loop
async def test_interval_policy_flushes_by_time() -> None:
    fs = formatted()
    config = LogConfig(flush=FlushPolicy.INTERVAL, flush_ms=30)
    directory = open_directory(fs, config)
    clock = SystemClock()
    directory._clock = clock
    writer = DirectoryWriter(directory, clock=clock)
    log = await writer.run(lambda: directory.create(ORDERS, TOPIC_ID, config))
    flushed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(entry: TraceEntry) -> None:
        if entry.operation == "sync" and entry.path.endswith(".log"):
            loop.call_soon_threadsafe(flushed.set)

    fs.on_operation = tell
    for value in ("one", "two"):
        flushed.clear()
        await writer.append(log, batch(value, timestamp_ms=clock.now_ms()), leader_epoch=0)
        await flushed.wait()
    assert await writer.flush(log) == 2
    assert log.flushed_end == 2
    await writer.close()


@in_loop
async def test_a_flush_of_a_deleted_log_leaves_the_directory_online() -> None:
    async with writing(LogConfig(flush=FlushPolicy.OS)) as (_, writer, log):
        await writer.append(log, batch("a"), leader_epoch=0)
        deleted, flushed = writer.run(lambda: writer.directory.delete(ORDERS)), writer.flush(log)
        assert await deleted
        with pytest.raises(UnknownTopicOrPartitionError):
            await flushed
        assert writer.failure is None


@in_loop
async def test_an_append_to_a_segment_whose_index_cannot_be_read_is_refused_and_the_next_succeeds() -> None:
    async with writing(TINY) as (fs, writer, log):
        for _ in range(30):
            await writer.append(log, batch("a" * 85), leader_epoch=0)
        end = log.segments[2].base_offset
        await writer.run(lambda: log.truncate_to(end), log=log)  # a sealed segment is active again
        fs.fail("open", errno.EMFILE, path_ends="index", times=2)
        refused = writer.append(log, batch("b"), leader_epoch=0)
        async with asyncio.timeout(20):
            with pytest.raises(ServerBusyError):
                await refused
        assert (await writer.append(log, batch("b"), leader_epoch=0)).base_offset == end


@in_loop
async def test_log_that_is_deleted_before_its_flush_is_due_keeps_no_timer_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with writing(LogConfig(flush=FlushPolicy.INTERVAL, flush_ms=0)) as (_, writer, log):
        loop = asyncio.get_running_loop()
        call_later, delays = loop.call_later, []

        def counted(delay: float, *rest: object) -> asyncio.TimerHandle:
            delays.append(delay)
            return call_later(delay, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_later", counted)
        appended = writer.append(log, batch("a"), leader_epoch=0)
        deleted = writer.run(lambda: writer.directory.delete(ORDERS))
        assert (await appended).base_offset == 0
        assert await deleted
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(delays) <= 1, "the event loop spins"


@in_loop
async def test_the_end_of_a_turn_is_told_once_for_each_log_before_the_waiters_hear() -> None:
    calls: list[tuple[str, int]] = []

    def on_turn(logs: Sequence[PartitionLog], sent: Callable[[], None] | None) -> None:
        if sent is not None:
            sent()
            return
        calls.extend((str(log.topic_partition), log.durable_end) for log in logs)

    async with writing(on_advanced=on_turn) as (_, writer, log):
        calls.clear()
        futures = [writer.append(log, batch(str(i)), leader_epoch=0) for i in range(3)]
        futures[0].add_done_callback(lambda done: calls.append(("waiter", done.result().next_offset)))
        await asyncio.gather(*futures)
        assert calls == [("orders-0", 3), ("waiter", 1)]


@pytest.mark.parametrize(
    "config",
    [
        LogConfig(segment_bytes=150),
        LogConfig(segment_ms=1000),
        LogConfig(segment_ms=1500, segment_jitter_ms=1400),
        LogConfig(cleanup_compact=True, max_compaction_lag_ms=1000),
        LogConfig(segment_index_bytes=12, index_interval_bytes=0),
    ],
    ids=["size", "age", "age with jitter", "compaction lag", "full index"],
)
@in_loop
async def test_a_roll_never_holds_up_the_event_loop(config: LogConfig) -> None:
    threads: set[str] = set()
    async with writing(config, inline_sync_ms_max=1e9) as (fs, writer, log):
        fs.on_operation = lambda entry: threads.add(threading.current_thread().name)
        for number in range(4):
            data = encode_batch([(NOW_MS + 2000 * number, b"key", b"value", None)])
            segments = len(log.segments)
            threads.clear()
            await writer.append(log, data, leader_epoch=0, headers=validate(data, config, NOW_MS)[1])
            if len(log.segments) > segments:
                assert threading.current_thread().name not in threads
        fs.on_operation = None
        assert len(log.segments) > 1


@in_loop
async def test_append_to_a_deleted_log_fails_with_that_reason() -> None:
    async with writing() as (_, writer, log):
        deleted = writer.run(lambda: writer.directory.delete(ORDERS))
        with pytest.raises(UnknownTopicOrPartitionError):
            await writer.append(log, batch("late"), leader_epoch=0)
        assert await deleted
        with pytest.raises(UnknownTopicOrPartitionError):
            log.read(0, 100)
        assert writer.failure is None


@in_loop
async def test_close_finishes_what_is_queued_and_refuses_what_comes_later() -> None:
    async with writing(inline_bytes_max=-1) as (_, writer, log):
        futures = [writer.append(log, batch(str(i)), leader_epoch=0) for i in range(50)]
        await writer.close()
        assert [future.result().base_offset for future in futures] == list(range(50))
        with pytest.raises(ServerShuttingDownError):
            writer.append(log, batch("late"), leader_epoch=0)


@in_loop
async def test_large_queue_is_cut_into_turns_in_order() -> None:
    async with writing(turn_bytes_max=3000) as (fs, writer, log):
        fs.trace.clear()
        infos = await asyncio.gather(*(writer.append(log, batch(str(i), pad=1000), leader_epoch=0) for i in range(9)))
        assert [info.base_offset for info in infos] == list(range(9))
        assert len(operations(fs, "sync")) == 3
        assert values_of(log) == [str(i) for i in range(9)]


def calls() -> tuple[list[tuple[str, int, int, int]], OnAdvanced]:
    """A write listener, and its log: (thread, end, flushed end, readable bytes) of the first log."""
    diary: list[tuple[str, int, int, int]] = []

    def listen(logs: Sequence[PartitionLog], sent: Callable[[], None] | None) -> None:
        if sent is None:
            return
        (log,) = logs
        result = log.read(log.flushed_end, 1 << 20)
        assert result is not None
        diary.append(
            (threading.current_thread().name, log.log_end_offset, log.flushed_end, len(result.records)),
        )
        sent()

    return diary, listen


@in_loop
async def test_what_is_written_can_be_sent_to_followers_before_it_is_flushed() -> None:
    diary, listen = calls()
    async with writing(on_advanced=listen, inline_sync_ms_max=1e9) as (_, writer, log):
        await writer.append(log, batch("a"), leader_epoch=0)
        assert [(end, flushed) for _, end, flushed, size in diary if size] == [(1, 0)]
        assert diary[0][0] == threading.current_thread().name
        await writer.append(log, batch("b"), leader_epoch=0)
        assert [(end, flushed) for _, end, flushed, size in diary if size] == [(1, 0), (2, 1)]


@in_loop
async def test_a_turn_on_the_thread_tells_the_loop_while_its_flush_is_under_way() -> None:
    diary, listen = calls()
    async with writing(on_advanced=listen, inline_bytes_max=0) as (fs, writer, log):
        notified = asyncio.get_running_loop().create_future()
        notified_in_thread = threading.Event()

        def hear(logs: Sequence[PartitionLog], sent: Callable[[], None] | None) -> None:
            listen(logs, sent)
            if sent is not None:
                notified_in_thread.set()
                notified.set_result(None)

        writer._on_advanced = hear

        def hold(entry: TraceEntry) -> None:
            if entry.operation == "sync" and entry.path.endswith(".log"):
                assert notified_in_thread.wait(60), "the flush waits for the listener: it must be called meanwhile"

        fs.on_operation = hold
        await writer.append(log, batch("a"), leader_epoch=0)
        await notified
        fs.on_operation = None
        assert diary[0][:3] == (threading.current_thread().name, 1, 0)


@in_loop
async def test_nobody_is_notified_of_a_turn_that_wrote_nothing_or_of_one_that_failed() -> None:
    notified: list[PartitionLog] = []

    def hear(logs: Sequence[PartitionLog], sent: Callable[[], None] | None) -> None:
        if sent is not None:
            notified.extend(logs)
            sent()

    async with writing(on_advanced=hear) as (fs, writer, log):
        await writer.flush(log)
        fs.fail("write", errno.ENOSPC, path_ends=".log")
        with pytest.raises(DiskFullError):
            await writer.append(log, batch("a"), leader_epoch=0)
        assert notified == []
        await writer.append(log, batch("a"), leader_epoch=0)
        assert notified == [log]
        fs.fail("write", errno.EIO, path_ends=".log")
        with pytest.raises(StorageError):
            await writer.append(log, batch("b"), leader_epoch=0)
        assert notified == [log]


@in_loop
async def test_a_turn_in_the_loop_flushes_when_what_it_wrote_is_on_its_way_to_the_followers() -> None:
    diary: list[str] = []
    loop = asyncio.get_running_loop()

    def send(logs: Sequence[PartitionLog], sent: Callable[[], None] | None) -> None:
        def sending(passes: int) -> None:
            if passes:
                loop.call_soon(sending, passes - 1)
            elif sent is not None:
                diary.append("sent")
                sent()

        sending(20)

    async with writing(on_advanced=send, inline_sync_ms_max=1e9) as (fs, writer, log):
        fs.on_operation = lambda entry: diary.append(entry.operation) if entry.path.endswith(".log") else None
        await writer.append(log, batch("a"), leader_epoch=0)
        fs.on_operation = None
        assert [said for said in diary if said in ("write", "sent", "sync")] == ["write", "sent", "sync"]


@in_loop
async def test_what_comes_while_a_turn_waits_for_its_flush_goes_into_the_next_and_closing_waits_for_both() -> None:
    later: list[asyncio.Future[AppendInfo]] = []

    async with writing(inline_sync_ms_max=1e9) as (_, writer, log):

        def send(logs: Sequence[PartitionLog], sent: Callable[[], None] | None) -> None:
            if sent is None:
                return
            if not later:
                later.append(writer.append(log, batch("b"), leader_epoch=0))
            asyncio.get_running_loop().call_later(0.001, sent)

        writer._on_advanced = send
        first = writer.append(log, batch("a"), leader_epoch=0)
        await asyncio.sleep(0)
        assert log.log_end_offset == 1  # written
        assert not first.done()
        await writer.close()
        assert [(await first).base_offset, (await later[0]).base_offset] == [0, 1]
        assert log.flushed_end == 2


@in_loop
async def test_a_flush_that_fails_after_it_waited_is_final_like_any_other() -> None:
    loop = asyncio.get_running_loop()
    async with writing(on_advanced=lambda _, sent: loop.call_soon(sent or (lambda: None)), inline_sync_ms_max=1e9) as (
        fs,
        writer,
        log,
    ):
        fs.fail("sync", errno.EIO, path_ends=".log")
        with pytest.raises(StorageError):
            await writer.append(log, batch("a"), leader_epoch=0)
        with pytest.raises(StorageError):
            await writer.append(log, batch("b"), leader_epoch=0)


@in_loop
async def test_a_listener_that_fails_holds_up_no_flush() -> None:
    bugs: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context["exception"]))

    def stumble(logs: Sequence[PartitionLog], sent: Callable[[], None] | None) -> None:
        if sent is not None:
            raise KeyError("a bug")

    async with writing(on_advanced=stumble, inline_sync_ms_max=1e9) as (_, writer, log):
        await writer.append(log, batch("a"), leader_epoch=0)
        assert log.flushed_end == 1
        assert [type(bug) for bug in bugs] == [KeyError]
