"""One request of a Kafka client, with all that its handler may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace_core.errors import HeadraceError
from headrace_core.security.access import EVERYTHING, Access
from headrace_core.security.acl_types import CLUSTER_NAME, Operation, ResourceType
from headrace_core.security.refusals import refusal

from .access import CLUSTER, CLUSTER_RULES
from .wire.apis import Api, title
from .wire.frames import RequestHeader
from .wire.schema import Message

if TYPE_CHECKING:
    from .client import Client
    from .cluster import Cluster
    from .settings import KafkaSettings
    from .upstream import Upstream


class Call:
    """A request of ``client``. The calls to nodes raise HeadraceError."""

    __slots__ = (
        "_access",
        "api",
        "client",
        "client_id",
        "cluster",
        "message",
        "settings",
        "throttle_ms",
        "upstream",
        "version",
    )

    def __init__(
        self,
        client: Client,
        api: Api,
        version: int,
        client_id: str,
        cluster: Cluster,
        upstream: Upstream,
        settings: KafkaSettings,
    ) -> None:
        self.client = client
        self.api = api
        self.version = version
        self.client_id = client_id
        self.cluster = cluster
        self.upstream = upstream
        self.settings = settings
        self._access: Access | None = None
        self.throttle_ms = 0  #: Milliseconds that the client must wait after the answer, because it is over its quota.
        self.message: Message | None = None  #: The decoded request of a FastHandler, if another thread has decoded it.

    # -- what the client may do ---------------------------------------------------------------------------------------

    @property
    def access(self) -> Access:
        """The client's rights, by the ACLs of the applied metadata image."""
        access = self._access
        if access is None:
            authorization = self.cluster.authorization
            access = self._access = (
                EVERYTHING
                if authorization.authorizer is None
                else Access(self.client.caller, authorization, title(self.api))
            )
        return access

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do ``operation`` on the resource."""
        return self.access.allows(operation, resource_type, name)

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Like ``allows``, but without audit entries; for a list that omits the items that the client is not authorized
        to see."""
        return self.access.sees(operation, resource_type, name)

    def require(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raise the authorization error of the resource's type unless the client may do ``operation``."""
        self.access.require(operation, resource_type, name)

    def require_cluster(self) -> None:
        """Raise ClusterAuthorizationFailedError unless the client has the operation that CLUSTER_RULES has for the
        request's type."""
        self.access.require(CLUSTER_RULES[self.api], CLUSTER, CLUSTER_NAME)

    def refusal(self, operation: Operation, resource_type: ResourceType, name: str) -> HeadraceError:
        """The error for an operation that the client may not do."""
        return refusal(operation, resource_type, name, self.client.principal)

    # -- calls -----------------------------------------------------------------------------------------------

    async def own(self, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float) -> Any:
        """Call this broker's own service, with the client's rights."""
        return await self.upstream.own(self.client, stub, method, request, timeout_ms)

    async def coordinator(
        self, kind: str, key: str, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float
    ) -> Any:
        """Call the coordinator that owns the shard of ``key``; ``kind``: "group" or "transaction". After
        NOT_COORDINATOR or a failed connection, repeat the call once if the metadata names another owner of the
        shard."""
        return await self.upstream.coordinator(self.client, kind, key, stub, method, request, timeout_ms)

    async def applied(self, metadata_offset: int, timeout_ms: float) -> None:
        """Wait until this broker has applied the metadata log below ``metadata_offset``."""
        await self.cluster.state.wait_for(metadata_offset, int(timeout_ms))


#: A handler returns the fields of the answer, or None if the request has no answer. A HeadraceError of a handler
#: becomes the answer's top-level error code. A handler whose answers have no top-level error code catches its errors
#: itself.
Handler = Callable[[Call, Message], Awaitable[dict[str, Any] | None]]


class LongRequestError(Exception):
    """The request has so many items that a thread must decode it, and ``handler`` must handle it."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self.handler = handler


#: Parts of an answer's frame, including the frame's length and header.
AnswerParts = tuple[bytes | bytearray | memoryview, ...]
#: A FastHandler handles a request without an asyncio task for the request. Arguments: the call, the request's header,
#: the frame, and the reply function. The request's body begins at ``header.body`` of the frame; a handler ignores the
#: frame if ``call.message`` is set. A handler calls the reply function exactly once, at any time, with the answer, or
#: with None for no answer. A handler raises WireError if the frame is not a valid request of its type.
#: It raises LongRequestError for a request that takes too long for the event loop.
FastHandler = Callable[[Call, RequestHeader, bytes, Callable[[AnswerParts | None], None]], None]
