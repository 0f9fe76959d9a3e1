"""Moves between directories while something else fails or changes."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace_core import errors
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.files import remove_tree
from headrace_core.log.moving import MARKER
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, TraceEntry
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker, StallingFileSystem, batch, produce
from tests.worlds.this_process import steps
from tests.worlds.waiting import in_loop

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)
SMALL = {"segment_bytes": "300"}
DESCRIPTORS = ("open", "create", "listdir", "sync_directory")


async def fill(broker: SoloBroker, topic: str, first: int, last: int) -> None:
    for number in range(first, last):
        result = await broker.append(topic, batch(b"%04d" % number))
        assert not result.error.code, result.error


async def moved(broker: SoloBroker, root: str, partition: TopicPartition = ORDERS) -> None:
    await broker.storage.move(partition, root)
    await broker.storage.until_moved(partition)


class Trouble:
    """Fails operation ``at`` of a move (from 1; 0 means none). If descriptors run out, only operations that need a
    descriptor count, and all later operations fail too until ``over``."""

    def __init__(self, fs: CrashingFileSystem, at: int, error: int) -> None:
        self.count = 0
        self.where = ""
        self._at, self._error = at, error
        self._fs = fs
        fs.on_operation = self._meet

    def over(self) -> None:
        self._fs.on_operation = None

    def _meet(self, entry: TraceEntry) -> None:
        lasts = self._error == errno.EMFILE
        if entry.operation in ("stat", "statvfs") or (lasts and entry.operation not in DESCRIPTORS):
            return
        self.count += 1
        if self.count == self._at:
            self.where = f"{errno.errorcode[self._error]} at {entry.operation} {entry.path}"
        if self.count == self._at or (lasts and 0 < self._at < self.count):
            raise OSError(self._error, errno.errorcode[self._error], entry.path)


async def one_move(at: int, error: int, loss: Loss) -> int:
    """A move fails at one operation. All records that were acknowledged before, during and after the move are there
    when the broker starts again, after a clean stop and after a crash. Returns the operations of the move."""
    fs = CrashingFileSystem()
    broker = SoloBroker(fs, "/one", "/two", storage_fs=DescriptorCache(fs, 100), **SMALL)
    acknowledged: list[bytes] = []
    async with broker:
        await broker.topic("orders")
        await fill(broker, "orders", 0, 6)
        acknowledged += [b"%04d" % number for number in range(6)]
        trouble = Trouble(fs, at, error)
        try:
            await moved(broker, "/two")
        finally:
            trouble.over()
        for number in range(6, 9):
            value = b"%04d" % number
            if not (await broker.append("orders", batch(value))).error.code:
                acknowledged.append(value)
        if error == errno.EMFILE:
            assert not broker.storage.offline_directories(), trouble.where
        crashed = fs.crash_clone(random.Random(at), loss)
        image = broker.image
    for what, disk in (("a crash", crashed), ("a stop", fs)):
        async with SoloBroker(disk, "/one", "/two", image=image, **SMALL) as again:
            where = f"{trouble.where}, after {what}"
            found = again.values("orders")
            assert found[: len(acknowledged)] == acknowledged, where
            homes = [root for root in ("/one", "/two") if disk.exists(f"{root}/orders-0")]
            assert len(homes) == 1, where
            assert not disk.exists(f"{homes[0]}/orders-0/{MARKER}"), where
            assert not (await again.append("orders", batch(b"after"))).error.code, where
    return trouble.count


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
def test_a_failure_at_every_step_loses_nothing_that_was_acknowledged(error: int) -> None:
    count = asyncio.run(one_move(0, error, Loss.ALL))
    assert count > 20
    for at in steps(1, count):
        asyncio.run(asyncio.wait_for(one_move(at, error, Loss.ALL), 60))


def homes_of_orders(fs: CrashingFileSystem) -> list[str]:
    return [root for root in ("/one", "/two") if fs.exists(f"{root}/orders-0")]


class AtTheSwitch:
    """Calls ``then`` in the event loop when a move to ``root`` has written its marker and appends wait. The rename
    continues after the coroutine ``then`` has begun."""

    def __init__(self, fs: CrashingFileSystem, then: Callable[[], Coroutine[Any, Any, None]], root: str = "/two"):
        self._fs, self._then, self._root = fs, then, root
        self._loop = asyncio.get_running_loop()
        self._begun = threading.Event()
        self.task: asyncio.Task[None] | None = None
        fs.on_operation = self._meet

    def _meet(self, entry: TraceEntry) -> None:
        if entry.operation == "rename" and entry.path.endswith(f"-> {self._root}/orders-0"):
            self._fs.on_operation = None
            self._loop.call_soon_threadsafe(self._begin)
            assert self._begun.wait(60), "the event loop stands still"

    def _begin(self) -> None:
        self.task = asyncio.create_task(self._then())
        self._loop.call_soon(self._loop.call_soon, self._begun.set)

    async def done(self) -> None:
        assert self.task is not None, "the move never came to the switch"
        await self.task


def test_a_new_leader_epoch_at_the_switch_answers_what_waits() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
            await broker.topic("orders")
            await fill(broker, "orders", 0, 5)
            producer, answers = broker.producer()

            async def elect() -> None:
                producer.on_request(produce(1, "orders", batch(b"of the old epoch")))
                await broker.new_leader("orders", 1, leader_epoch=1)
                producer.on_request(produce(2, "orders", batch(b"of the new one")))

            switch = AtTheSwitch(fs, elect)
            await moved(broker, "/two")
            await switch.done()
            first, second = await answers.wait_sent(2)
            assert first.results[0].error.code == errors.FencedLeaderEpochError.number
            assert not second.results[0].error.code
            assert broker.values("orders")[5:] == [b"of the new one"]
            producer.on_closed()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_settings_that_change_at_the_switch_hold_in_the_new_directory() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
            for number in range(20):  # the logs get the settings one after the other, the moving log last
                await broker.topic(f"other-{number}")
            await broker.topic("orders")
            await fill(broker, "orders", 0, 5)
            await moved(broker, "/one")
            switch = AtTheSwitch(fs, lambda: broker.change(ConfigRecord(2, "", "log.segment.bytes", "777777")))
            await moved(broker, "/two")
            await switch.done()
            log = broker.storage.log(ORDERS)
            assert log is not None
            assert log.directory == "/two/orders-0"
            assert {log.config.segment_bytes for _, log in broker.storage.logs()} == {777_777}

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_records_deleted_at_the_switch_are_deleted_in_the_new_directory() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        broker = SoloBroker(fs, "/one", "/two", **SMALL)
        async with broker:
            await broker.topic("orders")
            await fill(broker, "orders", 0, 9)
            switch = AtTheSwitch(fs, lambda: broker.partitions.leader(ORDERS).delete_records(7))
            await moved(broker, "/two")
            await switch.done()
            assert broker.partitions.leader(ORDERS).leader.log_start == 7
            assert broker.values("orders") == [b"0007", b"0008"]
        async with SoloBroker(fs, "/one", "/two", image=broker.image, **SMALL) as again:
            assert again.values("orders") == [b"0007", b"0008"]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_directory_that_fails_while_settings_change_costs_the_others_nothing() -> None:
    async def scenario() -> None:
        fs = StallingFileSystem()
        async with SoloBroker(fs, "/one", "/two") as broker:
            await broker.topic("orders")
            await broker.topic("payments")
            await fill(broker, "orders", 0, 2)
            fs.stall()
            producer, answers = broker.producer()
            producer.on_request(produce(1, "orders", batch(b"x" * 100_000)))  # the writer's thread waits for the disk
            await asyncio.to_thread(fs.stalling.wait, 20)
            changing = asyncio.create_task(broker.change(ConfigRecord(2, "", "log.segment.bytes", "777777")))
            await asyncio.sleep(0)
            fs.break_disk("/one", errno.EIO, reads=True)
            fs.release()
            await changing
            await answers.wait_sent(1)
            assert answers.sent[0].results[0].error.code == errors.StorageError.number
            assert list(broker.storage.offline_directories()) == ["/one"]
            (log,) = [log for _, log in broker.storage.logs()]
            assert log.config.segment_bytes == 777_777
            await fill(broker, "payments", 0, 2)
            producer.on_closed()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_topic_whose_move_has_yet_to_begin_is_deleted_at_once() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
            await broker.topic("orders")
            await broker.topic("payments")
            await fill(broker, "orders", 0, 5)
            await fill(broker, "payments", 0, 5)
            broker.storage.set_moves_rate(1)
            where = {partition: log.directory.split("/")[1] for partition, log in broker.storage.logs()}
            other = {"one": "/two", "two": "/one"}
            await broker.storage.move(PAYMENTS, other[where[PAYMENTS]])  # for the next minutes
            await broker.storage.move(ORDERS, other[where[ORDERS]])
            await broker.delete("orders")
            assert [log.directory for _, log in broker.storage.logs()] == [f"/{where[PAYMENTS]}/payments-0"]
            assert [move.partition for move in broker.storage._moves.under_way()] == [PAYMENTS]
            broker.storage.set_moves_rate(1e9)
            await broker.storage.until_moved(PAYMENTS)
            assert len(broker.values("payments")) == 5

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_of_two_who_move_a_partition_at_the_same_time_one_prevails() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", "/three", "/four", **SMALL) as broker:
            await broker.topic("orders")
            await fill(broker, "orders", 0, 5)
            broker.storage.set_moves_rate(1)
            await broker.storage.move(ORDERS, "/two")
            await asyncio.gather(broker.storage.move(ORDERS, "/three"), broker.storage.move(ORDERS, "/four"))
            broker.storage.set_moves_rate(1e9)
            await broker.storage.until_moved(ORDERS)
            log = broker.storage.log(ORDERS)
            assert log is not None
            assert log.directory in ("/three/orders-0", "/four/orders-0")
            assert len(broker.values("orders")) == 5
            homes = [name for root in broker.roots for name in fs.listdir(root) if name.endswith("-future")]
            assert homes == []

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def stopped_before_the_commit(fs: CrashingFileSystem) -> tuple[CrashingFileSystem, MetadataImage]:
    """The state after a crash between the marker and the rename."""
    clones: list[CrashingFileSystem] = []
    broker = SoloBroker(fs, "/one", "/two", **SMALL)
    async with broker:
        await broker.topic("orders")
        await fill(broker, "orders", 0, 5)

        def when_marked(entry: TraceEntry) -> None:
            if entry.operation == "rename" and entry.path.endswith("-> /two/orders-0"):
                clones.append(fs.crash_clone())

        fs.on_operation = when_marked
        await moved(broker, "/two")
        fs.on_operation = None
    return clones[0], broker.image


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_marker_that_cannot_be_removed_keeps_the_future_that_disproves_it(error: int) -> None:
    async def scenario() -> None:
        fs, image = await stopped_before_the_commit(CrashingFileSystem())
        fs.fail("unlink", error, path_ends=MARKER)
        async with SoloBroker(fs, "/one", "/two", image=image, **SMALL):
            assert fs.exists(f"/one/orders-0/{MARKER}")
        fs.faults.clear()
        async with SoloBroker(fs, "/one", "/two", image=image, **SMALL) as again:
            assert again.values("orders") == [b"%04d" % number for number in range(5)]
            assert not fs.exists(f"/one/orders-0/{MARKER}")
            assert not [name for name in fs.listdir("/two") if name.endswith("-future")]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_directory_that_fails_between_opening_and_settling_is_away_and_no_more() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        broker = SoloBroker(fs, "/one", "/two", **SMALL)
        async with broker:
            await broker.topic("orders")
            await broker.topic("payments")
            await fill(broker, "orders", 0, 5)
            await fill(broker, "payments", 0, 5)
        again = SoloBroker(fs, "/one", "/two", image=broker.image, **SMALL)
        await again.storage.open(lambda topic: again.roles.settings_of(topic, broker.image))
        fs.break_disk("/one", errno.EIO, reads=True)
        await again.roles.apply_all(broker.image)
        again.partitions.refusal = None
        assert list(again.storage.offline_directories()) == ["/one"]
        assert len(again.values("payments")) == 5
        with pytest.raises(errors.StorageError):
            again.partitions.leader(ORDERS)
        await again.__aexit__()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_a_move_has_left_of_a_deleted_topic_does_not_hinder_its_namesake() -> None:
    async def scenario() -> None:
        fs, image = await stopped_before_the_commit(CrashingFileSystem())
        (future,) = [name for name in fs.listdir("/two") if name.endswith("-future")]
        remove_tree(fs, f"/two/{future}")  # the content of the marked log is unknown now
        before = SoloBroker(fs, "/one", "/two", image=image, **SMALL)
        async with before:
            assert (await before.append("orders", batch(b"x"))).error.code == errors.CorruptLogError.number
        topic = image.topic("orders")
        assert topic is not None
        records = (
            RemoveTopicRecord(topic.topic_id),
            TopicRecord("orders", b"the next".ljust(16)),
            PartitionRecord(b"the next".ljust(16), 0, (1,), (1,), 1, 0, 0),
        )
        async with SoloBroker(
            fs, "/one", "/two", image=image.apply(records, image.next_offset + len(records)), **SMALL
        ) as again:
            assert (await again.append("orders", batch(b"new"))).base_offset == 0

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_half_made_log_yields_to_a_whole_one_in_another_directory() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        broker = SoloBroker(fs, "/one", "/two")
        async with broker:
            await broker.topic("orders")
            await fill(broker, "orders", 0, 3)
            await moved(broker, "/two")
        fs.mkdir("/one/orders-0")  # files of a creation that failed after its first step
        fs.sync_directory("/one")
        fs.break_disk("/two", errno.EIO, reads=True)
        async with SoloBroker(fs, "/one", "/two", image=broker.image) as half:
            assert (await half.append("orders", batch(b"x"))).error.code == errors.StorageError.number
        fs.mend_disk("/two")
        fs.mkdir("/one/orders-0")
        async with SoloBroker(fs, "/one", "/two", image=broker.image) as again:
            assert again.values("orders") == [b"0000", b"0001", b"0002"]
            assert not fs.exists("/one/orders-0")

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_records_are_not_deleted_from_a_log_that_may_be_elsewhere() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        broker = SoloBroker(fs, "/one", "/two", storage_fs=DescriptorCache(fs, 100), **SMALL)
        async with broker:
            await broker.topic("orders")
            await fill(broker, "orders", 0, 9)

            async def delete() -> None:
                fs.fail("sync_directory", errno.EMFILE, path_ends="/two", times=2)  # after the rename
                with pytest.raises(errors.UnknownTopicOrPartitionError):
                    await broker.partitions.leader(ORDERS).delete_records(7)

            switch = AtTheSwitch(fs, delete)
            await moved(broker, "/two")
            await switch.done()
            assert not broker.storage.offline_directories()
            refused = await broker.append("orders", batch(b"x"))
            assert refused.error.code == errors.StorageError.number
            assert "restart the broker with both" in refused.error.message
        async with SoloBroker(fs, "/one", "/two", image=broker.image, **SMALL) as again:
            assert len(again.values("orders")) == 9
            assert homes_of_orders(fs) == ["/two"]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_topic_made_anew_inherits_nothing_of_a_move_whose_source_failed() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        broker = SoloBroker(fs, "/one", "/two", **SMALL)
        async with broker:
            await broker.topic("orders")
            await fill(broker, "orders", 0, 9)
            fs.fail("rename", errno.EIO, path_ends=f"-> /one/orders-0/{MARKER}")
            await moved(broker, "/two")
            assert list(broker.storage.offline_directories()) == ["/one"]
            await broker.delete("orders")
            await broker.topic("orders", topic_id=b"the next".ljust(16))
            await fill(broker, "orders", 0, 2)
            await broker.storage.checkpoint({})
            fs = fs.crash_clone()
        async with SoloBroker(fs, "/one", "/two", image=broker.image, **SMALL) as again:
            assert again.values("orders") == [b"0000", b"0001"]
            assert homes_of_orders(fs) == ["/two"]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_records_deleted_under_two_leader_epochs_at_once() -> None:
    async def scenario() -> None:
        async with SoloBroker(CrashingFileSystem(), **SMALL) as broker:
            await broker.topic("orders")
            await fill(broker, "orders", 0, 3)
            former = broker.partitions.leader(ORDERS)
            first = asyncio.create_task(former.delete_records(2))
            await asyncio.sleep(0)
            await broker.new_leader("orders", 1, leader_epoch=1)
            log = former.log
            log.append(batch(b"0003"), 1)
            log.delete_records(4)  # a second request of the new leader's client, before the first one is answered
            await first
            assert former.leader.log_start <= former.leader.high_watermark

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("when", ["before the move", "at its end"])
@in_loop
async def test_a_foreign_directory_of_the_logs_name_costs_only_the_move(when: str) -> None:
    """A rename cannot replace a directory with files. The target directory stays online, and the log where it is."""
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders")
        await broker.topic("payments")
        await fill(broker, "orders", 0, 3)
        if when == "before the move":
            fs.mkdir("/two/orders-0")
            fs.open("/two/orders-0/notes.txt", create=True).close()
        else:
            fs.fail("rename", errno.ENOTEMPTY, path_ends="-> /two/orders-0")
        await moved(broker, "/two")
        await fill(broker, "orders", 3, 5)
        await fill(broker, "payments", 0, 1)
        assert not broker.storage.offline_directories()
        assert broker.values("orders") == [b"%04d" % number for number in range(5)]
        assert not fs.exists(f"/one/orders-0/{MARKER}")
        assert not [name for name in fs.listdir("/two") if name.endswith("-future")]
        if when == "before the move":
            assert fs.listdir("/two/orders-0") == ["notes.txt"]
            remove_tree(fs, "/two/orders-0")
        await moved(broker, "/two")
        assert broker.values("orders") == [b"%04d" % number for number in range(5)]
        assert homes_of_orders(fs) == ["/two"]
