"""Bytes damaged while a broker runs: a reader or the scrubber finds the damage; the damaged partition goes offline, and
all other partitions stay online."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace_broker.settings import LiveSettings
from headrace_broker.upkeep.scrubber import Scrubber
from headrace_core.clock import SystemClock
from headrace_core.errors import CorruptLogError
from headrace_core.metadata.records import ConfigRecord, ConfigResourceType
from headrace_core.records import encode_batch
from headrace_core.telemetry import CorruptionFound, Emitter, IndexRebuilt, PartitionFailed, ScrubEnded
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.log_world import ABORT, append_to, marker, transactional
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, fetch
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

ROTTEN, SOUND = TopicPartition("rotten", 0), TopicPartition("sound", 0)
SEALED = "/data/rotten-0/00000000000000000000.log"


@asynccontextmanager
async def filled(fs: CrashingFileSystem) -> AsyncIterator[SoloBroker]:
    """Two topics, several segments each."""
    async with SoloBroker(fs, segment_bytes="1000", index_interval_bytes="100") as broker:
        for topic in ("rotten", "sound"):
            await broker.topic(topic)
            for number in range(20):
                value = b"%d " % number + b"." * 200
                result = await broker.append(topic, encode_batch([(1000 + number, None, value, None)]))
                assert not result.error.code, result.error
        assert len(broker.partitions.leader(ROTTEN).log.segments) > 3
        yield broker


@asynccontextmanager
async def scrubbing(broker: SoloBroker, **keys: Any) -> AsyncIterator[LiveSettings]:
    emitter = Emitter()
    emitter.subscribe(broker.events.append)
    given = {"log.initial.task.delay.ms": 0, "log.scrub.bytes.per.second": 1 << 30}
    settings = LiveSettings(given | {key.replace("_", "."): value for key, value in keys.items()}, emitter)
    scrubber = Scrubber(
        broker.storage.writers,
        broker.roles.quarantine,
        clock=SystemClock(),
        settings=settings,
        events=emitter,
        loop=asyncio.get_running_loop(),
    )
    scrubber.start()
    try:
        yield settings
    finally:
        await scrubber.stop()
        assert not [task for task in asyncio.all_tasks() if "scrub" in task.get_name()]


def events_of(broker: SoloBroker, kind: type) -> list[Any]:
    return [event for event in broker.events if isinstance(event, kind)]


async def quarantined(broker: SoloBroker) -> None:
    """The partition is offline, the damage is reported once with its place and recorded, and the other partition
    continues."""
    await until(lambda: broker.fs.exists("/data/rotten-0/headrace-quarantine"))
    (found,) = events_of(broker, CorruptionFound)
    assert (found.partition, found.path) == (ROTTEN, SEALED)
    assert found.position >= 0
    assert found.offset >= 0
    assert len(events_of(broker, PartitionFailed)) == 1
    with pytest.raises(CorruptLogError, match=r"0000\.log"):
        broker.partitions.leader(ROTTEN)
    refused = await broker.append("rotten", encode_batch([(1, None, b"x", None)]))
    assert refused.error.code == CorruptLogError.number
    assert (await broker.append("sound", encode_batch([(1, None, b"x", None)]))).base_offset == 20
    assert len(broker.values("sound")) == 21


@in_loop
async def test_a_reader_finds_a_rotten_byte_and_the_partition_is_quarantined_for_good() -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with filled(fs) as broker:
        fs.flip(SEALED, 150)
        consumer, stream = broker.consumer()
        consumer.on_request(fetch(1, "rotten", max_wait_ms=10))
        (answer,) = await stream.wait_sent(1)
        assert answer.results[0].error.code == CorruptLogError.number
        assert not answer.results[0].records, "nothing rotten leaves the broker"
        await quarantined(broker)
        image = broker.image
    fs.flip(SEALED, 150)  # the operator restores the file; the broker does not know yet
    async with SoloBroker(fs, image=image) as broker:
        with pytest.raises(CorruptLogError, match="headrace-quarantine"):
            broker.partitions.leader(ROTTEN)
        assert len(broker.values("sound")) == 21
    fs.unlink("/data/rotten-0/headrace-quarantine")
    async with SoloBroker(fs, image=image) as broker:
        assert len(broker.values("rotten")) == 20


@in_loop
async def test_a_search_by_time_finds_it_too() -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with filled(fs) as broker:
        replica = broker.partitions.leader(ROTTEN)
        fs.flip(SEALED, 150)
        with pytest.raises(CorruptLogError):
            await replica.timestamp_offset(1000, replica.leader.high_watermark)
        await quarantined(broker)


@pytest.mark.parametrize("position", [7, 8, 15, 16, 100], ids=["offset", "length", "epoch", "magic", "record"])
@in_loop
async def test_the_scrubber_finds_what_nobody_reads(position: int) -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with filled(fs) as broker:
        fs.flip(SEALED, position)
        async with scrubbing(broker):
            await quarantined(broker)
            (ended,) = await until(lambda: events_of(broker, ScrubEnded))
        assert ended.bytes > 4000, "the other log was read through"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("position", [3, 7])
@in_loop
async def test_the_scrubber_has_a_damaged_index_made_anew(suffix: str, position: int) -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with filled(fs) as broker:
        path = SEALED.removesuffix(".log") + suffix
        whole = fs.files()[path]
        fs.flip(path, position)
        async with scrubbing(broker):
            (rebuilt,) = await until(lambda: events_of(broker, IndexRebuilt))
        assert path in rebuilt.why
        assert fs.files()[path] == whole, "as an appender had written it"
        assert not events_of(broker, CorruptionFound)
        assert len(broker.values("rotten")) == 20


@in_loop
async def test_the_scrubber_has_a_lost_transaction_index_made_anew() -> None:
    """A missing transaction index says that no transaction was aborted, so no reader would notice the loss."""
    fs = CrashingFileSystem(keep_trace=False)
    async with SoloBroker(fs) as broker:
        await broker.topic("rotten")
        replica = broker.partitions.leader(ROTTEN)
        append_to(replica.log, transactional(7, 0))
        append_to(replica.log, marker(7, ABORT))
        replica.log.roll()
        path = SEALED.removesuffix(".log") + ".txnindex"
        whole = fs.files()[path]
        fs.unlink(path)
        async with scrubbing(broker):
            (rebuilt,) = await until(lambda: events_of(broker, IndexRebuilt))
        assert path in rebuilt.why
        assert fs.files()[path] == whole


def test_what_is_wrong_at_first_sight_only_is_no_finding() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem(keep_trace=False)
        async with filled(fs) as broker:
            fs.flip(SEALED, 150)
            reads = 0

            def bad_moment(entry: Any) -> None:
                nonlocal reads
                if entry.operation == "read" and entry.path == SEALED:
                    reads += 1
                    if reads == 2:  # the same window again
                        fs.flip(SEALED, 150)

            fs.on_operation = bad_moment
            async with scrubbing(broker):
                await until(lambda: events_of(broker, ScrubEnded))
            assert reads >= 2
            assert not events_of(broker, CorruptionFound)

    asyncio.run(scenario())


@in_loop
async def test_a_rate_of_zero_is_off_until_it_is_not() -> None:
    fs = CrashingFileSystem(keep_trace=False)
    async with filled(fs) as broker, scrubbing(broker, log_scrub_bytes_per_second=0) as settings:
        fs.flip(SEALED, 150)
        assert not events_of(broker, ScrubEnded)
        await broker.change(ConfigRecord(ConfigResourceType.BROKER, "", "log.scrub.bytes.per.second", str(1 << 30)))
        settings.apply(broker.image, BROKER_ID)
        await quarantined(broker)
