"""headrace.v1.Raft: messages of the other controllers. On the internal listener only."""

from __future__ import annotations

from typing import Any

from headrace_core.rpc.server import Listener
from headrace_protos.v1 import raft_pb2_grpc

from ..transport.links import PeerLinks


class RaftHandler(raft_pb2_grpc.RaftServicer):
    """Streams that other controllers open; transport/links.py processes them."""

    def __init__(self, links: PeerLinks) -> None:
        self._links = links

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; before it starts."""
        listener.add(raft_pb2_grpc.add_RaftServicer_to_server, self, "headrace.v1.Raft")

    async def Exchange(self, request: Any, context: Any) -> None:
        await self._links.accept(context)
