"""One request of a Kafka client, with all that its handler may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .wire.apis import Api
from .wire.frames import RequestHeader
from .wire.schema import Message

if TYPE_CHECKING:
    from .client import Client
    from .cluster import Cluster
    from .settings import GatewaySettings
    from .upstream import Upstream


class Call:
    """A request of ``client``. The calls to nodes raise HeadraceError."""

    __slots__ = ("api", "client", "client_id", "cluster", "message", "settings", "upstream", "version")

    def __init__(
        self,
        client: Client,
        api: Api,
        version: int,
        client_id: str,
        cluster: Cluster,
        upstream: Upstream,
        settings: GatewaySettings,
    ) -> None:
        self.client = client
        self.api = api
        self.version = version
        self.client_id = client_id
        self.cluster = cluster
        self.upstream = upstream
        self.settings = settings
        self.message: Message | None = None  #: The decoded request of a FastHandler, if another thread has decoded it.

    async def any_broker(self, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float) -> Any:
        """Call an unfenced broker, preferably the broker whose port the client uses. Call another broker only if the
        gateway certainly did not send the request."""
        return await self.upstream.any_broker(self.client, stub, method, request, timeout_ms)

    async def broker(
        self, broker_id: int, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float
    ) -> Any:
        """Call one broker."""
        return await self.upstream.broker(self.client, broker_id, stub, method, request, timeout_ms)

    async def coordinator(
        self, kind: str, key: str, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float
    ) -> Any:
        """Call the coordinator that owns the shard of ``key``; ``kind``: "group" or "transaction". After
        NOT_COORDINATOR, repeat the call once if the metadata then name another owner of the shard."""
        return await self.upstream.coordinator(self.client, kind, key, stub, method, request, timeout_ms)

    async def applied(self, metadata_offset: int, timeout_ms: float) -> None:
        """Wait until this gateway has applied the metadata log below ``metadata_offset``."""
        await self.cluster.state.wait_for(metadata_offset, int(timeout_ms))


#: A handler returns the fields of the answer, or None if the request has no answer. A HeadraceError of a handler
#: becomes the answer's top-level error code. A handler whose answers have no top-level error code catches its errors
#: itself.
Handler = Callable[[Call, Message], Awaitable[dict[str, Any] | None]]

#: Parts of an answer's frame, including the frame's length and header.
AnswerParts = tuple[bytes | bytearray | memoryview, ...]
#: A FastHandler handles a request without an asyncio task for the request. Arguments: the call, the request's header,
#: the frame, and the reply function. The request's body begins at ``header.body`` of the frame; a handler ignores the
#: frame if ``call.message`` is set. A handler calls the reply function exactly once, at any time, with the answer, or
#: with None for no answer. A handler raises WireError if the frame is not a valid request of its type.
FastHandler = Callable[[Call, RequestHeader, bytes, Callable[[AnswerParts | None], None]], None]
