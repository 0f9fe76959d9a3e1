"""The cluster's state as far as this broker has applied it, and those who wait for more.

"Applied" means acted upon: when the image says that this broker leads a partition, its log is open. So who waits for an
admin answer's metadata offset here finds the topic ready to be written to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_core.errors import RequestTimedOutError
from headrace_core.metadata import MetadataDelta, MetadataImage

#: Told after each change, with the new image and what changed.
Watcher = Callable[[MetadataImage, MetadataDelta], None]


class MetadataState:
    """Owned by the event loop. ``advance`` is called by the one who applies; everybody else reads and waits."""

    __slots__ = ("_waiting", "_watchers", "controller_id", "image")

    def __init__(self) -> None:
        self.image = MetadataImage()
        #: The active controller, -1 while unknown.
        self.controller_id = -1
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._watchers: dict[Watcher, None] = {}

    @property
    def applied_offset(self) -> int:
        """Everything in the metadata log below this offset is applied."""
        return self.image.next_offset

    def advance(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """``image`` is applied."""
        self.image = image
        if self._waiting:
            still = []
            for offset, waiter in self._waiting:
                if offset > image.next_offset:
                    still.append((offset, waiter))
                elif not waiter.done():
                    waiter.set_result(None)
            self._waiting = still
        for watcher in list(self._watchers):
            watcher(image, delta)

    async def wait_for(self, offset: int, timeout_ms: int) -> None:
        """Return when everything below ``offset`` is applied; RequestTimedOutError when that takes too long."""
        if offset <= self.applied_offset:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (offset, waiter)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            raise RequestTimedOutError(
                f"this broker has applied the metadata up to {self.applied_offset}, and not {offset} within "
                f"{timeout_ms} ms"
            ) from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
