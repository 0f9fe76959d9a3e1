"""Produce requests whose records are in the log wait for a follower that hangs: they stop only their own stream, and
their memory is bounded."""

from __future__ import annotations

from typing import Any

from headrace_broker import flow as flow_module
from headrace_broker.context import BrokerLimits
from headrace_broker.handlers.produce import KEPT_BYTES
from headrace_core.errors import InvalidRecordError, RequestTimedOutError
from headrace_core.records import split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.replication_world import ReplicationWorld
from tests.worlds.solo_broker import SoloBroker, StallingFileSystem, batch, produce
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

#: A client may ask for any timeout.
FOREVER_MS = 2**31 - 1


def world(**limits: int) -> ReplicationWorld:
    """A leader whose follower is in the in-sync set and never joins: topics with two replicas commit nothing."""
    return ReplicationWorld(SoloBroker(CrashingFileSystem(), limits=BrokerLimits(**limits)))


def unwritten_bytes(here: ReplicationWorld) -> int:
    return here.broker.context.flow.in_memory


async def catch_up(here: ReplicationWorld, end: int) -> None:
    """The follower joins, and acknowledges its log of ``stuck`` up to ``end``."""
    follower = here.follower()
    follower.hello()
    follower.join(1, "stuck")
    await until(lambda: len(list(split_batches(follower.records(1)))) == end)  # one record in each batch
    follower.ack(1, end)
    follower.handler.on_closed()


@in_loop
async def test_requests_that_wait_for_a_follower_do_not_pause_another_stream():
    """A fixed fault: the requests counted against the budget of all streams until they were answered."""
    async with world(in_flight_bytes_max=20_000) as here:
        await here.topic("stuck")
        await here.broker.topic("sound")
        waiting = [here.broker.producer() for _ in range(5)]
        for handler, stream in waiting:
            stream.request_bytes = 15_000  # a small batch, and a long traceparent
            handler.on_request(produce(1, "stuck", batch(b"x"), timeout_ms=FOREVER_MS))
            await until(lambda: unwritten_bytes(here) == 0)
        other, answers = here.broker.producer()
        for number in range(3):
            other.on_request(produce(number, "sound", batch(b"y")))
            assert not answers.paused
            await answers.wait_sent(number + 1)
        assert [(stream.sent, stream.paused) for _, stream in waiting] == [([], False)] * len(waiting)

        await catch_up(here, len(waiting))
        for handler, stream in waiting:
            await stream.wait_sent(1)
            assert stream.sent[0].results[0].error.code == 0
            assert handler.is_idle()
            handler.on_closed()
        other.on_closed()


@in_loop
async def test_a_stream_is_not_read_while_too_many_bytes_of_its_own_requests_wait():
    async with world(stream_bytes_max=3_500) as here:
        await here.topic("stuck")
        handler, stream = here.broker.producer()
        stream.request_bytes = 1_000
        sent = 0
        while not stream.paused:
            sent += 1
            assert sent < 10, "the stream is never held back"
            handler.on_request(produce(sent, "stuck", batch(b"x"), timeout_ms=FOREVER_MS))
        assert sent == 4
        await until(lambda: unwritten_bytes(here) == 0)
        assert stream.paused
        await catch_up(here, sent)
        await stream.wait_sent(sent)
        assert not stream.paused
        assert here.broker.context.flow.kept == 0
        handler.on_closed()


@in_loop
async def test_many_small_requests_that_wait_fill_no_memory_and_hold_back_only_streams_with_many(monkeypatch: Any):
    async with world() as here:
        await here.topic("stuck")
        await here.broker.topic("sound")
        flow = here.broker.context.flow
        flow.kept_max = 3 * KEPT_BYTES
        monkeypatch.setattr(flow_module, "KEPT_BYTES_MAX", int(2.5 * KEPT_BYTES))
        stuck, waiting = here.broker.producer()
        other, answers = here.broker.producer()
        for number in range(3):
            assert not waiting.paused
            stuck.on_request(produce(number, "stuck", batch(b"x"), timeout_ms=FOREVER_MS))
        assert flow.kept > flow.kept_max
        assert waiting.paused
        for number in range(3):
            assert not answers.paused
            other.on_request(produce(number, "sound", batch(b"y" * 10_000)))
        assert answers.paused, "two requests at a time"
        await answers.wait_sent(3)
        assert (answers.paused, waiting.paused) == (False, True)
        stuck.on_closed()
        assert flow.kept == 0
        for number in range(2):
            other.on_request(produce(number, "sound", batch(b"y" * 10_000)))
        assert not answers.paused
        await answers.wait_sent(5)
        other.on_closed()


@in_loop
async def test_requests_of_a_stream_that_ended_keep_nothing():
    async with world() as here:
        await here.topic("stuck")
        context = here.broker.context
        handler, stream = here.broker.producer()
        request = produce(1, "stuck", batch(b"x"), timeout_ms=FOREVER_MS)
        request.partitions.append(produce(0, "n" * 100_000, batch(b"x")).partitions[0])
        handler.on_request(request)
        # A refusal waits for the append before it.
        handler.on_request(produce(2, "stuck", b"", timeout_ms=FOREVER_MS))
        await until(lambda: unwritten_bytes(here) == 0)
        assert context.flow.kept > 100_000
        (first, _) = sorted(handler._in_flight, key=lambda request: request.correlation_id)
        assert len(context.flow.deadlines) == 2

        handler.on_closed()
        assert (first.partitions, first.order, first.results, first.replicas) == ([], [], [], [])
        assert (context.flow.kept, len(context.flow.deadlines), handler.is_idle()) == (0, 0, True)
        # The call may end while its next message is on the way to the handler.
        handler.on_request(produce(3, "stuck", batch(b"y"), timeout_ms=FOREVER_MS))
        assert len(context.flow.deadlines) == 0
        await until(lambda: unwritten_bytes(here) == 0)
        assert (context.flow.kept, handler.is_idle()) == (0, True)

        await catch_up(here, 2)
        assert here.broker.values("stuck") == [b"x", b"y"]
        assert (stream.sent, stream.punished) == ([], [])


@in_loop
async def test_records_in_memory_count_until_they_are_written_though_their_stream_has_ended():
    fs = StallingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        context = broker.context
        handler, stream = broker.producer()
        large = batch(b"x" * 200_000)
        fs.stall()
        try:
            handler.on_request(produce(1, "orders", large))
            handler.on_closed()
            assert context.flow.in_memory == len(large)
            assert not handler.is_idle()
        finally:
            fs.release()
        await until(lambda: context.flow.in_memory == 0)
        assert (context.flow.kept, handler.is_idle(), stream.sent) == (0, True, [])


@in_loop
async def test_a_broker_that_stops_waits_for_requests_that_only_need_their_followers():
    async with world() as here:
        await here.topic("stuck")
        handler, stream = here.broker.producer()
        handler.on_request(produce(1, "stuck", batch(b"x"), timeout_ms=FOREVER_MS))
        await until(lambda: unwritten_bytes(here) == 0)
        drained: list[bool] = []
        here.broker.context.flow.drained = lambda: drained.append(True)
        assert drained == []
        await catch_up(here, 1)
        await stream.wait_sent(1)
        assert drained == [True]
        assert here.broker.context.flow.kept == 0
        handler.on_closed()


@in_loop
async def test_a_request_that_timed_out_keeps_nothing_while_its_records_are_uncommitted():
    """Clients repeat such requests, so they would fill the memory while the high watermark does not advance."""
    async with world() as here:
        await here.topic("stuck")
        leader = here.leader("stuck")
        handler, stream = here.broker.producer()
        request = produce(1, "stuck", batch(b"x"), timeout_ms=1)
        request.partitions.append(produce(0, "nowhere", batch(b"x")).partitions[0])
        handler.on_request(request)
        (pending,) = handler._in_flight
        await stream.wait_sent(1)
        assert [result.topic for result in stream.sent[0].results] == ["stuck", "nowhere"]
        assert stream.sent[0].results[0].error.code == RequestTimedOutError.number
        assert (pending.partitions, pending.results, pending.replicas, pending.waiting) == ([], [], [], [])
        # The append may end after the answer, and does not wait either.
        await until(lambda: (leader.waiting[0], pending.remaining) == (0, 0))
        handler.on_request(produce(2, "stuck", b""))
        assert stream.sent[1].results[0].error.code == InvalidRecordError.number, "nothing is left to wait for"
        waits, answers = here.broker.producer()
        waits.on_request(produce(3, "stuck", batch(b"y"), timeout_ms=FOREVER_MS))
        await until(lambda: leader.waiting[0] == 1)
        handler.on_request(produce(4, "stuck", batch(b"z"), timeout_ms=1))
        await stream.wait_sent(3)
        assert leader.waiting[0] <= 2, "behind a request that waits, what timed out keeps a few bytes"
        await catch_up(here, 3)
        await answers.wait_sent(1)
        assert answers.sent[0].results[0].base_offset == 1
        assert (leader.high_watermark, leader.waiting[0], len(stream.sent)) == (3, 0, 3)
        assert here.broker.partitions.leader(TopicPartition("stuck", 0)).log.log_end_offset == 3
        handler.on_closed()
        waits.on_closed()


@in_loop
async def test_the_requests_of_a_stream_that_ended_keep_nothing_while_their_records_are_uncommitted():
    async with world() as here:
        await here.topic("stuck")
        leader, metrics = here.leader("stuck"), here.broker.context.metrics
        for number in range(20):
            handler, _ = here.broker.producer()
            handler.on_request(produce(number, "stuck", batch(b"x"), timeout_ms=FOREVER_MS))
            await until(lambda: leader.waiting[0] == 1)
            handler.on_closed()
            assert leader.waiting[0] == 0
        assert metrics.produce_errors.value == 0, "a client that has gone gets no error"
        handler, _ = here.broker.producer()
        handler.on_request(produce(1, "stuck", batch(b"x"), timeout_ms=FOREVER_MS))
        handler.on_closed()  # before its records are in the log
        await until(lambda: leader.log_end == 21)
        assert leader.waiting[0] == 0
        await catch_up(here, 21)
        await until(lambda: leader.high_watermark == 21)


@in_loop
async def test_a_refused_request_that_has_timed_out_keeps_no_memory():
    """A fixed fault: its error waited for the answer to an earlier append, for as long as a client asks, and no limit
    counted it."""
    async with world() as here:
        await here.topic("stuck")
        handler, stream = here.broker.producer()
        handler.on_request(produce(1, "stuck", batch(b"x"), timeout_ms=FOREVER_MS))
        flow, kept = here.broker.context.flow, here.broker.context.flow.kept
        for number in range(2, 7):
            handler.on_request(produce(number, "stuck", batch(b"x") * 2, timeout_ms=1))
        assert (stream.sent, stream.punished) == ([], []), "the errors wait for the first answer"
        answers = await stream.wait_sent(5)
        assert [answer.results[0].error.code for answer in answers] == [RequestTimedOutError.number] * 5
        assert sum(map(len, handler._unanswered.values())) == 1
        assert len(stream.punished) == 5
        assert (flow.kept, len(flow.deadlines)) == (kept, 1)

        await catch_up(here, 1)
        assert (await stream.wait_sent(6))[-1].results[0].error.code == 0
        assert handler.is_idle()
        assert not handler._unanswered
        handler.on_closed()
