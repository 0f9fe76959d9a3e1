"""An observer of the metadata log, which keeps the metadata image of a broker or a coordinator up to date.

    follower = MetadataFollower(addresses, cluster_id, on_change=broker.on_metadata)
    task = asyncio.create_task(follower.run())
    await follower.wait_applied(offset)
    follower.lag                                  # the age of ``follower.image``

The follower connects to any controller, reads committed batches from its position, applies the batches, and passes on
each new image with its changes. Every 800 ms the follower also asks the same controller for a ReadIndex barrier, which
bounds the image's age (metadata/freshness.py). A barrier that is some hundred milliseconds old is enough to bound the
age; ``wait_current`` asks for a new barrier.

The follower tries the next controller at once when a connection breaks, is silent, or ends at a controller that cannot
reach the leader. After all controllers have failed, the follower pauses before the next attempt. The metadata stream
contains the controllers' addresses, too.

With an ``ImageStore``, the follower begins with the node's last local snapshot, and writes snapshots at intervals. The
follower writes an image only after ``on_change`` has returned for that image.

A follower may be ahead of its controller, because the controller may not know the leader's latest commits. Only a
barrier that began after the follower connected, and that ends below the follower's offset, proves that the histories
differ. The node's process ends when the histories differ.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

from ..clock import Clock, SystemClock
from ..errors import (
    CorruptLogError,
    DivergingMetadataError,
    HeadraceError,
    InconsistentClusterIdError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from ..metadata import EMPTY_IMAGE, METADATA_VERSION, ImageBuilder, MetadataDelta, MetadataImage
from ..metadata.codec import decode_batches
from ..metadata.freshness import Freshness, MetadataLag
from ..metadata.snapshot import decode_snapshot
from ..rpc.channel import ChannelPurpose
from ..rpc.duplex import read_message
from ..rpc.outage import Backoff, Outage
from ..rpc.status import error_from_rpc
from ..telemetry import Emitter, MetadataImageLoaded, MetadataImageSaved, Metrics
from ..types import join_address
from .controllers import Controllers
from .image_store import ImageStore, LoadedImage

logger = logging.getLogger("headrace.metadata")

#: Callback for each new metadata image, in order; the follower reads the next image after the call has returned. The
#: delta of an image may have no changes.
OnChange = Callable[[MetadataImage, MetadataDelta], Awaitable[None]]

#: Seconds between two ReadIndex requests for the image's age, the pause after a request without a response, and the
#: timeout of a request.
READ_INDEX_EVERY_S = 0.8
_READ_INDEX_AGAIN_S = 0.25
_READ_INDEX_TIMEOUT_S = 2.5
_ASK_AGAIN_S = 0.05  #: Seconds before a ReadIndex request is repeated while the controller knows no leader.
#: Seconds after which a silent controller counts as frozen or unreachable; a controller sends a message every second,
#: and responds to requests. A metadata stream without messages counts as broken after twice _SILENCE_S if its
#: controller still responds to requests.
_SILENCE_S = 2.0
#: Seconds without ReadIndex barriers and records after which the follower connects to the next controller, because the
#: present controller may be cut off from the leader. (An idle image is up to two seconds old, and an election takes one
#: to two seconds.)
_UNCONFIRMED_S = 5.0
_WORKED_MS = 1_000  #: Milliseconds after which a connection counts as successful.
#: Defaults of Kafka's metadata.log.max.record.bytes.between.snapshots and metadata.log.max.snapshot.interval.ms.
SAVE_AFTER_BYTES = 20 * 1024 * 1024
SAVE_AFTER_MS = 3_600_000

#: Number of metadata records that the follower applies before it lets other tasks run, about every 5 ms.
REPLAY_STEP_RECORDS = 500

#: Errors that end the metadata follower: the controller belongs to another cluster, has another history, or does not
#: support the version.
_FATAL = (InconsistentClusterIdError, DivergingMetadataError, UnsupportedVersionError)


class MetadataFollower:
    """Follows the metadata log. ``image`` is the applied image, for which ``on_change`` has returned; ``controllers``
    has the controllers' addresses and their leader."""

    def __init__(
        self,
        controllers: Controllers | Sequence[str],
        cluster_id: str,
        *,
        node_id: int = -1,
        on_change: OnChange | None = None,
        image: MetadataImage = EMPTY_IMAGE,
        freshness: Freshness | None = None,
        clock: Clock | None = None,
        events: Emitter | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """``controllers``: a Controllers object, or ``host:port`` of some controllers' internal listeners. ``node_id``:
        the node's configured id, which determines the controller to follow first (-1: any controller). ``image``: the
        metadata image to start from. ``freshness``: the object in which the follower records the age of its image."""
        self.image = image
        self.controllers = controllers if isinstance(controllers, Controllers) else Controllers(controllers)
        #: Number of records that the follower has read from the metadata log since its start; a local snapshot makes
        #: this number small.
        self.records_read = 0
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._events = events or Emitter()
        self._freshness = freshness or Freshness(image.next_offset)
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []  # sorted list of (offset, order, waiter)
        self._order = itertools.count()
        self._current_waiters: list[tuple[float, asyncio.Future[None]]] = []  # (as of, waiter)
        self._ask_now = asyncio.Event()
        self._connected_ms = self._moved_ms = self._answered_ms = 0.0
        self._store: ImageStore | None = None
        self._save_after = (SAVE_AFTER_BYTES, float(SAVE_AFTER_MS))
        self._saved_offset = image.next_offset
        self._saved_ms = self._clock.monotonic_ms()
        self._bytes_since_save = 0
        self._saving: asyncio.Task[None] | None = None
        metrics = metrics or Metrics()
        self._load_errors = metrics.counter("metadata-load-error-count")
        self._apply_errors = metrics.counter("metadata-apply-error-count")
        metrics.gauge("last-applied-record-offset", lambda: self.image.next_offset - 1)
        metrics.gauge("last-applied-record-epoch", lambda: self.image.epoch)
        metrics.gauge("last-applied-record-lag-ms", self._lag_ms)
        metrics.gauge("metadata-lag-records", lambda: self.lag.records)

    @property
    def leader_id(self) -> int:
        """Id of the leading controller; -1 if unknown."""
        return self.controllers.leader_id

    @property
    def lag(self) -> MetadataLag:
        """Lag of ``image``, with an upper bound of its age by this node's clock."""
        return self._freshness.lag(self._clock.monotonic_ms())

    async def run(self) -> None:
        """Follow until cancelled. Raises errors that a retry cannot cure: InconsistentClusterIdError (another cluster),
        DivergingMetadataError (the controllers have lost history that this node has seen), UnsupportedVersionError (the
        log was written by a newer Headrace), CorruptLogError, and the errors of ``on_change``."""
        backoff, outage, in_vain = Backoff(), Outage(logger, "following the metadata log"), 0
        candidates = self.controllers.candidates()
        first = self._node_id if self._node_id >= 0 else random.randrange(len(candidates))
        address = candidates[first % len(candidates)]  # the node id spreads followers evenly over the controllers
        while True:
            channel = self.controllers.channels.open(address, ChannelPurpose.CONTROL)
            self._connected_ms = self._answered_ms = 0.0
            try:
                await self._follow(channel, address, outage)
                outage.failed(address, "the controller ended the stream")
            except grpc.aio.AioRpcError as failure:
                error = error_from_rpc(failure, address)
                if isinstance(error, _FATAL):
                    raise error from None
                outage.failed(address, error)
            except NetworkError as error:
                outage.failed(address, error)
            finally:
                await channel.close()
            if self._connected_ms and self._clock.monotonic_ms() - self._connected_ms > _WORKED_MS:
                backoff.reset()
                in_vain = 0
            in_vain += 1
            if in_vain >= len(self.controllers.candidates()):
                in_vain = 0
                await asyncio.sleep(backoff.next_s())
            address = self.controllers.after(address)

    async def wait_applied(self, offset: int, timeout_s: float | None = None) -> MetadataImage:
        """Wait until all records below ``offset`` are applied, and return the image; RequestTimedOutError after
        ``timeout_s``."""
        if self.image.next_offset < offset:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (offset, next(self._order), waiter)
            bisect.insort(self._waiters, entry)
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter
            except TimeoutError:
                raise RequestTimedOutError(
                    f"this node has applied the metadata log up to {self.image.next_offset}, but not up to {offset} "
                    "yet; retry"
                ) from None
            finally:
                if entry in self._waiters:
                    self._waiters.remove(entry)
        return self.image

    async def wait_current(self) -> MetadataImage:
        """Wait until the image contains all records committed before this call, and return the image."""
        now_ms = self._clock.monotonic_ms()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (now_ms, waiter)
        self._current_waiters.append(entry)
        self._ask_now.set()
        try:
            await waiter
        finally:
            if entry in self._current_waiters:
                self._current_waiters.remove(entry)
        return self.image

    async def load(self, store: ImageStore) -> None:
        """Begin with an earlier snapshot, if the store has one. Call ``load`` before ``run``. ``on_change`` is not
        called for the snapshot, because a starting node acts on the whole image."""
        assert self.image is EMPTY_IMAGE, "a snapshot is loaded first"
        began_ms = self._clock.monotonic_ms()
        loaded = await asyncio.to_thread(store.load)
        if loaded is not None:
            self._freshness.applied(loaded.image.next_offset)
            self.image, self._saved_offset = loaded.image, loaded.image.next_offset
            self._tell_loaded(loaded.path, loaded.image, loaded.size_bytes, began_ms)

    def keep(self, store: ImageStore, *, after_bytes: int = SAVE_AFTER_BYTES, after_ms: float = SAVE_AFTER_MS) -> None:
        """Write snapshots from now on: after ``after_bytes`` of records, or ``after_ms`` after the last snapshot if
        there are new records (0: not by time)."""
        self._store = store
        self._save_after = (after_bytes, after_ms)

    async def save(self) -> None:
        """Write a snapshot if the image has changed since the last snapshot; called at a clean stop, after ``run``."""
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)
        if self._store is not None and self.image.next_offset > self._saved_offset:
            await self._save(self._store, self.image)

    def _save_if_due(self) -> None:
        store, (after_bytes, after_ms) = self._store, self._save_after
        if store is None or self._saving is not None or self.image.next_offset <= self._saved_offset:
            return
        is_old = 0 < after_ms <= self._clock.monotonic_ms() - self._saved_ms
        if self._bytes_since_save >= after_bytes or is_old:
            self._saving = asyncio.create_task(self._save(store, self.image), name="metadata snapshot")

    async def _save(self, store: ImageStore, image: MetadataImage) -> None:
        began_ms = self._clock.monotonic_ms()
        self._bytes_since_save, self._saved_ms = 0, began_ms
        try:
            saved = await asyncio.to_thread(store.save, image)
        except OSError as error:  # ignore a failed save: a snapshot only shortens the next start
            logger.warning("cannot write a snapshot of the metadata, trying again later: %s", error)
            return
        finally:
            self._saving = None
        self._saved_offset = image.next_offset
        if saved is not None:
            seconds = (self._clock.monotonic_ms() - began_ms) / 1_000
            self._events.emit(
                MetadataImageSaved(
                    path=saved.path,
                    next_offset=image.next_offset,
                    epoch=image.epoch,
                    bytes=saved.size_bytes,
                    seconds=seconds,
                )
            )

    async def _follow(self, channel: grpc.aio.Channel, address: str, outage: Outage) -> None:
        request = cluster_pb2.FollowMetadataRequest(cluster_id=self._cluster_id, from_offset=self.image.next_offset)
        if self.image.epoch >= 0:
            request.from_epoch = self.image.epoch
        stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        parts = _SnapshotParts()
        call = stub.FollowMetadata(request)
        confirming = asyncio.create_task(self._keep_confirming(stub), name="metadata age")
        asking = asyncio.create_task(self._confirm_when_asked(stub), name="metadata barriers")
        read: asyncio.Future[Any] | None = None
        try:
            while True:
                # Never cancel only this read: gRPC ends a read of the stream only when the whole call is cancelled.
                read = asyncio.ensure_future(read_message(call))
                message = await self._next_message(read)
                if message is grpc.aio.EOF:
                    return
                if not self._connected_ms:
                    self._connected_ms = self._clock.monotonic_ms()
                outage.over()
                await self._apply(message, parts, address)
                self._save_if_due()
                self._leave_if_cut_off()
        finally:
            call.cancel()
            confirming.cancel()
            asking.cancel()
            await asyncio.wait({confirming, asking, *([read] if read is not None else [])})
            if read is not None and not read.cancelled():
                read.exception()

    async def _next_message(self, read: asyncio.Future[Any]) -> Any:
        """Await ``read``; raises NetworkError when the controller is silent for too long."""
        began_ms = self._clock.monotonic_ms()
        silent_s = 0.0
        while silent_s < _SILENCE_S:
            done, _ = await asyncio.wait({read}, timeout=_SILENCE_S - silent_s)
            if done:
                return read.result()
            now_ms = self._clock.monotonic_ms()
            stream_s = (now_ms - began_ms) / 1_000
            silent_s = max(min(stream_s, (now_ms - self._answered_ms) / 1_000), stream_s - _SILENCE_S)
        raise NetworkError(f"the controller has sent no message for {_SILENCE_S:.0f} s; trying the next controller")

    def _leave_if_cut_off(self) -> None:
        if len(self.controllers.candidates()) < 2:
            return
        last_ms = max(self._connected_ms, self._moved_ms, self._freshness.as_of_ms or 0.0)
        if self._clock.monotonic_ms() - last_ms > _UNCONFIRMED_S * 1_000:
            raise NetworkError(
                f"the controller has had no contact with the quorum's leader for {_UNCONFIRMED_S:.0f} s; "
                "trying the next controller"
            )

    async def _keep_confirming(self, stub: Any) -> None:
        while True:
            began_ms = self._clock.monotonic_ms()
            every_s = READ_INDEX_EVERY_S if await self._confirm(stub, is_deferred=True) else _READ_INDEX_AGAIN_S
            left_s = every_s - (self._clock.monotonic_ms() - began_ms) / 1_000
            await asyncio.sleep(max(left_s, every_s / 10))

    async def _confirm_when_asked(self, stub: Any) -> None:
        if self._current_waiters:  # requests have waited for current metadata since the last connection ended
            self._ask_now.set()
        while True:
            await self._ask_now.wait()
            self._ask_now.clear()
            if not await self._confirm(stub, is_deferred=False) and self._current_waiters:
                self._ask_now.set()
                await asyncio.sleep(_ASK_AGAIN_S)

    async def _confirm(self, stub: Any, *, is_deferred: bool) -> bool:
        """Send a ReadIndex request, which bounds the image's age; returns False without a response."""
        request = cluster_pb2.ReadIndexRequest(cluster_id=self._cluster_id, is_deferred=is_deferred)
        began_ms = self._clock.monotonic_ms()
        try:
            # VouchMetadata is the former name of ReadIndex; controllers of the previous release do not serve ReadIndex
            # (cluster.proto).
            answer = await stub.VouchMetadata(request, timeout=_READ_INDEX_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            error = error_from_rpc(failure, "the controller")
            if isinstance(error, NotControllerError):
                self.controllers.refused(error)
            return False
        self.controllers.led_by(answer.leader_id, answer.leader_epoch)
        self._answered_ms = self._clock.monotonic_ms()
        self._freshness.confirmed(answer.committed_offset, began_ms - answer.age_ms)
        self._wake_current()
        return True

    async def _apply(self, message: cluster_pb2.FollowMetadataResponse, parts: _SnapshotParts, address: str) -> None:
        if message.controllers:
            named = {each.controller_id: join_address(each.host, each.port) for each in message.controllers}
            self.controllers.named(named)
        self.controllers.led_by(message.leader_id, message.leader_epoch)
        self._freshness.committed(max(message.leader_offset, message.committed_offset))
        try:
            if message.HasField("snapshot"):
                step = await self._installed(message.snapshot, parts, address)
            else:
                step = await self._replayed(message.records) if message.records else None
            if step is not None:
                _check_level(step[0], address)
        except HeadraceError:
            self._load_errors.value += 1
            raise
        if step is not None:
            await self._publish(*step)
        if message.records or message.HasField("snapshot"):
            self._moved_ms = self._clock.monotonic_ms()

    async def _installed(
        self, part: cluster_pb2.MetadataSnapshotPart, parts: _SnapshotParts, address: str
    ) -> tuple[MetadataImage, MetadataDelta] | None:
        data = parts.add(part)
        if data is None:
            return None
        began_ms, old = self._clock.monotonic_ms(), self.image
        new, _ = await asyncio.to_thread(decode_snapshot, data)
        if new.cluster_id != self._cluster_id:
            raise CorruptLogError(
                f"{address} sent a snapshot of cluster {new.cluster_id}, but this node belongs to cluster "
                f"{self._cluster_id}; correct controller.quorum.bootstrap.servers"
            )
        if new.next_offset <= old.next_offset:
            raise CorruptLogError(
                f"{address} sent a snapshot that ends at offset {new.next_offset}, but this node has already applied "
                f"the metadata up to offset {old.next_offset}"
            )
        self._bytes_since_save += len(data)
        self._tell_loaded(address, new, len(data), began_ms)
        return new, await asyncio.to_thread(MetadataDelta.between, old, new)

    async def _replayed(self, records: bytes) -> tuple[MetadataImage, MetadataDelta]:
        """Apply ``records`` to the image; other tasks run after each REPLAY_STEP_RECORDS records."""
        image = self.image
        builder = ImageBuilder(image)
        next_offset, epoch, read = image.next_offset, image.epoch, 0
        for batch in decode_batches(records):
            if batch.base_offset != next_offset:
                raise CorruptLogError(
                    f"the metadata log continues at offset {batch.base_offset}, expected offset {next_offset}"
                )
            for record in batch.records:
                builder.replay(record)
                read += 1
                if read % REPLAY_STEP_RECORDS == 0:
                    await asyncio.sleep(0)
            next_offset, epoch = batch.next_offset, batch.epoch
        self.records_read += read
        self._bytes_since_save += len(records)
        return builder.finish(next_offset, epoch)

    async def _publish(self, new: MetadataImage, delta: MetadataDelta) -> None:
        if self._on_change is not None:
            try:
                await self._on_change(new, delta)
            except Exception:
                self._apply_errors.value += 1
                raise
        self.image = new
        self._freshness.applied(new.next_offset)
        while self._waiters and self._waiters[0][0] <= new.next_offset:
            waiter = self._waiters.pop(0)[2]
            if not waiter.done():
                waiter.set_result(None)
        self._wake_current()

    def _wake_current(self) -> None:
        as_of_ms = self._freshness.as_of_ms
        if as_of_ms is None:
            return
        for wanted_ms, waiter in self._current_waiters:
            if as_of_ms >= wanted_ms and not waiter.done():
                waiter.set_result(None)

    def _lag_ms(self) -> int:
        ms = self.lag.ms
        return -1 if ms is None else int(ms) + 1

    def _tell_loaded(self, source: str, image: MetadataImage, size_bytes: int, began_ms: float) -> None:
        self._events.emit(
            MetadataImageLoaded(
                source=source,
                next_offset=image.next_offset,
                epoch=image.epoch,
                topics=len(image.topics),
                partitions=image.partition_count(),
                bytes=size_bytes,
                seconds=(self._clock.monotonic_ms() - began_ms) / 1_000,
            )
        )


def _check_level(image: MetadataImage, address: str) -> None:
    """Raise UnsupportedVersionError for a feature level that this node does not support. Records of an unsupported
    level may have fields that this node would ignore."""
    if image.metadata_version > METADATA_VERSION:
        raise UnsupportedVersionError(
            f"the metadata from {address} has feature level {image.metadata_version}, but this node "
            f"supports at most {METADATA_VERSION}: upgrade this node"
        )


class _SnapshotParts:
    """Collects the received parts of a snapshot."""

    def __init__(self) -> None:
        self._offset = -1
        self._data = bytearray()

    def add(self, part: cluster_pb2.MetadataSnapshotPart) -> bytes | None:
        """Add a part; returns the whole snapshot after the last part, else None."""
        if part.position == 0:
            self._offset, self._data = part.offset, bytearray()
        if part.offset != self._offset or part.position != len(self._data):
            raise NetworkError(
                f"received byte {part.position} of the snapshot of offset {part.offset}, expected byte "
                f"{len(self._data)} of the snapshot of offset {self._offset}"
            )
        self._data += part.data
        if not part.is_last:
            return None
        data, self._data = bytes(self._data), bytearray()
        return data


__all__ = ["ImageStore", "LoadedImage", "MetadataFollower", "MetadataLag", "OnChange"]
