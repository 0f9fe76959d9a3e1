"""headrace.v1.Metadata on a controller: the committed state, and its changes."""

from __future__ import annotations

from typing import Any

from headrace_core.membership.metadata_view import MetadataView
from headrace_core.membership.metadata_watch import MetadataWatch
from headrace_core.rpc.server import Listener
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc

from ..driver import ControllerDriver
from .follow import FollowService

#: Longest wait in seconds until the node has applied min_metadata_offset, if the request's deadline is later or
#: missing.
_WAIT_S_MAX = 30.0


class MetadataHandler(metadata_pb2_grpc.MetadataServicer):
    """The controllers' Metadata service never creates missing topics: only brokers do, if auto.create.topics.enable is
    set."""

    def __init__(self, driver: ControllerDriver, view: MetadataView, following: FollowService) -> None:
        """``following`` gives the age of this controller's metadata image, and the addresses of the controllers."""
        self._driver = driver
        self._view = view
        self._following = following

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; call this before the listener starts."""
        listener.add(metadata_pb2_grpc.add_MetadataServicer_to_server, self, "headrace.v1.Metadata")

    async def GetMetadata(self, request: metadata_pb2.MetadataRequest, context: Any) -> Any:
        await self._wait_applied(request, context)
        return await self._response(request)

    async def FindCoordinator(self, request: metadata_pb2.FindCoordinatorRequest, context: Any) -> Any:
        """Return the coordinator if its shard exists; only brokers create the topic of the shards."""
        await self._wait_applied(request, context)
        return self._view.find_coordinators(self._driver.image, request)

    async def WatchMetadata(self, request: metadata_pb2.MetadataRequest, context: Any) -> None:
        await self._wait_applied(request, context)
        watch = MetadataWatch(
            request, lambda: self._response(request), self._driver.subscribe, lambda: self._following.lag.ms
        )
        await watch.serve(context)

    async def _wait_applied(
        self, request: metadata_pb2.MetadataRequest | metadata_pb2.FindCoordinatorRequest, context: Any
    ) -> None:
        if request.min_metadata_offset > self._driver.image.next_offset:
            remaining_s = context.time_remaining()
            timeout_s = _WAIT_S_MAX if remaining_s is None else min(remaining_s, _WAIT_S_MAX)
            await self._driver.wait_applied(request.min_metadata_offset, timeout_s)

    async def _response(self, request: metadata_pb2.MetadataRequest) -> metadata_pb2.MetadataResponse:
        return await self._view.response(
            self._driver.image,
            request,
            controller_id=self._driver.leader_id,
            lag_ms=self._following.lag.ms,
            controllers=self._following.controllers,
        )
