"""Leadership changes, and topics are created and deleted, while streams are open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_broker.context import BrokerLimits
from headrace_broker.handlers.offsets import OffsetsService
from headrace_core import errors
from headrace_core.log import Append, PartitionLog
from headrace_core.records import encode_batch
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import offsets_pb2
from tests.worlds.solo_broker import SoloBroker, batch, fetch, produce
from tests.worlds.waiting import in_loop


@in_loop
async def test_a_leader_that_lost_its_leadership_names_the_new_one():
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "orders"))
        await broker.new_leader("orders", 2, 5)
        (ended,) = await answers.wait_sent(1)
        refused = await broker.append("orders", batch(b"a"))
        for result in (ended.results[0], refused):
            assert result.error.code == errors.NotLeaderOrFollowerError.number
            assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 5)
        consumer.on_closed()


@in_loop
async def test_a_new_epoch_of_the_same_leader_fences_readers_and_keeps_the_records():
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.append("orders", batch(b"a"))
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "orders", offset=1))
        await broker.new_leader("orders", 1, 7)
        (ended,) = await answers.wait_sent(1)
        assert ended.results[0].error.code == errors.FencedLeaderEpochError.number
        assert (await broker.append("orders", batch(b"b"))).base_offset == 1
        consumer.on_request(fetch(2, "orders"))
        second = (await answers.wait_sent(2))[1]
        assert second.results[0].next_offset == 2
        replica = broker.partitions.leader(TopicPartition("orders", 0))
        assert replica.epoch_end(0) == (0, 1)
        assert replica.epoch_end(7) == (7, 2)
        consumer.on_closed()


def test_a_leader_that_begins_in_the_midst_of_a_turn_sees_offsets_that_fit():
    """The writer's thread continues while the loop reads a log: each read can find a later end than the previous
    read."""

    class Moving(PartitionLog):
        moves = False

        @property
        def log_end_offset(self) -> int:
            end = self.__dict__["end"]
            if Moving.moves:
                Moving.moves = False
                self.append(batch(b"b"), 0)
                self.flush()
            return end

        @log_end_offset.setter
        def log_end_offset(self, end: int) -> None:
            self.__dict__["end"] = end

    async def scenario() -> None:
        async with SoloBroker(CrashingFileSystem()) as broker:
            await broker.topic("orders")
            log = broker.storage.log(TopicPartition("orders", 0))
            end = log.__dict__.pop("log_end_offset")
            log.__class__, log.log_end_offset = Moving, end
            assert (await broker.append("orders", batch(b"a"))).base_offset == 0
            Moving.moves = True
            await broker.new_leader("orders", 1, 7)
            assert not Moving.moves
            assert (await broker.append("orders", batch(b"c"))).base_offset == 2
            assert broker.values("orders") == [b"a", b"b", b"c"]

    asyncio.run(scenario())


@in_loop
async def test_a_partition_without_a_leader_says_so():
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.new_leader("orders", -1, 3)
        assert (await broker.append("orders", batch(b"a"))).error.code == errors.LeaderNotAvailableError.number


@in_loop
async def test_a_topic_made_anew_starts_empty():
    fs = CrashingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders", topic_id=b"1" * 16)
        await broker.append("orders", batch(b"old"))
        await broker.delete("orders")
        assert not fs.exists("/data/orders-0")
        gone = await broker.append("orders", batch(b"x"))
        assert gone.error.code == errors.UnknownTopicOrPartitionError.number
        await broker.topic("orders", topic_id=b"2" * 16)
        assert (await broker.append("orders", batch(b"new"))).base_offset == 0
        assert broker.values("orders") == [b"new"]


@in_loop
async def test_a_fenced_broker_serves_nothing():
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.append("orders", batch(b"a"))
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "orders", max_wait_ms=0))
        broker.partitions.refusal = errors.FencedBrokerError("fenced")
        consumer.on_request(fetch(2, max_wait_ms=0))
        consumer.on_request(fetch(3, "orders", max_wait_ms=0))
        codes = [[result.error.code for result in answer.results] for answer in await answers.wait_sent(3)]
        assert codes == [[0], [], [errors.FencedBrokerError.number]]
        assert (await broker.append("orders", batch(b"b"))).error.code == errors.FencedBrokerError.number
        consumer.on_closed()


@in_loop
async def test_a_closed_session_is_forgotten_by_every_leader():
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.topic("payments")
        leaders = [broker.partitions.leader(TopicPartition(name, 0)).leader for name in ("orders", "payments")]
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "orders", "payments"))
        assert [leader.waiting for leader in leaders] == [(0, 1), (0, 1)]
        consumer.on_closed()
        assert [leader.waiting for leader in leaders] == [(0, 0), (0, 0)]
        await broker.append("orders", batch(b"a"))
        assert answers.sent == []


@in_loop
async def test_a_stream_that_is_gone_gives_its_budget_back_when_its_appends_end():
    limits = BrokerLimits(stream_bytes_max=10_000, in_flight_bytes_max=10_000)
    async with SoloBroker(CrashingFileSystem(), limits=limits) as broker:
        await broker.topic("orders")
        gone, _ = broker.producer()
        other, answers = broker.producer()
        gone.on_request(produce(1, "orders", batch(b"x" * 20_000)))
        gone.on_closed()
        other.on_request(produce(2, "orders", batch(b"y")))
        assert answers.paused
        await answers.wait_sent(1)
        assert (answers.paused, broker.context.flow.in_memory) == (False, 0)
        assert broker.values("orders") == [b"x" * 20_000, b"y"]


def sent(offset: int, count: int, epoch: int) -> Append:
    """A batch as another leader sent it."""
    records = [(1_000, b"k", b"%d" % number, []) for number in range(offset, offset + count)]
    data = encode_batch(records, base_offset=offset, leader_epoch=epoch)
    return Append(data=data, leader_epoch=epoch, replicated=True)


@pytest.mark.parametrize("begins_again", [100, 7])
@in_loop
async def test_a_client_within_a_gap_that_compaction_left_gets_no_report_of_a_truncation(begins_again: int) -> None:
    """This broker copied a compacted log: epoch 0 ends at 7, and the first record that is left of epoch 3 is at 100. A
    client read up to offset 50 in epoch 0 before the compaction. If epoch 3 has a record at 7, the client's records
    were truncated."""
    async with SoloBroker(CrashingFileSystem(), cleanup_policy="compact") as broker:
        await broker.topic("orders")
        await broker.new_leader("orders", 2, 1)
        replica = broker.partitions.followed[TopicPartition("orders", 0)]
        replica.log.append_many([sent(0, 7, 0), sent(begins_again, 5, 3), sent(100 + begins_again, 1, 3)])
        replica.log.flush()
        await broker.new_leader("orders", 1, 4)
        service = OffsetsService(broker.context)
        request = offsets_pb2.OffsetForLeaderEpochRequest()
        request.partitions.add(topic="orders", partition=0, current_leader_epoch=4, leader_epoch=0)
        consumer, answers = broker.consumer()

        async def fetched(number: int) -> Any:
            asked = fetch(number, "orders", offset=50)
            asked.partitions[0].last_fetched_epoch = 0
            consumer.on_request(asked)
            return (await answers.wait_sent(number))[number - 1].results[0]

        assert (await fetched(1)).error.code == errors.OffsetOutOfRangeError.number
        (end,) = (await service.OffsetForLeaderEpoch(request, None)).results
        assert (end.leader_epoch, end.end_offset) == (0, begins_again)
        answer = await fetched(2)
        assert answer.error.code == (0 if begins_again > 50 else errors.OffsetOutOfRangeError.number)
        assert bool(answer.records) == (begins_again > 50)
        consumer.on_closed()
