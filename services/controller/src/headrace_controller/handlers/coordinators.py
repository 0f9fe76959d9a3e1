"""The coordinators' part of headrace.v1.Cluster: they register, and heartbeat on one stream while they live."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from headrace_core.errors import HeadraceError, ServerShuttingDownError
from headrace_core.metadata import BrokerEndpoint
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

from ..cluster.ledger_requests import CoordinatorHeartbeat, CoordinatorHeartbeatsEnded, RegisterCoordinator
from ..driver import ControllerDriver


class CoordinatorsHandler(cluster_pb2_grpc.ClusterServicer):
    """A part of ClusterHandler. ``close_coordinators`` ends the streams."""

    _driver: ControllerDriver

    def __init__(self) -> None:
        self._coordinators: set[_CoordinatorHeartbeats] = set()

    async def RegisterCoordinator(self, request: cluster_pb2.RegisterCoordinatorRequest, context: Any) -> Any:
        answer = await self._driver.ask(
            RegisterCoordinator(
                cluster_id=request.cluster_id,
                incarnation_id=request.incarnation_id,
                endpoints=tuple(BrokerEndpoint(item.listener, item.host, item.port) for item in request.endpoints),
                rack=request.rack or None,
                wanted_id=request.wanted_coordinator_id,
            )
        )
        return cluster_pb2.RegisterCoordinatorResponse(
            coordinator_id=answer.reply.coordinator_id,
            coordinator_epoch=answer.reply.coordinator_epoch,
            metadata_offset=answer.metadata_offset,
        )

    async def CoordinatorHeartbeat(self, request: Any, context: Any) -> None:
        stream: ServerStream[cluster_pb2.CoordinatorHeartbeatRequest, cluster_pb2.CoordinatorHeartbeatResponse] = (
            ServerStream(context)
        )
        handler = _CoordinatorHeartbeats(self._driver, stream)
        self._coordinators.add(handler)
        try:
            await stream.run(handler)
        finally:
            self._coordinators.discard(handler)

    def close_coordinators(self) -> None:
        """End every stream."""
        for handler in tuple(self._coordinators):
            handler.end()


class _CoordinatorHeartbeats(StreamHandler[cluster_pb2.CoordinatorHeartbeatRequest]):
    """One coordinator's stream. Its end, whatever the reason, is told to the driver. ``_numbers``: each has its own,
    which is never 0: that is what a registration counts as."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        driver: ControllerDriver,
        stream: ServerStream[cluster_pb2.CoordinatorHeartbeatRequest, cluster_pb2.CoordinatorHeartbeatResponse],
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._tasks: set[asyncio.Task[None]] = set()
        self._coordinator: tuple[int, int] | None = None
        self._is_closed = False
        self._number = next(self._numbers)

    def on_request(self, request: cluster_pb2.CoordinatorHeartbeatRequest) -> None:
        # Now: the stream may break before the answer.
        self._coordinator = (request.coordinator_id, request.coordinator_epoch)
        task = asyncio.ensure_future(self._beat(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_idle(self) -> bool:
        return not self._tasks

    def on_closed(self) -> None:
        self._is_closed = True
        if self._coordinator is not None:
            self._driver.tell(CoordinatorHeartbeatsEnded(*self._coordinator, stream=self._number))

    def end(self) -> None:
        self._stream.finish(ServerShuttingDownError("the controller is shutting down"))

    async def _beat(self, request: cluster_pb2.CoordinatorHeartbeatRequest) -> None:
        if self._is_closed:  # the end of the stream has been told, and is later than this
            return
        try:
            answer = await self._driver.ask(
                CoordinatorHeartbeat(
                    coordinator_id=request.coordinator_id,
                    coordinator_epoch=request.coordinator_epoch,
                    want_shutdown=request.want_shutdown,
                    stream=self._number,
                )
            )
        except HeadraceError as error:
            self._stream.finish(error)
            return
        self._stream.send(
            cluster_pb2.CoordinatorHeartbeatResponse(
                correlation_id=request.correlation_id, should_shutdown=answer.reply.should_shutdown
            )
        )
