"""WatchMetadata on controllers and brokers: send the metadata response at once, and again after each change of the
response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace_protos.v1 import metadata_pb2

from ..metadata import MetadataDelta, MetadataImage
from ..rpc.streams import PushHandler, ServerPush
from .metadata_view import concerns

Watcher = Callable[[MetadataImage, MetadataDelta], None]


class MetadataWatch(PushHandler[metadata_pb2.MetadataResponse]):
    """One WatchMetadata call. Changes that happen while a response is written are merged into the next response."""

    def __init__(
        self,
        request: metadata_pb2.MetadataRequest,
        answer: Callable[[], Awaitable[metadata_pb2.MetadataResponse]],
        subscribe: Callable[[Watcher], Callable[[], None]],
    ) -> None:
        """``answer``: returns the present response to ``request``. ``subscribe(watcher)`` returns a function that
        removes the watcher."""
        self._request = request
        self._topics = frozenset(request.topics)
        self._answer = answer
        self._has_news = True
        self._subscribe = subscribe
        self._push: ServerPush[metadata_pb2.MetadataResponse] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def serve(self, context: Any) -> None:
        """Serve the WatchMetadata call until the client ends it."""
        self._push = ServerPush(context)
        self._unsubscribe = self._subscribe(self._changed)
        await self._push.run(self)

    def next(self, is_due: bool) -> Awaitable[tuple[metadata_pb2.MetadataResponse, int]] | None:
        if not self._has_news:
            return None
        self._has_news = False
        return self._sized_answer()

    async def _sized_answer(self) -> tuple[metadata_pb2.MetadataResponse, int]:
        answer = await self._answer()
        return answer, answer.ByteSize()

    def on_closed(self) -> None:
        self._unsubscribe()
        self._unsubscribe = lambda: None  # drop the callback, which refers to this watch, whose request may be large

    def _changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if concerns(self._request, image, delta, self._topics):
            self._has_news = True
            assert self._push is not None
            self._push.wake()
