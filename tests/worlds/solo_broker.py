"""A broker without processes and without gRPC: the real handlers, replicas and writers on a file system in memory.

The test makes the metadata; streams are fakes that collect the sent messages. A disk can therefore fail, stall or fill
up, and a crash can lose every unsynced byte, while a handler is at work."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace_broker.context import BrokerContext, BrokerLimits, BrokerMetrics
from headrace_broker.flow import Flow
from headrace_broker.handlers.fetch import FetchStream
from headrace_broker.handlers.produce import ProduceStream
from headrace_broker.leader_replica import ProducerTransaction
from headrace_broker.partition.verification import WaitingRoom
from headrace_broker.partition_table import PartitionTable
from headrace_broker.placement import Assigned
from headrace_broker.replication.follower_replica import FollowerReplica
from headrace_broker.replication.pushes import PendingPushes
from headrace_broker.roles import ReplicationStreams, Roles
from headrace_broker.settings import BrokerIdentity, LogSettings
from headrace_broker.storage import Storage
from headrace_core.clock import SystemClock
from headrace_core.errors import HeadraceError
from headrace_core.log import format_directory
from headrace_core.log.files import FileSystem
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import EMPTY_IMAGE, MetadataImage
from headrace_core.metadata.records import (
    BrokerChangeRecord,
    BrokerEndpoint,
    ClusterRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_core.records import decode_batch, encode_batch, split_batches
from headrace_core.telemetry import Emitter, Event, Metrics
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2, produce_pb2

BROKER_ID = 1


def batch(*values: bytes) -> bytes:
    return encode_batch([(1000, None, value, []) for value in values])


class StallingFileSystem(CrashingFileSystem):
    """fsync waits while ``stalled``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.stalling = threading.Event()

    def stall(self) -> None:
        self.stalling.clear()
        self.go.clear()

    def release(self) -> None:
        self.go.set()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        file = super().open(path, write=write, create=create)
        sync = file.sync

        def stalling_sync() -> None:
            if not self.go.is_set():
                self.stalling.set()
            assert self.go.wait(60), "the test never released the disk"
            sync()

        return _File(file, stalling_sync)


class _File:
    """A file whose ``sync`` is replaced."""

    def __init__(self, file: Any, sync: Callable[[], None]) -> None:
        self._file = file
        self.sync = sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FakeStream:
    """Replaces rpc.streams.ServerStream, and collects the sent messages; no message counts as written until the test
    marks it as written."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.queued_bytes = 0
        self.request_bytes = 0
        self.paused = False
        self.ended: BaseException | None = None
        self.punished: list[int] = []
        self.arrived = asyncio.Event()

    def send(self, response: Any, size: int = 0) -> None:
        self.sent.append(response)
        self.queued_bytes += size
        self.arrived.set()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def punish(self, size: int) -> None:
        self.punished.append(size)

    def finish(self, error: BaseException | None = None) -> None:
        self.ended = error

    def check_idle(self) -> None:
        pass

    async def wait_sent(self, count: int) -> list[Any]:
        async with asyncio.timeout(60):
            while len(self.sent) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.sent


class Nobody:
    """Replaces the streams to leaders: replicas that should follow a leader only wait."""

    def follow(self, replica: FollowerReplica) -> None:
        pass

    def unfollow(self, replica: FollowerReplica) -> None:
        pass

    def confirm_leave(self, replica: FollowerReplica, done: Callable[[], None]) -> Callable[[], None]:
        done()
        return lambda: None


class SoloBroker:
    """Use the class as ``async with SoloBroker(fs) as broker``: the broker starts with the contents of ``fs``
    (formatted if it is new)."""

    def __init__(
        self,
        fs: CrashingFileSystem,
        *roots: str,
        limits: BrokerLimits | None = None,
        image: MetadataImage | None = None,
        former: MetadataImage = EMPTY_IMAGE,
        storage_fs: FileSystem | None = None,
        shortage_first_ms: float = 0.0,
        streams: ReplicationStreams | None = None,
        **static: str,
    ) -> None:
        """``image``: the metadata before the start. ``former``: the metadata that the broker saved. ``storage_fs``: the
        file system of the storage, if it is not ``fs`` itself. ``shortage_first_ms``: shortest time that a measured
        shortage of space lasts. ``streams``: replaces the streams from leaders. ``static``: topic keys in the broker's
        properties file."""
        self.fs = fs
        self.roots = roots or ("/data",)
        self.image, self.former = image or MetadataImage(), former
        self.events: list[Event] = []
        emitter = Emitter()
        emitter.subscribe(self.events.append)
        clock = SystemClock()
        loop = asyncio.get_running_loop()
        settings = LogSettings(
            static={name.replace("_", "."): value for name, value in static.items()}, flush_interval_ms=1000
        )
        identity = BrokerIdentity("test", BROKER_ID, 1)
        pushes = PendingPushes()
        self.partitions = PartitionTable(identity, pushes)
        #: The directory that the controllers have recorded for a replica; tests replace it.
        self.assigned: Assigned = lambda partition, topic_id: None
        #: (topic id, partition, directory) of the replicas that must start empty.
        self.beginnings: list[tuple[bytes, int, bytes]] = []
        self.storage = Storage(
            storage_fs or fs,
            self.roots,
            clock=clock,
            rng=random.Random(1),
            loop=loop,
            events=emitter,
            on_advanced=self.partitions.logs_advanced,
            assigned=lambda partition, topic_id: self.assigned(partition, topic_id),
            shortage_first_ms=shortage_first_ms,
        )
        self.roles = Roles(
            self.partitions,
            self.storage,
            settings,
            streams=streams or Nobody(),
            report_fresh=lambda *what: self.beginnings.append(what[:3]),
            isr_due=lambda leader: None,
            events=emitter,
        )
        chosen = limits or BrokerLimits()
        self.context = BrokerContext(
            identity=identity,
            clock=clock,
            limits=chosen,
            flow=Flow(clock, loop, chosen.in_flight_bytes_max),
            metrics=BrokerMetrics(Metrics()),
            events=emitter,
            metadata=MetadataState(),
            partitions=self.partitions,
            pushes=pushes,
        )

    async def __aenter__(self) -> SoloBroker:
        for root in self.roots:
            if not self.fs.exists(root):
                with contextlib.suppress(OSError):  # a missing disk is not formatted
                    format_directory(self.fs, root, cluster_id="test", node_id=BROKER_ID)
        await self.storage.open(
            lambda topic: self.roles.settings_of(topic, self.image), broker_epoch=self.context.identity.broker_epoch
        )
        self.storage.begin_threads()
        await self.roles.apply_all(self.image, self.former)
        self.partitions.refusal = None
        if self.image.next_offset:
            return self
        endpoint = BrokerEndpoint("client", "127.0.0.1", 1)
        await self.change(
            ClusterRecord("test", 1),
            RegisterBrokerRecord(BROKER_ID, 1, b"i" * 16, (b"d" * 16,), (endpoint,)),
            BrokerChangeRecord(BROKER_ID, 1, fenced=False),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.context.flow.deadlines.close()
        await self.storage.close({}, broker_epoch=1)

    async def change(self, *records: MetadataRecord) -> None:
        """Apply records that the controller has decided."""
        image, delta = self.image.apply_with_delta(records, self.image.next_offset + len(records))
        self.image = image
        await self.roles.apply(image, delta)

    async def topic(self, name: str, partitions: int = 1, *, topic_id: bytes = b"") -> None:
        topic_id = topic_id or name.encode().ljust(16, b".")
        await self.change(
            TopicRecord(name, topic_id),
            *[
                PartitionRecord(topic_id, number, (BROKER_ID,), (BROKER_ID,), BROKER_ID, 0, 0)
                for number in range(partitions)
            ],
        )

    async def new_leader(self, name: str, leader: int, leader_epoch: int) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        await self.change(
            PartitionChangeRecord(topic.topic_id, 0, leader_epoch, leader=leader, leader_epoch=leader_epoch)
        )

    async def again(self, name: str) -> None:
        """Apply to each partition of the topic a change that has no meaning for this broker."""
        topic = self.image.topic(name)
        assert topic is not None
        await self.change(
            *[
                PartitionChangeRecord(topic.topic_id, number, partition.partition_epoch + 1, isr=partition.isr)
                for number, partition in enumerate(topic.partitions)
            ]
        )

    async def delete(self, name: str) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        await self.change(RemoveTopicRecord(topic.topic_id))

    def producer(self) -> tuple[ProduceStream, FakeStream]:
        stream = FakeStream()
        return ProduceStream(self.context, stream), stream  # type: ignore[arg-type]

    def consumer(self) -> tuple[FetchStream, FakeStream]:
        stream = FakeStream()
        return FetchStream(self.context, stream), stream  # type: ignore[arg-type]

    async def append(self, topic: str, records: bytes, partition: int = 0) -> Any:
        """Send one append request on a new stream; return its only result."""
        handler, stream = self.producer()
        handler.on_request(produce(1, topic, records, partition))
        (answer,) = await stream.wait_sent(1)
        handler.on_closed()
        return answer.results[0]

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values that a consumer can read now."""
        replica = self.partitions.leader(TopicPartition(topic, partition))
        end, offset = replica.leader.high_watermark, replica.leader.log_start
        found: list[bytes | None] = []
        while offset < end:
            result = replica.log.read(offset, 1 << 20, end)
            assert result is not None
            for span in split_batches(result.records):
                found += [record.value for record in decode_batch(result.records, span.position, start_offset=offset)]
            offset = result.next_offset
        return found


def produce(
    correlation_id: int,
    topic: str,
    records: bytes,
    partition: int = 0,
    *,
    acks: Any = produce_pb2.ACKS_ALL,
    timeout_ms: int = 0,
) -> Any:
    item = produce_pb2.ProducePartition(topic=topic, partition=partition, records=records)
    return produce_pb2.ProduceRequest(
        correlation_id=correlation_id, acks=acks, timeout_ms=timeout_ms, partitions=[item]
    )


def fetch(correlation_id: int, *topics: str, offset: int = 0, max_wait_ms: int = 60_000, min_bytes: int = 1) -> Any:
    return fetch_pb2.FetchRequest(
        correlation_id=correlation_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        partitions=[
            fetch_pb2.FetchPartition(
                topic=topic, partition=0, fetch_offset=offset, current_leader_epoch=-1, last_fetched_epoch=-1
            )
            for topic in topics
        ],
    )


class Verification(NamedTuple):
    transaction: ProducerTransaction
    partition: TopicPartition
    done: Callable[[HeadraceError | None], None]

    @property
    def what(self) -> tuple[str, int, int, int, int]:
        """(transactional id, producer id, epoch, version, partition)."""
        return (*self.transaction[:4], self.partition.partition)


class PlayedCoordinator:
    """Replaces ``Verifier``: ``asked`` are the verifications without an answer."""

    def __init__(self, room: WaitingRoom | None = None) -> None:
        self.room = room or WaitingRoom()
        self.asked: list[Verification] = []

    def transaction(self, transactional_id: str, producer_id: int, epoch: int, version: int) -> ProducerTransaction:
        return ProducerTransaction(transactional_id, producer_id, epoch, version, self._verify, self.room)

    def _verify(
        self,
        transaction: ProducerTransaction,
        partition: TopicPartition,
        done: Callable[[HeadraceError | None], None],
    ) -> None:
        self.asked.append(Verification(transaction, partition, done))

    def answer(self, error: HeadraceError | None = None, *, nth: int = 0) -> None:
        """Answer the oldest verification, or the nth one."""
        self.asked.pop(nth).done(error)
