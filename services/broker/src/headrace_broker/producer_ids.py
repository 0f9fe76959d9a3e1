"""Producer ids of this broker, allocated from the controller in blocks (KIP-730), ahead of need.

A block belongs to this broker, also when it stops before using it up: ids are plenty (2^63), and never reused. The next
block is requested when nine tenths of the present one are used, as in Kafka; one request at a time for all waiting
producers. So a producer waits for the controller only without a block: as the first one after a start, or when the
controllers were away for the last tenth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace_core.errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidRequestError,
    ServerShuttingDownError,
    UnsupportedVersionError,
)

from .controller_link import ProducerIdBlock

logger = logging.getLogger(__name__)

PREFETCH_AT = 0.9  #: Used part of a block at which the next one is requested (Kafka's ProducerIdManager).
#: Kafka's highest epoch for producers. Only a coordinator uses the epoch above it, to fence the last producer.
EPOCH_MAX = 2**15 - 2

Allocate = Callable[[], Awaitable[ProducerIdBlock]]  #: Requests a block from the controller.


class ProducerIds:
    """Lives in the event loop."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = self._end = self._prefetch_at = 0
        self._spare: ProducerIdBlock | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._is_closed = False

    async def next_id(self) -> int:
        """A new id. Raises CoordinatorNotAvailableError (retriable): no block is available now;
        UnsupportedVersionError: the cluster's metadata.version has none; ServerShuttingDownError."""
        while self._next >= self._end:
            if self._spare is not None:
                self._begin(self._spare)
                break
            fetching = self._fetch()
            try:
                await asyncio.shield(fetching)
            except asyncio.CancelledError:
                if not fetching.cancelled():
                    raise
                raise _closed() from None
        producer_id = self._next
        self._next += 1
        if self._next >= self._prefetch_at and self._spare is None and not self._is_closed:
            self._fetch().add_done_callback(_ignored)
        return producer_id

    async def renewed(self, producer_id: int, epoch: int) -> tuple[int, int]:
        """(id, epoch) for the producer that has ``producer_id`` with ``epoch``: the next epoch, which fences the one
        before; a new id after the last epoch (KIP-360). Raises InvalidRequestError, and as ``next_id``."""
        if producer_id < 0 or not 0 <= epoch <= EPOCH_MAX + 1:
            raise InvalidRequestError(
                f"producer id {producer_id} with epoch {epoch}: this broker did not assign them; send none to get "
                "new ones"
            )
        if epoch < EPOCH_MAX:
            return producer_id, epoch + 1
        return await self.next_id(), 0

    def _begin(self, block: ProducerIdBlock) -> None:
        self._spare = None
        self._next, self._end = block.first, block.first + block.length
        self._prefetch_at = block.first + int(block.length * PREFETCH_AT)

    def _fetch(self) -> asyncio.Task[None]:
        """The request in progress, or a new one."""
        if self._is_closed:
            raise _closed()
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._ask(), name="producer-ids")
        return self._fetching

    async def _ask(self) -> None:
        try:
            block = await self._allocate()
        except UnsupportedVersionError:  # the cluster's level has no producer ids: a retry cannot help
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
    return ServerShuttingDownError("cannot assign a producer id: the broker is shutting down; ask another one")


def _ignored(fetching: asyncio.Task[None]) -> None:
    """A failed request ahead of need: the next caller repeats it."""
    if not fetching.cancelled() and (error := fetching.exception()) is not None:
        logger.info("producer ids were asked for ahead: %s", error)
