"""Controllers: one without a network, whose files are in memory; several in one process, with real disks and sockets;
and simulated ones for code that follows the metadata over real gRPC calls."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from headrace_controller.app import serve
from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import Heartbeat, RegisterBroker, Registered
from headrace_controller.driver import ControllerDriver
from headrace_controller.formatting import write_voters
from headrace_controller.handlers.follow import FollowService
from headrace_controller.quorum_controller import QuorumController, QuorumSettings
from headrace_controller.raft import Place, SnapshotId, VoterSet
from headrace_controller.storage import MetadataStorage
from headrace_core.clock import Clock, SystemClock
from headrace_core.errors import HeadraceError, NotControllerError, OffsetOutOfRangeError
from headrace_core.log.files import RealFileSystem
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerEndpoint,
    ClusterRecord,
    ConfigRecord,
    MetadataDelta,
    MetadataImage,
    TopicRecord,
)
from headrace_core.metadata.codec import decode_batches, encode_decision
from headrace_core.metadata.records import METADATA_VERSION, MetadataRecord
from headrace_core.metadata.snapshot import encode_snapshot
from headrace_core.node.config import NodeConfig
from headrace_core.node.first_voters import InitialVoter
from headrace_core.node.ids import id_to_text
from headrace_core.node.meta_properties import format_directories, read_meta
from headrace_core.rpc import ChannelPurpose, error_from_rpc, open_channel
from headrace_core.rpc.server import Listener
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2_grpc
from tests.worlds.cluster_world import CLUSTER, id16
from tests.worlds.this_process import free_port

ROOT = "/data"
LOG = f"{ROOT}/__cluster_metadata-0/00000000000000000000.log"
QUORUM_STATE = f"{ROOT}/__cluster_metadata-0/quorum-state"


def formatted() -> CrashingFileSystem:
    fs = CrashingFileSystem()
    format_directories([ROOT], cluster_id=CLUSTER, node_id=1, fs=fs)
    return fs


def open_storage(fs: CrashingFileSystem, clock: ManualClock | None = None) -> MetadataStorage:
    return MetadataStorage.open(fs, ROOT, clock=clock or ManualClock(), cluster_id=CLUSTER, node_id=1)


def new_driver(storage: MetadataStorage, clock: ManualClock | None = None, seed: int = 1) -> ControllerDriver:
    rng = random.Random(seed)
    controller = QuorumController(
        ClusterCore(ClusterSettings(), new_id=lambda: rng.randbytes(16)),
        storage,
        node_id=1,
        cluster_id=CLUSTER,
        clock=clock or ManualClock(),
        draw=rng.randrange,
        settings=QuorumSettings(),
        send=lambda messages: None,
    )
    return ControllerDriver(controller, storage)


@asynccontextmanager
async def running(
    fs: CrashingFileSystem, clock: ManualClock | None = None, seed: int = 1
) -> AsyncIterator[ControllerDriver]:
    """A controller that serves; it is stopped cleanly at the end, unless its disk has failed."""
    clock = clock or ManualClock()
    storage = open_storage(fs, clock)
    driver = new_driver(storage, clock, seed)
    driver.start()
    task = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        driver.stop()
        await task
        storage.close()


async def live_broker(driver: ControllerDriver, number: int = 1, life: int = 0) -> Registered:
    answer = await driver.ask(
        RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=id16(1_000 * number + life),
            directory_ids=(id16(number),),
            endpoints=(BrokerEndpoint("client", "h", number),),
        )
    )
    registered = answer.reply
    assert isinstance(registered, Registered)
    beat = Heartbeat(
        broker_id=registered.broker_id,
        broker_epoch=registered.broker_epoch,
        metadata_offset=answer.metadata_offset,
    )
    await driver.ask(beat)
    return registered


CLUSTER_ID = id_to_text(bytes(range(16)))


class Controller:
    """One controller, run in the same way as in production, but not in its own process."""

    def __init__(self, root: Path, node_id: int, bootstrap: str) -> None:
        self.node_id = node_id
        self.root = root / f"controller-{node_id}"
        self.client, self.internal = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        format_directories([str(self.root)], cluster_id=CLUSTER_ID, node_id=node_id)
        self.directory_id = read_meta(str(self.root), node_id=node_id, is_controller=True).directory_id
        self._config = NodeConfig.from_properties(
            {
                "process.roles": "controller",
                "node.id": str(node_id),
                "log.dirs": str(self.root),
                "listeners": f"client://{self.client},internal://{self.internal}",
                "controller.quorum.bootstrap.servers": bootstrap or self.internal,
            },
            role="controller",
        )
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begins_with(self, *voters: Controller) -> None:
        initial = [
            InitialVoter(node_id=each.node_id, address=each.internal, directory_id=each.directory_id) for each in voters
        ]
        write_voters(RealFileSystem(), str(self.root), initial)

    def start(self) -> None:
        self._task = asyncio.create_task(serve(self._config, self._stop))

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    async def cut_short(self) -> None:
        """Cancel the task that runs the controller."""
        task, self._task = self._task, None
        assert task is not None
        task.cancel()
        await asyncio.wait([task])

    async def ended(self) -> None:
        """Wait until the controller has ended without a stop; raise the error that ended it."""
        task, self._task = self._task, None
        assert task is not None
        await task

    async def call(self, method: str, request: Any, *, listener: str = "client") -> Any:
        address = self.client if listener == "client" else self.internal
        async with open_channel(address, ChannelPurpose.CONTROL) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            try:
                return await getattr(stub, method)(request, timeout=60, wait_for_ready=True)
            except grpc.aio.AioRpcError as failure:
                raise error_from_rpc(failure, address) from None

    async def describe(self) -> admin_pb2.DescribeQuorumResponse:
        return await self.call("DescribeQuorum", admin_pb2.DescribeQuorumRequest())

    async def describe_once(self, holds: Callable[[admin_pb2.DescribeQuorumResponse], bool]) -> Any:
        """Describe the quorum until ``holds`` accepts a description; return that description. On a busy machine there
        may be no leader for a moment, so failed calls are repeated."""
        async with asyncio.timeout(60):
            while True:
                try:
                    if holds(found := await self.describe()):
                        return found
                except HeadraceError as error:
                    if not error.retriable:
                        raise
                await asyncio.sleep(0.02)


def ids(replicas: Any) -> list[int]:
    return [each.replica_id for each in replicas]


def with_controllers(root: Path, voters: int, others: int, test: Callable[..., Awaitable[None]]) -> None:
    """Run ``test`` with ``voters`` voting controllers and ``others`` observers."""

    async def run() -> None:
        first = Controller(root, 1, "")
        made = [first, *(Controller(root, node_id, first.internal) for node_id in range(2, voters + others + 1))]
        for each in made:
            each.begins_with(*(made[:voters] if each in made[:voters] else []))
            each.start()
        try:
            await test(*made)
        finally:
            await asyncio.gather(*(each.stop() for each in made))

    asyncio.run(run())


# Code that follows the metadata. A ``Quorum`` has the true state: the committed records, and the leader. A ``Member``
# is one controller, with its own knowledge of the true state; its listener runs the real FollowMetadata and ReadIndex
# (headrace_controller.handlers.follow).

FOLLOWED_CLUSTER = "follow"
WAIT_S = 60.0


def note(key: str, value: str) -> ConfigRecord:
    """A small metadata record whose effect a test can read: a configuration key of broker 7."""
    return ConfigRecord(2, "7", key, value)


class Quorum:
    """The committed batches, and the current leader and term."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []  # (base offset, next offset, bytes)
        self.images: list[MetadataImage] = [EMPTY_IMAGE]
        self.term = 1
        self.leader_id = 1
        self.members: list[Member] = []
        self.commit(ClusterRecord(FOLLOWED_CLUSTER, METADATA_VERSION))

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    @property
    def end(self) -> int:
        return self.image.next_offset

    def commit(self, *records: MetadataRecord) -> int:
        """Commit one decision; return its metadata offset. Members that are not deaf apply the decision at once."""
        base = self.end
        data = encode_decision(records, timestamp_ms=1, base_offset=base, epoch=self.term)
        self.batches.append((base, base + len(records), data))
        self.images.append(self.image.apply(records, base + len(records), self.term))
        for member in self.members:
            if not member.is_deaf:
                member.catch_up()
        return self.end

    def topic(self, name: str) -> int:
        return self.commit(TopicRecord(name, name.encode().ljust(16, b".")))

    def elect(self, node_id: int) -> None:
        """A new term. Members that are deaf do not learn of the new leader."""
        self.term += 1
        self.leader_id = node_id
        for member in self.members:
            if not member.is_deaf:
                member.leader_id, member.term = node_id, self.term
                for watcher in member._turn_watchers:
                    watcher()


class Member:
    """One controller, with its applied metadata (``image``) and the leader that it knows. ``is_deaf``: the member
    receives nothing; if it is the leader, its read barriers never end."""

    def __init__(self, quorum: Quorum, node_id: int, log_start: int = 0) -> None:
        self.quorum = quorum
        self.node_id = node_id
        self.cluster_id = FOLLOWED_CLUSTER
        self.image = EMPTY_IMAGE
        self.leader_id, self.term = quorum.leader_id, quorum.term
        self.is_deaf = False
        self.log_start_offset = log_start
        self.reads = 0
        self.barriers = self.hurried = 0  # number of barriers; number of barriers that were not deferred
        self.address = ""
        self.heartbeat = asyncio.Event()  # the events for which deferred barriers wait
        self.heartbeat.set()
        self._subscribers: list[Callable[[MetadataImage, MetadataDelta], None]] = []
        self._turn_watchers: list[Callable[[], None]] = []
        quorum.members.append(self)
        self.catch_up()

    def catch_up(self, end: int | None = None) -> None:
        """Apply the committed batches (up to ``end``)."""
        for base, next_offset, data in self.quorum.batches:
            if self.image.next_offset <= base and (end is None or next_offset <= end):
                (batch,) = decode_batches(data)
                self.image, delta = self.image.apply_with_delta(batch.records, next_offset, batch.epoch)
                for subscriber in tuple(self._subscribers):
                    subscriber(self.image, delta)

    # -- the interface for the handlers -------------------------------------------------------------------------------

    def controller_addresses(self) -> dict[int, str]:
        return {member.node_id: member.address for member in self.quorum.members if member.address}

    def subscribe(self, subscriber: Callable[[MetadataImage, MetadataDelta], None]) -> Callable[[], None]:
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def on_turn(self, watcher: Callable[[], None]) -> None:
        self._turn_watchers.append(watcher)

    async def barrier(self, *, is_deferred: bool = False) -> int:
        self.barriers += 1
        self.hurried += not is_deferred
        if is_deferred:
            await self.heartbeat.wait()
        while self.is_deaf:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if self.quorum.leader_id != self.node_id:
            raise NotControllerError(f"controller {self.node_id} does not lead")
        return self.image.next_offset

    def read(self, offset: int) -> tuple[bytes, int]:
        if offset < self.log_start_offset:
            raise OffsetOutOfRangeError(f"{offset} is below {self.log_start_offset}")
        self.reads += 1
        found = [batch for batch in self.quorum.batches if offset <= batch[0] < self.image.next_offset][:3]
        return b"".join(data for _, _, data in found), found[-1][1] if found else offset

    def epoch_below(self, offset: int) -> int | None:
        if offset < self.log_start_offset:
            return None
        return next(
            (image.epoch for image in self.quorum.images if image.next_offset >= offset),
            None,
        )

    def newest_snapshot(self) -> SnapshotId | None:
        if not self.log_start_offset:
            return None
        return SnapshotId(Place(self.log_start_offset, self._snapshot_image().epoch), VoterSet.of([]))

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        if snapshot.place.offset != self.log_start_offset:
            return None
        data = b"".join(encode_snapshot(self._snapshot_image(), voters=(), timestamp_ms=1))
        piece = data[position : position + 100]  # small batches, so that there are many
        return piece, position + len(piece) == len(data)

    def _snapshot_image(self) -> MetadataImage:
        return next(image for image in self.quorum.images if image.next_offset == self.log_start_offset)


class Served(cluster_pb2_grpc.ClusterServicer):
    """A Member that serves on a listener. ``stop`` breaks all connections; ``start`` listens on the same port again."""

    def __init__(self, member: Member, clock: Clock | None = None) -> None:
        self.member = member
        self.clock = clock or SystemClock()
        self.service = FollowService(member, self.clock)
        self.follows = self.asked_for = 0
        self._port = free_port()
        self._listener: Listener | None = None

    async def FollowMetadata(self, request: Any, context: Any) -> None:
        self.follows += 1
        await self.service.follow(request, context)

    async def ReadIndex(self, request: Any, context: Any) -> Any:
        self.asked_for += 1
        return await self.service.read(request)

    VouchMetadata = ReadIndex

    async def start(self) -> None:
        self._listener = Listener("internal", port=self._port)
        self._listener.add(cluster_pb2_grpc.add_ClusterServicer_to_server, self, "headrace.v1.Cluster")
        self._port = await self._listener.start()
        self.member.address = self._listener.address
        self.service.start()

    async def stop(self, *, forget: bool = False) -> None:
        """``forget``: no other node reports this member's address any more."""
        if self._listener is not None:
            self.service.close()
            await self._listener.stop(0)
            await self.service.stop()
            self._listener = None
            self.service = FollowService(self.member, self.clock)
            if forget:
                self.member.address = ""


class ServedByFormerRelease(Served):
    """A controller of the previous release, which serves ReadIndex under its former name only."""

    ReadIndex = cluster_pb2_grpc.ClusterServicer.ReadIndex


@contextlib.asynccontextmanager
async def serving(members: Iterable[Member], *, former: Container[int] = ()) -> AsyncIterator[list[Served]]:
    """``former``: ids of the members that run the previous release."""
    served = [ServedByFormerRelease(member) if member.node_id in former else Served(member) for member in members]
    try:
        for each in served:
            await each.start()
        yield served
    finally:
        for each in served:
            await each.stop()


@contextlib.asynccontextmanager
async def running_task(work: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Run a task for the duration of a ``with`` block; raise the task's own error if it fails."""
    task = asyncio.ensure_future(work)
    try:
        yield task
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
