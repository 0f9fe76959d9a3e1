"""Keep connections to other nodes, by address."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from ..metadata import MetadataDelta, MetadataImage
from ..types import join_address
from .metadata_state import MetadataState


class _Link(Protocol):
    async def close(self) -> None: ...


L = TypeVar("L", bound=_Link)


class NodeLinks(dict[str, L]):
    """Connections by address (``host:port``). A connection is closed when no broker or coordinator is registered at its
    address any more. NodeLinks closes connections because unused connections would accumulate when nodes change their
    addresses. Call all methods in the event loop."""

    def __init__(self, metadata: MetadataState) -> None:
        super().__init__()
        self._closing: set[asyncio.Task[None]] = set()
        self._unwatch = metadata.watch(self._metadata_changed)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._unwatch()
        for address in list(self):
            self._end(address)
        await asyncio.gather(*self._closing)

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if not self or not (delta.brokers or delta.coordinators):
            return
        endpoints = [each.endpoints for each in image.brokers.values()]
        endpoints += [each.endpoints for each in image.ledger.coordinators.values()]
        addresses = {join_address(each.host, each.port) for some in endpoints for each in some}
        for address in self.keys() - addresses:
            self._end(address)

    def _end(self, address: str) -> None:
        task = asyncio.create_task(self.pop(address).close(), name=f"end of the connection to {address}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
