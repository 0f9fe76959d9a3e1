"""Clients that break the protocol, at a real listener: each is refused and leaves no resources in use, and other
clients are served."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_core.connections import AddressLimits
from headrace_core.errors import InvalidRequestError, NetworkError, ServerBusyError
from headrace_core.rpc import ChannelPurpose, error_from_rpc, memory, open_channel, receiving
from headrace_core.rpc import channel as channel_module
from headrace_core.rpc import server as server_module
from headrace_core.rpc.channel import CHANNELS_PER_CONNECTION
from headrace_core.rpc.duplex import read_message
from headrace_core.rpc.server import HEADER_BYTES_REFUSED, STREAMS_PER_CLIENT_CONNECTION_MAX, Listener, RequestBytes
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.testing.raw_http2 import (
    GOAWAY,
    HEADERS,
    RST_STREAM,
    SETTING_INITIAL_WINDOW_SIZE,
    SETTING_MAX_CONCURRENT_STREAMS,
    SETTINGS,
    RawConnection,
)
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, produce_pb2, produce_pb2_grpc
from tests.worlds.waiting import until_async as until

MIB = 1024 * 1024
TIMEOUT_S = 30
_PRODUCE = "/headrace.v1.Produce/Produce"


class Server(produce_pb2_grpc.ProduceServicer, metadata_pb2_grpc.MetadataServicer, StreamHandler[Any]):
    """Answers each produce request with its correlation id, and metadata with the number of topics named."""

    def __init__(self, **limits: int) -> None:
        self.listener = Listener("client", **limits)  # type: ignore[arg-type]
        self.listener.add(produce_pb2_grpc.add_ProduceServicer_to_server, self, "headrace.v1.Produce")
        self.listener.add(metadata_pb2_grpc.add_MetadataServicer_to_server, self, "headrace.v1.Metadata")
        self.handled = 0
        self.answer_bytes = 0  #: Additional size of the answers to GetMetadata.
        self.request_bytes: list[int] = []
        #: The number of produce calls in progress.
        self.open_calls = 0

    async def Produce(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        self.open_calls += 1
        try:
            await stream.run(Answering(self, stream))
        finally:
            self.open_calls -= 1

    async def GetMetadata(self, request: Any, context: Any) -> Any:
        self.handled += 1
        return metadata_pb2.MetadataResponse(controller_id=len(request.topics), cluster_id="x" * self.answer_bytes)

    async def WatchMetadata(self, request: Any, context: Any) -> None:
        await context.write(metadata_pb2.MetadataResponse(controller_id=len(request.topics)))
        await asyncio.Event().wait()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.listener.port


class Answering(StreamHandler[Any]):
    def __init__(self, server: Server, stream: ServerStream[Any, Any]) -> None:
        self._server, self._stream = server, stream

    def on_request(self, request: Any) -> None:
        self._server.handled += 1
        self._server.request_bytes.append(self._stream.request_bytes)
        self._stream.send(produce_pb2.ProduceResponse(correlation_id=request.correlation_id))


@contextlib.asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[Server]:
    server = Server(**limits)
    await server.listener.start()
    try:
        yield server
    finally:
        await server.listener.stop(0)


@contextlib.asynccontextmanager
async def connected(server: Server, **kwargs: Any) -> AsyncIterator[grpc.aio.Channel]:
    options = [
        ("grpc.max_send_message_length", 128 * MIB),
        ("grpc.max_receive_message_length", 128 * MIB),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    channel = grpc.aio.insecure_channel(server.listener.address, options=options, **kwargs)
    try:
        yield channel
    finally:
        await channel.close()


async def is_served(server: Server) -> bool:
    async with connected(server) as channel:
        stub = metadata_pb2_grpc.MetadataStub(channel)
        answer = await stub.GetMetadata(
            metadata_pb2.MetadataRequest(topics=["a", "b"]), timeout=TIMEOUT_S, wait_for_ready=True
        )
        return bool(answer.controller_id == 2)


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / MIB


# -- messages ---------------------------------------------------------------------------------------------------------


def test_names_without_end_are_refused_before_the_handler() -> None:
    async def scenario() -> None:
        async with serving() as server, connected(server) as channel:
            call = channel.unary_unary("/headrace.v1.Metadata/GetMetadata")
            for names in (b"\x0a\x01n" * 10_001, b"\x0a\x01n" * 1_500_000, b"\x0a\x01n" * 5_000_000):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(names, timeout=TIMEOUT_S)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                error = error_from_rpc(refused.value, "here")
                assert isinstance(error, InvalidRequestError)
                assert "split the request" in error.message
            assert server.handled == 0

    run(scenario)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x22\x00" * 2_001, "more than 2000 partitions; split the request"),
        (b"\xff\xff\xff", "not a valid protobuf message"),
    ],
)
def test_stream_ends_with_what_is_wrong_with_a_message(data: bytes, expected: str) -> None:
    """Before the fix of unreadable messages, a stream's handler could receive None, and ended with an
    AttributeError."""

    async def scenario() -> None:
        async with serving() as server, connected(server) as channel:
            stream = channel.stream_stream(_PRODUCE)()
            await stream.write(produce_pb2.ProduceRequest(correlation_id=7).SerializeToString())
            assert produce_pb2.ProduceResponse.FromString(await stream.read()).correlation_id == 7
            await stream.write(data)
            with pytest.raises(grpc.aio.AioRpcError, match=expected):
                await stream.read()
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (server.handled, server.request_bytes) == (1, [2])

    run(scenario)


class NoneContext:
    """A call whose library returns None for a message that it could not deserialize."""

    async def read(self) -> None:
        return None

    async def write(self, message: Any) -> None:
        raise AssertionError("there is nothing to answer")


def test_none_from_the_library_ends_a_stream_with_a_typed_error() -> None:
    class Handler(StreamHandler[Any]):
        def on_request(self, request: Any) -> None:
            request.correlation_id  # noqa: B018  (an AttributeError for None)

    async def scenario() -> None:
        with pytest.raises(InvalidRequestError, match="not a valid protobuf message"):
            await ServerStream(NoneContext()).run(Handler())  # type: ignore[arg-type]

    run(scenario)


def test_client_that_reads_no_valid_message_loses_the_connection_and_nothing_else() -> None:
    class Call(NoneContext):
        was_cancelled = False

        def cancel(self) -> None:
            self.was_cancelled = True

    async def scenario() -> None:
        call = Call()
        with pytest.raises(NetworkError, match="not a valid protobuf message"):
            await read_message(call)
        assert call.was_cancelled

    run(scenario)


@pytest.mark.parametrize("method", ["/headrace.v1.Metadata/GetMetadata", _PRODUCE])
def test_compressed_message_is_refused_and_never_inflated(method: str) -> None:
    """94 KiB on the wire would become 95 MiB in memory."""

    async def scenario() -> None:
        async with serving() as server, connected(server, compression=grpc.Compression.Gzip) as channel:
            bomb = b"\x7a" + _varint(94 * MIB) + bytes(94 * MIB)
            before = resident_mib()
            with contextlib.suppress(grpc.aio.AioRpcError):
                if method == _PRODUCE:
                    stream = channel.stream_stream(method)()
                    await stream.write(bomb)
                    assert await stream.read() is grpc.aio.EOF
                else:
                    call = channel.unary_unary(method)(bomb)
                    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
                    assert "gzip" in await call.details()
            assert resident_mib() - before < 60
            assert server.handled == 0
            assert await is_served(server)

    run(scenario)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_message_beyond_the_limit_is_refused_by_its_length() -> None:
    """The header of the message announces 88 MiB. The server answers before the rest has arrived, and keeps none of the
    message."""

    async def scenario() -> None:
        async with serving(message_bytes_max=4 * MIB) as server:
            attacker = await asyncio.to_thread(RawConnection, server.address)
            stream_id = attacker.open_call(_PRODUCE)
            attacker.message_part(stream_id, b"\0" + struct.pack(">I", 88 * MIB) + bytes(1000))
            ended = await asyncio.to_thread(_end_of, attacker, stream_id)
            assert b"larger than max" in ended
            attacker.close()
            assert server.handled == 0
            assert await is_served(server)

    run(scenario)


def _end_of(connection: RawConnection, stream_id: int) -> bytes:
    while (frame := connection.read_frame()) is not None:
        if frame.stream_id == stream_id and frame.kind in (HEADERS, RST_STREAM):
            return frame.payload
    return b"closed"


def test_single_requests_under_way_are_bounded_over_all_connections() -> None:
    requests = RequestBytes(100_000)
    with requests.held(90_000, "one"):
        with pytest.raises(ServerBusyError, match="90000 bytes are in progress"), requests.held(20_000, "two"):
            pass
        with requests.held(1_000, "small ones always pass"):
            assert requests.used == 91_000
    assert requests.used == 0


def test_watches_of_many_topics_refuse_no_single_request() -> None:
    """A watch may last for any time. If watches were counted together with single requests, a few watches would block
    all requests of more than 16 KiB permanently."""

    async def scenario() -> None:
        server = Server()
        await server.listener.start()
        async with grpc.aio.insecure_channel("{}:{}".format(*server.address)) as channel:
            stub = metadata_pb2_grpc.MetadataStub(channel)
            large = metadata_pb2.MetadataRequest(topics=[f"{number:0800}" for number in range(10_000)])
            watches = [stub.WatchMetadata(large) for _ in range(9)]
            read = [asyncio.ensure_future(watch.read()) for watch in watches]
            outcomes = await asyncio.gather(*read, return_exceptions=True)
            refused = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
            assert len(refused) == 1
            assert isinstance(error_from_rpc(refused[0], "server"), ServerBusyError)
            assert (await stub.GetMetadata(metadata_pb2.MetadataRequest(topics=large.topics[:5_000]))).controller_id
            for watch in watches:
                watch.cancel()
        await server.listener.stop(0)
        assert server.listener.watches.used == server.listener.requests.used == 0

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


def test_memory_of_refused_requests_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = asyncio.Event()
    monkeypatch.setattr(memory, "QUIET_S", 0.01)
    monkeypatch.setattr(memory, "trim", lambda: loop.call_soon_threadsafe(trimmed.set))

    async def scenario() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        async with serving() as server, connected(server) as channel:
            call = channel.unary_unary("/headrace.v1.Metadata/GetMetadata")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"\x0a\x01n" * 1_500_000)
            await trimmed.wait()

    loop: Any = None
    run(scenario)


def test_connection_that_sent_a_large_refused_request_is_read_late_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "ANSWER_PAUSE_S_MAX", 0.0)
    waits: list[float] = []

    async def scenario() -> None:
        is_over = asyncio.Event()

        async def sleep(seconds: float) -> None:
            if seconds > 0:
                waits.append(seconds)
                await is_over.wait()

        monkeypatch.setattr(receiving, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(server_module, "Penalties", lambda: receiving.Penalties(lambda: 100.0))
        async with serving() as server, connected(server) as channel:
            call = channel.unary_unary("/headrace.v1.Metadata/GetMetadata")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(bytes(9 * MIB))
            small = asyncio.ensure_future(call(b"\x0a\x01n"))
            await until(lambda: waits)
            assert await is_served(server)
            assert not small.done()
            assert waits == [4.5], "9 MiB at 2 MiB/s"
            is_over.set()
            await small
            assert server.handled == 2

    run(scenario)


def test_invalid_requests_of_a_few_bytes_delay_the_connection_and_are_dropped_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To refuse each of thousands of random requests costs more than to drop them unread."""
    penalized: list[str] = []
    add = receiving.Penalties.add
    monkeypatch.setattr(receiving, "REFUSED_BYTES_MIN", 120 * MIB)  # 30 s
    monkeypatch.setattr(
        receiving.Penalties, "add", lambda self, peer, size: (add(self, peer, size), penalized.append(peer))[0]
    )

    async def scenario() -> None:
        async with serving() as server:
            attacker = await asyncio.to_thread(RawConnection, server.address)
            invalid = attacker.open_call("/headrace.v1.Metadata/GetMetadata")
            attacker.message_part(invalid, b"\0" + struct.pack(">I", 3) + b"\xff\xff\xff")
            await until(lambda: penalized)
            for _ in range(50):
                attacker.message_part(attacker.open_call("/headrace.v1.Metadata/GetMetadata"), b"\0\0\0\0\0")
            assert await is_served(server)
            attacker.close()
            assert await is_served(server)
            assert server.handled == 2

    run(scenario)


def test_penalties_follow_one_another_and_end() -> None:
    now, trimmed = 100.0, []
    penalties = receiving.Penalties(lambda: now, lambda: trimmed.append(now))
    assert [penalties.add(f"peer-{number}", 4 * MIB) for number in range(3)] == [2.0, 4.0, 6.0]
    assert [penalties.left_s(peer) for peer in ("peer-0", "peer-2", "small", "other")] == [2.0, 6.0, 0.0, 0.0]
    assert len(trimmed) == 3
    now += 5.0
    assert [penalties.left_s(peer) for peer in ("peer-0", "peer-2")] == [0.0, 1.0]
    assert penalties.add("peer-0", 1024 * MIB) == receiving.PENALTY_S_MAX
    now += 60.0
    assert penalties.add("peer-9", 2 * MIB) == 1.0
    assert penalties.until_s.keys() == {"peer-9"}, "what is over is forgotten"
    now += 60.0
    assert [penalties.add(peer, 1) for peer in ("a", "b", "a")] == [4 / 2048, 8 / 2048, 12 / 2048]
    now += 10 / 2048
    assert [penalties.left_s(peer) for peer in ("a", "b")] == [2 / 2048, 0.0], "a small request counts as 4 KiB"
    assert [penalties.add(peer, 1) for peer in ("c", "d")] == [6 / 2048, 10 / 2048], "all refused have one rate"


def test_a_penalty_that_is_over_before_it_is_noted_is_no_error() -> None:
    """On a busy machine more time passes between two looks at the clock than the penalty has: 2 ms."""
    ticks = itertools.count(100)
    penalties = receiving.Penalties(lambda: next(ticks), lambda: None)
    assert penalties.add("late", 1) == 4 / 2048
    assert penalties.left_s("late") == 0.0
    assert penalties.add("later", 1) == 4 / 2048


def test_single_answers_that_clients_leave_unread_are_bounded() -> None:
    """The unread answers of one connection and of all connections are limited; a client that reads gets its answer."""

    def hold_window_shut(address: tuple[str, int], calls: int) -> RawConnection:
        attacker = RawConnection(address, settings=[(SETTING_INITIAL_WINDOW_SIZE, 0)])
        for _ in range(calls):
            attacker.message_part(attacker.open_call("/headrace.v1.Metadata/GetMetadata", end=False), b"\0\0\0\0\0")
        return attacker

    async def scenario() -> None:
        async with serving() as server:
            server.answer_bytes, answers = 1 * MIB, server.listener.answers
            attackers = [await asyncio.to_thread(hold_window_shut, server.address, 40)]
            await until(lambda: server.handled == 40)
            assert 15 * MIB <= answers.used <= 16 * MIB
            for number in range(1, 5):
                attackers.append(await asyncio.to_thread(hold_window_shut, server.address, 20))
                await until(lambda calls=40 + 20 * number: server.handled == calls)  # type: ignore[misc]
            assert 60 * MIB <= answers.used <= 64 * MIB
            server.answer_bytes = 1 * MIB
            assert await is_served(server), "a connection without unread answers always gets one"
            for attacker in attackers:
                attacker.close()
            await until(lambda: not answers.used)
            assert not answers._of_connection
            server.answer_bytes = 3 * MIB
            for _ in range(30):  # what is read does not count
                assert await is_served(server)
            await until(lambda: not answers.used)

    run(scenario)


def test_connection_without_unread_answers_gets_one_of_any_size() -> None:
    async def scenario() -> None:
        async with serving() as server:
            server.answer_bytes = 20 * MIB
            assert await is_served(server)

    run(scenario)


# -- connections ------------------------------------------------------------------------------------------------------


def test_one_connection_too_many_is_closed_at_once() -> None:
    async def scenario() -> None:
        async with serving(connections_max=3) as server:
            held = [await asyncio.to_thread(RawConnection, server.address) for _ in range(3)]
            for each in held:
                first = await asyncio.to_thread(each.read_frame)
                assert first is not None and first.kind == SETTINGS  # noqa: PT018
            refused = await asyncio.to_thread(RawConnection, server.address)
            assert await asyncio.to_thread(refused.read_frame) is None
            for each in held:
                each.close()
            assert await is_served(server)

    run(scenario)


def test_an_address_has_no_more_busy_connections_than_its_limit() -> None:
    async def scenario() -> None:
        async with serving(addresses=AddressLimits(2)) as server, contextlib.AsyncExitStack() as open_channels:
            streams = []
            for _ in range(3):
                channel = await open_channels.enter_async_context(connected(server))
                streams.append(produce_pb2_grpc.ProduceStub(channel).Produce())
                if len(streams) < 3:
                    await until(lambda: server.open_calls == len(streams))
            with pytest.raises(grpc.aio.AioRpcError, match=r"127\.0\.0\.1 has 2 connections with calls in progress"):
                await streams.pop().read()
            streams.pop().cancel()
            await until(lambda: server.open_calls == 1)
            assert await is_served(server)

    run(scenario)


def test_streams_of_one_connection_are_bounded() -> None:
    async def scenario() -> None:
        async with serving(streams_max=STREAMS_PER_CLIENT_CONNECTION_MAX) as server:
            attacker = await asyncio.to_thread(RawConnection, server.address)
            settings = await asyncio.to_thread(attacker.read_frame)
            assert settings is not None
            expected = dict(struct.iter_unpack(">HI", settings.payload))
            assert expected[SETTING_MAX_CONCURRENT_STREAMS] == STREAMS_PER_CLIENT_CONNECTION_MAX
            await asyncio.to_thread(
                lambda: [attacker.open_call(_PRODUCE) for _ in range(STREAMS_PER_CLIENT_CONNECTION_MAX + 1)]
            )
            refused = await asyncio.to_thread(_end_of, attacker, 2 * STREAMS_PER_CLIENT_CONNECTION_MAX + 1)
            assert refused == struct.pack(">I", 11)  # ENHANCE_YOUR_CALM
            attacker.close()
            assert await is_served(server)

    run(scenario)


def test_channels_that_share_a_connection_leave_room_for_single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each channel has two calls that do not end, and the calls of one more channel are answered."""
    monkeypatch.setattr(channel_module, "_channels", itertools.count())

    async def scenario() -> None:
        async with serving(streams_max=STREAMS_PER_CLIENT_CONNECTION_MAX) as server:
            channels = [
                open_channel(server.listener.address, ChannelPurpose.CONTROL) for _ in range(CHANNELS_PER_CONNECTION)
            ]
            watches = []
            for channel in channels:
                stub: Any = metadata_pb2_grpc.MetadataStub(channel)  # type: ignore[no-untyped-call]
                for _ in range(2):
                    watches.append(stub.WatchMetadata(metadata_pb2.MetadataRequest()))
                    await watches[-1].read()
            for _ in range(10):
                request = metadata_pb2.MetadataRequest(topics=["a", "b"])
                assert (await stub.GetMetadata(request, timeout=TIMEOUT_S)).controller_id == 2
            await asyncio.gather(*(channel.close() for channel in channels))

    run(scenario)


def test_more_streams_of_one_process_than_a_connection_takes_are_all_served() -> None:
    """gRPC shares a connection between equal channels, and delays calls that the server would refuse."""

    async def scenario() -> None:
        async with serving(streams_max=STREAMS_PER_CLIENT_CONNECTION_MAX) as server:
            channels = [
                open_channel(server.listener.address, ChannelPurpose.PRODUCE)
                for _ in range(STREAMS_PER_CLIENT_CONNECTION_MAX + 1)
            ]
            stubs: list[Any] = [produce_pb2_grpc.ProduceStub(channel) for channel in channels]  # type: ignore[no-untyped-call]
            streams = [stub.Produce() for stub in stubs]
            for stream in streams:
                await stream.write(produce_pb2.ProduceRequest(correlation_id=7))
                assert (await stream.read()).correlation_id == 7
            await asyncio.gather(*(channel.close() for channel in channels))

    run(scenario)


def test_large_headers_are_refused() -> None:
    """gRPC itself refuses calls with large headers. Headrace sets the defaults of grpcio 1.85 explicitly, so that an
    upgrade does not change them."""

    async def scenario() -> None:
        async with serving() as server, connected(server) as channel:
            call = channel.unary_unary("/headrace.v1.Metadata/GetMetadata")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"", metadata=[("x-large", "v" * HEADER_BYTES_REFUSED)])
            assert server.handled == 0
            assert await is_served(server)

    run(scenario)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), bytes(4096), b"\x16\x03\x01" * 99])
def test_garbage_ends_its_own_connection_only(garbage: bytes) -> None:
    async def scenario() -> None:
        async with serving() as server:
            attacker = await asyncio.to_thread(RawConnection, server.address)
            attacker.send(garbage)
            await asyncio.to_thread(_until_closed, attacker)
            attacker.close()
            assert await is_served(server)

    run(scenario)


def _until_closed(connection: RawConnection) -> None:
    with contextlib.suppress(TimeoutError):
        while (frame := connection.read_frame()) is not None and frame.kind != GOAWAY:
            pass


def test_streams_reset_without_end_leave_nothing_behind() -> None:
    """CVE-2023-44487: 20,000 calls, each reset at once.

    gRPC itself drops most of the reset calls before a handler begins. Headrace adds the limit of calls of a connection
    (``test_streams_of_one_connection_are_bounded``), and handlers that end with their streams."""

    def attack(address: tuple[str, int]) -> None:
        attacker = RawConnection(address)
        with contextlib.suppress(OSError):  # the server may end the connection
            for _ in range(20_000):
                attacker.reset(attacker.open_call(_PRODUCE))
        attacker.close()

    async def scenario() -> None:
        async with serving(streams_max=STREAMS_PER_CLIENT_CONNECTION_MAX) as server:
            before = resident_mib()
            await asyncio.to_thread(attack, server.address)
            assert await is_served(server)
            assert resident_mib() - before < 64
            # a handler that does not learn of the reset would keep its stream
            await until(lambda: not server.open_calls)

    run(scenario)
