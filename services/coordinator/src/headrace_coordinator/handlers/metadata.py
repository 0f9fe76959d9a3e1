"""headrace.v1.Metadata on a coordinator: its applied metadata. The coordinator's Metadata service never creates missing
topics: only the brokers' Metadata service does."""

from __future__ import annotations

from typing import Any

from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.metadata_view import MetadataView
from headrace_core.membership.metadata_watch import MetadataWatch
from headrace_protos.v1 import metadata_pb2_grpc


class MetadataService(metadata_pb2_grpc.MetadataServicer):
    def __init__(self, metadata: MetadataState, *, timeout_ms: int, listener: str) -> None:
        """``timeout_ms``: how many milliseconds a request waits for min_metadata_offset. ``listener`` is the listener
        that serves the request; the answers contain the listener's addresses."""
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._view = MetadataView(listener=listener)

    async def GetMetadata(self, request: Any, context: Any) -> Any:
        await self._wait_applied(request)
        return await self._response(request)

    async def WatchMetadata(self, request: Any, context: Any) -> None:
        await self._wait_applied(request)
        metadata = self._metadata
        watch = MetadataWatch(request, lambda: self._response(request), metadata.watch, lambda: metadata.lag.ms)
        await watch.serve(context)

    async def FindCoordinator(self, request: Any, context: Any) -> Any:
        await self._wait_applied(request)
        return self._view.find_coordinators(self._metadata.image, request, self._metadata.lag.ms)

    async def _wait_applied(self, request: Any) -> None:
        await self._metadata.wait_for(max(request.min_metadata_offset, 1), self._timeout_ms)

    async def _response(self, request: Any) -> Any:
        metadata = self._metadata
        return await self._view.response(
            metadata.image,
            request,
            controller_id=metadata.controller_id,
            lag_ms=metadata.lag.ms,
            controllers=None if metadata.controllers is None else metadata.controllers.known,
        )
