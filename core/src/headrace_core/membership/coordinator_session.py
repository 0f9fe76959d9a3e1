"""A coordinator's session with the controllers: registration, heartbeats, shutdown.

    session = CoordinatorSession(controllers, registration, heartbeat_interval_ms=2_000, answer_timeout_ms=4_500)
    registered = await session.register()            # the coordinator's id and epoch
    task = asyncio.create_task(session.run())        # heartbeats; raises when this registration is over
    ...
    await session.shut_down(timeout_s=10)            # other coordinators take its shards; then it may stop

The session resembles a broker's session (node_session.py has the shared code). Unlike a broker, a coordinator keeps no
state beyond its process, so it is never fenced, only removed. The metadata log says which shards (partitions of
``__consumer_offsets`` and ``__transaction_state``) a coordinator owns.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc, common_pb2

from .controllers import Controllers
from .node_session import NodeSession

logger = logging.getLogger("headrace.coordinator.session")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRegistration:
    """The coordinator's identity. ``incarnation_id``: 16 bytes, new at each start. An endpoint is (name, host,
    port)."""

    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[tuple[str, str, int], ...]
    rack: str | None = None
    wanted_id: int = -1


@dataclass(frozen=True, slots=True)
class RegisteredCoordinator:
    """The controller's response to the registration. The coordinator must apply the metadata log up to
    ``metadata_offset`` before it serves clients."""

    coordinator_id: int
    coordinator_epoch: int
    metadata_offset: int


class CoordinatorSession(NodeSession[RegisteredCoordinator]):
    """One registration of a coordinator. A CoordinatorSession is not thread-safe; use it in one event loop."""

    def __init__(
        self,
        controllers: Controllers | Sequence[str],
        registration: CoordinatorRegistration,
        *,
        heartbeat_interval_ms: float,
        answer_timeout_ms: float,
    ) -> None:
        """The arguments are documented at NodeSession."""
        super().__init__(
            controllers, logger, heartbeat_interval_ms=heartbeat_interval_ms, answer_timeout_ms=answer_timeout_ms
        )
        self._registration = registration

    async def _ask_to_register(self, stub: cluster_pb2_grpc.ClusterStub, timeout_s: float) -> RegisteredCoordinator:
        who = self._registration
        request = cluster_pb2.RegisterCoordinatorRequest(
            cluster_id=who.cluster_id,
            incarnation_id=who.incarnation_id,
            endpoints=[
                common_pb2.Endpoint(listener=listener, host=host, port=port) for listener, host, port in who.endpoints
            ],
            rack=who.rack or "",
            wanted_coordinator_id=who.wanted_id,
        )
        answer = await stub.RegisterCoordinator(request, timeout=timeout_s)
        return RegisteredCoordinator(answer.coordinator_id, answer.coordinator_epoch, answer.metadata_offset)

    def _open_heartbeats(self, stub: cluster_pb2_grpc.ClusterStub) -> Any:
        return stub.CoordinatorHeartbeat()

    def _heartbeat(self, correlation_id: int) -> cluster_pb2.CoordinatorHeartbeatRequest:
        return cluster_pb2.CoordinatorHeartbeatRequest(
            correlation_id=correlation_id,
            coordinator_id=self.registered.coordinator_id,
            coordinator_epoch=self.registered.coordinator_epoch,
            want_shutdown=self._want_shutdown,
        )
