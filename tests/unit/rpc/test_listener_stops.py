"""A server stops while its clients send much: each receives the reason, in every state of its connection.

If a server closes a connection while the client still sends, the connection is reset. The client then loses data that
it has not read, such as the reason of the close. The server therefore closes a connection only after the client has
shown that it has read the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from headrace_core.errors import ServerShuttingDownError
from headrace_core.rpc import error_from_rpc
from headrace_core.rpc.server import Listener
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc
from tests.worlds.waiting import in_loop

TIMEOUT_S = 60
_GOAWAY = 7


class Server(produce_pb2_grpc.ProduceServicer, StreamHandler[Any]):
    """Accepts requests and answers none; ends its stream on demand."""

    def __init__(self) -> None:
        self.listener = Listener("internal")
        self.listener.add(produce_pb2_grpc.add_ProduceServicer_to_server, self, "headrace.v1.Produce")
        self.stream: ServerStream[Any, Any] | None = None
        self.received = 0
        self.closed = asyncio.Event()

    async def Produce(self, request_iterator: Any, context: Any) -> None:
        self.stream = ServerStream(context)
        await self.stream.run(self)

    def on_request(self, request: Any) -> None:
        self.received += 1

    def on_closed(self) -> None:
        self.closed.set()


class Link:
    """A proxy between a client and a server. With ``hold``, the proxy no longer reads the bytes that the server
    sends."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server_at = host, int(port)
        self._from_server = b""
        self._server_ends: list[asyncio.ReadTransport] = []
        self.goaways = 0
        self.address = ""

    @contextlib.asynccontextmanager
    async def carrying(self) -> AsyncIterator[Link]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.release()
            server.close()

    def hold(self) -> None:
        for end in self._server_ends:
            end.pause_reading()

    def release(self) -> None:
        for end in self._server_ends:
            end.resume_reading()

    async def _connected(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self._server_at)
        self._server_ends.append(to_server.transport)  # type: ignore[arg-type]

        async def forth() -> None:
            with contextlib.suppress(OSError):
                while data := await from_client.read(65536):
                    to_server.write(data)
                    await to_server.drain()

        forward = asyncio.create_task(forth())
        try:
            while True:
                data = await from_server.read(65536)
                if not data:
                    break
                self._count(data)
                to_client.write(data)
                await to_client.drain()
        except OSError:
            to_client.transport.abort()
        finally:
            forward.cancel()
            to_client.close()
            to_server.close()

    def _count(self, data: bytes) -> None:
        """HTTP/2 frames: length (3), type (1), flags (1), stream (4), payload."""
        self._from_server += data
        while len(self._from_server) >= 9:
            size = 9 + int.from_bytes(self._from_server[:3], "big")
            if len(self._from_server) < size:
                return
            self.goaways += self._from_server[3] == _GOAWAY
            self._from_server = self._from_server[size:]


async def until(condition: Any, seconds: float = TIMEOUT_S) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  (of plain objects on both sides of real sockets)
                await asyncio.sleep(0.005)
    return bool(condition())


@in_loop
async def test_a_client_in_the_midst_of_sending_hears_why_its_stream_ends() -> None:
    """The client's side of the connection is slow. The reason waits unread while the client continues to send."""
    server = Server()
    await server.listener.start()
    async with (
        Link(server.listener.address).carrying() as link,
        grpc.aio.insecure_channel(link.address) as channel,
    ):
        call = produce_pb2_grpc.ProduceStub(channel).Produce()
        request = produce_pb2.ProduceRequest(correlation_id=1)
        await call.write(request)
        assert await until(lambda: server.received == 1)
        assert server.stream is not None

        stopping = asyncio.create_task(server.listener.stop(5.0))
        # A server that sends GOAWAY before its streams have ended closes the connection with the last stream.
        await until(lambda: link.goaways >= 2, seconds=0.5)
        link.hold()
        server.stream.finish(ServerShuttingDownError("the broker is shutting down"))
        await asyncio.wait_for(server.closed.wait(), TIMEOUT_S)
        await asyncio.wait([stopping], timeout=0.3)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # ``read`` raises the reason
            for _ in range(50):
                await call.write(request)
                await asyncio.sleep(0)
        await asyncio.wait([stopping], timeout=0.1)
        link.release()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        error = error_from_rpc(failed.value, link.address)
        assert isinstance(error, ServerShuttingDownError), error
        await stopping


def test_handlers_that_are_cut_have_cleaned_up_when_the_listener_has_stopped() -> None:
    """After a listener has stopped, a node closes the objects that its handlers use. Found by
    test_watches_of_many_topics_refuse_no_single_request, in which a request's bytes were still counted after stop(0),
    once in 150 runs."""

    class Slow(Server):
        is_clean = False
        cancelled = 0

        async def Produce(self, request_iterator: Any, context: Any) -> None:
            try:
                await super().Produce(request_iterator, context)
            finally:
                # gRPC may first end the handler's reads and then cancel the handler, which interrupts this clean-up.
                for _ in range(100):  # (a thousand took more than CLEAN_UP_S on a starved machine)
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        self.cancelled += 1
                self.is_clean = True

    async def work() -> None:
        server = Slow()
        await server.listener.start()
        async with grpc.aio.insecure_channel(server.listener.address) as channel:
            call = produce_pb2_grpc.ProduceStub(channel).Produce()
            await call.write(produce_pb2.ProduceRequest(correlation_id=1))
            assert await until(lambda: server.received == 1)
            await server.listener.stop(0)
            assert server.is_clean
            assert server.cancelled <= 1

    asyncio.run(work())
