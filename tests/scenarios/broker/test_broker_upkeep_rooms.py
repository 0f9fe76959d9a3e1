"""Retention and the cleaners inside a broker: their reports to leaders, the logs that they skip, and their end."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace_broker.handlers.offsets import OffsetsService
from headrace_broker.settings import LiveSettings
from headrace_broker.upkeep import retention
from headrace_broker.upkeep.cleaners import Cleaners
from headrace_broker.upkeep.upkeep import Upkeep
from headrace_core.clock import SystemClock
from headrace_core.errors import DiskFullError, OffsetOutOfRangeError
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.producer_state import ProducerTable
from headrace_core.metadata.records import ConfigRecord, ConfigResourceType
from headrace_core.records import encode_batch
from headrace_core.telemetry import Emitter, LogCleaned, LogUncleanable, Metrics, SegmentsDeleted
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import offsets_pb2
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, fetch, produce
from tests.worlds.waiting import check_in_time, in_loop
from tests.worlds.waiting import until_async as until

CLEANERS = {"log.cleaner.dedupe.buffer.size": 1 << 20, "log.cleaner.backoff.ms": 20}


class Room:
    """A broker with its upkeep."""

    def __init__(self, broker: SoloBroker, **keys: Any) -> None:
        self.broker = broker
        self.events = broker.events
        emitter = Emitter()
        emitter.subscribe(broker.events.append)
        self.settings = LiveSettings(CLEANERS | keys, emitter)
        self.metrics = Metrics()
        self.upkeep = Upkeep(
            broker.storage.writers,
            broker.partitions,
            clock=SystemClock(),
            settings=self.settings,
            events=emitter,
            metrics=self.metrics,
            loop=asyncio.get_running_loop(),
            on_damage=broker.roles.quarantine,
        )

    async def configure(self, topic: str, **config: str) -> None:
        """The controller has changed the topic's configuration."""
        await self.broker.change(
            *[
                ConfigRecord(ConfigResourceType.TOPIC, topic, key.replace("_", "."), value)
                for key, value in config.items()
            ]
        )
        self.upkeep.cleaners.retry([topic])

    async def alter(self, **keys: str) -> None:
        """The keys of all brokers have been changed."""
        await self.broker.change(
            *[ConfigRecord(ConfigResourceType.BROKER, "", key.replace("_", "."), value) for key, value in keys.items()]
        )
        self.settings.apply(self.broker.image, BROKER_ID)

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def fill(self, topic: str, count: int, *, keys: int = 5, timestamp_ms: int | None = None) -> None:
        for number in range(count):
            at_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
            record = (at_ms, b"key-%d" % (number % keys), b"%d " % number + b"." * 200, None)
            result = await self.broker.append(topic, encode_batch([record]))
            assert not result.error.code, result.error


@asynccontextmanager
async def room(fs: CrashingFileSystem | None = None, **keys: Any) -> AsyncIterator[Room]:
    async with SoloBroker(fs or CrashingFileSystem(keep_trace=False), segment_bytes="1000") as broker:
        made = Room(broker, **{key.replace("_", "."): value for key, value in keys.items()})
        try:
            yield made
        finally:
            await made.upkeep.stop()


def cleaners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cleaner-")]


@in_loop
async def test_a_log_start_that_retention_moved_is_in_every_answer() -> None:
    async with room() as here:
        broker = here.broker
        await broker.topic("t")
        await here.fill("t", 20, timestamp_ms=1000)  # 1970
        leader = broker.partitions.leader(TopicPartition("t", 0)).leader
        consumer, stream = broker.consumer()
        consumer.on_request(fetch(1, "t", offset=20, max_wait_ms=60_000))  # waits at the end
        await here.upkeep.retention.check()
        assert leader.log_start == 20
        consumer.on_request(fetch(2, "t", offset=3))  # which ends the wait
        (answer, refused) = await stream.wait_sent(2)
        assert answer.results[0].log_start_offset == 20
        assert refused.results[0].error.code == OffsetOutOfRangeError.number
        assert (refused.results[0].log_start_offset, refused.results[0].high_watermark) == (20, 20)
        listed = await OffsetsService(broker.context).ListOffsets(
            offsets_pb2.ListOffsetsRequest(
                partitions=[offsets_pb2.ListOffsetsPartition(topic="t", timestamp_ms=-2, current_leader_epoch=-1)]
            ),
            None,
        )
        assert listed.results[0].offset == 20
        producer, produced = broker.producer()
        producer.on_request(produce(1, "t", encode_batch([(int(time.time() * 1000), None, b"new", None)])))
        (done,) = await produced.wait_sent(1)
        assert (done.results[0].base_offset, done.results[0].log_start_offset) == (20, 20)
        assert broker.values("t") == [b"new"]
        (event,) = here.events_of(SegmentsDeleted)
        assert (event.why, event.log_start_offset, event.count) == ("retention.ms", 20, 7)
        consumer.on_closed()


@in_loop
async def test_a_pass_over_many_partitions_judges_some_at_a_time_on_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with room() as here:
        await here.broker.topic("many", 300)
        await here.broker.topic("old")
        await here.fill("old", 10, timestamp_ms=1000)
        judged: list[int] = []
        judge = retention._judge

        def counted(logs: Any) -> Any:
            assert threading.current_thread() is not threading.main_thread(), "judged in the event loop"
            judged.append(len(logs))
            return judge(logs)

        monkeypatch.setattr(retention, "_judge", counted)
        await here.upkeep.retention.check()
        assert sum(judged) == 301
        assert max(judged) <= retention.LOGS_AT_ONCE
        assert here.broker.partitions.leader(TopicPartition("old", 0)).leader.log_start == 10
        assert len(here.events_of(SegmentsDeleted)) == 1


@in_loop
async def test_retention_never_reaches_above_the_high_watermark() -> None:
    async with room() as here:
        broker = here.broker
        await broker.topic("t")
        await here.fill("t", 20, timestamp_ms=1000)
        leader = broker.partitions.leader(TopicPartition("t", 0)).leader
        leader.high_watermark = 10  # as if a replica lagged
        await here.upkeep.retention.check()
        assert leader.log_start == 9  # three records a segment
        assert broker.partitions.leader(TopicPartition("t", 0)).log.log_start_offset == 9


@in_loop
async def test_deleted_files_go_after_their_delay_without_a_timer_for_each() -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with room(fs, log_initial_task_delay_ms=0, log_retention_check_interval_ms=20) as here:
        await here.broker.topic("t")
        await here.configure("t", file_delete_delay_ms="100")
        await here.fill("t", 10, timestamp_ms=1000)
        here.upkeep.start()
        await until(lambda: any(path.endswith(".deleted") for path in fs.files()))
        await until(lambda: not any(path.endswith(".deleted") for path in fs.files()))
        await here.broker.delete("t")
        await until(lambda: not any("t-0" in path for path in fs.files() if "checkpoint" not in path))


@in_loop
async def test_a_producer_of_old_events_is_not_forgotten_while_it_writes() -> None:
    async with room() as here:
        await here.broker.topic("t")
        batch = encode_batch([(1_000, None, b"of 1970", None)], producer_id=7, producer_epoch=0, base_sequence=0)
        first = await here.broker.append("t", batch)
        assert await here.upkeep.producers.check() == 0
        again = await here.broker.append("t", batch)
        assert (first.error.code, again.error.code) == (0, 0)
        assert again.base_offset == first.base_offset
        assert here.broker.partitions.leader(TopicPartition("t", 0)).log.log_end_offset == 1


@in_loop
async def test_a_full_directory_gets_back_what_was_deleted_and_what_has_expired() -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with room(fs, log_retention_check_interval_ms=3_600_000) as here:
        broker = here.broker
        fs.mount("/data", 60_000)
        broker.storage.set_reserve(3_000)
        broker.storage.full.subscribe(lambda _: here.upkeep.retention.disk_is_full())
        for name in ("old", "deleted", "busy"):
            await broker.topic(name)
        await here.fill("old", 20, timestamp_ms=1000)
        await here.fill("deleted", 20)
        await broker.delete("deleted")
        here.upkeep.start()  # its first check is 30 s away, the next an hour
        count = 0
        for number in range(150):
            record = (int(time.time() * 1000), b"key", b"%d " % number + b"." * 500, None)
            result = await broker.append("busy", encode_batch([record]))
            if result.error.code:
                assert result.error.code == DiskFullError.number
                break
            count += 1
        else:
            raise AssertionError("the disk never became full")
        (space,) = [writer.space for writer in broker.storage.writers()]
        assert space is not None
        await until(lambda: not space.is_full)
        assert not any("deleted" in path for path in fs.files())
        assert broker.partitions.leader(TopicPartition("old", 0)).leader.log_start == 20
        result = await broker.append("busy", encode_batch([(int(time.time() * 1000), b"key", b"." * 500, None)]))
        assert not result.error.code, result.error
        assert len(broker.values("busy")) == count + 1


@in_loop
async def test_an_idle_active_segment_is_compacted_when_its_records_wait_too_long() -> None:
    async with room(log_initial_task_delay_ms=0, log_retention_check_interval_ms=20) as here:
        await here.broker.topic("t")
        await here.configure("t", cleanup_policy="compact", max_compaction_lag_ms="300", segment_bytes="1000000")
        await here.fill("t", 30)
        here.upkeep.start()
        (event, *_) = await until(lambda: here.events_of(LogCleaned))
        assert event.records_kept == 5
        assert here.broker.values("t") == [b"%d " % number + b"." * 200 for number in range(25, 30)]


@in_loop
async def test_compaction_never_reaches_above_the_high_watermark() -> None:
    """A record that a new leader may truncate does not replace a committed one."""
    async with room() as here:
        await here.broker.topic("t")
        await here.configure("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
        await here.fill("t", 20)
        leader = here.broker.partitions.leader(TopicPartition("t", 0)).leader
        leader.high_watermark = 10  # as if a replica lagged
        (writer,) = here.broker.storage.writers()
        (target,) = here.upkeep.cleaners._targets(writer.directory, writer.directory.logs)
        assert target.end_offset == 9  # three records a segment


@in_loop
async def test_a_log_that_cannot_be_cleaned_is_said_once_and_the_others_go_on() -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with room(fs) as here:
        for name in ("bad", "good"):
            await here.broker.topic(name)
            await here.configure(name, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
            await here.fill(name, 30)
        fs.flip("/data/bad-0/00000000000000000003.log", 80)
        here.upkeep.start()
        (event,) = await until(lambda: here.events_of(LogUncleanable))
        assert event.partition == TopicPartition("bad", 0)
        assert "00000000000000000003.log" in event.reason
        await until(lambda: any(event.partition.topic == "good" for event in here.events_of(LogCleaned)))
        await until(lambda: here.metrics.snapshot()["uncleanable-partitions-count"] == 1)
        await here.fill("good", 10)
        await until(lambda: len(here.events_of(LogCleaned)) > 1)
        assert len(here.events_of(LogUncleanable)) == 1
        fs.flip("/data/bad-0/00000000000000000003.log", 80)  # mended
        await here.configure("bad", min_cleanable_dirty_ratio="0.02")
        await until(lambda: any(event.partition.topic == "bad" for event in here.events_of(LogCleaned)))
        await until(lambda: here.metrics.snapshot()["uncleanable-partitions-count"] == 0)


@in_loop
async def test_the_crew_follows_its_settings_and_stops_at_once_though_it_is_throttled() -> None:
    before = len(cleaners())
    async with room(log_cleaner_io_max_bytes_per_second=10.0) as here:
        await here.broker.topic("t")
        await here.configure("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
        await here.fill("t", 60)
        here.upkeep.start()
        await until(lambda: len(cleaners()) == before + 1)
        started = time.monotonic()
        await here.alter(log_cleaner_threads="3")  # 10 bytes a second: the old cleaner threads are in a wait
        await until(lambda: len(cleaners()) == before + 3)
        assert not here.events_of(LogCleaned)
        await here.alter(log_cleaner_threads="1", log_cleaner_io_max_bytes_per_second="1e9")
        await until(lambda: here.events_of(LogCleaned))
        await until(lambda: len(cleaners()) == before + 1)
        await here.upkeep.stop()
        assert len(cleaners()) == before
        check_in_time(started, 60)


def test_the_map_s_memory_is_there_only_while_there_is_something_to_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Cleaner]] = []

    class Seen(Cleaner):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(weakref.ref(self))

    monkeypatch.setattr("headrace_broker.upkeep.cleaners.Cleaner", Seen)

    async def scenario() -> None:
        async with room() as here:
            await here.broker.topic("t")
            here.upkeep.start()
            plans = 0
            plan = here.upkeep.cleaners.plan

            def counted() -> Any:
                nonlocal plans
                plans += 1
                return plan()

            monkeypatch.setattr(here.upkeep.cleaners, "plan", counted)
            await until(lambda: plans > 2)
            assert not made
            await here.configure("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
            await here.fill("t", 30)
            await until(lambda: here.events_of(LogCleaned))
            await until(lambda: all(cleaner() is None for cleaner in made))

    asyncio.run(scenario())


@in_loop
async def test_cleaning_can_be_switched_off() -> None:
    before = len(cleaners())
    async with room(log_cleaner_enable=False) as here:
        here.upkeep.start()
        assert len(cleaners()) == before


@in_loop
async def test_a_topic_that_is_deleted_in_the_middle_of_its_cleaning_is_no_failure() -> None:
    async with room(log_cleaner_io_max_bytes_per_second=20_000.0) as here:
        for number in range(3):
            await here.broker.topic("t", topic_id=b"%016d" % number)
            await here.configure("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
            await here.fill("t", 100)
            if number == 0:
                here.upkeep.start()
            directory = here.broker.storage.writers()[0].directory
            await until(lambda directory=directory: directory.compaction._in_progress)
            await here.broker.delete("t")
        await until(lambda: not here.broker.storage.writers()[0].directory.compaction._in_progress)
        assert not here.events_of(LogUncleanable)


@in_loop
async def test_cleaners_that_may_plan_all_the_time_leave_the_processor_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[float] = []
    original = Cleaners.plan

    def counted(self: Cleaners) -> Any:
        plans.append(time.monotonic())
        return original(self)

    monkeypatch.setattr(Cleaners, "plan", counted)
    async with room(log_cleaner_backoff_ms=0) as here:
        here.upkeep.start()
        await until(lambda: len(plans) >= 3)
    assert plans[2] - plans[0] >= 0.19


@in_loop
async def test_producers_expire_while_the_directorys_thread_creates_a_log() -> None:
    """The check looks at the logs in the event loop, and the directory's thread adds a log between two of them."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", partitions=2)
        (writer,) = broker.storage.writers()
        logs = writer.directory.logs

        class TableOfALog(ProducerTable):
            def __len__(self) -> int:
                logs[TopicPartition("created meanwhile", len(logs))] = logs[TopicPartition("orders", 0)]
                return super().__len__()

        for log in logs.values():
            log.producers = TableOfALog(next_offset=log.log_end_offset)
        assert await Room(broker).upkeep.producers.check() == 0
        assert len(logs) == 4
        for added in [partition for partition in logs if partition.topic != "orders"]:
            del logs[added]
