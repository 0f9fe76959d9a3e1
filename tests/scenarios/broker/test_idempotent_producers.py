"""Idempotent producers and acks=all, at a leader with a second replica."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace_broker.handlers.produce import ProduceStream
from headrace_broker.partition import PartitionLeader
from headrace_core import errors
from headrace_core.metadata.records import (
    ConfigRecord,
    ConfigResourceType,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from headrace_core.records import encode_batch
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import produce_pb2
from tests.worlds.solo_broker import BROKER_ID, FakeStream, SoloBroker, produce
from tests.worlds.waiting import in_loop

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = b"orders".ljust(16, b".")
OTHER = 2


def batch(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, transactional: bool = False) -> bytes:
    return encode_batch(
        [(1000, None, b"%d" % (sequence + i), []) for i in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


async def replicated(broker: SoloBroker, *, min_insync: int = 1) -> PartitionLeader:
    """A partition with a second replica, which the test plays. Both replicas are in sync."""
    await broker.change(
        TopicRecord("orders", TOPIC_ID),
        ConfigRecord(int(ConfigResourceType.TOPIC), "orders", "min.insync.replicas", str(min_insync)),
        PartitionRecord(TOPIC_ID, 0, (BROKER_ID, OTHER), (BROKER_ID, OTHER), BROKER_ID, 0, 0),
    )
    leader: PartitionLeader = broker.partitions.leader(ORDERS).leader
    leader.follower_joined(OTHER, 5, log_end=0, durable_end=0, log_start=0, now_ms=0)
    return leader


def acked(leader: PartitionLeader, end: int) -> None:
    """The second replica has every record below ``end``."""
    leader.follower_acked(OTHER, 5, durable_end=end, log_end=end, log_start=0, now_ms=0)


async def written(broker: SoloBroker, end: int) -> None:
    """Wait until the log ends at this offset."""
    log = broker.partitions.leader(ORDERS).log
    for _ in range(60_000):
        if log.flushed_end >= end:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"the log ends at {log.log_end_offset}, it never came to {end}")


async def shrunk(broker: SoloBroker) -> None:
    """The controller has removed the second replica from the in-sync set."""
    await broker.change(PartitionChangeRecord(TOPIC_ID, 0, 1, isr=(BROKER_ID,)))


def send(handler: ProduceStream, number: int, records: bytes, **options: Any) -> None:
    handler.on_request(produce(number, "orders", records, **options))


def results(stream: FakeStream) -> list[tuple[int, int, int]]:
    """(correlation id, error code, base offset) of the responses."""
    return [
        (answer.correlation_id, answer.results[0].error.code, answer.results[0].base_offset) for answer in stream.sent
    ]


@in_loop
async def test_a_batch_sent_again_waits_for_the_commit_of_the_first_one_and_gets_its_offset() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        leader = await replicated(broker)
        handler, stream = broker.producer()
        again, second = broker.producer()
        send(handler, 1, batch(0, 3))
        send(handler, 2, batch(3, 2))
        await written(broker, 5)
        send(again, 9, batch(0, 3))
        send(again, 10, batch(3, 2))
        fence, answered = broker.producer()
        send(fence, 11, batch(0, 3), acks=produce_pb2.ACKS_LEADER)
        await answered.wait_sent(1)
        assert results(answered) == [(11, 0, 0)], "acks=1: the leader has it"
        assert stream.sent == second.sent == []
        acked(leader, 3)
        await second.wait_sent(1)
        assert results(stream) == [(1, 0, 0)]
        assert results(second) == [(9, 0, 0)]
        acked(leader, 5)
        await second.wait_sent(2)
        assert results(stream) == [(1, 0, 0), (2, 0, 3)]
        assert results(second) == [(9, 0, 0), (10, 0, 3)]
        assert leader.log_end == 5


@in_loop
async def test_five_requests_in_flight_that_are_all_sent_again_after_a_restart_are_all_known() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        for number in range(8):
            send(handler, number, batch(2 * number, 2))
        await stream.wait_sent(8)
        image = broker.image
    async with SoloBroker(fs, image=image) as broker:
        handler, stream = broker.producer()
        for number in range(3, 8):
            send(handler, number, batch(2 * number, 2))
        send(handler, 8, batch(16))
        await stream.wait_sent(6)
        assert results(stream) == [(number, 0, 2 * number) for number in range(3, 8)] + [(8, 0, 16)]
        assert len(broker.values("orders")) == 17


@in_loop
async def test_what_does_not_follow_is_refused_in_the_order_of_the_answers() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        send(handler, 1, batch(0, epoch=3))
        send(handler, 2, batch(2, epoch=3))
        send(handler, 3, batch(1, epoch=2))
        send(handler, 4, batch(1, epoch=3))
        send(handler, 5, batch(0, producer_id=8, transactional=True))
        await stream.wait_sent(5)
        assert results(stream) == [
            (1, 0, 0),
            (2, errors.OutOfOrderSequenceNumberError.number, -1),
            (3, errors.InvalidProducerEpochError.number, -1),
            (4, 0, 1),
            (5, errors.InvalidRecordError.number, -1),
        ]


@in_loop
async def test_with_too_few_in_sync_nothing_is_written_for_acks_all() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        leader = await replicated(broker, min_insync=2)
        await shrunk(broker)
        handler, stream = broker.producer()
        send(handler, 1, batch(0))
        await stream.wait_sent(1)
        assert results(stream) == [(1, errors.NotEnoughReplicasError.number, -1)]
        assert leader.log_end == 0
        send(handler, 2, batch(0), acks=produce_pb2.ACKS_LEADER)
        await stream.wait_sent(2)
        assert results(stream)[1] == (2, 0, 0)
        send(handler, 3, batch(0))
        await stream.wait_sent(3)
        assert results(stream)[2] == (3, errors.NotEnoughReplicasError.number, -1), "a duplicate promises no more"


@in_loop
async def test_a_late_follower_is_a_time_out_and_a_lost_one_is_too_few_replicas() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        leader = await replicated(broker, min_insync=2)
        handler, stream = broker.producer()
        send(handler, 1, batch(0), timeout_ms=50)
        await stream.wait_sent(1)
        assert results(stream) == [(1, errors.RequestTimedOutError.number, -1)]
        assert "acknowledged" in stream.sent[0].results[0].error.message
        send(handler, 2, batch(1), timeout_ms=3_000)
        await written(broker, 2)
        await shrunk(broker)
        assert len(stream.sent) == 1, "it may still be committed: nothing is said before its time is over"
        await stream.wait_sent(2)
        assert results(stream)[1] == (2, errors.NotEnoughReplicasAfterAppendError.number, -1)
        assert leader.high_watermark == 0
        assert handler.is_idle(), "the records are in the log, and the client has its answer"


@in_loop
async def test_a_leader_that_resigns_tells_those_who_wait_and_the_next_one_knows_the_batch() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await replicated(broker)
        handler, stream = broker.producer()
        send(handler, 1, batch(0, 2))
        await written(broker, 2)
        await broker.new_leader("orders", OTHER, 1)
        await stream.wait_sent(1)
        assert results(stream) == [(1, errors.NotLeaderOrFollowerError.number, -1)]
        await broker.new_leader("orders", BROKER_ID, 2)
        leader = broker.partitions.leader(ORDERS).leader
        leader.follower_joined(OTHER, 5, log_end=2, durable_end=2, log_start=0, now_ms=0)
        send(handler, 2, batch(0, 2))
        await stream.wait_sent(2)
        assert results(stream)[1] == (2, 0, 0)
        assert leader.log_end == 2
