"""Logs found at a start that do not fit the partition: of an older topic, damaged, duplicated, half created."""

from __future__ import annotations

import errno

import pytest

from headrace_core import errors
from headrace_core.log import format_directory
from headrace_core.telemetry import PartitionClosed, PartitionFailed
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.solo_broker import SoloBroker, batch
from tests.worlds.waiting import in_loop

OLD, NEW = b"1" * 16, b"2" * 16
LOG = "00000000000000000000.log"


@pytest.mark.parametrize("roots", [("/one", "/two"), ("/two", "/one")])
@in_loop
async def test_a_directory_that_was_offline_brings_no_deleted_topic_back_and_costs_its_namesake_nothing(
    roots: tuple[str, str],
) -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders", topic_id=OLD)
        assert not (await broker.append("orders", batch(b"old"))).error.code
        fs.fail("sync", errno.EIO, path_contains="/one/orders-0/", times=1000)
        assert (await broker.append("orders", batch(b"x"))).error.code == errors.StorageError.number
        await broker.delete("orders")
        await broker.topic("orders", topic_id=NEW)
        assert not (await broker.append("orders", batch(b"new"))).error.code
        image = broker.image
    after = fs.crash_clone()
    assert (after.exists("/one/orders-0"), after.exists("/two/orders-0")) == (True, True)
    async with SoloBroker(after, *roots, image=image) as again:
        assert again.values("orders") == [b"new"]
        assert (await again.append("orders", batch(b"more"))).base_offset == 1
        assert not after.exists("/one/orders-0")


async def _with_damage(fs: CrashingFileSystem) -> SoloBroker:
    """A broker that has quarantined the log of "orders". The caller of ``_with_damage`` has not entered the broker's
    ``async with`` block yet."""
    async with SoloBroker(fs) as broker:
        await broker.topic("orders", topic_id=OLD)
        for value in (b"a", b"b"):
            assert not (await broker.append("orders", batch(value))).error.code
    after = fs.crash_clone()
    after.unlink("/data/.kafka_cleanshutdown")
    after.flip(f"/data/orders-0/{LOG}", 70)
    return SoloBroker(after, image=broker.image)


@in_loop
async def test_a_damaged_log_goes_with_its_topic_and_does_not_block_the_next_one() -> None:
    async with await _with_damage(CrashingFileSystem()) as broker:
        assert (await broker.append("orders", batch(b"x"))).error.code == errors.CorruptLogError.number
        await broker.delete("orders")
        assert not broker.fs.exists("/data/orders-0")
        await broker.topic("orders", topic_id=NEW)
        assert (await broker.append("orders", batch(b"new"))).base_offset == 0


@in_loop
async def test_a_damaged_log_whose_topic_was_deleted_meanwhile_goes_at_the_start() -> None:
    damaged = await _with_damage(CrashingFileSystem())
    async with SoloBroker(CrashingFileSystem()) as elsewhere:  # the controller went on without this broker
        await elsewhere.topic("orders", topic_id=NEW)
    async with SoloBroker(damaged.fs, image=elsewhere.image, former=damaged.image) as broker:
        assert (await broker.append("orders", batch(b"new"))).base_offset == 0
        assert [event.deleted for event in broker.events if isinstance(event, PartitionClosed)] == [True]


@in_loop
async def test_one_partition_with_logs_in_two_directories_is_not_served_before_somebody_chose() -> None:
    fs = CrashingFileSystem()
    for root in ("/one", "/two"):
        format_directory(fs, root, cluster_id="test", node_id=1)
    image = None
    for root in ("/one", "/two"):  # the operator took one directory out of log.dirs, and put it back later
        async with SoloBroker(fs, root, image=image) as broker:
            if image is None:
                await broker.topic("orders")
            assert (await broker.append("orders", batch(root.encode()))).base_offset == 0
            image = broker.image
    async with SoloBroker(fs, "/one", "/two", image=image) as broker:
        refused = await broker.append("orders", batch(b"x"))
        assert refused.error.code == errors.CorruptLogError.number
        assert "/one and another in /two" in refused.error.message
        assert sum(isinstance(event, PartitionFailed) for event in broker.events) == 1
    async with SoloBroker(fs, "/two", image=image) as broker:
        assert broker.values("orders") == [b"/two"]


@in_loop
async def test_a_log_that_was_cut_short_in_the_making_is_made_whole() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders", topic_id=OLD)
        image = broker.image
    fs.unlink("/data/orders-0/partition.metadata")
    async with SoloBroker(fs, image=image) as broker:
        assert (await broker.append("orders", batch(b"a"))).base_offset == 0
        assert fs.exists("/data/orders-0/partition.metadata")
        gone_meanwhile = broker.image
    async with SoloBroker(fs, image=gone_meanwhile) as broker:
        assert broker.values("orders") == [b"a"]


@in_loop
async def test_no_topic_is_ever_served_from_the_log_of_another() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        before = broker.image
        await broker.topic("orders", topic_id=OLD)
        assert not (await broker.append("orders", batch(b"old"))).error.code
        broker.image = before  # as if this broker had missed the deletion of the first one
        await broker.topic("orders", topic_id=NEW)
        refused = await broker.append("orders", batch(b"new"))
        assert refused.error.code == errors.InconsistentTopicIdError.number


@in_loop
async def test_a_creation_that_a_full_disk_stopped_is_repeated_in_the_same_directory() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        fs.fail("create", errno.ENOSPC, path_contains="/one/orders-", path_ends=".log", nth=2)
        await broker.topic("orders", partitions=3)  # 0 and 2 in the first directory, 1 in the second
        assert (await broker.append("orders", batch(b"x"), 2)).error.code == errors.DiskFullError.number
        await broker.topic("small")  # makes the first directory the fuller one
        await broker.again("orders")
        for number in range(3):
            assert (await broker.append("orders", batch(b"%d" % number), number)).base_offset == 0
        image = broker.image
    assert [fs.exists(f"/{root}/orders-2") for root in ("one", "two")] == [True, False]
    async with SoloBroker(fs, "/one", "/two", image=image) as broker:
        assert [broker.values("orders", number) for number in range(3)] == [[b"0"], [b"1"], [b"2"]]


@in_loop
async def test_a_log_directory_inside_another_keeps_its_logs() -> None:
    """The name of the inner directory is that of partition 2 of a topic "disk"."""
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/data", "/data/disk-2") as broker:
        for topic in ("orders", "payments"):
            await broker.topic(topic)
            assert not (await broker.append(topic, batch(topic.encode()))).error.code
        assert fs.is_directory("/data/disk-2/payments-0")
        image = broker.image
    async with SoloBroker(fs.crash_clone(), "/data", "/data/disk-2", image=image) as again:
        assert [again.values(topic) for topic in ("orders", "payments")] == [[b"orders"], [b"payments"]]
        await again.topic("disk", partitions=3)
        codes = [(await again.append("disk", batch(b"x"), number)).error.code for number in range(3)]
        assert codes == [0, 0, errors.StorageError.number]
