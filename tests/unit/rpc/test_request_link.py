"""Requests that share a stream."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio

from headrace_core.errors import NetworkError
from headrace_core.rpc import ChannelPurpose
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_core.rpc.request_link import PACKED_MAX, RequestLink
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_protos.v1 import groups_pb2, transactions_pb2, transactions_pb2_grpc
from tests.worlds.this_process import is_error_freed

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


class PackingServer(transactions_pb2_grpc.TransactionMarkersServicer, StreamHandler[Any]):
    """Answers every request of a message, the last one first."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []

    async def WriteMarkers(self, request_iterator: Any, context: Any) -> None:
        self._stream: ServerStream[Any, Any] = ServerStream(context, transactions_pb2.WriteMarkersResponses)
        await self._stream.run(self)

    def on_request(self, request: Any) -> None:
        self.messages.append([each.correlation_id for each in request.requests])
        for each in reversed(request.requests):
            self._stream.send(transactions_pb2.WriteMarkersResponse(correlation_id=each.correlation_id))


def packed(partitions: int, count: int) -> tuple[list[list[int]], list[int]]:
    """Ask ``count`` requests at once; return the requests of each message, and the responses in their order."""

    async def run() -> tuple[list[list[int]], list[int]]:
        server, servicer = grpc.aio.server(), PackingServer()
        transactions_pb2_grpc.add_TransactionMarkersServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        read: list[int] = []
        link: RequestLink[Any, Any] = RequestLink(
            f"127.0.0.1:{port}",
            ChannelPurpose.CONTROL,
            lambda channel: transactions_pb2_grpc.TransactionMarkersStub(channel).WriteMarkers(),  # type: ignore[no-untyped-call]
            what="a request",
            check=lambda request, response: read.append(response.correlation_id),
            packed=transactions_pb2.WriteMarkersRequests,
        )
        names = [groups_pb2.PartitionName(topic="t", partition=number) for number in range(partitions)]
        requests = [transactions_pb2.WriteMarkersRequest(partitions=names) for _ in range(count)]
        answers = await asyncio.gather(*(link.ask(each, 30) for each in requests))
        assert [each.correlation_id for each in answers] == [each.correlation_id for each in requests]
        await link.close()
        await server.stop(0)
        return servicer.messages, read

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_requests_that_wait_at_the_same_moment_share_a_message() -> None:
    messages, read = packed(1, 5)
    assert messages == [[1, 2, 3, 4, 5]]
    assert read == [5, 4, 3, 2, 1]


def test_a_message_has_a_bounded_number_of_requests() -> None:
    messages, _ = packed(1, PACKED_MAX + 1)
    assert list(map(len, messages)) == [PACKED_MAX, 1]


def test_a_message_has_a_bounded_number_of_partitions() -> None:
    messages, _ = packed(PARTITIONS_MAX // 2, 3)
    assert messages == [[1, 2], [3]]
