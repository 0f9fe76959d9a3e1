"""The broker's limits on a fetch response."""

from __future__ import annotations

from headrace_broker.context import BrokerLimits
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop


@in_loop
async def test_the_brokers_fetch_max_bytes_bounds_an_answer_that_the_client_does_not_bound():
    one = batch(b"x" * 2000)
    async with SoloBroker(CrashingFileSystem(), limits=BrokerLimits(fetch_bytes_max=2 * len(one) + 1)) as broker:
        await broker.topic("orders")
        for _ in range(5):
            assert not (await broker.append("orders", one)).error.code
        consumer, answers = broker.consumer()
        for number in range(3):
            consumer.on_request(fetch(number, *(["orders"] if number == 0 else []), max_wait_ms=0))
        await answers.wait_sent(3)
        assert [answer.results[0].next_offset for answer in answers.sent] == [2, 4, 5]
        consumer.on_closed()


@in_loop
async def test_the_partitions_of_an_answer_share_its_limit():
    one, topics = batch(b"x" * 2000), ("a", "b", "c", "d")
    async with SoloBroker(CrashingFileSystem(), limits=BrokerLimits(fetch_bytes_max=2 * len(one) + 1)) as broker:
        for topic in topics:
            await broker.topic(topic)
            assert not (await broker.append(topic, one)).error.code
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, *topics, max_wait_ms=0))
        consumer.on_request(fetch(2, max_wait_ms=0))
        await answers.wait_sent(2)
        read = [{result.topic for result in answer.results if result.records} for answer in answers.sent]
        assert [len(each) for each in read] == [2, 2]
        assert read[0] | read[1] == set(topics)
        consumer.on_closed()


@in_loop
async def test_a_fetch_of_an_older_segment_does_not_wait_for_its_min_bytes():
    """A response has the records of one segment. Records of the next segment are there, so waiting brings nothing
    (Kafka's DelayedFetch, case D)."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        for number in range(4):
            if number == 2:
                broker.partitions.leader(TopicPartition("orders", 0)).log.roll()
            assert not (await broker.append("orders", batch(b"x" * 100))).error.code
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "orders", min_bytes=10_000))
        (answer,) = await answers.wait_sent(1)
        assert answer.results[0].next_offset == 2
        consumer.on_request(fetch(2, min_bytes=10_000))  # the last segment: wait for further records
        assert len(answers.sent) == 1
        consumer.on_closed()


@in_loop
async def test_clients_that_do_not_read_share_one_budget_and_others_go_on():
    """Before the limit was introduced, a hundred slow readers held 3 MiB each, and a broker of 55 MiB grew to 880
    MiB."""
    one = batch(b"x" * 200_000)
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        for _ in range(5):
            assert not (await broker.append("orders", one)).error.code
        flow = broker.context.flow
        flow.unread_max = 3_000_000
        slow = [broker.consumer() for _ in range(20)]
        for consumer, _ in slow:
            for number in range(20):
                consumer.on_request(fetch(number, "orders", max_wait_ms=0))
        assert flow.unread > flow.unread_max
        assert flow.unread < flow.unread_max + 1_100_000 + 20 * 210_000, "one answer each, beyond the limit"
        reading, answers = broker.consumer()
        reading.on_request(fetch(1, "orders", max_wait_ms=0))
        (answer,) = await answers.wait_sent(1)
        assert answer.results[0].next_offset == 1  # small answers, of a batch at least
        for consumer, _ in [*slow, (reading, answers)]:
            consumer.on_closed()
        assert flow.unread == 0


@in_loop
async def test_requests_that_wait_behind_unread_answers_are_bounded_in_bytes():
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        consumer, answers = broker.consumer()
        answers.queued_bytes = 10_000_000  # it reads nothing
        answers.request_bytes = 30_000
        for number in range(3):
            assert not answers.paused
            consumer.on_request(fetch(number, "orders", max_wait_ms=0))
        assert answers.paused
        answers.queued_bytes = 0
        consumer.on_written()
        assert not answers.paused
        consumer.on_closed()
