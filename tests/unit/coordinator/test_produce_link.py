"""The stream of appends to a broker that is down, back, misbehaving, or slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc.aio
import pytest

from headrace_coordinator.transport.produce_link import TOGETHER_BYTES_MAX, TOGETHER_MAX, ProduceLink
from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError, ServerShuttingDownError
from headrace_core.rpc import status_of
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc

LIMIT_S = 60.0
#: Longer than any of these tests may take: nothing here is cured by a time-out.
LONG_S = 600.0
PARTITION = produce_pb2.ProducePartition(topic="__consumer_offsets", partition=3, records=b"x" * 1000)


class Broker(produce_pb2_grpc.ProduceServicer):
    """``talks``: what each of its streams does, one after the other; those that follow answer everything."""

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
    """It ended the link's task, and every later append to that broker waited for its time-out."""

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
    """A channel that was kept would still refuse for up to a second, from memory."""

    async def test() -> None:
        async with serving(Broker()) as address:
            link = ProduceLink(address)
            await link.append(PARTITION, LONG_S)
        for _ in range(10):  # gRPC's memory grows with each
            failure = await refused(link)
            assert isinstance(failure, NetworkError)
        assert not failure.was_sent
        async with serving(Broker(), int(address.rpartition(":")[2])):
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


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_an_append_that_is_cancelled_while_the_broker_is_dialed_is_not_sent(passes: int) -> None:
    async def test() -> None:
        received: list[int] = []

        async def listening(context: Any) -> None:
            request = await context.read()
            received.extend(each.partition for each in request.partitions)
            response = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
            response.results.add()
            await context.write(response)
            await silent(context)

        async with serving(Broker(listening)) as address:
            link = ProduceLink(address)
            hasty = asyncio.create_task(link.append(partition(1), LONG_S))
            for _ in range(passes):
                await asyncio.sleep(0)
            hasty.cancel()
            await asyncio.gather(hasty, return_exceptions=True)
            await link.append(partition(2), LONG_S)
            assert received == [2]
            await link.close()

    run(test)


def partition(number: int, size: int = 100) -> produce_pb2.ProducePartition:
    return produce_pb2.ProducePartition(topic="__consumer_offsets", partition=number, records=b"x" * size)


class Recording:
    """A stream that answers every request: each partition gets its number as base offset."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []

    async def __call__(self, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            self.requests.append([each.partition for each in request.partitions])
            response = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
            for each in request.partitions:
                response.results.add(base_offset=each.partition)
            await context.write(response)


def sent(*appends: tuple[int, int, object]) -> list[list[int]]:
    """Append at the same time (partition, bytes, replicas); return the partitions of each request."""
    recording = Recording()

    async def test() -> None:
        async with serving(Broker(recording)) as address:
            link = ProduceLink(address)
            results = await asyncio.gather(
                *(link.append(partition(number, size), LONG_S, replicas) for number, size, replicas in appends)
            )
            assert [each.base_offset for each in results] == [number for number, _, _ in appends]
            await link.close()

    run(test)
    return recording.requests


def test_appends_of_one_pass_share_a_request() -> None:
    assert sent((1, 100, None), (2, 100, None), (3, 100, None)) == [[1, 2, 3]]


def test_appends_that_wait_for_other_replicas_do_not_share_a_request() -> None:
    assert sent((1, 100, (1, 2)), (2, 100, (1, 3)), (3, 100, (1, 2))) == [[1, 3], [2]]


def test_a_request_names_a_partition_once() -> None:
    assert sent((1, 100, None), (1, 100, None), (2, 100, None)) == [[1], [1, 2]]


def test_a_large_append_is_sent_alone() -> None:
    most = TOGETHER_BYTES_MAX
    assert sent((1, most, None), (2, most + 1, None), (3, most - 1, None), (4, 1, None)) == [[1], [2], [3, 4]]


def test_many_appends_are_several_requests() -> None:
    requests = sent(*((number, 1, None) for number in range(TOGETHER_MAX + 1)))
    assert list(map(len, requests)) == [TOGETHER_MAX, 1]


def test_a_caller_that_leaves_does_not_disturb_the_others() -> None:
    recording = Recording()

    async def test() -> None:
        async with serving(Broker(recording)) as address:
            link = ProduceLink(address)
            hasty, other = (asyncio.create_task(link.append(partition(number), LONG_S)) for number in (1, 2))
            for _ in range(3):
                await asyncio.sleep(0)
            hasty.cancel()
            assert (await other).base_offset == 2
            assert hasty.cancelled()
            await link.close()

    run(test)


def test_each_append_has_its_own_timeout() -> None:
    async def test() -> None:
        async with serving(Broker(silent)) as address:
            link = ProduceLink(address)
            other = asyncio.create_task(link.append(partition(1), LONG_S))
            with pytest.raises(RequestTimedOutError, match="no answer to an append for"):
                await link.append(partition(2), 0.001)
            assert not other.done()
            await link.close()
            assert isinstance((await asyncio.gather(other, return_exceptions=True))[0], NetworkError)

    run(test)
