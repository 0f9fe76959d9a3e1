"""Replication in memory: a leading broker and a scripted follower, and a broker that follows a scripted leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace_broker.handlers.replication import LeaderStream, ReplicationService
from headrace_broker.partition.push_stream import LIVE
from headrace_broker.replication.follower_replica import FollowerReplica
from headrace_core import errors
from headrace_core.errors import HeadraceError
from headrace_core.metadata import MetadataDelta
from headrace_core.metadata.records import (
    BrokerChangeRecord,
    BrokerEndpoint,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace_core.records import encode_batch
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1.replication_pb2 import FollowAck, FollowJoin, FollowRequest, FollowResponse, ReplicationLane
from tests.worlds.replication_messages import (
    a_hello,
    a_join,
    a_push,
    a_request,
    an_ack,
    an_answer,
    an_end,
    an_update,
    replaced,
)
from tests.worlds.solo_broker import BROKER_ID, FakeStream, SoloBroker, batch

FOLLOWER = 2
WINDOW = 8 << 20


class FollowerEnd:
    """The follower's end of one stream to the replication service. ``reads``: the follower reads messages as soon as
    they are sent."""

    def __init__(self, service: ReplicationService, *, reads: bool = True) -> None:
        self.stream = FakeStream()
        self.handler = LeaderStream(service, self.stream)  # type: ignore[arg-type]
        self.reads = reads
        self.got: list[FollowResponse] = []
        self._taken = 0
        send = self.stream.send

        def sending(response: Any, size: int = 0) -> None:
            send(response, size)
            if self.reads:
                asyncio.get_running_loop().call_soon(self.take)

        self.stream.send = sending  # type: ignore[method-assign]

    def take(self) -> None:
        """Read the messages that were sent, so that the stream's queue is empty and the leader is notified."""
        while self._taken < len(self.stream.sent):
            self.got.append(self.stream.sent[self._taken])
            self._taken += 1
            self.stream.queued_bytes = 0
            self.handler.on_written()

    def hello(self, *, broker_epoch: int = 7, kind: ReplicationLane = LIVE, window: int = WINDOW, **other: Any) -> None:
        hello = a_hello("test", FOLLOWER, broker_epoch, BROKER_ID, kind, window)
        self.handler.on_request(FollowRequest(hello=replaced(hello, **other)))

    def say(self, request: FollowRequest) -> None:
        self.handler.on_request(request)

    def join(self, handle: int, topic: str, *, partition: int = 0, log_end: int = 0, last_epoch: int = -1) -> None:
        topic_id = topic.encode().ljust(16, b".")
        join = a_join(handle, topic_id, partition, 0, 0, log_end, last_epoch, log_end, WINDOW)
        self.say(a_request(joins=(join,)))

    def ack(self, handle: int, end: int) -> None:
        self.say(a_request(acks=(an_ack(handle, end, end, 0),)))

    def records(self, handle: int) -> bytes:
        return b"".join(push.records for message in self.got for push in message.pushes if push.handle == handle)


class ReplicationWorld:
    """Use the class as ``async with ReplicationWorld(SoloBroker(fs)) as world``: broker 2 is registered, with broker
    epoch 7."""

    def __init__(self, broker: SoloBroker) -> None:
        self.broker = broker
        self.service: ReplicationService

    async def __aenter__(self) -> ReplicationWorld:
        await self.broker.__aenter__()
        self.service = ReplicationService(self.broker.context)
        await self.registers(7)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.broker.__aexit__(*exc)

    async def registers(self, broker_epoch: int) -> None:
        """Let broker 2 register, so that the metadata have the registration."""
        endpoint = BrokerEndpoint("internal", "127.0.0.1", 2)
        before = self.broker.image
        await self.broker.change(
            RegisterBrokerRecord(FOLLOWER, broker_epoch, b"j" * 16, (b"e" * 16,), (endpoint,)),
            BrokerChangeRecord(FOLLOWER, broker_epoch, fenced=False),
        )
        delta = MetadataDelta(before.next_offset, self.broker.image.next_offset, brokers=frozenset({FOLLOWER}))
        self.broker.context.metadata.advance(self.broker.image, delta)

    async def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with replicas on both brokers; this broker leads it."""
        topic_id, both = name.encode().ljust(16, b"."), (BROKER_ID, FOLLOWER)
        await self.broker.change(
            TopicRecord(name, topic_id),
            *[PartitionRecord(topic_id, number, both, both, BROKER_ID, 0, 0) for number in range(partitions)],
        )
        self.broker.context.metadata.advance(self.broker.image, MetadataDelta(0, self.broker.image.next_offset))

    def leader(self, topic: str, partition: int = 0) -> Any:
        return self.broker.partitions.leader(TopicPartition(topic, partition)).leader

    async def append(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Append with acks=1."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        replica = self.broker.partitions.leader(TopicPartition(topic, partition))
        replica.append(batch(*values), 1, done.set_result, committed=False)
        outcome = await done
        assert not isinstance(outcome, HeadraceError), outcome

    def log_bytes(self, topic: str, partition: int = 0) -> bytes:
        """All bytes of the leader's log."""
        log = self.broker.partitions.leader(TopicPartition(topic, partition)).log
        found, offset = b"", log.log_start_offset
        while offset < log.log_end_offset:
            result = log.read(offset, 1 << 20)
            assert result is not None
            found, offset = found + result.records, result.next_offset
        return found

    def follower(self, *, reads: bool = True) -> FollowerEnd:
        return FollowerEnd(self.service, reads=reads)


OTHER = 2
#: A record that is too large for a turn of the writer in the event loop: a thread writes it, and its disk may stall.
LARGE = b"x" * 100_000
ORDERS = TopicPartition("orders", 0)


def batches(base_offset: int, *values: bytes, epoch: int = 0) -> bytes:
    return encode_batch([(1000, None, value, []) for value in values], base_offset=base_offset, leader_epoch=epoch)


class Leader:
    """Replaces the streams to leaders, and the broker at the other end of a stream."""

    def __init__(self) -> None:
        self.replica: FollowerReplica | None = None
        self.wanted: list[ReplicationLane] = []
        self.left = 0
        self.said_cannot_append = 0
        self.refusals: list[HeadraceError] = []
        self.cuts: list[int] = []
        self.acks: list[FollowAck] = []
        self.unconfirmed_leaves: list[Callable[[], None]] = []
        self._handle = 0
        self._changed = asyncio.Event()

    # -- Following and Streams -----------------------------------------------------------------------------------------

    def follow(self, replica: FollowerReplica) -> None:
        self.replica = replica
        replica.begin(self)

    def unfollow(self, replica: FollowerReplica) -> None:
        self.replica = None
        self._changed.set()

    def confirm_leave(self, replica: FollowerReplica, done: Callable[[], None]) -> Callable[[], None]:
        self.unconfirmed_leaves.append(done)
        return lambda: self.unconfirmed_leaves.remove(done)

    def join(self, replica: FollowerReplica) -> None:
        self.wanted.append(replica.kind)
        self._changed.set()

    def leave(self, replica: FollowerReplica, *, cannot_append: bool = False) -> None:
        self.left += 1
        self.said_cannot_append += cannot_append
        self._changed.set()

    def ack_due(self, replica: FollowerReplica) -> None:
        ack = replica.next_ack()
        if ack is not None:
            self.acks.append(ack)
        self._changed.set()

    def wake(self, replica: FollowerReplica) -> None:
        self._changed.set()

    def refused(self, replica: FollowerReplica, error: HeadraceError) -> None:
        self.refusals.append(error)

    def leader_lacks(self, replica: FollowerReplica, error: HeadraceError) -> None:
        self.refusals.append(error)

    def truncated(self, replica: FollowerReplica, from_offset: int) -> None:
        self.cuts.append(from_offset)

    # -- actions of the test ------------------------------------------------------------------------------------------

    @property
    def follower(self) -> FollowerReplica:
        assert self.replica is not None
        return self.replica

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await asyncio.wait([asyncio.ensure_future(self._changed.wait())], timeout=0.05)

    async def asked(self) -> FollowJoin:
        """The follower's next join, as soon as it may join."""
        await self.until(lambda: self.wanted and self.follower.can_join)
        self.wanted.clear()
        self.acks.clear()
        self._handle += 1
        return self.follower.join(self._handle)

    def answer(self, **fields: Any) -> None:
        self.follower.joined(an_answer(self._handle, **fields))

    async def welcome(self, high_watermark: int = 0) -> FollowJoin:
        join = await self.asked()
        self.answer(high_watermark=high_watermark, log_end=join.log_end)
        return join

    def push(self, records: bytes, high_watermark: int = 0, log_start: int = 0) -> None:
        self.follower.pushed(a_push(self._handle, records, high_watermark, log_start), records)

    def updated(self, high_watermark: int, log_start: int = 0) -> None:
        self.follower.updated(an_update(self._handle, high_watermark, log_start))

    def end(self, error: HeadraceError | None = None, *, other_lane: bool = False) -> None:
        self.follower.ended(an_end(self._handle, error, other_lane))

    async def acknowledged(self, end: int) -> None:
        await self.until(lambda: self.acks and self.acks[-1].durable_end >= end)


class FollowersWorld:
    """Use the class as ``async with FollowersWorld() as (broker, leader)``: broker 1 follows broker 2 in partition
    orders-0."""

    def __init__(self, fs: CrashingFileSystem | None = None, **static: str) -> None:
        self.fs = fs or CrashingFileSystem()
        self.leader = Leader()
        self.broker = SoloBroker(self.fs, streams=self.leader, **static)

    async def __aenter__(self) -> tuple[SoloBroker, Leader]:
        broker, leader = self.broker, self.leader
        await broker.__aenter__()
        endpoint = BrokerEndpoint("internal", "127.0.0.1", 2)
        topic_id = b"orders".ljust(16, b".")
        await broker.change(
            RegisterBrokerRecord(OTHER, 2, b"j" * 16, (b"e" * 16,), (endpoint,)),
            TopicRecord("orders", topic_id),
            PartitionRecord(topic_id, 0, (OTHER, BROKER_ID), (OTHER, BROKER_ID), OTHER, 0, 0),
        )
        return broker, leader

    async def __aexit__(self, *_: object) -> None:
        self.broker.roles.resign_all(lambda partition: errors.ServerShuttingDownError("the test is over"))
        await self.broker.__aexit__()


async def change(broker: SoloBroker, **fields: Any) -> None:
    topic, state = broker.image.topic("orders"), broker.image.partition(b"orders".ljust(16, b"."), 0)
    assert topic is not None
    assert state is not None
    await broker.change(PartitionChangeRecord(topic.topic_id, 0, state.partition_epoch + 1, **fields))


def log_of(broker: SoloBroker) -> bytes:
    log = broker.storage.log(ORDERS)
    assert log is not None
    return b"".join(
        data
        for path, data in sorted(broker.fs.files().items())
        if path.startswith(log.directory + "/") and path.endswith(".log")
    )
