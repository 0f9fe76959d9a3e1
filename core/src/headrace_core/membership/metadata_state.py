"""The metadata image that this node has applied, and tasks that wait for later offsets.

An image is "applied" when the node has acted on it: when the image says that this broker leads a partition, the
partition's log is open. A client that has waited for the metadata offset in the response to an admin call can write to
a new topic at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..errors import RequestTimedOutError
from ..metadata import MetadataDelta, MetadataImage
from ..metadata.freshness import MetadataLag
from ..rpc.channel import PLAINTEXT, Channels
from ..types import NO_LEADER
from .controllers import Controllers

#: Callback that gets the new image and its changes after each change.
Watcher = Callable[[MetadataImage, MetadataDelta], None]


class MetadataState:
    """The applied image and its waiting tasks; use the object in one event loop. The task that applies images calls
    ``advance``; all other tasks only read and wait."""

    __slots__ = ("_lag", "_waiting", "_watchers", "controllers", "image")

    def __init__(
        self, controllers: Controllers | None = None, *, lag: Callable[[], MetadataLag] = lambda: MetadataLag(0, None)
    ) -> None:
        """``controllers``: addresses and leader of the controllers; None: unknown. ``lag`` returns the lag of the image
        last passed to ``advance``."""
        self.image = MetadataImage()
        self.controllers = controllers
        self._lag = lag
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._watchers: dict[Watcher, None] = {}

    @property
    def applied_offset(self) -> int:
        """Offset of the metadata log below which all records are applied."""
        return self.image.next_offset

    @property
    def channels(self) -> Channels:
        """Opens this node's channels to other nodes."""
        return PLAINTEXT if self.controllers is None else self.controllers.channels

    @property
    def controller_id(self) -> int:
        """Id of the active controller; -1 while unknown."""
        return NO_LEADER if self.controllers is None else self.controllers.leader_id

    @property
    def lag(self) -> MetadataLag:
        """Lag of ``image``."""
        return self._lag()

    def advance(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Record that ``image`` is applied."""
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
        """Wait until all records below ``offset`` are applied; RequestTimedOutError after ``timeout_ms``."""
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
                f"after {timeout_ms} ms this node has applied the metadata log only up to {self.applied_offset}, not "
                f"up to {offset}; retry"
            ) from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher`` after each change; returns a function that removes the watcher."""
        self._watchers[watcher] = None
        return lambda: self.unwatch(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
