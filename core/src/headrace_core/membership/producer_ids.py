"""Producer ids of a broker or coordinator, which the controller allocates in blocks (KIP-730), before they are needed.

A block of producer ids belongs to its node, even if the node stops before using all ids. There are 2^63 producer ids,
and none is used twice. The node requests the next block when 90 % of the present block's producer ids are used, as in
Kafka. One request for a block at a time serves all waiting producers. A producer waits for the controller only if the
node has no block of producer ids left. A node has no block right after its start, or if the controllers were
unreachable while it used the last 10 % of its block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidRequestError,
    ServerShuttingDownError,
    UnsupportedVersionError,
)

logger = logging.getLogger(__name__)

#: Used share of a block of producer ids at which the broker requests the next block (as in Kafka's ProducerIdManager).
PREFETCH_AT = 0.9
#: The highest producer epoch that Kafka assigns to a producer. The transaction coordinator uses the next epoch to fence
#: the producer that has the highest epoch.
EPOCH_MAX = 2**15 - 2


class ProducerIdBlock(NamedTuple):
    """A block of producer ids, ``first`` to ``first + length - 1``, which the controller never allocates again."""

    first: int
    length: int


Allocate = Callable[[], Awaitable[ProducerIdBlock]]  #: Requests a block of producer ids from the controller.


class ProducerIds:
    """Allocator of this node's producer ids; call its methods in the event loop."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = self._end = self._prefetch_at = 0
        self._spare: ProducerIdBlock | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._is_closed = False

    async def next_id(self) -> int:
        """Return a new producer id. Raises the errors of ``wait``."""
        await self.wait()
        return self.take()

    async def wait(self) -> None:
        """Wait until a producer id is available. Raises CoordinatorNotAvailableError (retriable) if no block is
        available now, and ServerShuttingDownError. Raises UnsupportedVersionError if the cluster's metadata.version has
        no producer ids."""
        while self._next >= self._end and self._spare is None:
            fetching = self._fetch()
            try:
                await asyncio.shield(fetching)
            except asyncio.CancelledError:
                if not fetching.cancelled():
                    raise
                raise _closed() from None

    def take(self) -> int:
        """Return a new producer id without waiting. If no producer id is left, the next block is requested, and
        CoordinatorNotAvailableError (retriable) is raised."""
        if self._next >= self._end:
            if self._spare is None:
                self._fetch().add_done_callback(_ignored)
                raise CoordinatorNotAvailableError(
                    "cannot assign a producer id: the controller has sent no block of ids yet; retry"
                )
            self._begin(self._spare)
        producer_id = self._next
        self._next += 1
        if self._next >= self._prefetch_at and self._spare is None and not self._is_closed:
            self._fetch().add_done_callback(_ignored)
        return producer_id

    async def renewed(self, producer_id: int, epoch: int) -> tuple[int, int]:
        """Return (id, epoch) for the producer that has ``producer_id`` with ``epoch`` (KIP-360): the next epoch, which
        fences the previous epoch, or a new id after the last epoch. Raises InvalidRequestError, and the errors of
        ``next_id``."""
        if producer_id < 0 or not 0 <= epoch <= EPOCH_MAX + 1:
            raise InvalidRequestError(
                f"producer id {producer_id} with epoch {epoch}: this broker did not assign this id; send no "
                "producer id to get a new one"
            )
        if epoch < EPOCH_MAX:
            return producer_id, epoch + 1
        return await self.next_id(), 0

    def _begin(self, block: ProducerIdBlock) -> None:
        self._spare = None
        self._next, self._end = block.first, block.first + block.length
        self._prefetch_at = block.first + int(block.length * PREFETCH_AT)

    def _fetch(self) -> asyncio.Task[None]:
        """Return the running request for a block of producer ids, or start a new request."""
        if self._is_closed:
            raise _closed()
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._ask(), name="producer-ids")
        return self._fetching

    async def _ask(self) -> None:
        try:
            block = await self._allocate()
        except UnsupportedVersionError:  # the cluster's metadata.version has no producer ids, so a retry cannot help
            raise
        except HeadraceError as error:
            raise CoordinatorNotAvailableError(
                f"cannot assign a producer id: the controller sent no block of ids: {error.code}: {error.message}; "
                "retry"
            ) from error
        finally:
            self._fetching = None
        assert block.length > 0, f"an empty block of producer ids, from {block.first} on"
        self._spare = block

    async def close(self) -> None:
        """Stop requesting. Idempotent."""
        self._is_closed = True
        fetching = self._fetching
        if fetching is not None:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)


def _closed() -> ServerShuttingDownError:
    return ServerShuttingDownError("cannot assign a producer id: this node is shutting down; ask another node")


def _ignored(fetching: asyncio.Task[None]) -> None:
    """Ignore a failed request for the next block; the next caller requests the block again."""
    if not fetching.cancelled() and (error := fetching.exception()) is not None:
        logger.info("cannot fetch the next block of producer ids ahead of need; the next producer retries: %s", error)
