"""Simulated controllers for code that follows the metadata: real gRPC calls over loopback, a log in memory.

A ``Quorum`` has the true state: the committed records, and the leader. A ``Member`` is one controller, with its own
knowledge of the true state. The listener of a member runs the real FollowMetadata and ReadIndex
(headrace_controller.handlers.follow).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Container, Iterable
from typing import Any

from headrace_controller.handlers.follow import FollowService
from headrace_controller.raft import Place, SnapshotId, VoterSet
from headrace_core.clock import Clock, SystemClock
from headrace_core.errors import NotControllerError, OffsetOutOfRangeError
from headrace_core.metadata import EMPTY_IMAGE, ClusterRecord, ConfigRecord, MetadataDelta, MetadataImage, TopicRecord
from headrace_core.metadata.codec import decode_batches, encode_decision
from headrace_core.metadata.records import METADATA_VERSION, MetadataRecord
from headrace_core.metadata.snapshot import encode_snapshot
from headrace_core.rpc.server import Listener
from headrace_protos.v1 import cluster_pb2_grpc
from tests.worlds.this_process import free_port

CLUSTER = "follow"
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
        self.commit(ClusterRecord(CLUSTER, METADATA_VERSION))

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
        self.cluster_id = CLUSTER
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
async def running(work: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Run a task for the duration of a ``with`` block; raise the task's own error if it fails."""
    task = asyncio.ensure_future(work)
    try:
        yield task
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
