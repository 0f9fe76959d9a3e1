"""A client's stream with silent, slow, misbehaving or ended servers, and cancelled callers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_core.errors import HeadraceError, InvalidRequestError, NetworkError, RequestTimedOutError
from headrace_core.rpc import ChannelPurpose, status_of
from headrace_core.rpc.duplex import Duplex
from headrace_core.testing.tcp_proxy import FaultyNetwork
from tests.worlds.waiting import until_async as until

LIMIT_S = 60.0
LARGE = "x" * (1 << 20)
Talk = Callable[[Any], Awaitable[None]]
Stream = Duplex[str, str]


class Server:
    """Serves one stream with a behaviour that the test sets, and counts the calls in progress."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.calls = 0
        self.over = asyncio.Event()
        self.address = ""
        self.port = 0

    async def serve(self, _: object, context: Any) -> None:
        self.calls += 1
        try:
            await self._talk(context)
        finally:
            self.over.set()


@contextlib.asynccontextmanager
async def serving(talk: Talk) -> AsyncIterator[Server]:
    server, ours = grpc.aio.server(), Server(talk)
    handler = grpc.stream_stream_rpc_method_handler(ours.serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Talk": handler}),))
    ours.port = server.add_insecure_port("127.0.0.1:0")
    ours.address = f"127.0.0.1:{ours.port}"
    await server.start()
    try:
        yield ours
    finally:
        await server.stop(0)


def dial(address: str) -> Stream:
    return Duplex(address, ChannelPurpose.PRODUCE, open_call)


def open_call(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall:
    return channel.stream_stream("/test/Talk", request_serializer=str.encode, response_deserializer=bytes.decode)()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The fixture also checks that no object of any stream of the test is left."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()
            left = [task for task in asyncio.all_tasks() if "Duplex" in repr(task) or "test_duplex" in repr(task)]
            assert [task for task in left if task is not asyncio.current_task()] == []

    asyncio.run(limited())


class Answers:
    """The parts of a simple client: it writes ``requests``, keeps all answers, and ends after ``enough``."""

    def __init__(self, stream: Stream, *, enough: int = 1_000_000) -> None:
        self.stream = stream
        self.got: list[str] = []
        self.written = 0
        self._enough = enough
        self.progress = asyncio.Event()

    async def read(self) -> None:
        while len(self.got) < self._enough:
            self.got.append(await self.stream.read())
            self.progress.set()

    async def write(self, *requests: str) -> None:
        """The reader then waits for an event that never happens."""
        await self.stream.connected()
        self.progress.set()
        for request in requests:
            await self.stream.write(request)
            self.written += 1
        await asyncio.Event().wait()

    async def flood(self, message: str = LARGE) -> None:
        await self.stream.connected()
        self.progress.set()
        while True:
            await self.stream.write(message)
            self.written += 1


async def echo(context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(request)


async def silent(context: Any) -> None:
    await asyncio.Event().wait()


async def failure_of(work: Awaitable[None]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        await work
    return caught.value


# -- servers ---------------------------------------------------------------------------------------------------------


def test_answers_come_in_order_and_a_part_that_returns_ends_the_stream() -> None:
    async def test() -> None:
        async with serving(echo) as server:
            stream = dial(server.address)
            client = Answers(stream, enough=3)
            await stream.run(client.read(), client.write("a", "b", "c"))
            assert client.got == ["a", "b", "c"]
            await server.over.wait()

    run(test)


def test_a_server_that_never_answers_is_left_for_the_reason_given() -> None:
    async def test() -> None:
        async with serving(silent) as server:
            stream = dial(server.address)
            client = Answers(stream)
            asyncio.get_running_loop().call_later(0.05, stream.cancel, RequestTimedOutError("no answer"))
            assert isinstance(await failure_of(stream.run(client.read(), client.write("a"))), RequestTimedOutError)
            await server.over.wait()

    run(test)


def test_both_answers_of_a_server_that_answers_twice_arrive() -> None:
    async def twice(context: Any) -> None:
        request = await context.read()
        await context.write(request)
        await context.write(request)
        await context.read()

    async def test() -> None:
        async with serving(twice) as server:
            stream = dial(server.address)
            client = Answers(stream, enough=2)
            await stream.run(client.read(), client.write("a"))
            assert client.got == ["a", "a"]

    run(test)


def test_a_server_that_ends_in_mid_stream_without_an_error_is_an_error() -> None:
    async def brief(context: Any) -> None:
        await context.write(await context.read())

    async def test() -> None:
        async with serving(brief) as server:
            stream = dial(server.address)
            client = Answers(stream)
            error = await failure_of(stream.run(client.read(), client.write("a")))
            assert isinstance(error, NetworkError)
            assert error.message == f"{server.address}: the server ended the stream"
            assert client.got == ["a"]

    run(test)


@pytest.mark.parametrize("message", ["x", LARGE], ids=["small", "large"])
def test_why_a_server_ended_the_stream_is_known_also_to_those_who_were_writing(message: str) -> None:
    """grpc.aio itself then raises "Internal error from Core", and no longer has the server's status."""
    status, details, metadata = status_of(InvalidRequestError("go away"))

    async def refuse(context: Any) -> None:
        for _ in range(2):
            await context.read()
        await context.abort(status, details, metadata)

    async def test() -> None:
        async with serving(refuse) as server:
            for _ in range(10):
                stream = dial(server.address)
                client = Answers(stream)
                error = await failure_of(stream.run(client.read(), client.flood(message)))
                assert isinstance(error, InvalidRequestError)
                assert "go away" in error.message
                stream = dial(server.address)
                only_writes = Answers(stream)
                assert isinstance(await failure_of(stream.run(only_writes.flood(message))), InvalidRequestError)

    run(test)


def test_the_servers_status_counts_when_a_failed_write_is_noticed_first() -> None:
    """gRPC reports a failed write to the event loop before or after the status. In this test the report comes before
    the status, which gRPC's own method ensures."""
    status, details, metadata = status_of(InvalidRequestError("go away"))
    refused = asyncio.Event()

    async def refuse(context: Any) -> None:
        await context.read()
        await refused.wait()
        await context.abort(status, details, metadata)

    async def test() -> None:
        async with serving(refuse) as server:
            stream = dial(server.address)

            async def write() -> None:
                await stream.connected()
                await stream.write("a")
                stream._call._cython_call.set_internal_error("a write failed")
                asyncio.get_running_loop().call_later(0.05, refused.set)
                await stream.write("b")

            assert isinstance(await failure_of(stream.run(write())), InvalidRequestError)

    run(test)


def test_a_connection_that_is_reset_is_noticed_while_nothing_is_said() -> None:
    async def test() -> None:
        async with serving(echo) as server:
            with FaultyNetwork() as network:
                stream = dial(f"127.0.0.1:{network.listen('server', server.port)}")
                client = Answers(stream)
                running = asyncio.create_task(stream.run(client.read(), client.write("a")))
                while not client.got:
                    await client.progress.wait()
                    client.progress.clear()
                assert await asyncio.to_thread(network.reset) >= 1
                assert isinstance(await failure_of(running), NetworkError)

    run(test)


def test_a_write_waits_while_the_server_does_not_read_and_ends_with_the_call() -> None:
    async def test() -> None:
        async with serving(silent) as server:
            stream = dial(server.address)
            client = Answers(stream)
            asyncio.get_running_loop().call_later(0.3, stream.cancel, RequestTimedOutError("too slow"))
            error = await failure_of(stream.run(client.read(), client.write(*[LARGE] * 64)))
            assert isinstance(error, RequestTimedOutError)
            assert client.written < 64
            await server.over.wait()

    run(test)


def test_a_message_that_is_none_ends_the_stream() -> None:
    async def nonsense(context: Any) -> None:
        await context.read()
        await context.write(b"\xff\xff")
        await context.read()

    async def test() -> None:
        async with serving(nonsense) as server:
            stream = dial(server.address)
            client = Answers(stream)
            error = await failure_of(stream.run(client.read(), client.write("a")))
            assert isinstance(error, NetworkError)
            assert "not a valid protobuf message" in error.message
            await server.over.wait()

    run(test)


def test_half_closed_the_server_ends_the_stream_once_it_has_read_all() -> None:
    received: list[bytes] = []

    async def listen(context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            received.append(request)

    async def test() -> None:
        async with serving(listen) as server:
            stream = dial(server.address)
            client = Answers(stream)

            async def write() -> None:
                await stream.connected()
                for _ in range(20):
                    await stream.write(LARGE)
                await stream.done_writing()
                await asyncio.Event().wait()

            error = await failure_of(stream.run(client.read(), write()))
            assert error.message.endswith("the server ended the stream")
            assert len(received) == 20

    run(test)


# -- no server ------------------------------------------------------------------------------------------------------


def test_an_address_where_no_server_listens() -> None:
    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            for _ in range(20):
                stream = dial(address)
                client = Answers(stream)
                error = await failure_of(stream.run(client.read(), client.flood()))
                assert isinstance(error, NetworkError)
                assert address in error.message
                assert client.written == 0

    run(test)


def test_who_hangs_up_at_once_is_never_written_to() -> None:
    """The written requests may have had an effect. The error of a broken stream must therefore not claim that no
    connection existed."""

    async def test() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        address = f"127.0.0.1:{rude.sockets[0].getsockname()[1]}"
        async with rude:
            for _ in range(20):
                stream = dial(address)
                client = Answers(stream)
                assert isinstance(await failure_of(stream.run(client.read(), client.flood())), NetworkError)
                assert client.written == 0

    run(test)


def test_a_peer_that_takes_connections_and_says_nothing_can_be_left_while_it_is_dialed() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            stream = dial(f"127.0.0.1:{mute.getsockname()[1]}")
            client = Answers(stream)
            asyncio.get_running_loop().call_later(0.05, stream.cancel, RequestTimedOutError("no connection"))
            assert isinstance(await failure_of(stream.run(client.flood())), RequestTimedOutError)
            assert client.written == 0

    run(test)


# -- callers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["dialing", "writing", "reading", "both", "elsewhere"])
def test_a_caller_that_is_cancelled_takes_the_call_with_it(where: str) -> None:
    async def test() -> None:
        async with serving(silent) as server:
            with socket.create_server(("127.0.0.1", 0)) as mute:
                mute_address = f"127.0.0.1:{mute.getsockname()[1]}"
                for times in (1, 2):
                    stream = dial(mute_address if where == "dialing" else server.address)
                    client = Answers(stream)
                    parts: list[Callable[[], Coroutine[Any, Any, None]]] = {
                        "dialing": [client.flood],
                        "writing": [client.flood],
                        "reading": [client.read, client.write],
                        "both": [client.read, client.flood],
                        "elsewhere": [client.write],
                    }[where]
                    running = asyncio.create_task(stream.run(*(part() for part in parts)))
                    if where == "dialing":
                        await asyncio.sleep(0)
                    else:
                        await client.progress.wait()
                    for _ in range(times):
                        running.cancel()
                        await asyncio.sleep(0)
                    with pytest.raises(asyncio.CancelledError):
                        await running
                    while any("Duplex" in repr(task) for task in asyncio.all_tasks()):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)  # (cancelled twice, it does not wait for its end)

    run(test)


def test_a_call_that_is_cancelled_at_once_ends() -> None:
    async def test() -> None:
        async with serving(silent) as server:
            stream = dial(server.address)
            stream.cancel()
            stream.cancel(RequestTimedOutError("the first reason counts"))
            client = Answers(stream)
            assert type(await failure_of(stream.run(client.read(), client.flood()))) is NetworkError

    run(test)


def test_a_bug_in_a_part_ends_the_stream_and_is_raised() -> None:
    async def test() -> None:
        async with serving(echo) as server:
            stream = dial(server.address)
            client = Answers(stream)

            async def stumble() -> None:
                assert await stream.read() == "a"
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await stream.run(stumble(), client.write("a"))
            await server.over.wait()

    run(test)


def test_nothing_of_a_stream_that_is_over_waits_for_the_garbage_collector() -> None:
    """gRPC's threads live as long as its objects: a process must be able to fork soon after it closed its clients. A
    broker runs a full garbage collection about once an hour, so objects of dead peers would accumulate for an hour.

    What a stream leaves, every stream leaves: other tests' threads may add a single object, never one per stream. A
    client that another test left open may fail again and again; errors about its addresses do not count."""
    streams = 10
    own: set[str] = set()

    def is_foreign(error: object) -> bool:
        addresses = set(re.findall(r"127\.0\.0\.1:\d+", str(error)))
        return bool(addresses) and not addresses & own

    def kept() -> list[object]:
        calls = (grpc.aio.StreamStreamCall, Duplex)
        errors = (grpc.aio.AioRpcError, HeadraceError)
        found = [each for each in gc.get_objects() if isinstance(each, calls + errors)]
        return [each for each in found if isinstance(each, calls) or not is_foreign(each)]

    async def running() -> None:
        await asyncio.Event().wait()

    async def brief(context: Any) -> None:
        await context.write(await context.read())

    async def answered(address: str) -> None:
        stream = dial(address)
        client = Answers(stream)
        with contextlib.suppress(HeadraceError):  # (pytest.raises would keep the error)
            await stream.run(client.read(), client.write("a"))
        stream.cancel()

    async def cancelled(address: str) -> None:
        """By its owner, for a reason."""
        stream = dial(address)
        asyncio.get_running_loop().call_later(0.01, stream.cancel, NetworkError("silence"))
        with contextlib.suppress(HeadraceError):
            await stream.run(running())

    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            async with serving(brief) as server:
                refusing = f"127.0.0.1:{taken.getsockname()[1]}"
                own.update((refusing, server.address))
                gc.collect()
                gc.disable()  # so a reference cycle stays
                try:
                    for end, address in ((answered, server.address), (answered, refusing), (cancelled, server.address)):
                        before = len(kept())
                        for _ in range(streams):
                            await end(address)
                        await until(
                            lambda most=before + streams // 2: len(kept()) <= most,  # type: ignore[misc]
                            lambda: f"kept: {[(type(each), gc.get_referrers(each)[:3]) for each in kept()[-3:]]}",
                            within_s=2.0,
                        )
                finally:
                    gc.enable()

    run(test)
