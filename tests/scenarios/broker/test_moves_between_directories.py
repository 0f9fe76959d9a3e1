"""Partitions move between directories while they are written and read, also across a crash (KIP-113)."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest

from headrace_broker.moves import settle_moves
from headrace_core import errors
from headrace_core.log import format_directory
from headrace_core.log.checkpoints import HIGH_WATERMARKS, LOG_STARTS, read_offsets
from headrace_core.log.moving import MARKER
from headrace_core.node.ids import id_to_text
from headrace_core.telemetry import ReplicaMoved
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, TraceEntry
from headrace_core.types import TopicPartition
from tests.worlds.replication_messages import a_divergence, an_answer
from tests.worlds.solo_broker import SoloBroker, batch, fetch, produce
from tests.worlds.this_process import steps
from tests.worlds.waiting import in_loop

ORDERS = TopicPartition("orders", 0)
#: The segments are small, so that a move copies sealed segments and the active one, and rolls.
SMALL = {"segment_bytes": "300"}


def homes(fs: CrashingFileSystem) -> list[str]:
    """The partition's directories, future ones included."""
    return sorted(
        f"{root}/{name}"
        for root in ("/one", "/two")
        for name in fs.listdir(root)
        if name.startswith("orders-0") and not name.endswith("-delete")
    )


async def fill(broker: SoloBroker, first: int, last: int) -> list[bytes]:
    values = [b"%04d" % number for number in range(first, last)]
    for value in values:
        result = await broker.append("orders", batch(value))
        assert not result.error.code, result.error
    return values


async def moved(broker: SoloBroker, root: str) -> None:
    await broker.storage.move(ORDERS, root)
    await broker.storage.until_moved(ORDERS)


@in_loop
async def test_a_log_moves_with_all_that_belongs_to_it_and_comes_back() -> None:
    fs = CrashingFileSystem()
    broker = SoloBroker(fs, "/one", "/two", **SMALL)
    reported: list[TopicPartition] = []
    broker.storage.directory_changed.subscribe(reported.extend)
    async with broker:
        await broker.topic("orders")
        values = await fill(broker, 0, 20)
        await broker.partitions.leader(ORDERS).delete_records(7)
        assert homes(fs) == ["/one/orders-0"]
        ids = {root: one for one, root in broker.storage.directory_ids().items()}
        await moved(broker, "/two")
        assert homes(fs) == ["/two/orders-0"]
        assert broker.storage.directory_of(ORDERS) == ids["/two"]
        assert reported == [ORDERS]
        assert [event.target for event in broker.events if isinstance(event, ReplicaMoved)] == ["/two"]
        assert broker.values("orders") == values[7:]
        values += await fill(broker, 20, 25)
        assert read_offsets(fs, f"/two/{LOG_STARTS}")[ORDERS] == 7
        assert read_offsets(fs, f"/two/{HIGH_WATERMARKS}")[ORDERS] == 20
        assert ORDERS not in read_offsets(fs, f"/one/{LOG_STARTS}")
        await moved(broker, "/one")
        assert homes(fs) == ["/one/orders-0"]
        values += await fill(broker, 25, 30)
        assert broker.values("orders") == values[7:]
        image = broker.image
    async with SoloBroker(fs, "/one", "/two", image=image, **SMALL) as again:
        assert again.values("orders") == values[7:]
        assert again.partitions.leader(ORDERS).epoch_at(25) == 0


@in_loop
async def test_appends_under_way_wait_and_keep_their_order() -> None:
    async with SoloBroker(CrashingFileSystem(), "/one", "/two", **SMALL) as broker:
        await broker.topic("orders")
        await broker.topic("payments")
        producer, answers = broker.producer()
        consumer, fetched = broker.consumer()
        consumer.on_request(fetch(1, "orders", offset=0))
        sent = 0
        for root in ("/two", "/one", "/two"):
            await broker.storage.move(ORDERS, root)
            moving = asyncio.create_task(broker.storage.until_moved(ORDERS))
            most = sent + 500  # a producer at full speed may outrun the copy for minutes
            while not moving.done():
                if sent < most:
                    producer.on_request(produce(sent, "orders", batch(b"%d" % sent)))
                    sent += 1
                await asyncio.sleep(0)
        await answers.wait_sent(sent)
        assert sent > 10
        assert [answer.results[0].base_offset for answer in answers.sent] == list(range(sent))
        assert broker.values("orders") == [b"%d" % number for number in range(sent)]
        log = broker.storage.log(ORDERS)
        assert log is not None
        assert log.directory == "/two/orders-0"
        await fetched.wait_sent(1)
        assert not fetched.sent[0].results[0].error.code
        producer.on_closed()
        consumer.on_closed()


@in_loop
async def test_a_reader_of_the_old_files_finishes() -> None:
    async with SoloBroker(CrashingFileSystem(), "/one", "/two", **SMALL) as broker:
        await broker.topic("orders")
        await fill(broker, 0, 10)
        old = broker.partitions.leader(ORDERS).log
        segment = old.segments[0]
        before = segment.log.pread(segment.size, 0)
        await moved(broker, "/two")
        assert old.is_closed
        assert segment.log.pread(segment.size, 0) == before
        found = await broker.partitions.leader(ORDERS).timestamp_offset(0, 1)
        assert found is not None
        assert found.offset == 0


@pytest.mark.parametrize("loss", list(Loss))
def test_a_crash_at_every_step_leaves_exactly_one_log_with_all_that_was_acknowledged(loss: Loss) -> None:
    crashes: list[tuple[str, CrashingFileSystem, int]] = []

    async def scenario() -> Any:
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
            await broker.topic("orders")
            await fill(broker, 0, 8)
            await broker.partitions.leader(ORDERS).delete_records(3)
            producer, answers = broker.producer()
            rng = random.Random(loss.value)

            def crash_here(entry: TraceEntry) -> None:
                if entry.operation not in ("open", "read", "listdir", "stat"):
                    where = f"before {entry.operation} {entry.path}"
                    # read this first, because another thread may acknowledge records meanwhile
                    acknowledged = 8 + len(answers.sent)
                    crashes.append((where, fs.crash_clone(rng, loss), acknowledged))

            fs.on_operation = crash_here
            await broker.storage.move(ORDERS, "/two")
            moving = asyncio.create_task(broker.storage.until_moved(ORDERS))
            sent = 8
            while not moving.done():
                if sent < 20:
                    producer.on_request(produce(sent, "orders", batch(b"%04d" % sent)))
                    sent += 1
                await asyncio.sleep(0)
            await answers.wait_sent(sent - 8)
            assert homes(fs) == ["/two/orders-0"]
            fs.on_operation = None
            producer.on_closed()
            return broker.image

    image = asyncio.run(scenario())

    async def restart(where: str, fs: CrashingFileSystem, acknowledged: int) -> str:
        async with SoloBroker(fs, "/one", "/two", image=image, **SMALL) as broker:
            found = broker.values("orders")
            assert found[: acknowledged - 3] == [b"%04d" % number for number in range(3, acknowledged)], where
            (home,) = homes(fs)
            assert not fs.exists(f"{home}/{MARKER}"), where
            result = await broker.append("orders", batch(b"after"))
            assert result.base_offset == 3 + len(found), where
            return home

    ends = [asyncio.run(restart(*crashes[at])) for at in steps(0, len(crashes) - 1)]
    assert {"/one/orders-0", "/two/orders-0"} == set(ends)
    committed = ends.index("/two/orders-0")
    assert set(ends[committed:]) == {"/two/orders-0"}, "committed is committed"


@in_loop
async def test_of_a_log_that_may_have_moved_to_a_directory_that_is_away_nothing_is_served() -> None:
    fs = CrashingFileSystem()
    broker = SoloBroker(fs, "/one", "/two", **SMALL)
    clones: list[CrashingFileSystem] = []
    async with broker:
        await broker.topic("orders")
        values = await fill(broker, 0, 5)

        def when_marked(entry: TraceEntry) -> None:
            if entry.operation == "rename" and entry.path.endswith("-> /two/orders-0"):
                clones.append(fs.crash_clone())

        fs.on_operation = when_marked
        await moved(broker, "/two")
        fs.on_operation = None
        two = next(id_to_text(one.bytes) for one, root in broker.storage.directory_ids().items() if root == "/two")
    (fs,) = clones
    fs.break_disk("/two", errno.EIO, reads=True)
    async with SoloBroker(fs, "/one", "/two", image=broker.image) as half:
        refused = await half.append("orders", batch(b"x"))
        assert refused.error.code == errors.CorruptLogError.number
        assert f"may have been moved to log directory {two}," in refused.error.message
    fs.mend_disk("/two")
    async with SoloBroker(fs, "/one", "/two", image=broker.image) as whole:
        assert whole.values("orders") == values
        assert homes(fs) == ["/one/orders-0"]


@in_loop
async def test_a_log_left_behind_by_an_older_move_is_not_believed() -> None:
    fs = CrashingFileSystem()
    for root in ("/one", "/two", "/three"):
        format_directory(fs, root, cluster_id="test", node_id=1)
    broker = SoloBroker(fs, "/one", "/two", "/three", **SMALL)
    async with broker:
        await broker.topic("orders")
        await fill(broker, 0, 3)
        fs.fail("rename", errno.EIO, path_contains="/one/orders-0 -> ")  # what was left cannot be removed
        await moved(broker, "/two")
        await fill(broker, 3, 5)
        await moved(broker, "/three")
        values = await fill(broker, 5, 6)
    assert fs.exists(f"/one/orders-0/{MARKER}")
    fs.faults.clear()
    async with SoloBroker(fs, "/one", "/two", "/three", image=broker.image) as again:
        assert again.values("orders") == [b"%04d" % number for number in range(6)]
        assert not fs.exists("/one/orders-0")
        assert values


@in_loop
async def test_a_target_that_fails_costs_the_partition_nothing() -> None:
    for operation in ("write", "sync", "mkdir"):
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
            await broker.topic("orders")
            await fill(broker, 0, 5)
            fs.fail(operation, errno.EIO, path_contains="-future", times=100)
            await moved(broker, "/two")
            assert list(broker.storage.offline_directories()) == ["/two"]
            await fill(broker, 5, 7)
            assert len(broker.values("orders")) == 7


@in_loop
async def test_a_target_that_is_full_takes_nothing_and_keeps_nothing() -> None:
    fs = CrashingFileSystem()
    fs.mount("/two", 10_000)
    async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
        await broker.topic("orders")
        await fill(broker, 0, 5)
        fs.fail("write", errno.ENOSPC, path_contains="-future", nth=3)
        await moved(broker, "/two")
        assert homes(fs) == ["/one/orders-0"]
        assert not broker.storage.offline_directories()
        fs.mount("/two", 400)
        with pytest.raises(errors.DiskFullError, match="/two"):
            await broker.storage.move(ORDERS, "/two")
        await fill(broker, 5, 7)
        fs.mount("/two", 100_000)
        await moved(broker, "/two")
        assert homes(fs) == ["/two/orders-0"]


@in_loop
async def test_a_rename_in_doubt_takes_the_partition_offline_until_the_disk_can_tell() -> None:
    for operation, home in (("rename", "/one/orders-0"), ("sync_directory", "/two/orders-0")):
        fs = CrashingFileSystem()
        broker = SoloBroker(fs, "/one", "/two", **SMALL)
        async with broker:
            await broker.topic("orders")
            values = await fill(broker, 0, 5)

            def arm(entry: TraceEntry, fs: CrashingFileSystem = fs, operation: str = operation) -> None:
                if entry.operation == "rename" and entry.path.endswith("-> /two/orders-0"):
                    fs.on_operation = None
                    where = "-> /two/orders-0" if operation == "rename" else "/two"
                    fs.fail(operation, errno.EIO, path_ends=where)

            fs.on_operation = arm
            await moved(broker, "/two")
            refused = await broker.append("orders", batch(b"x"))
            assert refused.error.code == errors.StorageError.number
            assert list(broker.storage.offline_directories()) == ["/two"]
        fs.faults.clear()
        async with SoloBroker(fs, "/one", "/two", image=broker.image, **SMALL) as again:
            assert again.values("orders") == values
            assert homes(fs) == [home]


@in_loop
async def test_a_topic_that_is_deleted_while_it_moves_is_gone_from_both() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
        await broker.topic("orders")
        await fill(broker, 0, 10)
        await broker.storage.move(ORDERS, "/two")
        await broker.delete("orders")
        assert homes(fs) == []
        await broker.topic("orders")
        assert (await broker.append("orders", batch(b"new"))).base_offset == 0


@in_loop
async def test_a_move_is_shown_called_off_and_refused_with_a_reason() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
        await broker.topic("orders")
        await fill(broker, 0, 10)
        await broker.storage.move(ORDERS, "/two")
        shown = {one.root: list(one.logs) for one in broker.storage.describe()}
        assert [(log.partition, log.is_future) for log in shown["/one"]] == [(ORDERS, False)]
        assert [(log.partition, log.is_future, log.offset_lag) for log in shown["/two"]] == [(ORDERS, True, 10)]
        await broker.storage.move(ORDERS, "/one")  # a move to the replica's present directory cancels the move
        assert homes(fs) == ["/one/orders-0"]
        with pytest.raises(errors.LogDirNotFoundError, match="/three"):
            await broker.storage.move(ORDERS, "/three")
        with pytest.raises(errors.ReplicaNotAvailableError):
            await broker.storage.move(TopicPartition("nothing", 0), "/two")
        fs.break_disk("/two")
        await broker.storage.checkpoint({})
        with pytest.raises(errors.StorageError, match="/two"):
            await broker.storage.move(ORDERS, "/two")
        assert len(broker.values("orders")) == 10


@in_loop
async def test_a_move_keeps_to_its_rate_until_it_is_given_another() -> None:
    async with SoloBroker(CrashingFileSystem(), "/one", "/two", **SMALL) as broker:
        await broker.topic("orders")
        await fill(broker, 0, 10)
        broker.storage.set_moves_rate(1)  # the first segment alone would take minutes
        await broker.storage.move(ORDERS, "/two")
        (future,) = next(one.logs for one in broker.storage.describe() if one.root == "/two")
        async with asyncio.timeout(60):
            while not future.size_bytes:
                await asyncio.sleep(0.001)
                (future,) = next(one.logs for one in broker.storage.describe() if one.root == "/two")
        assert future.size_bytes < 400
        await broker.storage.move(ORDERS, "/one")  # cancelled: the move does not wait for its turn
        broker.storage.set_moves_rate(1e9)
        async with asyncio.timeout(60):
            await moved(broker, "/two")
        assert broker.storage.log(ORDERS) is not None
        assert len(broker.values("orders")) == 10


def test_a_log_that_is_truncated_for_a_new_leader_is_copied_again() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
            await broker.topic("orders")
            values = await fill(broker, 0, 10)
            broker.storage.set_moves_rate(1)  # the first segment alone would take minutes
            await broker.storage.move(ORDERS, "/two")
            (future,) = next(one.logs for one in broker.storage.describe() if one.root == "/two")
            while not future.size_bytes:
                await asyncio.sleep(0.001)
                (future,) = next(one.logs for one in broker.storage.describe() if one.root == "/two")
            await broker.new_leader("orders", 2, leader_epoch=1)
            followed = broker.partitions.followed[ORDERS]
            followed.join(1)
            followed.joined(an_answer(1, diverging=a_divergence(0, 7)))
            broker.storage.set_moves_rate(1e9)
            await broker.storage.until_moved(ORDERS)
            assert homes(fs) == ["/two/orders-0"]
            await broker.new_leader("orders", 1, leader_epoch=2)
            assert broker.values("orders") == values[:7]
            values[7:] = await fill(broker, 20, 22)
            image = broker.image
        async with SoloBroker(fs, "/one", "/two", image=image, **SMALL) as again:
            assert again.values("orders") == values

    asyncio.run(asyncio.wait_for(scenario(), 60))


@in_loop
async def test_nothing_is_changed_where_nothing_moved() -> None:
    async with SoloBroker(CrashingFileSystem(), "/one", "/two") as broker:
        await broker.topic("orders")
        assert await settle_moves(broker.storage._held) == {}


def test_a_move_keeps_to_its_rate_and_can_be_called_off_while_it_waits() -> None:
    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with SoloBroker(fs, "/one", "/two", **SMALL) as broker:
            await broker.topic("orders")
            await fill(broker, 0, 10)
            broker.storage.set_moves_rate(1)  # byte a second: it would take many minutes
            await broker.storage.move(ORDERS, "/two")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(broker.storage.until_moved(ORDERS), 0.3)
            await broker.storage.move(ORDERS, "/one")
            assert homes(fs) == ["/one/orders-0"]
            broker.storage.set_moves_rate(1 << 40)
            await moved(broker, "/two")
            assert homes(fs) == ["/two/orders-0"]
            assert len(broker.values("orders")) == 10

    asyncio.run(asyncio.wait_for(scenario(), 60))
