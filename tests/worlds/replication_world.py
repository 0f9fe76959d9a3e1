"""A leading broker and a scripted follower: the real service, lanes, logs and writers on a file system in memory, and
streams whose sent messages the test reads."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace_broker.handlers.replication import LeaderStream, ReplicationService
from headrace_broker.partition.messages import Ack, Hello, Join, Lane, Request, Response
from headrace_broker.replication import wire
from headrace_core.errors import HeadraceError
from headrace_core.metadata import MetadataDelta
from headrace_core.metadata.records import (
    BrokerChangeRecord,
    BrokerEndpoint,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace_core.types import TopicPartition
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
        self.got: list[Response] = []
        self._taken = 0
        send = self.stream.send

        def sending(response: Any, size: int = 0) -> None:
            send(response, size)
            self.handler.on_sending()
            if self.reads:
                asyncio.get_running_loop().call_soon(self.take)

        self.stream.send = sending  # type: ignore[method-assign]

    def take(self) -> None:
        """Read the messages that were sent, so that the stream's queue is empty and the leader is notified."""
        while self._taken < len(self.stream.sent):
            self.got.append(wire.response_of(self.stream.sent[self._taken]))
            self._taken += 1
            self.stream.queued_bytes = 0
            self.handler.on_written()

    def hello(self, *, broker_epoch: int = 7, lane: Lane = Lane.LIVE, window: int = WINDOW, **other: Any) -> None:
        hello = Hello("test", FOLLOWER, broker_epoch, BROKER_ID, lane, window)._replace(**other)
        self.handler.on_request(wire.hello_to_proto(hello))

    def say(self, request: Request) -> None:
        self.handler.on_request(wire.request_to_proto(request))

    def join(self, handle: int, topic: str, *, partition: int = 0, log_end: int = 0, last_epoch: int = -1) -> None:
        topic_id = topic.encode().ljust(16, b".")
        join = Join(handle, topic_id, partition, 0, 0, log_end, last_epoch, log_end, WINDOW)
        self.say(Request(joins=(join,)))

    def ack(self, handle: int, end: int) -> None:
        self.say(Request(acks=(Ack(handle, end, end, 0),)))

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
