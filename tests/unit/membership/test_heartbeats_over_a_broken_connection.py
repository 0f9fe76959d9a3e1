"""Heartbeat streams that end or misbehave between two heartbeats: the broker notices at once, with the cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from headrace_core.errors import StaleBrokerEpochError
from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession, RegisteredBroker
from headrace_core.rpc.status import status_of
from headrace_core.testing.tcp_proxy import FaultyNetwork
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

#: Only the first heartbeat of each stream is due within the test.
INTERVAL_MS = 600_000
REGISTRATION = BrokerRegistration(
    cluster_id="c", incarnation_id=bytes(16), directory_ids=(bytes(16),), endpoints=(("client", "127.0.0.1", 1),)
)


class Controller(cluster_pb2_grpc.ClusterServicer):
    def __init__(self) -> None:
        self.streams = 0
        self.heartbeats = 0

    async def BrokerHeartbeat(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[cluster_pb2.BrokerHeartbeatResponse]:
        self.streams += 1
        async for request in requests:
            self.heartbeats += 1
            yield cluster_pb2.BrokerHeartbeatResponse(correlation_id=request.correlation_id)


class Session(BrokerSession):
    """Counts the answers that the broker received. A broker whose stream breaks before the first answer goes to the
    next controller."""

    answers = 0

    def _answered(self, answer: cluster_pb2.BrokerHeartbeatResponse) -> None:
        self.answers += 1
        super()._answered(answer)


@in_loop
async def test_a_stream_that_breaks_while_it_is_idle_is_made_again_at_once_and_at_the_same_controller() -> None:
    server, controller, other = grpc.aio.server(), Controller(), Controller()
    cluster_pb2_grpc.add_ClusterServicer_to_server(controller, server)
    port = server.add_insecure_port("127.0.0.1:0")
    second = grpc.aio.server()
    cluster_pb2_grpc.add_ClusterServicer_to_server(other, second)
    second_port = second.add_insecure_port("127.0.0.1:0")
    await server.start()
    await second.start()
    with FaultyNetwork() as network:
        address = f"127.0.0.1:{network.listen('controller', port)}"
        session = _session_with(address)
        session._controllers.named({1: address, 2: f"127.0.0.1:{second_port}"})
        session._controllers.led_by(1, 1)
        running = asyncio.create_task(session.run())
        try:
            for number in range(1, 4):
                await until(lambda n=number: session.answers >= n, f"heartbeat {number} is not answered")
                assert await asyncio.to_thread(network.reset) >= 1
            await until(lambda: controller.streams >= 4, "the last break is not noticed")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    await server.stop(0)
    await second.stop(0)
    assert other.streams == 0


def _session_with(address: str) -> Session:
    session = Session([address], REGISTRATION, heartbeat_interval_ms=INTERVAL_MS)
    session._registered = RegisteredBroker(broker_id=1, broker_epoch=1, metadata_offset=0)
    return session


def test_why_the_controller_ended_the_stream_is_known_also_when_a_heartbeat_is_due_just_then() -> None:
    """grpc.aio raises "Internal error from Core" for a write on a stream that has ended. Without a special case, a
    broker that its successor has fenced would continue to send heartbeats."""

    class Fencing(Controller):
        async def BrokerHeartbeat(
            self, requests: AsyncIterator[Any], context: Any
        ) -> AsyncIterator[cluster_pb2.BrokerHeartbeatResponse]:
            async for response in super().BrokerHeartbeat(requests, context):
                yield response
                status, details, metadata = status_of(StaleBrokerEpochError("another process has registered"))
                session.hurry()
                await context.abort(status, details, metadata)

    async def scenario() -> None:
        nonlocal session
        server = grpc.aio.server()
        cluster_pb2_grpc.add_ClusterServicer_to_server(Fencing(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        for _ in range(20):
            session = _session_with(f"127.0.0.1:{port}")
            with pytest.raises(StaleBrokerEpochError, match="another process has registered"):
                await asyncio.wait_for(session.run(), 60)
        await server.stop(0)

    session: Session
    asyncio.run(scenario())


def test_an_answer_that_comes_twice_does_not_answer_the_next_heartbeat() -> None:
    """A session counts from when the last answered heartbeat was sent: a duplicated answer must not extend the
    session."""

    class Twice(Controller):
        async def BrokerHeartbeat(
            self, requests: AsyncIterator[Any], context: Any
        ) -> AsyncIterator[cluster_pb2.BrokerHeartbeatResponse]:
            async for response in super().BrokerHeartbeat(requests, context):
                if self.heartbeats == 1:
                    yield response
                    yield response
                if self.heartbeats == 2:
                    await release.wait()
                    yield response

    async def scenario() -> None:
        nonlocal release
        release = asyncio.Event()
        server, controller = grpc.aio.server(), Twice()
        cluster_pb2_grpc.add_ClusterServicer_to_server(controller, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        session = _session_with(f"127.0.0.1:{port}")
        running = asyncio.create_task(session.run())
        try:
            await until(lambda: session.answers, "the first heartbeat is not answered")
            last_contact_s = session._last_contact_s
            session.hurry()
            await until(lambda: controller.heartbeats == 2, "the second heartbeat is not sent")
            assert (session.answers, session._last_contact_s) == (1, last_contact_s)
            release.set()
            await until(lambda: session.answers == 2, "the second heartbeat is not answered")
            assert session._last_contact_s > last_contact_s
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await server.stop(0)

    release: asyncio.Event
    asyncio.run(scenario())
