"""Responses that are larger than one callback may read, as Kafka's consumers get them: they are read in turns, and hold
what a response that is read at once holds."""

from __future__ import annotations

import asyncio

import pytest

from headrace_broker.handlers import fetch
from headrace_broker.handlers.fetch import FetchStream
from headrace_core.errors import NotLeaderOrFollowerError
from headrace_core.types import TopicPartition
from tests.scenarios.broker.test_cold_reads import ColdFileSystem
from tests.scenarios.broker.test_many_cold_partitions import ask, filled, next_answer, read
from tests.worlds.solo_broker import FakeStream, SoloBroker, batch
from tests.worlds.waiting import in_loop

COUNT, BATCH_BYTES = 7, 10_000


@pytest.fixture(autouse=True)
def portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback reads the batches of two partitions."""
    monkeypatch.setattr(fetch, "PORTION_BYTES", 3 * BATCH_BYTES // 2)


async def begun(fs: ColdFileSystem) -> tuple[SoloBroker, FetchStream, FakeStream]:
    """A broker, and a consumer of COUNT partitions whose response has its first portion."""
    broker = await filled(fs, COUNT, bytes(BATCH_BYTES))
    fs.cold = False
    answers = FakeStream()
    consumer = FetchStream(broker.context, answers, answer_bytes_max=2**20)  # type: ignore[arg-type]
    consumer.on_request(ask(0, range(COUNT)))
    assert [each.partition for each in consumer._cold] == [0, 1]
    assert not answers.sent
    return broker, consumer, answers


@in_loop
async def test_a_large_response_is_read_in_turns_and_sent_whole() -> None:
    broker, consumer, answers = await begun(ColdFileSystem())
    (answer,) = await answers.wait_sent(1)
    assert read(answer) == list(range(COUNT))
    assert not consumer._cold
    await broker.append("t", batch(b"live"), 3)
    assert read(await next_answer(consumer, answers, ask(1))) == [3]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_records_that_come_meanwhile_are_in_the_next_response() -> None:
    broker, consumer, answers = await begun(ColdFileSystem())
    await broker.append("t", batch(b"more"), 0)
    (answer,) = await answers.wait_sent(1)
    assert read(answer) == list(range(COUNT))
    assert answer.results[0].next_offset == 1
    (result,) = (await next_answer(consumer, answers, ask(1))).results
    assert (result.partition, result.fetch_offset, result.next_offset) == (0, 1, 2)
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_portion_of_a_log_that_was_cut_is_read_again() -> None:
    broker, consumer, answers = await begun(ColdFileSystem())
    log = broker.partitions.leader(TopicPartition("t", 0)).log
    log.cuts += 2
    (answer,) = await answers.wait_sent(1)
    assert sorted(read(answer)) == list(range(COUNT))
    assert not consumer._cold
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_partition_that_loses_its_leader_meanwhile_gets_an_error() -> None:
    broker, consumer, answers = await begun(ColdFileSystem())
    broker.partitions.leader(TopicPartition("t", 1)).resign(NotLeaderOrFollowerError("moved"))
    (answer,) = await answers.wait_sent(1)
    assert {each.partition: each.error.code for each in answer.results if each.error.code}.keys() == {1}
    assert sorted(read(answer)) == [0, *range(2, COUNT)]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_client_that_leaves_meanwhile_keeps_nothing() -> None:
    broker, consumer, answers = await begun(ColdFileSystem())
    consumer.on_closed()
    assert not consumer._cold
    await asyncio.sleep(0.02)
    assert not answers.sent
    assert (broker.context.flow.unread, broker.context.flow.turns._is_busy) == (0, False)
    await broker.__aexit__()


@in_loop
async def test_disks_and_memory_serve_one_response() -> None:
    """Partitions that are not in memory do not hold up the portions of the others."""
    fs = ColdFileSystem()
    broker = await filled(fs, COUNT, bytes(BATCH_BYTES))
    fs.hot = {f"t-{number}" for number in range(COUNT) if number != 2}
    fs.go.clear()
    answers = FakeStream()
    consumer = FetchStream(broker.context, answers, answer_bytes_max=2**20)  # type: ignore[arg-type]
    consumer.on_request(ask(0, range(COUNT)))
    (answer,) = await answers.wait_sent(1)
    assert read(answer) == [0, 1, *range(3, COUNT)]
    fs.go.set()
    assert read(await next_answer(consumer, answers, ask(1))) == [2]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_the_clients_limit_ends_a_response() -> None:
    fs = ColdFileSystem()
    broker = await filled(fs, COUNT, bytes(BATCH_BYTES))
    fs.cold = False
    answers = FakeStream()
    consumer = FetchStream(broker.context, answers, answer_bytes_max=2**20)  # type: ignore[arg-type]
    found: list[int] = []
    while len(found) < COUNT:
        request = ask(len(answers.sent), range(0) if found else range(COUNT), max_bytes=5 * BATCH_BYTES)
        found += read(await next_answer(consumer, answers, request))
    assert found == list(range(COUNT))
    assert [len(read(answer)) for answer in answers.sent] == [4, 3]
    assert not consumer._cold
    consumer.on_closed()
    await broker.__aexit__()
