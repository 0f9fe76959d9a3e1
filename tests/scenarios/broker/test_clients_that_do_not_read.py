"""Clients send requests and never read the responses: the broker's memory for them is bounded."""

from __future__ import annotations

import itertools

import pytest

from headrace_broker.context import BrokerLimits
from headrace_broker.handlers.fetch import QUEUED_BYTES_MAX
from headrace_broker.handlers.produce import UNREAD_BYTES_MAX
from headrace_core.errors import InvalidTimestampError, RequestTimedOutError
from headrace_core.records import encode_batch
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.replication_world import ReplicationWorld
from tests.worlds.solo_broker import FakeStream, SoloBroker, StallingFileSystem, batch, fetch, produce
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

REQUESTS_MAX = 100_000


def bytes_kept(stream: FakeStream) -> int:
    return sum(answer.ByteSize() for answer in stream.sent)


@in_loop
async def test_a_producer_is_held_back_while_it_leaves_its_answers_unread():
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        one = batch(b"a")
        for number in itertools.count():
            assert number < REQUESTS_MAX, "never held back"
            handler.on_request(produce(number, "nowhere" * 30, one))
            if stream.paused:
                break
        assert bytes_kept(stream) <= UNREAD_BYTES_MAX + 4096
        stream.queued_bytes = UNREAD_BYTES_MAX // 2 + 1
        handler.on_written()
        assert stream.paused
        stream.queued_bytes -= 1
        handler.on_written()
        assert not stream.paused
        handler.on_closed()
        assert (await broker.append("orders", one)).base_offset == 0


@in_loop
async def test_a_partition_whose_records_are_never_committed_stops_no_other_one():
    """The producers of the partition get their errors in time. The partition's uncommitted log uses no memory and no
    part of the broker's budget."""
    limits = BrokerLimits(stream_bytes_max=8_000, in_flight_bytes_max=20_000)
    async with ReplicationWorld(SoloBroker(CrashingFileSystem(), limits=limits)) as here:
        # the partition's follower never joins, and stays in the in-sync set
        await here.topic("stuck", partitions=1)
        await here.broker.topic("sound")
        flow = here.broker.context.flow
        handler, stream = here.broker.producer()
        one, sent = batch(b"x" * 4_000), 0
        while not stream.paused:
            sent += 1
            handler.on_request(produce(sent, "stuck", one, timeout_ms=1))
        assert flow.in_memory > limits.stream_bytes_max
        await stream.wait_sent(sent)
        assert {answer.results[0].error.code for answer in stream.sent} == {RequestTimedOutError.number}
        assert flow.in_memory == 0
        assert not stream.paused
        assert handler.is_idle()
        handler.on_request(produce(sent + 1, "sound", one))
        await stream.wait_sent(sent + 1)
        assert stream.sent[-1].results[0].error.code == 0
        follower = here.follower()
        follower.hello()
        follower.join(1, "stuck")
        await until(lambda: len(follower.records(1)) == sent * len(one))
        follower.ack(1, sent)
        assert here.leader("stuck").high_watermark == sent
        assert len(stream.sent) == sent + 1, "nobody is answered twice"
        assert flow.in_memory == 0
        handler.on_closed()
        follower.handler.on_closed()


@in_loop
async def test_records_that_wait_for_the_disk_count_though_their_producer_has_been_answered():
    fs = StallingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        large = batch(b"x" * 200_000)
        fs.stall()
        handler.on_request(produce(1, "orders", large, timeout_ms=1))
        await stream.wait_sent(1)
        assert stream.sent[0].results[0].error.code == RequestTimedOutError.number
        assert broker.context.flow.in_memory == len(large)
        assert not handler.is_idle()
        fs.release()
        await until(lambda: broker.context.flow.in_memory == 0)
        assert handler.is_idle()
        handler.on_closed()


@pytest.mark.parametrize(
    "limits",
    [BrokerLimits(stream_bytes_max=15_000), BrokerLimits(in_flight_bytes_max=15_000)],
    ids=["stream", "broker"],
)
@in_loop
async def test_produce_request_counts_with_all_its_bytes_not_only_those_of_its_records(limits: BrokerLimits):
    """Names and field headers fill memory too: before the fix, a request with many names and no records was not
    counted."""
    async with SoloBroker(CrashingFileSystem(), limits=limits) as broker:
        await broker.topic("orders")
        flow = broker.context.flow
        handler, stream = broker.producer()
        stream.request_bytes = 10_000
        one = batch(b"small")
        handler.on_request(produce(1, "orders", one))
        assert flow.in_memory == 10_000
        assert not stream.paused
        handler.on_request(produce(2, "orders", one))
        assert flow.in_memory == 20_000
        assert stream.paused
        await stream.wait_sent(2)
        assert flow.in_memory == 0
        assert not stream.paused
        assert broker.context.metrics.produce_bytes.value == 2 * len(one), "the metric counts records"
        handler.on_closed()


@in_loop
async def test_a_consumer_is_held_back_even_if_its_unread_answers_are_empty():
    async with SoloBroker(CrashingFileSystem()) as broker:
        for requests in (
            lambda number: fetch(number, max_wait_ms=0),
            lambda number: fetch(number, "n" * 10_000, max_wait_ms=0),
        ):
            handler, stream = broker.consumer()
            for number in itertools.count():
                assert number < REQUESTS_MAX, "never held back"
                handler.on_request(requests(number))
                if stream.paused:
                    break
            assert bytes_kept(stream) <= QUEUED_BYTES_MAX + 64 * 1024
            handler.on_closed()


@in_loop
async def test_requests_that_hold_nothing_but_garbage_are_held_against_their_connection():
    """Requests that also have a sound batch, or that another broker would accept, do not count against their
    connection."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        garbage = bytes(2 * 1024 * 1024)
        handler.on_request(produce(1, "orders", garbage))
        await stream.wait_sent(1)
        assert len(stream.punished) == 1
        assert stream.punished[0] >= len(garbage)
        mixed = produce(2, "orders", garbage)
        mixed.partitions.append(produce(0, "orders", batch(b"sound")).partitions[0])
        handler.on_request(mixed)
        handler.on_request(produce(3, "nowhere", garbage))
        handler.on_request(produce(4, "orders", batch(b"sound")))
        await stream.wait_sent(4)
        assert len(stream.punished) == 1
        handler.on_closed()


@in_loop
async def test_records_of_a_far_future_are_held_against_their_connection_and_few_are_listed():
    """An earlier version listed them all, so an answer was up to 66 times as large as its request."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.topic("clicks")
        handler, stream = broker.producer()
        future = encode_batch([(2**50, b"key", b"value", [])] * 150)
        request = produce(1, "orders", future)
        request.partitions.append(produce(0, "clicks", future).partitions[0])
        handler.on_request(request)
        await stream.wait_sent(1)
        results = stream.sent[0].results
        assert {result.error.code for result in results} == {InvalidTimestampError.number}
        assert [len(result.record_faults) for result in results] == [100, 0]
        assert len(stream.punished) == 1
        handler.on_closed()
