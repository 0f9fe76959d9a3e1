"""An observer of the metadata log: every role but the leading controller keeps its image this way.

    follower = MetadataFollower(addresses, cluster_id, on_change=broker.on_metadata)
    task = asyncio.create_task(follower.run())
    await follower.wait_applied(offset)

It connects to one of the controllers, reads committed batches from where it is, applies them and hands on each new
image with what changed. When the connection breaks it goes on where it was, with the next controller.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence

import grpc
import grpc.aio

from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

from ..errors import (
    CorruptLogError,
    CorruptMessageError,
    DivergingMetadataError,
    InconsistentClusterIdError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from ..metadata import EMPTY_IMAGE, ImageBuilder, MetadataDelta, MetadataImage
from ..metadata.codec import decode_batches
from .backoff import Backoff
from .channel import ChannelPurpose, open_channel
from .outage import Outage
from .status import error_from_rpc

logger = logging.getLogger("headrace.metadata")

#: Called with each new image, in order, and awaited before the next one is read. ``delta`` may be empty.
OnChange = Callable[[MetadataImage, MetadataDelta], Awaitable[None]]

#: Trying again does not help: the cluster is another one, or its history, or its version.
_FATAL = (
    InconsistentClusterIdError,
    DivergingMetadataError,
    OffsetOutOfRangeError,
    UnsupportedVersionError,
    CorruptLogError,
    CorruptMessageError,
)


class MetadataFollower:
    """``image`` is what has been applied, ``on_change`` included; ``leader_id`` the leading controller, -1 unknown."""

    def __init__(
        self,
        addresses: Sequence[str],
        cluster_id: str,
        *,
        on_change: OnChange | None = None,
        image: MetadataImage = EMPTY_IMAGE,
    ) -> None:
        """``addresses``: ``host:port`` of controllers' internal listeners; ``image``: where to go on from."""
        assert addresses, "no controller to follow"
        self.image = image
        self.leader_id = -1
        self._addresses = tuple(addresses)
        self._cluster_id = cluster_id
        self._on_change = on_change
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []  # (offset, order, waiter), sorted
        self._order = itertools.count()

    async def run(self) -> None:
        """Follow until cancelled. Raises what trying again cannot cure: InconsistentClusterIdError (another cluster),
        OffsetOutOfRangeError (the controllers have lost history that this node has seen), UnsupportedVersionError (the
        log was written by a newer Headrace), CorruptLogError, and whatever ``on_change`` raises."""
        backoff, outage = Backoff(), Outage(logger, "following the metadata log")
        for address in itertools.cycle(self._addresses):
            channel = open_channel(address, ChannelPurpose.CONTROL)
            try:
                await self._follow(channel, backoff, outage)
                outage.failed(address, "the controller ended the stream")
            except grpc.aio.AioRpcError as failure:
                error = error_from_rpc(failure, address)
                if isinstance(error, _FATAL):
                    raise error from None
                outage.failed(address, error)
            finally:
                await channel.close()
            self.leader_id = -1
            await asyncio.sleep(backoff.next_s())

    async def wait_applied(self, offset: int, timeout_s: float | None = None) -> MetadataImage:
        """The image once everything below ``offset`` is applied; RequestTimedOutError after ``timeout_s``."""
        if self.image.next_offset < offset:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (offset, next(self._order), waiter)
            bisect.insort(self._waiters, entry)
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter
            except TimeoutError:
                raise RequestTimedOutError(
                    f"the metadata log is applied up to {self.image.next_offset} here, not yet up to {offset}"
                ) from None
            finally:
                if entry in self._waiters:
                    self._waiters.remove(entry)
        return self.image

    async def _follow(self, channel: grpc.aio.Channel, backoff: Backoff, outage: Outage) -> None:
        request = cluster_pb2.FollowMetadataRequest(cluster_id=self._cluster_id, from_offset=self.image.next_offset)
        stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        call = stub.FollowMetadata(request)
        try:
            while True:
                message = await call.read()
                if message is grpc.aio.EOF:
                    return
                backoff.reset()
                outage.over()
                await self._apply(message)
        finally:
            call.cancel()

    async def _apply(self, message: cluster_pb2.FollowMetadataResponse) -> None:
        self.leader_id = message.leader_id
        image = self.image
        if not message.records:
            return
        builder = ImageBuilder(image)
        next_offset, epoch = image.next_offset, image.epoch
        for batch in decode_batches(message.records):
            if batch.base_offset != next_offset:
                raise CorruptLogError(f"the metadata log goes on at {batch.base_offset}, expected {next_offset}")
            for record in batch.records:
                builder.replay(record)
            next_offset, epoch = batch.next_offset, batch.epoch
        new, delta = builder.finish(next_offset, epoch)
        if self._on_change is not None:
            await self._on_change(new, delta)
        self.image = new
        while self._waiters and self._waiters[0][0] <= new.next_offset:
            waiter = self._waiters.pop(0)[2]
            if not waiter.done():
                waiter.set_result(None)
