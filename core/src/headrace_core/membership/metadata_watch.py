"""WatchMetadata on every node: send the metadata response at once, and again after each change of the response.

A node that is cut off from the controllers receives no changes of the metadata, but clients may still reach the node.
The clients of this node would receive no changes either, and would read from a former leader. A watch therefore ends
when the node's metadata is older than ``TOO_OLD_MS``, and the client opens the next watch at another node. (The node
still answers GetMetadata, so that clients can continue while there is no quorum.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace_protos.v1 import metadata_pb2

from ..errors import FencedBrokerError
from ..metadata import MetadataDelta, MetadataImage
from ..rpc.streams import PushHandler, ServerPush
from .metadata_view import concerns

#: Milliseconds after which the controllers have fenced a node that has no contact with them, and moved its leaderships
#: (broker.session.timeout.ms is 9 s by default).
TOO_OLD_MS = 10_000.0
LOOK_S = 1.0  #: Seconds between two checks of the metadata's age.

Watcher = Callable[[MetadataImage, MetadataDelta], None]


class MetadataWatch(PushHandler[metadata_pb2.MetadataResponse]):
    """One WatchMetadata call. Changes that happen while a response is written are merged into the next response."""

    def __init__(
        self,
        request: metadata_pb2.MetadataRequest,
        answer: Callable[[], Awaitable[metadata_pb2.MetadataResponse]],
        subscribe: Callable[[Watcher], Callable[[], None]],
        age_ms: Callable[[], float | None],
    ) -> None:
        """``answer``: returns the present response to ``request``. ``subscribe(watcher)`` returns a function that
        removes the watcher. ``age_ms`` returns the age of the node's metadata; None: unknown."""
        self._request = request
        self._topics = frozenset(request.topics)
        self._answer = answer
        self._age_ms = age_ms
        self._has_news = True
        self._subscribe = subscribe
        self._push: ServerPush[metadata_pb2.MetadataResponse] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def serve(self, context: Any) -> None:
        """Serve the WatchMetadata call until the client ends it. Raises FencedBrokerError when the node's metadata is
        too old."""
        self._push = ServerPush(context)
        self._unsubscribe = self._subscribe(self._changed)
        await self._push.run(self, idle_s=LOOK_S)

    def next(self, is_due: bool) -> Awaitable[tuple[metadata_pb2.MetadataResponse, int]] | None:
        age_ms = self._age_ms()
        if age_ms is not None and age_ms > TOO_OLD_MS:
            raise FencedBrokerError(
                f"this node has had no contact with the controllers for {age_ms / 1000:.0f} s, so it does not learn of "
                "changes; watch another node"
            )
        if not self._has_news:
            return None
        self._has_news = False
        return self._sized_answer()

    async def _sized_answer(self) -> tuple[metadata_pb2.MetadataResponse, int]:
        answer = await self._answer()
        return answer, answer.ByteSize()

    def on_closed(self) -> None:
        self._unsubscribe()
        # drop the callback: it refers to this watch, and the watch's request may be large
        self._unsubscribe = lambda: None

    def _changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if concerns(self._request, image, delta, self._topics):
            self._has_news = True
            assert self._push is not None
            self._push.wake()
