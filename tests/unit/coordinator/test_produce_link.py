"""The stream of appends to a broker that is down, restarted, misbehaving or slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc.aio
import pytest

from headrace_coordinator.transport.produce_link import ProduceLink
from headrace_core.errors import HeadraceError, NetworkError, ServerShuttingDownError
from headrace_core.rpc import status_of
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc
from tests.worlds.this_process import free_port

LIMIT_S = 60.0
#: A time-out that no test reaches, so that no test passes because of a time-out.
LONG_S = 600.0
PARTITION = produce_pb2.ProducePartition(topic="__consumer_offsets", partition=3, records=b"x" * 1000)


class Broker(produce_pb2_grpc.ProduceServicer):
    """``talks`` are the behaviours of the broker's streams, one after the other. All streams after those of ``talks``
    answer every request."""

    def __init__(self, *talks: Callable[[Any], Awaitable[None]]) -> None:
        self._talks = list(talks)
        self.streams = 0

    async def Produce(self, _: Any, context: Any) -> None:
        self.streams += 1
        await (self._talks.pop(0) if self._talks else answering)(context)


@contextlib.asynccontextmanager
async def serving(broker: Broker, port: int = 0) -> AsyncIterator[str]:
    server = grpc.aio.server()
    produce_pb2_grpc.add_ProduceServicer_to_server(broker, server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


async def answering(context: Any) -> None:
    offset = 0
    while (request := await context.read()) is not grpc.aio.EOF:
        response = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
        response.results.add(base_offset=offset)
        offset += 1
        await context.write(response)


async def silent(context: Any) -> None:
    await asyncio.Event().wait()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()

    asyncio.run(limited())


async def refused(link: ProduceLink) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        await link.append(PARTITION, LONG_S)
    return caught.value


def test_appends_share_a_stream_and_are_answered_by_number() -> None:
    async def twice_and_backwards(context: Any) -> None:
        requests = [await context.read() for _ in range(3)]
        for request in (*reversed(requests), *requests):
            response = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
            response.results.add(base_offset=request.correlation_id)
            await context.write(response)
        await silent(context)

    async def test() -> None:
        broker = Broker(twice_and_backwards)
        async with serving(broker) as address:
            link = ProduceLink(address)
            results = await asyncio.gather(*(link.append(PARTITION, LONG_S) for _ in range(3)))
            assert [result.base_offset for result in results] == [1, 2, 3]
            assert broker.streams == 1
            await link.close()

    run(test)


@pytest.mark.parametrize("results", [0, 2])
def test_an_answer_without_its_one_result_breaks_the_stream_and_not_the_link(results: int) -> None:
    """In an early version, an answer with a wrong number of results ended the link's task, and every later append to
    that broker waited for its time-out."""

    async def wrong(context: Any) -> None:
        request = await context.read()
        response = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
        for _ in range(results):
            response.results.add()
        await context.write(response)
        await silent(context)

    async def test() -> None:
        async with serving(Broker(wrong)) as address:
            link = ProduceLink(address)
            assert isinstance(await refused(link), NetworkError)
            assert (await link.append(PARTITION, LONG_S)).base_offset == 0
            await link.close()

    run(test)


def test_why_a_broker_ended_the_stream_is_what_appends_fail_with() -> None:
    status, details, metadata = status_of(ServerShuttingDownError("broker 1 stops"))

    async def stops(context: Any) -> None:
        for _ in range(2):
            await context.read()
        await context.abort(status, details, metadata)

    async def test() -> None:
        async with serving(Broker(stops)) as address:
            link = ProduceLink(address)
            failures = await asyncio.gather(*(refused(link) for _ in range(20)))
            reasons = [each for each in failures if getattr(each, "was_sent", True)]
            assert len(reasons) >= 2
            assert {type(each) for each in reasons} == {ServerShuttingDownError}
            await link.close()

    run(test)


def test_a_broker_that_is_back_is_reached_at_once() -> None:
    """A reused channel would still refuse calls for up to a second, because of gRPC's back-off."""

    async def test() -> None:
        async with serving(Broker(), free_port()) as address:
            link = ProduceLink(address)
            await link.append(PARTITION, LONG_S)
        for _ in range(10):  # gRPC's memory grows with each attempt
            failure = await refused(link)
            assert isinstance(failure, NetworkError)
        assert not failure.was_sent
        async with serving(Broker(), port := int(address.rpartition(":")[2])):
            # gRPC listens some time after start(); a plain socket may connect before gRPC takes connections.
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as probe:
                await probe.channel_ready()
            assert (await link.append(PARTITION, LONG_S)).base_offset == 0
            await link.close()

    run(test)


def test_what_waits_fails_when_the_link_is_closed() -> None:
    async def test() -> None:
        async with serving(Broker(silent)) as address:
            link = ProduceLink(address)
            waiting = [asyncio.create_task(link.append(PARTITION, LONG_S)) for _ in range(2)]
            at_once = ProduceLink(address)
            waiting.append(asyncio.create_task(at_once.append(PARTITION, LONG_S)))
            await asyncio.sleep(0)
            await asyncio.gather(link.close(), at_once.close())
            assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [NetworkError] * 3
            assert not (await _failure(link)).was_sent

    async def _failure(link: ProduceLink) -> NetworkError:
        failure = await refused(link)
        assert isinstance(failure, NetworkError)
        return failure

    run(test)


def test_an_append_that_is_cancelled_while_the_broker_is_dialed_is_not_sent() -> None:
    async def test() -> None:
        received: list[int] = []

        async def listening(context: Any) -> None:
            request = await context.read()
            received.append(request.correlation_id)
            response = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
            response.results.add()
            await context.write(response)
            await silent(context)

        async with serving(Broker(listening)) as address:
            link = ProduceLink(address)
            hasty = asyncio.create_task(link.append(PARTITION, LONG_S))
            await asyncio.sleep(0)
            hasty.cancel()
            await link.append(PARTITION, LONG_S)
            assert received == [2]
            await link.close()

    run(test)


def test_an_append_that_does_not_commit_holds_no_other_append() -> None:
    """A broker answers a request when all its appends are committed, so each append needs a request of its own."""
    hung = produce_pb2.ProducePartition(topic="__consumer_offsets", partition=4, records=b"x")

    async def committing_all_but_one(context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            if hung not in request.partitions:
                response = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
                for each in request.partitions:
                    response.results.add(base_offset=each.partition)
                await context.write(response)

    async def test() -> None:
        async with serving(Broker(committing_all_but_one)) as address:
            link = ProduceLink(address)
            held, other = (asyncio.create_task(link.append(each, LONG_S)) for each in (hung, PARTITION))
            assert (await other).base_offset == PARTITION.partition
            assert not held.done()
            await link.close()
            assert isinstance((await asyncio.gather(held, return_exceptions=True))[0], NetworkError)

    run(test)
