"""A node's machine is suspended: when it resumes, its session with the controllers may have ended."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace_core.membership.coordinator_session import CoordinatorRegistration, CoordinatorSession
from headrace_core.rpc.server import Listener
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

SESSION_MS = 9_000


class Controller(cluster_pb2_grpc.ClusterServicer, StreamHandler[cluster_pb2.CoordinatorHeartbeatRequest]):
    """Registers every node, and answers each heartbeat."""

    def __init__(self) -> None:
        self.listener = Listener("controller")
        self.listener.add(cluster_pb2_grpc.add_ClusterServicer_to_server, self, "headrace.v1.Cluster")

    async def RegisterCoordinator(self, request: object, context: object) -> cluster_pb2.RegisterCoordinatorResponse:
        return cluster_pb2.RegisterCoordinatorResponse(coordinator_id=1, coordinator_epoch=1)

    async def CoordinatorHeartbeat(self, request: object, context: object) -> None:
        self.stream: ServerStream[object, object] = ServerStream(context)  # type: ignore[arg-type]
        await self.stream.run(self)  # type: ignore[arg-type]

    def on_request(self, request: cluster_pb2.CoordinatorHeartbeatRequest) -> None:
        self.stream.send(cluster_pb2.CoordinatorHeartbeatResponse(correlation_id=request.correlation_id))


def test_a_suspension_counts_for_the_session_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a suspension CLOCK_MONOTONIC stops, and so does the event loop's time. Without another clock, a suspended
    coordinator would continue to answer for shards that other coordinators already own."""
    real, slept_ns = time.clock_gettime_ns, 0
    monkeypatch.setattr(
        time, "clock_gettime_ns", lambda which: real(which) + (slept_ns if which == time.CLOCK_BOOTTIME else 0)
    )

    async def scenario() -> None:
        nonlocal slept_ns
        controller = Controller()
        port = await controller.listener.start()
        session = CoordinatorSession(
            [f"127.0.0.1:{port}"],
            CoordinatorRegistration(cluster_id="c", incarnation_id=bytes(16), endpoints=()),
            heartbeat_interval_ms=20,
            answer_timeout_ms=SESSION_MS / 2,
        )
        assert not session.has_contact_within(SESSION_MS)
        await session.register()
        assert session.has_contact_within(SESSION_MS)
        slept_ns += SESSION_MS * 1_000_000
        assert not session.has_contact_within(SESSION_MS)
        beating = asyncio.create_task(session.run())
        while not session.has_contact_within(SESSION_MS):  # noqa: ASYNC110 - until the first heartbeat is answered
            await asyncio.sleep(0.01)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        slept_ns += SESSION_MS * 1_000_000
        assert not session.has_contact_within(SESSION_MS)
        await controller.listener.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), 30))
