"""Requests that share a stream."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio

from headrace_core.errors import NetworkError
from headrace_core.rpc import ChannelPurpose
from headrace_core.rpc.request_link import RequestLink
from headrace_protos.v1 import transactions_pb2, transactions_pb2_grpc
from tests.worlds.garbage import is_error_freed

REQUESTS = 5


class BreakingServer(transactions_pb2_grpc.TransactionMarkersServicer):
    """Ends the stream after ``REQUESTS`` requests, without an answer."""

    async def WriteMarkers(self, request_iterator: Any, context: Any) -> None:
        for _ in range(REQUESTS):
            await context.read()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")


def test_requests_whose_stream_broke_fail_with_errors_of_their_own() -> None:
    async def run() -> None:
        server = grpc.aio.server()
        transactions_pb2_grpc.add_TransactionMarkersServicer_to_server(BreakingServer(), server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        link: RequestLink[Any, Any] = RequestLink(
            f"127.0.0.1:{port}",
            ChannelPurpose.CONTROL,
            lambda channel: transactions_pb2_grpc.TransactionMarkersStub(channel).WriteMarkers(),  # type: ignore[no-untyped-call]
            what="a request",
        )
        requests = [transactions_pb2.WriteMarkersRequest() for _ in range(REQUESTS)]
        failures = await asyncio.gather(*(link.ask(each, 30) for each in requests), return_exceptions=True)
        await link.close()
        await server.stop(0)
        assert all(isinstance(each, NetworkError) and each.was_sent for each in failures), failures
        assert len(set(map(id, failures))) == REQUESTS

    asyncio.run(asyncio.wait_for(run(), 60))


def test_no_failed_request_waits_for_the_garbage_collector() -> None:
    async def run() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            link: RequestLink[Any, Any] = RequestLink(
                f"127.0.0.1:{taken.getsockname()[1]}",
                ChannelPurpose.CONTROL,
                lambda channel: transactions_pb2_grpc.TransactionMarkersStub(channel).WriteMarkers(),  # type: ignore[no-untyped-call]
                what="a request",
            )
            assert await is_error_freed(lambda: link.ask(transactions_pb2.WriteMarkersRequest(), 30))
            await link.close()

    asyncio.run(asyncio.wait_for(run(), 60))
