"""Produce streams that connections share: what leaves together, what waits, and what a failure costs."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_core.errors import (
    CorruptMessageError,
    HeadraceError,
    InvalidRecordError,
    InvalidTxnStateError,
    NetworkError,
    RequestTimedOutError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from headrace_core.records import Compression, encode_batch
from headrace_core.rpc import channel as channel_module
from headrace_core.rpc.channel import PLAINTEXT, ChannelPurpose
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.security.access import EVERYTHING
from headrace_kafka import links
from headrace_kafka.client import BOOTSTRAP, Client
from headrace_kafka.links import PACKED_BYTES, PACKED_MAX, USERS_MAX, Link, Links, SharedLinks
from headrace_kafka.produce_path import SMALL_BYTES, Streams, produce, shared_links
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.frames import RequestHeader
from headrace_kafka.wire.schema import request_body, response_body
from headrace_protos.v1 import common_pb2, produce_pb2, produce_pb2_grpc


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


NEVER_S = 60.0


class Answers:
    """``done`` of requests: the answers, and the errors, in order."""

    def __init__(self) -> None:
        self.found: list[tuple[str, HeadraceError | None]] = []
        self._came = asyncio.Event()

    def to(self, name: str) -> links.Done:
        def done(response: Any, error: HeadraceError | None) -> None:
            self.found.append((name, error))
            self._came.set()

        return done

    async def until(self, count: int) -> None:
        while len(self.found) < count:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 30)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.found]


def request(name: str, size: int = 10, partitions: int = 1) -> Any:
    each = [produce_pb2.ProducePartition(topic=name, partition=at) for at in range(partitions)]
    each[0].records = b"x" * size
    return produce_pb2.ProduceRequest(acks=produce_pb2.ACKS_ALL, partitions=each)


def topics(server: ProduceServer) -> list[tuple[str, list[str]]]:
    return [(call, [each.partitions[0].topic for each in requests]) for call, requests in server.messages]


def shared_link(address: str) -> Link:
    return Link(
        address,
        ChannelPurpose.PRODUCE,
        lambda channel: produce_pb2_grpc.ProduceStub(channel).ProduceMany(),  # type: ignore[no-untyped-call]
        packed=produce_pb2.ProduceRequests,
    )


async def connected_link(server: ProduceServer) -> Link:
    """A link whose stream is open, so that it writes the next request at once."""
    link, answers = shared_link(server.address), Answers()
    link.send(request("connected"), 30, answers.to("connected"))
    await server.until(lambda it: it.messages)
    server.answer(*server.messages.pop()[1])
    await answers.until(1)
    return link


def client(host: str = "10.0.0.1") -> Client:
    return Client(host=host, listener="PLAINTEXT", broker_id=BOOTSTRAP)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_a_request_leaves_at_once_and_the_next_ones_gather_until_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LINGER_S", NEVER_S)

    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), shared_link(server.address)
            link.send(request("first"), 30, answers.to("first"))
            await server.until(lambda it: it.messages)
            for name in ("b", "c", "d"):
                link.send(request(name), 30, answers.to(name))
            server.answer(*server.messages[0][1])
            await server.until(lambda it: len(it.messages) == 2)
            assert topics(server) == [("ProduceMany", ["first"]), ("ProduceMany", ["b", "c", "d"])]
            server.answer(*reversed(server.messages[1][1]))
            await answers.until(4)
            assert answers.names == ["first", "d", "c", "b"]
            link.close()

    run(test())


def test_gathered_requests_leave_without_an_answer_after_a_moment_or_when_they_are_many() -> None:
    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), shared_link(server.address)
            link.send(request("first"), 30, answers.to("first"))
            await server.until(lambda it: it.messages)
            link.send(request("lonely"), 30, answers.to("lonely"))
            await server.until(lambda it: len(it.messages) == 2)
            for number in range(PACKED_MAX + 1):
                link.send(request(f"{number}"), 30, answers.to(f"{number}"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == PACKED_MAX + 3)
            assert [len(requests) for _, requests in server.messages[2:]] == [PACKED_MAX, 1]
            link.close()

    run(test())


def test_a_message_has_no_more_partitions_than_a_broker_takes() -> None:
    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), shared_link(server.address)
            for name in ("a", "b", "c"):
                link.send(request(name, partitions=PARTITIONS_MAX // 2), 30, answers.to(name))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == 3)
            assert topics(server) == [("ProduceMany", ["a", "b"]), ("ProduceMany", ["c"])]
            link.close()

    run(test())


def test_a_message_has_no_more_bytes_than_a_broker_takes() -> None:
    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), shared_link(server.address)
            for number in range(PACKED_MAX):
                link.send(request(f"{number}", SMALL_BYTES - 100), 30, answers.to(f"{number}"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == PACKED_MAX)
            sizes = [sum(each.ByteSize() for each in requests) for _, requests in server.messages]
            assert max(sizes) <= PACKED_BYTES + SMALL_BYTES
            link.close()

    run(test())


def test_a_request_without_an_answer_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker answers nothing meanwhile, and the other client has time left: its request once failed as well."""
    monkeypatch.setattr(links, "LOOK_S", 0.05)

    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), await connected_link(server)
            link.send(request("hasty"), 0.2, answers.to("hasty"))
            link.send(request("patient"), 30, answers.to("patient"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == 2)
            await answers.until(1)
            assert link.is_open
            server.answer(*(each for _, requests in server.messages for each in requests))
            await answers.until(2)
            assert answers.names == ["hasty", "patient"]
            assert [type(error) for _, error in answers.found] == [RequestTimedOutError, type(None)]
            link.close()

    run(test())


def test_a_broker_that_answers_nothing_for_long_costs_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOOK_S", 0.05)
    monkeypatch.setattr(links, "HANGS_S", 0.5)

    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), await connected_link(server)
            link.send(request("a"), 0.2, answers.to("a"))
            link.send(request("b"), 0.7, answers.to("b"))
            link.send(request("patient"), 30, answers.to("patient"))
            await answers.until(3)
            assert answers.names == ["a", "b", "patient"]
            assert all(isinstance(error, RequestTimedOutError) for _, error in answers.found)
            assert not link.is_open

    run(test())


def test_a_late_request_whose_client_sends_at_once_starts_no_second_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Link] = []

    class Watched(Link):
        def _look(self) -> None:
            looks.append(self)
            super()._look()

    monkeypatch.setattr(links, "LOOK_S", 0.1)

    async def test() -> None:
        async with produce_server() as server:
            link = Watched(
                server.address,
                ChannelPurpose.PRODUCE,
                lambda channel: produce_pb2_grpc.ProduceStub(channel).ProduceMany(),  # type: ignore[no-untyped-call]
                packed=produce_pb2.ProduceRequests,
            )
            rounds = 8
            left, over = rounds, asyncio.Event()

            def again(response: Any, error: HeadraceError | None) -> None:
                nonlocal left
                left -= 1
                if left:
                    link.send(request("again"), 0.1, again)
                else:
                    over.set()

            link.send(request("other"), 30, lambda response, error: None)
            link.send(request("first"), 0.1, again)
            await over.wait()
            assert len(looks) <= 2 * rounds + 1
            link.close()

    run(test())


@pytest.mark.parametrize("what", ["an answer", "the end of the stream"])
def test_a_fault_in_one_connections_code_costs_the_others_nothing(what: str) -> None:
    """It once ended the stream of all, and left those after it without any answer."""

    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), shared_link(server.address)

            def faulty(response: Any, error: HeadraceError | None) -> None:
                raise struct.error("a text of 32,800 bytes")

            link.send(request("faulty"), 30, faulty)
            link.send(request("sound"), 30, answers.to("sound"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == 2)
            if what == "an answer":
                server.answer(*(each for _, requests in server.messages for each in requests))
            else:
                link.give_up(NetworkError("over"))
            await answers.until(1)
            ((_, error),) = answers.found
            assert (error is None) == (what == "an answer")
            assert link.is_open == (what == "an answer")
            link.close()

    run(test())


def test_requests_to_a_former_address_fail_at_once() -> None:
    """They once had no answer at all, and their client waited for its own time-out."""

    async def test() -> None:
        async with produce_server() as old, produce_server() as new:
            answers, both = Answers(), Links(shared_link)
            both.to(1, old.address).send(request("a"), 30, answers.to("a"))
            await old.until(lambda it: it.messages)
            both.to(1, new.address).send(request("b"), 30, answers.to("b"))
            await new.until(lambda it: it.messages)
            await answers.until(1)
            (name, error) = answers.found[0]
            assert name == "a"
            assert isinstance(error, NetworkError)
            assert error.was_sent
            both.close()

    run(test())


def test_links_are_shared_by_key_and_close_with_their_last_connection() -> None:
    async def test() -> None:
        async with produce_server() as server:
            shared = SharedLinks(lambda key: Links(shared_link))
            (first, leave), (second, leave_too), (other, _) = shared.join("k"), shared.join("k"), shared.join("other")
            assert first is second
            assert other is not first
            link = first.to(1, server.address)
            leave()
            assert link.is_open
            leave_too()
            assert not link.is_open
            assert shared.join("k")[0] is not first

    run(test())


def test_links_have_a_limited_number_of_connections_and_room_is_filled_again() -> None:
    shared = SharedLinks(lambda key: Links(shared_link))
    joined = [shared.join("k") for _ in range(USERS_MAX + 1)]
    assert len({id(links_) for links_, _ in joined}) == 2
    joined[0][1]()
    assert shared.join("k")[0] is joined[1][0]


def test_connections_of_one_host_share_messages_and_others_do_not() -> None:
    async def test() -> None:
        async with produce_server() as server:
            answers, shared = Answers(), shared_links()
            clients = [client(), client(), client("10.0.0.2")]
            for number, each in enumerate(clients):
                Streams(each, shared).send(1, server.address, request(f"{number}"), 30, answers.to(f"{number}"))
            await server.until(lambda it: len(it.messages) == 2)
            assert sorted(names for _, names in topics(server)) == [["0", "1"], ["2"]]
            for each in clients:
                each.closed()

    run(test())


@pytest.mark.parametrize("kind", ["large", "acks=0"])
def test_the_first_request_on_a_stream_of_its_own_waits_for_the_answers_to_the_shared_ones(kind: str) -> None:
    async def test() -> None:
        async with produce_server() as server:
            answers, one = Answers(), client()
            streams = Streams(one, shared_links())
            streams.send(1, server.address, request("a"), 30, answers.to("a"))
            streams.send(1, server.address, request("b"), 30, answers.to("b"))
            size, has_answer = (SMALL_BYTES, True) if kind == "large" else (1, False)
            streams.send(1, server.address, request("c", size), 30, answers.to("c"), has_answer=has_answer)
            streams.send(1, server.address, request("d"), 30, answers.to("d"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == 2)
            first = [each for _, requests in server.messages for each in requests]
            server.answer(first[0])
            await answers.until(1)
            assert [call for call, _ in server.messages if call == "Produce"] == []
            server.answer(first[1])
            await server.until(lambda it: len([call for call, _ in it.messages if call == "Produce"]) == 2)
            assert topics(server)[-2:] == [("Produce", ["c"]), ("Produce", ["d"])]
            assert answers.names == (["a", "b"] if has_answer else ["a", "b", "c"])
            one.closed()

    run(test())


def test_a_connection_that_ends_leaves_the_requests_of_others_alone() -> None:
    async def test() -> None:
        async with produce_server() as server:
            answers, shared, gone, stays = Answers(), shared_links(), client(), client()
            Streams(gone, shared).send(1, server.address, request("gone"), 30, answers.to("gone"))
            Streams(stays, shared).send(1, server.address, request("stays"), 30, answers.to("stays"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == 2)
            gone.closed()
            server.answer(*(each for _, requests in server.messages for each in requests))
            await answers.until(2)
            assert sorted(answers.found) == [("gone", None), ("stays", None)]
            stays.closed()

    run(test())


def test_a_request_with_acks_0_is_done_when_it_was_written_and_not_before() -> None:
    """Its client's bytes were once no longer counted while they waited, so memory had no bound."""

    async def test() -> None:
        async with produce_server() as server:
            answers, one = Answers(), client()
            streams = Streams(one, shared_links())
            streams.send(1, server.address, request("stuck"), 30, answers.to("stuck"))
            streams.send(1, server.address, request("silent"), 0, answers.to("silent"), has_answer=False)
            await server.until(lambda it: it.messages)
            assert answers.names == []
            server.answer(*server.messages[0][1])
            await answers.until(2)
            assert answers.found == [("stuck", None), ("silent", None)]
            one.closed()

    run(test())


def test_a_request_with_acks_0_that_cannot_be_written_fails() -> None:
    async def test() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # and never listens
            answers, one = Answers(), client()
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            Streams(one, shared_links()).send(1, address, request("silent"), 0, answers.to("silent"), has_answer=False)
            await answers.until(1)
            ((_, error),) = answers.found
            assert isinstance(error, NetworkError)
            assert not error.was_sent
            one.closed()

    run(test())


def test_a_connection_whose_records_were_refused_shares_no_stream_any_more() -> None:
    async def test() -> None:
        async with produce_server() as server:
            answers, one = Answers(), client()
            streams = Streams(one, shared_links())
            streams.send(1, server.address, request("bad"), 30, answers.to("bad"))
            await server.until(lambda it: it.messages)
            refused = produce_pb2.ProducePartitionResult(error=common_pb2.Error(code=CorruptMessageError.number))
            number = server.messages[0][1][0].correlation_id
            server.streams["ProduceMany"].send(produce_pb2.ProduceResponse(correlation_id=number, results=[refused]))
            await answers.until(1)
            streams.send(1, server.address, request("next"), 30, answers.to("next"))
            await server.until(lambda it: len(it.messages) == 2)
            assert topics(server) == [("ProduceMany", ["bad"]), ("Produce", ["next"])]
            one.closed()

    run(test())


def test_a_broker_of_an_older_version_gets_the_next_request_on_the_connections_own_stream() -> None:
    async def test() -> None:
        async with produce_server(is_old=True) as server:
            answers, one = Answers(), client()
            streams = Streams(one, shared_links())
            streams.send(1, server.address, request("a"), 30, answers.to("a"))
            await answers.until(1)
            ((_, error),) = answers.found
            assert isinstance(error, NetworkError)
            assert not error.was_sent, "the client tries again"
            streams.send(1, server.address, request("a"), 30, answers.to("a"))
            await server.until(lambda it: it.messages)
            assert topics(server) == [("Produce", ["a"])]
            one.closed()

    run(test())


def test_a_stream_of_one_client_shares_no_connection_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC put up to 12 streams on one connection, which a broker does not read for seconds after large refused
    requests: all clients waited for one."""
    monkeypatch.setattr(channel_module, "_channels", itertools.count())

    async def test() -> None:
        async with produce_server() as server:
            answers, shared = Answers(), shared_links()
            clients = [client(), client()]
            for each, size in zip(clients, (10, SMALL_BYTES + 1), strict=True):
                Streams(each, shared).send(1, server.address, request("a", size), 30, answers.to("a"))
            await server.until(lambda it: len(it.streams) == 2)
            peers = [stream._context.peer() for stream in server.streams.values()]
            assert len(set(peers)) == 2
            for each in clients:
                each.closed()

    run(test())


async def errors_of(version: int, found: Any, *names: str, records: bytes = b"") -> list[int]:
    """Send a Produce request with the same records for topics. Of these, only "t" exists. The broker's result for "t"
    is ``found``; None: the broker must not get the request. Returns the error numbers in the answer."""
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    topic = SimpleNamespace(name="t", topic_id=b"", partitions=[SimpleNamespace(leader=1, leader_epoch=0)])
    async with produce_server() as server:
        cluster = SimpleNamespace(
            topic=lambda name: topic if name == "t" else None, broker_address=lambda broker_id: server.address
        )
        one, upstream = client(), SimpleNamespace(produce=shared_links(), channels=PLAINTEXT, traces=None)
        call: Any = SimpleNamespace(
            version=version,
            cluster=cluster,
            client=one,
            upstream=upstream,
            access=EVERYTHING,
            throttle_ms=0,
        )
        body = bytearray()
        data = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in names]
        request_body(Api.PRODUCE, version).write({"acks": -1, "timeout": 30_000, "topic_data": data}, body)
        produce(call, RequestHeader(Api.PRODUCE, version, 7, "", 0, True), bytes(body), reply.set_result)
        if found is not None:
            await server.until(lambda it: it.messages)
            ((asked,),) = (requests for _, requests in server.messages)
            server.streams["ProduceMany"].send(
                produce_pb2.ProduceResponse(correlation_id=asked.correlation_id, results=[found])
            )
        (frame,) = await reply
        one.closed()
        header_bytes = 9 if version >= 9 else 8  # size, correlation id, and tagged fields
        answer = response_body(Api.PRODUCE, version).read(bytes(frame), header_bytes)
        return [each.partition_responses[0].error_code for each in answer.responses]


def test_an_answer_quotes_no_more_of_a_clients_name_than_fits() -> None:
    """Produce below version 9 has texts of at most 32,767 bytes; a longer one once broke the stream of all."""

    async def test() -> None:
        found = produce_pb2.ProducePartitionResult(base_offset=5)
        assert await errors_of(8, found, "t", "x" * 32_760) == [0, UnknownTopicOrPartitionError.number]

    run(test())


@pytest.mark.parametrize(
    ("version", "seen"),
    [(10, InvalidTxnStateError), (11, TransactionAbortableError), (12, InvalidTxnStateError)],
)
def test_a_client_of_transaction_version_1_that_knows_it_gets_transaction_abortable(
    version: int, seen: type[HeadraceError]
) -> None:
    """Nodes answer INVALID_TXN_STATE to all clients of version 1. It ends the producer of Kafka 3.8."""

    async def test() -> None:
        error = common_pb2.Error(code=InvalidTxnStateError.number, message="not in the transaction")
        assert await errors_of(version, produce_pb2.ProducePartitionResult(error=error), "t") == [seen.number]

    run(test())


@pytest.mark.parametrize("version", [3, 6, 7, 12])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_records_in_a_format_that_the_version_does_not_have_are_refused(version: int, compression: Compression) -> None:
    """The errors are Kafka's. CORRUPT_MESSAGE, which the leader would answer to an old format, makes clients repeat
    their requests until they give up."""
    batch = encode_batch([(1000, None, b"value" * 100, [])], compression=compression)
    old_format = batch[:16] + b"\x01" + batch[17:]
    is_refused = version < 7 and compression is Compression.ZSTD

    async def test() -> None:
        assert await errors_of(version, None, "t", records=old_format) == [InvalidRecordError.number]
        found = None if is_refused else produce_pb2.ProducePartitionResult(base_offset=5)
        expected = UnsupportedCompressionTypeError.number if is_refused else 0
        assert await errors_of(version, found, "t", records=batch) == [expected]

    run(test())
