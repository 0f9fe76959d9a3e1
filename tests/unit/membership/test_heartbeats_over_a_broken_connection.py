"""A connection that breaks between two heartbeats: the broker notices at once, and goes back to where it came from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession, RegisteredBroker
from headrace_core.testing.tcp_proxy import FaultyNetwork
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

#: No heartbeat is due within the test but the first of each stream.
INTERVAL_MS = 600_000


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
    """Counts the answers that it got: one whose heartbeat is broken before that goes to the next controller."""

    answers = 0

    def _answered(self, answer: cluster_pb2.BrokerHeartbeatResponse) -> None:
        self.answers += 1
        super()._answered(answer)


async def _until(condition: Any, what: str) -> None:
    try:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


def test_a_stream_that_breaks_while_it_is_idle_is_made_again_at_once_and_at_the_same_controller() -> None:
    async def scenario() -> None:
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
            registration = BrokerRegistration(
                cluster_id="c",
                incarnation_id=bytes(16),
                directory_ids=(bytes(16),),
                endpoints=(("client", "127.0.0.1", 1),),
            )
            session = Session([address], registration, heartbeat_interval_ms=INTERVAL_MS)
            session._registered = RegisteredBroker(broker_id=1, broker_epoch=1, metadata_offset=0)
            session._controllers.named({1: address, 2: f"127.0.0.1:{second_port}"})
            session._controllers.led_by(1, 1)
            running = asyncio.create_task(session.run())
            try:
                for number in range(1, 4):
                    await _until(lambda n=number: session.answers >= n, f"heartbeat {number} is not answered")
                    assert await asyncio.to_thread(network.reset) >= 1
                await _until(lambda: controller.streams >= 4, "the last break is not noticed")
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        await server.stop(0)
        await second.stop(0)
        assert other.streams == 0

    asyncio.run(scenario())
