"""A server of Produce streams; the test sends each answer explicitly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc


class ProduceServer(produce_pb2_grpc.ProduceServicer):
    """``messages``: the requests of each received message, by the name of the call. ``streams``: the latest stream of
    each call."""

    def __init__(self, *, is_old: bool = False) -> None:
        """``is_old``: the server does not know ProduceMany."""
        self.address = ""
        self._is_old = is_old
        self.messages: list[tuple[str, list[Any]]] = []
        self.streams: dict[str, ServerStream[Any, Any]] = {}
        self._came = asyncio.Event()

    async def Produce(self, request_iterator: Any, context: Any) -> None:
        await self._serve("Produce", ServerStream(context))

    async def ProduceMany(self, request_iterator: Any, context: Any) -> None:
        if self._is_old:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        await self._serve("ProduceMany", ServerStream(context, produce_pb2.ProduceResponses))

    async def _serve(self, name: str, stream: ServerStream[Any, Any]) -> None:
        self.streams[name] = stream
        await stream.run(_Noted(self, name))

    def note(self, name: str, requests: list[Any]) -> None:
        self.messages.append((name, requests))
        self._came.set()

    async def until(self, is_so: Callable[[ProduceServer], object]) -> None:
        """Wait for messages until ``is_so()`` returns True."""
        while not is_so(self):
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 30)

    def answer(self, *requests: Any) -> None:
        """Answer requests of the shared stream."""
        for request in requests:
            self.streams["ProduceMany"].send(produce_pb2.ProduceResponse(correlation_id=request.correlation_id))


class _Noted(StreamHandler[Any]):
    def __init__(self, server: ProduceServer, name: str) -> None:
        self._server = server
        self._name = name

    def on_request(self, request: Any) -> None:
        self._server.note(self._name, list(request.requests) if self._name == "ProduceMany" else [request])


@asynccontextmanager
async def produce_server(*, is_old: bool = False) -> AsyncIterator[ProduceServer]:
    server, servicer = grpc.aio.server(), ProduceServer(is_old=is_old)
    produce_pb2_grpc.add_ProduceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield servicer
    finally:
        await server.stop(0)
