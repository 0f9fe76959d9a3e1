"""A disk fills up: refused writes, operations that continue, and recovery without an operator."""

from __future__ import annotations

import asyncio
import errno

import pytest

from headrace_core import errors
from headrace_core.clock import SystemClock
from headrace_core.log.checkpoints import RECOVERY_POINTS, read_offsets
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.space import NEAR_BYTES, SpaceGauge
from headrace_core.telemetry import LogDirectoryFull
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker, batch, produce
from tests.worlds.waiting import in_loop

DISK_FULL = errors.DiskFullError.number


def measure(broker: SoloBroker) -> None:
    """Measure the disk, as the broker's regular check does."""
    for writer in broker.storage.writers():
        assert writer.space is not None
        writer.space.measure()


async def append(broker: SoloBroker, topic: str, value: bytes, partition: int = 0) -> int:
    """Return the error's number, or 0 without an error."""
    return int((await broker.append(topic, batch(value), partition)).error.code)


@in_loop
async def test_appends_are_refused_before_the_reserve_is_touched_and_taken_when_there_is_room() -> None:
    fs = CrashingFileSystem()
    fs.mount("/one", 20_000)
    fs.mount("/two", 19_000)
    async with SoloBroker(fs, "/one", "/two") as broker:
        full: list[str] = []
        broker.storage.full.subscribe(lambda writer: full.append(writer.directory.root))
        await broker.topic("orders")
        await broker.topic("payments")
        written = 0
        while not (error := await append(broker, "orders", b"x" * 900)):
            written += 1
            assert written < 100
            assert fs.free_bytes("/one") >= 1000, "the reserve is 5 % of 20,000 bytes"
        assert error == DISK_FULL
        assert written > 10
        fs.trace.clear()
        for _ in range(3):
            refused = await broker.append("orders", batch(b"x" * 900))
            assert refused.error.code == DISK_FULL
            assert errors.DiskFullError.retriable
            assert "/one" in refused.error.message
            assert "1000 bytes are reserved" in refused.error.message
        assert not [entry for entry in fs.trace if entry.operation == "write" and entry.path.endswith(".log")]
        assert full == ["/one"]
        assert len(broker.values("orders")) == written
        assert await append(broker, "payments", b"x" * 900) == 0
        await broker.storage.checkpoint({TopicPartition("orders", 0): written})
        assert read_offsets(fs, f"/one/{RECOVERY_POINTS}")[TopicPartition("orders", 0)] == written
        await broker.partitions.leader(TopicPartition("orders", 0)).delete_records(3)
        fs.mount("/one", 40_000)  # an operator frees space
        measure(broker)
        assert await append(broker, "orders", b"x" * 900) == 0
        said = [event.full for event in broker.events if isinstance(event, LogDirectoryFull)]
        assert said == [True, False]


@in_loop
async def test_a_client_that_only_retries_finds_the_room() -> None:
    fs = CrashingFileSystem()
    fs.mount("/one", 2_000)
    async with SoloBroker(fs, "/one") as broker:
        await broker.topic("orders")
        (writer,) = broker.storage.writers()
        assert writer.space is not None
        clock = ManualClock()
        clock.advance(SystemClock().monotonic_ms())
        writer.space._clock = clock
        assert await append(broker, "orders", b"x" * 3000) == DISK_FULL
        fs.mount("/one", 100_000)
        for _ in range(3):
            assert await append(broker, "orders", b"x" * 3000) == DISK_FULL, "it is not measured for each append"
        clock.advance(1_000)
        assert await append(broker, "orders", b"x" * 3000) == 0


@in_loop
async def test_the_reserve_may_be_changed_while_the_broker_runs() -> None:
    fs = CrashingFileSystem()
    fs.mount("/one", 100_000)
    async with SoloBroker(fs, "/one") as broker:
        await broker.topic("orders")
        (writer,) = broker.storage.writers()
        assert writer.space is not None
        for wanted, kept in ((3_000, 3_000), (64 * 2**20, 5_000), (0, 0)):
            broker.storage.set_reserve(wanted)
            assert writer.space.reserve_bytes == kept


@in_loop
async def test_deleting_a_topic_makes_the_room_that_another_waits_for() -> None:
    fs = CrashingFileSystem()
    fs.mount("/one", 30_000)
    async with SoloBroker(fs, "/one", file_delete_delay_ms="0") as broker:
        await broker.topic("old")
        for _ in range(10):
            assert await append(broker, "old", b"x" * 2000) == 0
        fs.mount("/one", 21_000)
        await broker.topic("new", partitions=3)
        refused = await broker.append("new", batch(b"x"), 1)
        assert refused.error.code == DISK_FULL
        assert not fs.exists("/one/new-1")
        assert await broker.roles.retry_full() == []  # no room yet
        assert await append(broker, "new", b"x", 1) == DISK_FULL
        await broker.delete("old")
        for writer in broker.storage.writers():
            writer.directory.remove_deleted(everything=True)
        assert len(await broker.roles.retry_full()) == 3
        for number in range(3):
            assert await append(broker, "new", b"x", number) == 0


@in_loop
async def test_of_two_full_directories_the_one_that_heals_first_gets_the_waiting_partition() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        for root in ("/one", "/two"):
            fs.mount(root, 90)
        await broker.topic("orders")
        assert await append(broker, "orders", b"x") == DISK_FULL
        fs.mount("/two", 100_000)
        await broker.roles.retry_full()
        assert await append(broker, "orders", b"x") == 0
        assert fs.exists("/two/orders-0")


@pytest.mark.parametrize("was_clean", [True, False])
@in_loop
async def test_a_start_with_nothing_free_serves_what_is_there_and_writes_its_checkpoints_later(was_clean: bool) -> None:
    fs = CrashingFileSystem()
    broker = SoloBroker(fs, "/one", segment_bytes="400", index_interval_bytes="1")
    async with broker:
        await broker.topic("orders", partitions=2)
        for number in range(12):
            assert await append(broker, "orders", b"%d" % number) == 0
        after = fs.crash_clone()
    if was_clean:
        after = fs
    else:
        for path in list(after.files()):  # indexes of sealed segments and of the last one must be rebuilt
            if path.endswith(("index", "leader-epoch-checkpoint")) or RECOVERY_POINTS in path:
                after.unlink(path)
    after.mount("/one", sum(len(data) for path, data in after.files().items() if path.startswith("/one")))
    assert after.free_bytes("/one") == 0
    values = [b"%d" % number for number in range(12)]
    again = SoloBroker(after, "/one", image=broker.image, segment_bytes="400", index_interval_bytes="1")
    async with again:
        assert not again.storage.offline_directories()
        assert again.values("orders") == values
        found = await again.partitions.leader(TopicPartition("orders", 0)).timestamp_offset(0, 12)
        assert found is not None
        assert found.offset == 0
        assert await append(again, "orders", b"x") == DISK_FULL
        after.mount("/one", 100_000)
        await again.storage.checkpoint({})
        assert read_offsets(after, f"/one/{RECOVERY_POINTS}")[TopicPartition("orders", 0)] == 12
        assert await append(again, "orders", b"12") == 0
        values.append(b"12")
    async with SoloBroker(after, "/one", image=again.image) as last:
        assert last.values("orders") == values


@in_loop
async def test_the_end_of_the_disk_within_the_reserve_is_no_failed_disk() -> None:
    """Other programs may use up the reserve between two measurements: writes that meet the full disk are refused or
    postponed, and the directory stays online."""
    for nth in range(1, 30):
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", segment_bytes="300", index_interval_bytes="1") as broker:
            await broker.topic("orders")
            fault = fs.fail("write", errno.ENOSPC, nth=nth, times=10_000)
            for number in range(12):
                await append(broker, "orders", b"%d" % number)
            await broker.storage.checkpoint({})
            assert not broker.storage.offline_directories(), f"write {nth}"
            assert fault.seen >= nth or nth > 12
            fs.faults.clear()
            before = len(broker.values("orders"))
            async with asyncio.timeout(60):
                while await append(broker, "orders", b"last"):
                    pass
            assert broker.values("orders")[before:] == [b"last"]


@in_loop
async def test_requests_in_flight_when_the_disk_fills_are_each_answered() -> None:
    fs = CrashingFileSystem()
    fs.mount("/one", 200_000)
    async with SoloBroker(fs, "/one") as broker:
        await broker.topic("orders", partitions=4)
        producers = [broker.producer() for _ in range(4)]
        for number in range(60):
            for partition, (handler, _) in enumerate(producers):
                handler.on_request(produce(number, "orders", batch(b"x" * 2000), partition))
        codes: list[int] = []
        for partition, (handler, stream) in enumerate(producers):
            found = [answer.results[0].error.code for answer in await stream.wait_sent(60)]
            assert len(broker.values("orders", partition)) == found.count(0)
            codes += found
            handler.on_closed()
        assert set(codes) == {0, DISK_FULL}
        assert fs.free_bytes("/one") >= 10_000


# -- the gauge -------------------------------------------------------------------------------------------------------


class CountingFileSystem(CrashingFileSystem):
    measured = 0

    def free_bytes(self, path: str) -> int:
        self.measured += 1
        return super().free_bytes(path)


def test_with_plenty_of_room_the_disk_is_measured_by_what_was_written() -> None:
    fs, clock = CountingFileSystem(), ManualClock()
    fs.mount("/one", 100 * 2**30)
    gauge = SpaceGauge(fs, "/one", clock, 64 * 2**20)
    for _ in range(100_000):
        clock.advance(1000)
        assert gauge.refusal(64 * 1024) is None
    assert fs.measured == 1
    assert gauge.headroom >= NEAR_BYTES


def test_near_the_reserve_it_is_measured_ten_times_a_second_at_most() -> None:
    fs, clock = CountingFileSystem(), ManualClock()
    fs.mount("/one", NEAR_BYTES)
    gauge = SpaceGauge(fs, "/one", clock, 64 * 2**20)
    refused = 0
    for _ in range(1000):
        clock.advance(10)
        refused += gauge.refusal(NEAR_BYTES) is not None
    assert refused == 1000
    assert fs.measured == pytest.approx(100, abs=2)
    assert gauge.headroom < NEAR_BYTES
    assert gauge.is_full
    assert gauge.reserve_bytes == NEAR_BYTES // 20


def test_our_own_bytes_count_before_the_next_measurement() -> None:
    fs, clock = CountingFileSystem(), ManualClock()
    fs.mount("/one", 100_000)
    gauge = SpaceGauge(fs, "/one", clock, 0)
    taken = 0
    while gauge.refusal(1000) is None:
        taken += 1000
    assert taken == 100_000
    assert fs.measured == 1


def test_a_shortage_outlasts_the_refusal_until_there_is_room_to_spare_and_longer_when_it_comes_back() -> None:
    fs, clock = CountingFileSystem(), ManualClock()
    gauge = SpaceGauge(fs, "/one", clock, 64 * 2**20)

    def free(mebibytes: int) -> bool:
        fs.mount("/one", mebibytes * 2**20)
        gauge.measure()
        return gauge.is_short

    fs.mount("/one", 10_000 * 2**20)  # so that 5 % of it are more than the configured reserve
    assert not free(10_000)
    fs.total_bytes = lambda path: 10_000 * 2**20  # type: ignore[method-assign]
    assert free(63), "below the reserve"
    clock.advance(60_000)
    assert free(127), "64 MiB are free above the reserve, less one"
    assert not free(128)
    assert gauge.refusal(1 << 40) is not None
    assert gauge.is_short, "an append was refused"
    clock.advance(9_999)
    assert free(1_000), "it came back at once, so it lasts twice 5 s"
    clock.advance(1)
    assert not free(1_000)
    clock.advance(60_000)
    gauge.ran_out()  # a quota that no measurement shows
    clock.advance(4_999)
    assert free(1_000)
    clock.advance(1)
    assert not free(1_000), "5 s again: it was good for a minute"


@in_loop
async def test_a_directory_that_is_short_of_space_is_said_to_those_who_elect_and_once() -> None:
    fs = CrashingFileSystem()
    fs.mount("/one", 20_000)
    fs.mount("/two", 19_000)
    async with SoloBroker(fs, "/one", "/two") as broker:
        said: list[int] = []
        broker.storage.short.subscribe(lambda: said.append(len(broker.storage.short_directory_ids())))
        await broker.topic("orders")
        while not await append(broker, "orders", b"x" * 900):
            pass
        await append(broker, "orders", b"x" * 900)
        assert said == [1]
        short = broker.storage.short_directory_ids()
        assert [broker.storage.directory_ids()[each] for each in short] == ["/one"]
        fs.mount("/one", 40_000)
        await broker.storage.checkpoint({})
        assert said == [1, 0]


@in_loop
async def test_a_partition_that_found_no_descriptor_is_made_when_there_is_one() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, storage_fs=DescriptorCache(fs, 10)) as broker:
        fs.fail("sync_directory", errno.EMFILE, path_contains="/data", times=1000)
        await broker.topic("orders")
        refused = await broker.append("orders", batch(b"x"))
        assert refused.error.code == errors.ServerBusyError.number
        assert await broker.roles.retry_full() == []
        fs.faults.clear()
        assert await broker.roles.retry_full() == [TopicPartition("orders", 0)]
        assert (await broker.append("orders", batch(b"x"))).base_offset == 0
