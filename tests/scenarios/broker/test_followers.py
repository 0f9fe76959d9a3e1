"""A following broker: pushes, writes, acknowledgements, truncation, and where its replicas are placed.

The test plays the leader (followers_world.py). All parts except the leader are the broker's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from headrace_broker.partition import FetchSession, PartitionFollower
from headrace_broker.partition.push_stream import CATCH_UP, LIVE
from headrace_broker.replication.follower_replica import FollowerReplica
from headrace_core import errors
from headrace_core.metadata.records import (
    ConfigRecord,
    ConfigResourceType,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.replication_messages import a_divergence
from tests.worlds.replication_world import LARGE, ORDERS, OTHER, FollowersWorld, Leader, batches, change, log_of
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, StallingFileSystem
from tests.worlds.waiting import in_loop


@in_loop
async def test_what_is_pushed_is_acknowledged_when_it_is_on_the_disk_and_stands_there_as_the_leader_has_it() -> None:
    fs = StallingFileSystem()
    async with FollowersWorld(fs) as (broker, leader):
        assert (await leader.welcome()).log_end == 0
        first, second = batches(0, LARGE, b"b"), batches(2, b"c")
        fs.stall()
        leader.push(first)
        leader.push(second, high_watermark=2)  # two pushes may be in flight
        await leader.until(fs.stalling.is_set)
        assert not [ack for ack in leader.acks if ack.log_end]
        fs.release()
        await leader.acknowledged(3)
        ack = leader.acks[-1]
        assert (ack.durable_end, ack.log_end, ack.log_start) == (3, 3, 0)
        assert log_of(broker) == first + second
        assert leader.follower.high_watermark == 2
        leader.updated(high_watermark=9)
        assert leader.follower.high_watermark == 3  # it has no more


@pytest.mark.parametrize("damage", [20, 100])
@in_loop
async def test_a_push_that_was_damaged_on_its_way_is_asked_for_anew(damage: int) -> None:
    async with FollowersWorld() as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"whole"))
        await leader.acknowledged(1)
        bad = bytearray(batches(1, b"x" * 200))
        bad[damage] ^= 1
        leader.push(bytes(bad))
        assert leader.left == 1
        assert isinstance(leader.refusals[0], errors.CorruptMessageError)
        join = await leader.welcome()
        assert join.log_end == 1
        leader.push(batches(1, b"x" * 200))
        await leader.acknowledged(2)
        assert log_of(broker) == batches(0, b"whole") + batches(1, b"x" * 200)


@pytest.mark.parametrize("where", ["before it is taken", "when it was taken", "when the writer has it"])
@in_loop
async def test_a_push_that_meets_a_bug_is_asked_for_anew_and_nothing_is_left_over(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream passes the exception to the partition, which drops the half-done step."""
    async with FollowersWorld() as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"0"))
        replica = leader.follower
        victim, method = {
            "before it is taken": (PartitionFollower, "pushed"),
            "when it was taken": (FollowerReplica, "_append"),
            "when the writer has it": (FollowerReplica, "_notify_watchers"),
        }[where]
        works = getattr(victim, method)

        def stumbles(*arguments: Any) -> Any:
            monkeypatch.setattr(victim, method, works)
            raise AssertionError("an unforeseen error")

        replica.subscribe(FetchSession(lambda: None))
        monkeypatch.setattr(victim, method, stumbles)
        with pytest.raises(AssertionError) as met:
            leader.push(batches(1, b"1"))
        replica.stumbled(met.value)
        assert leader.left == 1
        assert isinstance(leader.refusals[0], errors.UnknownServerError)
        join = await leader.welcome()
        assert join.log_end == (2 if where == "when the writer has it" else 1)
        for offset in range(join.log_end, 3):
            leader.push(batches(offset, b"%d" % offset))
        await leader.acknowledged(3)
        assert log_of(broker) == batches(0, b"0") + batches(1, b"1") + batches(2, b"2")


@in_loop
async def test_what_does_not_go_on_where_the_log_ends_is_refused() -> None:
    async with FollowersWorld() as (_, leader):
        await leader.welcome()
        leader.push(batches(0, b"a"))
        for wrong in (batches(0, b"again"), batches(1, b"of the future", epoch=7)):
            leader.push(wrong)
            assert leader.refusals
            leader.refusals.clear()
            assert (await leader.welcome()).log_end == 1


@in_loop
async def test_a_log_is_cut_where_the_leaders_history_says_and_joins_again() -> None:
    async with FollowersWorld() as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"a") + batches(1, b"b") + batches(2, b"c"), high_watermark=1)
        await leader.acknowledged(3)
        await change(broker, leader=-1, leader_epoch=1)
        assert leader.replica is None
        await change(broker, leader=OTHER, leader_epoch=2)
        join = await leader.asked()
        assert (join.leader_epoch, join.log_end, join.last_epoch) == (2, 3, 0)
        assert leader.follower.high_watermark == 1  # the log continued from one epoch to the next
        leader.answer(diverging=a_divergence(0, 1))
        join = await leader.welcome()
        assert (join.log_end, join.last_epoch) == (1, 0)
        assert leader.cuts == [3]
        leader.push(batches(1, b"of two", epoch=2))
        await leader.acknowledged(2)
        assert log_of(broker) == batches(0, b"a") + batches(1, b"of two", epoch=2)


@in_loop
async def test_a_log_that_lies_outside_of_the_leaders_begins_anew_where_that_one_starts() -> None:
    async with FollowersWorld() as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"old"))
        await leader.acknowledged(1)
        leader.end(errors.NotLeaderOrFollowerError("for a while"))
        await leader.asked()
        leader.answer(out_of_range=True, log_start=101, log_end=110)
        join = await leader.welcome()
        assert (join.log_start, join.log_end, join.last_epoch) == (101, 101, -1)
        # The leader's log starts in the middle of a batch.
        leader.push(batches(100, b"x", b"y", b"z"), high_watermark=103, log_start=101)
        await leader.acknowledged(103)
        log = broker.storage.log(ORDERS)
        assert log is not None
        assert (log.log_start_offset, log.log_end_offset) == (101, 103)


@in_loop
async def test_the_log_starts_where_the_leaders_does() -> None:
    async with FollowersWorld() as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"a") + batches(1, b"b"), high_watermark=2)
        await leader.acknowledged(2)
        leader.updated(high_watermark=2, log_start=1)
        await leader.until(lambda: leader.acks[-1].log_start == 1)
        log = broker.storage.log(ORDERS)
        assert log is not None
        assert log.log_start_offset == 1


@in_loop
async def test_a_follower_that_is_elected_leads_from_where_its_log_ends() -> None:
    fs = StallingFileSystem()
    async with FollowersWorld(fs) as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"a", b"b"), high_watermark=1)
        await leader.acknowledged(2)
        leader.updated(high_watermark=1)
        fs.stall()
        leader.push(batches(2, LARGE))  # being written when the election comes
        await leader.until(fs.stalling.is_set)
        electing = asyncio.ensure_future(change(broker, leader=BROKER_ID, leader_epoch=1, isr=(BROKER_ID, OTHER)))
        await leader.until(lambda: leader.replica is None)
        fs.release()
        await electing
        replica = broker.partitions.leader(ORDERS)
        assert (replica.leader.epoch_start, replica.leader.log_end, replica.leader.high_watermark) == (3, 3, 1)
        # The leadership moves back, and the log still ends at the same offset.
        await change(broker, leader=OTHER, leader_epoch=2)
        assert (await leader.asked()).log_end == 3
        assert leader.follower.high_watermark == 1


@in_loop
async def test_who_is_sent_to_the_other_stream_joins_there() -> None:
    async with FollowersWorld() as (_, leader):
        await leader.until(lambda: leader.wanted == [LIVE])
        await leader.asked()
        leader.answer(other_lane=True)
        await leader.until(lambda: leader.wanted == [CATCH_UP])
        await leader.welcome()
        leader.push(batches(0, b"a"))
        leader.end(other_lane=True)
        await leader.until(lambda: leader.wanted == [LIVE])
        assert (await leader.welcome()).log_end == 1  # pushes in transit arrived before


@in_loop
async def test_a_join_that_was_refused_is_tried_again() -> None:
    async with FollowersWorld() as (_, leader):
        for error in (errors.UnknownLeaderEpochError("not yet"), errors.NotLeaderOrFollowerError("not here")):
            await leader.asked()
            leader.answer(error=error)
        await leader.welcome()
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)


@in_loop
async def test_a_stream_that_breaks_loses_nothing_that_was_taken() -> None:
    fs = StallingFileSystem()
    async with FollowersWorld(fs) as (broker, leader):
        await leader.welcome()
        fs.stall()
        leader.push(batches(0, LARGE))
        leader.push(batches(1, b"b"))
        await leader.until(fs.stalling.is_set)
        leader.follower.lost()
        leader.join(leader.follower)
        assert not leader.follower.can_join
        fs.release()
        assert (await leader.welcome()).log_end == 2
        leader.push(batches(2, b"c"))
        await leader.acknowledged(3)
        assert log_of(broker) == batches(0, LARGE) + batches(1, b"b") + batches(2, b"c")


@in_loop
async def test_a_replica_that_was_moved_away_is_deleted_and_one_that_comes_is_made() -> None:
    async with FollowersWorld() as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)
        await change(broker, replicas=(OTHER,), isr=(OTHER,))
        assert leader.replica is None
        assert broker.storage.log(ORDERS) is None
        assert not broker.fs.exists("/data/orders-0")
        await change(broker, replicas=(OTHER, BROKER_ID), isr=(OTHER,))
        assert (await leader.asked()).log_end == 0


@in_loop
async def test_an_old_replica_is_found_and_deleted_by_a_broker_that_was_away_when_it_moved() -> None:
    world = FollowersWorld()
    async with world as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)
        image = broker.image
    topic = image.topic("orders")
    assert topic is not None
    moved = image.apply(
        [PartitionChangeRecord(topic.topic_id, 0, 1, replicas=(OTHER,), isr=(OTHER,))], image.next_offset + 1
    )
    async with SoloBroker(world.fs, image=moved):
        assert not world.fs.exists("/data/orders-0")


@in_loop
async def test_a_high_watermark_that_was_checkpointed_is_where_a_follower_begins() -> None:
    world = FollowersWorld()
    async with world as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"a", b"b"), high_watermark=1)
        await leader.acknowledged(2)
        await broker.storage.checkpoint(broker.partitions.high_watermarks())
        image = broker.image
    async with SoloBroker(world.fs, image=image) as again:
        assert again.partitions.high_watermarks() == {ORDERS: 1}


@in_loop
async def test_another_flush_policy_settles_what_is_written_at_once() -> None:
    async with FollowersWorld() as (broker, leader):
        await broker.change(ConfigRecord(ConfigResourceType.TOPIC, "orders", "log.flush", "os"))
        await leader.welcome()
        broker.fs.trace.clear()
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)
        assert not [each for each in broker.fs.trace if each.operation == "sync" and each.path.endswith(".log")]


def _damage(broker: SoloBroker) -> None:
    log = broker.storage.log(ORDERS)
    assert log is not None
    broker.roles.quarantine(log, errors.CorruptLogError("a test says so"))


@in_loop
async def test_a_damaged_follower_is_made_anew_when_everybody_knows_and_not_before() -> None:
    async with FollowersWorld() as (broker, leader):
        reported = broker.beginnings
        await leader.welcome()
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)
        _damage(broker)
        assert leader.replica is None
        await asyncio.sleep(0)
        await change(broker, isr=(OTHER, BROKER_ID))  # any unrelated change
        assert reported == [], "its leader does not know yet that it follows no more"
        leader.unconfirmed_leaves.pop()()
        await leader.until(lambda: reported)
        directory = broker.storage.directory_of(ORDERS)
        assert directory is not None
        assert reported[0] == (b"orders".ljust(16, b"."), 0, directory.bytes)
        # The controllers have recorded the empty replica, but the broker's metadata do not show it yet. Before the
        # metadata show the empty replica, they bring an in-sync set that was requested earlier.
        broker.roles.fresh_recorded(reported[0][0], 0, broker.image.next_offset + 2)
        await change(broker, isr=(OTHER,))
        assert broker.fs.exists("/data/orders-0/headrace-quarantine")
        await change(broker, isr=(OTHER,))
        assert (await leader.welcome()).log_end == 0
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)
        assert not broker.fs.exists("/data/orders-0/headrace-quarantine")
        assert [event for event in broker.events if type(event).__name__ == "ReplicaBeginsAnew"]


@pytest.mark.parametrize("answer_first", [True, False], ids=["the answer comes first", "the metadata come first"])
@in_loop
async def test_a_replica_whose_disk_is_gone_begins_when_the_answer_and_the_metadata_are_here(
    answer_first: bool,
) -> None:
    """With the metadata alone the follower would join. Without the response the follower would again report an empty
    log. The leader would then remove the follower from the in-sync set, although the follower has every record."""
    async with FollowersWorld() as (broker, leader):
        reported = broker.beginnings
        broker.assigned = broker.partitions.assigned_directory
        topic_id, partition = b"payments".ljust(16, b"."), TopicPartition("payments", 0)
        elsewhere, gone = b"e" * 16, b"g" * 16
        record = PartitionRecord(topic_id, 0, (OTHER, BROKER_ID), (OTHER,), OTHER, 0, 0)
        await broker.change(
            TopicRecord("payments", topic_id), msgspec.structs.replace(record, directories=(elsewhere, gone))
        )
        (directory,) = [found.bytes for found in broker.storage.directory_ids()]
        assert reported == [(topic_id, 0, directory)]

        def answered() -> None:
            broker.roles.fresh_recorded(topic_id, 0, broker.image.next_offset + (2 if answer_first else 0))

        async def shown() -> None:
            await broker.change(PartitionChangeRecord(topic_id, 0, 1, directories=(elsewhere, directory)))

        if answer_first:
            answered()
            await broker.change(ConfigRecord(ConfigResourceType.BROKER, "7", "a.b", "c"))
            assert broker.storage.log(partition) is None
            await shown()
            assert len(reported) == 1, "what the controllers know is not told again"
        else:
            await shown()
            assert broker.storage.log(partition) is None
            answered()
        await leader.until(lambda: broker.storage.log(partition) is not None)
        await leader.until(lambda: leader.replica is not None and leader.replica.partition == partition)
        telling = len(reported)
        await broker.change(PartitionChangeRecord(topic_id, 0, 2, isr=(OTHER, BROKER_ID)))
        assert len(reported) == telling


@in_loop
async def test_a_damaged_follower_whose_leader_is_gone_has_no_leave_confirmed() -> None:
    async with FollowersWorld() as (broker, leader):
        reported = broker.beginnings
        await leader.welcome()
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)
        _damage(broker)
        await change(broker, leader=-1, leader_epoch=1, isr=(OTHER, BROKER_ID))
        assert leader.unconfirmed_leaves == []
        assert reported


@in_loop
async def test_clients_of_a_damaged_leader_are_sent_to_the_others_unless_it_is_the_last_copy() -> None:
    async with FollowersWorld() as (broker, _):
        await change(broker, leader=BROKER_ID, leader_epoch=1, isr=(BROKER_ID, OTHER))
        _damage(broker)
        refused = await broker.append("orders", batches(0, b"a"))
        assert refused.error.code == errors.NotLeaderOrFollowerError.number
        await change(broker, isr=(BROKER_ID,))
        refused = await broker.append("orders", batches(0, b"a"))
        assert refused.error.code == errors.CorruptLogError.number


@in_loop
async def test_the_last_copy_is_kept_however_damaged_it_is() -> None:
    async with FollowersWorld() as (broker, _):
        reported = broker.beginnings
        await change(broker, leader=BROKER_ID, leader_epoch=1, isr=(BROKER_ID,))
        _damage(broker)
        await asyncio.sleep(0)
        await change(broker, leader=-1, leader_epoch=2, isr=(BROKER_ID,))
        assert reported == []
        assert broker.fs.exists("/data/orders-0/00000000000000000000.log")
        with pytest.raises(errors.CorruptLogError):
            broker.partitions.leader(ORDERS)


@in_loop
async def test_a_broker_that_stops_while_it_takes_up_a_role_takes_up_none() -> None:
    """A follower that began again during the stop did not wait for the appends of the former follower, so the broker's
    process ended when the appends arrived. The simulator found this bug of followers: transactions, seed 574."""
    broker = SoloBroker(CrashingFileSystem(), "/one", streams=Leader())
    async with broker:
        topic_id = b"orders".ljust(16, b".")
        waiting, goes_on = asyncio.Event(), asyncio.Event()
        wait_written = broker.storage.wait_written

        async def slow(partitions: Iterable[TopicPartition]) -> None:
            waiting.set()
            await goes_on.wait()
            await wait_written(partitions)

        broker.storage.wait_written = slow  # type: ignore[method-assign]
        replicas = (OTHER, BROKER_ID)
        await broker.change(
            TopicRecord("orders", topic_id),
            PartitionRecord(topic_id, 0, replicas, replicas, OTHER, 0, 0),
            PartitionRecord(topic_id, 1, replicas, replicas, OTHER, 0, 0),
        )
        both = (
            PartitionRecord(topic_id, 0, replicas, replicas, OTHER, 1, 1),
            PartitionRecord(topic_id, 1, replicas, (OTHER,), OTHER, 0, 1),
        )
        changing = asyncio.create_task(broker.change(*both))
        await waiting.wait()
        broker.roles.resign_all(lambda partition: errors.ServerShuttingDownError("the broker stops"))
        goes_on.set()
        await changing
        assert not broker.partitions.followed


@in_loop
async def test_a_follower_goes_on_while_its_log_moves_to_another_directory() -> None:
    leader = Leader()
    broker = SoloBroker(CrashingFileSystem(), "/one", "/two", streams=leader)
    async with broker:
        topic_id = b"orders".ljust(16, b".")
        await broker.change(
            TopicRecord("orders", topic_id),
            PartitionRecord(topic_id, 0, (OTHER, BROKER_ID), (OTHER, BROKER_ID), OTHER, 0, 0),
        )
        await leader.welcome()
        expected = b""
        log = broker.storage.log(ORDERS)
        assert log is not None
        target = "/two" if log.directory.startswith("/one") else "/one"
        await broker.storage.move(ORDERS, target)
        for offset in range(50):
            expected += batches(offset, b"x" * 1_000)
            leader.push(batches(offset, b"x" * 1_000), high_watermark=offset)
            await asyncio.sleep(0)
        await broker.storage.until_moved(ORDERS)
        await leader.acknowledged(50)
        log = broker.storage.log(ORDERS)
        assert log is not None
        assert log.directory.startswith(target)
        assert log_of(broker) == expected
        broker.roles.resign_all(lambda partition: errors.ServerShuttingDownError("the test is over"))
