"""Quotas on a broker's streams: a client over its quota waits on its own stream, and learns for how long."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker import flow
from headrace_broker.handlers import fetch as fetch_handler
from headrace_broker.handlers import produce as produce_handler
from headrace_broker.handlers.fetch import FetchStream
from headrace_broker.handlers.produce import ProduceStream
from headrace_core.quotas import COUNTED_KEY, ClientLimits
from headrace_core.quotas.callers import limits_of
from headrace_core.security.caller import Caller, set_caller
from headrace_core.security.principal import Principal
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1 import produce_pb2
from tests.worlds.solo_broker import FakeStream, SoloBroker, batch, fetch, produce
from tests.worlds.waiting import check_in_time, until_async

RATE = 1_000_000.0
RECORDS = batch(b"x" * 100_000)
#: A tenth of both, so that a request is not large (``BULK_BYTES``) and holds its stream only for the quota.
SMALL_RATE, SMALL_RECORDS = 100_000.0, batch(b"x" * 10_000)


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotas count at one moment: on a slow machine they would otherwise grow while a test sends its requests."""
    still = SimpleNamespace(perf_counter=lambda: 1_000.0)
    for module in (flow, fetch_handler, produce_handler):
        monkeypatch.setattr(module, "time", still)


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def whole() -> None:
            await test(**fixtures)

        asyncio.run(whole())

    return run


def limited(broker: SoloBroker, **rates: float) -> None:
    broker.context.quotas.apply({(("client-id", "limited"),): rates})


def producer(broker: SoloBroker, client_id: str) -> tuple[ProduceStream, FakeStream]:
    stream = FakeStream()
    limits = ClientLimits(broker.context.quotas, "ANONYMOUS", client_id)
    return ProduceStream(broker.context, stream, limits=limits), stream  # type: ignore[arg-type]


def consumer(broker: SoloBroker, client_id: str) -> tuple[FetchStream, FakeStream]:
    stream = FakeStream()
    limits = ClientLimits(broker.context.quotas, "ANONYMOUS", client_id)
    return FetchStream(broker.context, stream, limits), stream  # type: ignore[arg-type]


@pytest.mark.usefixtures("still_clock")
@in_a_loop
async def test_a_producer_over_its_quota_waits_on_its_own_stream() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        limited(broker, producer_byte_rate=SMALL_RATE)
        handler, stream = producer(broker, "limited")
        other, others = producer(broker, "free")
        for number in range(12):
            handler.on_request(produce(number, "orders", SMALL_RECORDS))
            other.on_request(produce(number, "orders", SMALL_RECORDS))
        assert stream.paused
        assert not others.paused
        answers = await stream.wait_sent(12)
        assert all(answer.results[0].base_offset >= 0 for answer in answers), "over the quota, nothing is refused"
        waits = {answer.correlation_id: answer.throttle_time_ms for answer in answers}
        assert [waits[number] > 0 for number in (*range(9), 10, 11)] == [False] * 9 + [True] * 2
        assert 20 <= waits[11] <= 230, "20 kB over a quota of 100 kB/s, less what the requests took"
        assert [answer.throttle_time_ms for answer in await others.wait_sent(12)] == [0] * 12
        began = time.monotonic()
        await until_async(lambda: not stream.paused)
        check_in_time(began, 5.0)
        assert broker.context.quotas.throttled["producer_byte_rate"] >= 2
        handler.on_closed()
        other.on_closed()


@in_a_loop
async def test_a_stream_that_ends_while_its_client_waits_leaves_no_timer() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        limited(broker, producer_byte_rate=10_000)
        handler, stream = producer(broker, "limited")
        handler.on_request(produce(1, "orders", RECORDS))
        (answer,) = await stream.wait_sent(1)
        assert answer.throttle_time_ms > 5_000
        assert handler._flow.holds & flow.QUOTA
        assert handler._flow._timer is not None
        handler.on_closed()
        assert handler._flow._timer is None
        assert stream.paused


@pytest.mark.usefixtures("still_clock")
@in_a_loop
async def test_without_acks_the_stream_waits_too() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        limited(broker, producer_byte_rate=RATE)
        handler, stream = producer(broker, "limited")
        for number in range(11):
            handler.on_request(produce(number, "orders", RECORDS, acks=produce_pb2.ACKS_NONE))
        assert stream.paused
        await until_async(lambda: not stream.paused)
        handler.on_closed()


@pytest.mark.usefixtures("still_clock")
@in_a_loop
async def test_a_consumer_over_its_quota_gets_its_next_response_later() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        for _ in range(12):
            await broker.append("orders", RECORDS)
        limited(broker, consumer_byte_rate=500_000)
        handler, stream = consumer(broker, "limited")
        handler.on_request(fetch(1, "orders"))
        (first,) = await stream.wait_sent(1)
        assert 400_000 <= len(first.results[0].records) <= 500_000, "a response has at most one second's bytes"
        began = time.monotonic()
        handler.on_request(fetch(2))
        (_, second) = await stream.wait_sent(2)
        assert second.throttle_time_ms > 500
        stream.queued_bytes = 0  # the client has read both responses
        handler.on_written()
        handler.on_request(fetch(3))
        assert len(stream.sent) == 2
        await stream.wait_sent(3)
        assert 0.5 <= time.monotonic() - began < 10.0
        free, others = consumer(broker, "free")
        free.on_request(fetch(1, "orders"))
        (answer,) = await others.wait_sent(1)
        assert len(answer.results[0].records) > 900_000
        handler.on_closed()
        free.on_closed()


@in_a_loop
async def test_a_client_gets_no_more_by_new_streams() -> None:
    """The attack: each request on a stream of its own. Its first request was free of the quota."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        limited(broker, producer_byte_rate=20_000, consumer_byte_rate=20_000)
        first, answers = producer(broker, "limited")
        first.on_request(produce(1, "orders", RECORDS))
        assert (await answers.wait_sent(1))[0].throttle_time_ms > 3_000
        second, stream = producer(broker, "limited")
        assert stream.paused, "it is not read before its client is within the quota"
        free, others = producer(broker, "free")
        assert not others.paused
        reader, got = consumer(broker, "limited")
        reader.on_request(fetch(1, "orders"))
        assert (await got.wait_sent(1))[0].throttle_time_ms > 3_000
        again, fetched = consumer(broker, "limited")
        again.on_request(fetch(1, "orders"))
        assert fetched.sent == []
        for each in (first, second, free, reader, again):
            each.on_closed()


@in_a_loop
async def test_the_time_of_requests_counts_where_a_quota_limits_it() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        limited(broker, request_percentage=0.01)
        handler, stream = producer(broker, "limited")
        for number in range(20):
            handler.on_request(produce(number, "orders", RECORDS))
        assert stream.paused
        await until_async(lambda: not stream.paused)
        assert broker.context.quotas.throttled["request_percentage"] > 0
        handler.on_closed()


@in_a_loop
async def test_a_changed_quota_applies_to_an_open_stream() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = producer(broker, "limited")
        handler.on_request(produce(1, "orders", RECORDS))
        limited(broker, producer_byte_rate=50_000)
        handler.on_request(produce(2, "orders", RECORDS))
        broker.context.quotas.apply({})
        handler.on_request(produce(3, "orders", RECORDS))
        answers = await stream.wait_sent(3)
        assert [answer.throttle_time_ms > 0 for answer in answers] == [False, True, False]
        handler.on_closed()


class _Call:
    """Stands for a gRPC call."""

    def __init__(self, *, from_: str = "ipv4:10.0.0.1:1", **metadata: str) -> None:
        self.peer = lambda: from_
        self._metadata = tuple((key.replace("_", "-"), value) for key, value in metadata.items())

    def invocation_metadata(self) -> Any:
        return self._metadata


@in_a_loop
async def test_whose_quota_a_stream_uses() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        quotas = broker.context.quotas

        def client_of(limits: ClientLimits | None) -> tuple[str, str] | None:
            return None if limits is None else (limits._user, limits._client_id)

        assert client_of(limits_of(quotas, _Call())) == ("ANONYMOUS", "")
        assert client_of(limits_of(quotas, _Call(headrace_client_id="a%20b"))) == ("ANONYMOUS", "a b")
        assert limits_of(quotas, _Call(**{COUNTED_KEY.replace("-", "_"): "node"})) is None
        set_caller(Caller(Principal("User", "alice"), "10.0.0.1", "app", "client"))
        assert client_of(limits_of(quotas, _Call(headrace_client_id="other"))) == ("alice", "app")
        set_caller(Caller(Principal("Node", "broker:1"), "10.0.0.1", "", "internal", "broker", 1))
        assert limits_of(quotas, _Call()) is None


@pytest.mark.parametrize("client_id", ["limited", "free"])
@in_a_loop
async def test_without_quotas_nobody_waits(client_id: str) -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = producer(broker, client_id)
        for number in range(20):
            handler.on_request(produce(number, "orders", RECORDS))
        assert [answer.throttle_time_ms for answer in await stream.wait_sent(20)] == [0] * 20
        assert not stream.paused
        handler.on_closed()


@pytest.mark.usefixtures("still_clock")
@in_a_loop
async def test_new_connections_of_an_address_wait_and_known_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(flow, "asyncio", SimpleNamespace(sleep=sleep))
    async with SoloBroker(CrashingFileSystem()) as broker:
        connections = broker.context.connections
        broker.context.quotas.apply({(("ip", "10.0.0.1"),): {"connection_creation_rate": 5.0}})

        async def waited(peer: str) -> float:
            slept.clear()
            await connections.admitted(_Call(from_=peer))
            return sum(slept)

        assert max([await waited(f"ipv4:10.0.0.1:{port}") for port in range(5)]) < 0.1
        assert 0.05 <= await waited("ipv4:10.0.0.1:6") < 0.5
        assert await waited("ipv4:10.0.0.1:6") < 0.1
        assert await waited("ipv4:10.0.0.2:1") < 0.1
        assert broker.context.quotas.throttled["connection_creation_rate"] == 1
