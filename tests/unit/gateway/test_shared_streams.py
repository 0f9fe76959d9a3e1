"""Produce streams that connections share: what leaves together, what waits, and what a failure costs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace_core.rpc.channel import ChannelPurpose
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_gateway import links
from headrace_gateway.client import BOOTSTRAP, Client
from headrace_gateway.links import PACKED_BYTES, PACKED_MAX, Link, Links, SharedLinks
from headrace_gateway.produce_path import SMALL_BYTES, Streams, shared_links
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc
from tests.worlds.produce_server import ProduceServer, produce_server

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


def test_a_request_without_an_answer_fails_alone_while_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOOK_S", 0.05)

    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), shared_link(server.address)
            link.send(request("forgotten"), 0.2, answers.to("forgotten"))
            link.send(request("patient"), 30, answers.to("patient"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == 2)
            while answers.names != ["forgotten"]:  # the broker answers another client's requests all the time
                link.send(request("other"), 30, lambda response, error: None)
                await server.until(lambda it: topics(it)[-1][1] == ["other"])
                server.answer(server.messages[-1][1][-1])
                server.note("ProduceMany", [request("seen")])
            (_, error) = answers.found[0]
            assert isinstance(error, RequestTimedOutError)
            assert link.is_open
            link.close()

    run(test())


def test_a_broker_that_answers_nothing_costs_the_stream_and_all_of_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "LOOK_S", 0.05)

    async def test() -> None:
        async with produce_server() as server:
            answers, link = Answers(), shared_link(server.address)
            link.send(request("a"), 0.2, answers.to("a"))
            link.send(request("b"), 30, answers.to("b"))
            await answers.until(2)
            assert all(isinstance(error, RequestTimedOutError | NetworkError) for _, error in answers.found)
            assert not link.is_open

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
            first, second, other = shared.join("k"), shared.join("k"), shared.join("other")
            assert first is second
            assert other is not first
            link = first.to(1, server.address)
            shared.leave("k")
            assert link.is_open
            shared.leave("k")
            assert not link.is_open
            assert shared.join("k") is not first

    run(test())


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
            second = answers.to("c") if kind == "large" else None
            streams.send(1, server.address, request("c", SMALL_BYTES if kind == "large" else 1), 30, second)
            streams.send(1, server.address, request("d"), 30, answers.to("d"))
            await server.until(lambda it: sum(len(requests) for _, requests in it.messages) == 2)
            first = [each for _, requests in server.messages for each in requests]
            server.answer(first[0])
            await answers.until(1)
            assert [call for call, _ in server.messages if call == "Produce"] == []
            server.answer(first[1])
            await server.until(lambda it: len([call for call, _ in it.messages if call == "Produce"]) == 2)
            assert topics(server)[-2:] == [("Produce", ["c"]), ("Produce", ["d"])]
            assert answers.names == ["a", "b"]
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
