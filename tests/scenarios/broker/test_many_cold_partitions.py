"""Thousands of partitions outside the page cache: they are read ahead together, partitions in memory do not wait for
them, and none of them starves. The tests count answers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from headrace_broker.handlers import fetch
from headrace_broker.handlers.fetch import ANSWER_BYTES_MAX, FetchStream, _ColdRead, _read_ahead
from headrace_core import errors
from headrace_core.log import ReadResult
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2
from tests.scenarios.broker.test_cold_reads import ColdFileSystem, reading
from tests.worlds.solo_broker import FakeStream, SoloBroker, batch
from tests.worlds.waiting import in_loop, until_async

WAIT_MS = 60_000
AHEAD = 64


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-ahead ends by its count, not by the clock."""
    monkeypatch.setattr(fetch, "AHEAD_PARTITIONS_MAX", AHEAD)
    monkeypatch.setattr(fetch, "AHEAD_MS", math.inf)


def ask(number: int, partitions: range | list[int] = range(0), *, offset: int = 0, max_bytes: int = 0) -> Any:
    return fetch_pb2.FetchRequest(
        correlation_id=number,
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        partitions=[
            fetch_pb2.FetchPartition(
                topic="t", partition=each, fetch_offset=offset, current_leader_epoch=-1, last_fetched_epoch=-1
            )
            for each in partitions
        ],
    )


async def filled(fs: ColdFileSystem, partitions: int, value: bytes = b"value") -> SoloBroker:
    broker = SoloBroker(fs)
    await broker.__aenter__()
    await broker.topic("t", partitions)
    for number in range(partitions):
        await broker.append("t", batch(value), number)
    fs.cold = True
    return broker


def read(answer: Any) -> list[int]:
    """The partitions with records."""
    return [result.partition for result in answer.results if result.records]


async def next_answer(consumer: FetchStream, answers: FakeStream, request: Any) -> Any:
    before = len(answers.sent)
    consumer.on_request(request)
    answers.queued_bytes = 0
    await answers.wait_sent(before + 1)
    return answers.sent[before]


@in_loop
async def test_cold_partitions_need_few_answers() -> None:
    count = 3 * AHEAD + 1
    broker = await filled(ColdFileSystem(), count)
    consumer, answers = broker.consumer()
    found = read(await next_answer(consumer, answers, ask(0, range(count))))
    while len(found) < count:
        found += read(await next_answer(consumer, answers, ask(len(answers.sent))))
    assert sorted(found) == list(range(count)), "each once"
    assert len(answers.sent) == 4
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_partitions_in_memory_are_answered_at_once_and_the_cold_ones_next() -> None:
    fs = ColdFileSystem()
    broker = await filled(fs, 40)
    hot = set(range(1, 40, 2))
    fs.hot = {f"t-{number}" for number in hot}
    fs.go.clear()  # the disk is slow
    consumer, answers = broker.consumer()
    assert set(read(await next_answer(consumer, answers, ask(0, range(40))))) == hot
    await reading(fs)
    consumer.on_request(ask(1))
    await broker.append("t", batch(b"more"), 1)
    assert len(answers.sent) == 1, "nothing else is in memory: the request waits for the read-ahead"
    fs.go.set()
    await answers.wait_sent(2)
    assert set(read(answers.sent[1])) == set(range(0, 40, 2)) | {1}
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_cold_partition_does_not_starve_beside_busy_ones() -> None:
    fs = ColdFileSystem()
    large = bytes(ANSWER_BYTES_MAX // 2)
    broker = await filled(fs, 4, large)
    fs.hot = {"t-1", "t-2", "t-3"}
    consumer, answers = broker.consumer()
    counts: Counter[int] = Counter(read(await next_answer(consumer, answers, ask(0, [1, 2, 3, 0]))))
    for number in range(1, 8):
        for busy in (1, 2, 3):
            await broker.append("t", batch(large), busy)
        counts.update(read(await next_answer(consumer, answers, ask(number))))
    assert counts[0] == 1
    assert min(counts[1], counts[2], counts[3]) >= 2
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_the_bytes_that_are_read_ahead_are_bounded() -> None:
    fs = ColdFileSystem()
    value = bytes(100_000)  # ten batches for each answer
    broker = await filled(fs, 40, value)
    consumer, answers = broker.consumer()
    found: list[int] = []
    while len(found) < 40:
        request = ask(len(answers.sent), range(40) if not found else range(0))
        answer = await next_answer(consumer, answers, request)
        assert sum(len(each.records) for each in answer.results) <= ANSWER_BYTES_MAX
        held = sum(len(each.records) for _, each in consumer._cold.values())  # type: ignore[union-attr]
        assert held <= ANSWER_BYTES_MAX
        found += read(answer)
    assert sorted(found) == list(range(40))
    assert len(answers.sent) == 4
    assert not consumer._cold
    consumer.on_closed()
    await broker.__aexit__()


@pytest.mark.parametrize("value_bytes", [1_000, 100_000])
@in_loop
async def test_what_was_read_ahead_for_a_larger_max_bytes_is_cut(value_bytes: int) -> None:
    """Kafka's protocol lowers max_bytes for the further pages of a Kafka request. At least one batch is returned."""
    fs = ColdFileSystem()
    broker = await filled(fs, 2, bytes(value_bytes))
    for _ in range(20):
        await broker.append("t", batch(bytes(value_bytes)), 1)
    fs.hot = {"t-0"}
    consumer, answers = broker.consumer()
    assert read(await next_answer(consumer, answers, ask(0, range(2)))) == [0]
    await until_async(lambda: bool(consumer._cold))
    fs.cold = False  # the pages are in memory now
    position = 0
    while position < 21:
        (result,) = (await next_answer(consumer, answers, ask(1, max_bytes=5_000))).results
        assert result.fetch_offset == position < result.next_offset
        assert len(result.records) <= max(5_000, value_bytes + 100)
        position = result.next_offset
    assert not consumer._cold
    consumer.on_closed()
    await broker.__aexit__()


@pytest.mark.parametrize("change", ["seek", "forget", "cut"])
@in_loop
async def test_what_was_read_ahead_for_another_position_is_not_sent(change: str) -> None:
    fs = ColdFileSystem()
    broker = await filled(fs, 3)
    for number in range(3):
        await broker.append("t", batch(b"second"), number)
    fs.hot = {"t-0"}
    fs.go.clear()
    consumer, answers = broker.consumer()
    assert read(await next_answer(consumer, answers, ask(0, range(3)))) == [0]
    await reading(fs)
    request = ask(1)
    if change == "seek":
        request = ask(1, [1], offset=1)
    elif change == "forget":
        request.forgotten.add(topic="t", partition=1)
    else:
        broker.partitions.leader(TopicPartition("t", 1)).log.cuts += 2
    consumer.on_request(request)
    fs.go.set()
    await answers.wait_sent(2)
    found = {result.partition: (result.fetch_offset, result.next_offset) for result in answers.sent[1].results}
    assert found[2] == (0, 2)
    assert found.get(1, (1, 2)) == (1, 2) or change == "cut"
    if change != "forget" and 1 not in read(answers.sent[1]):
        again = await next_answer(consumer, answers, ask(2))
        (result,) = again.results
        assert (result.partition, result.fetch_offset, result.next_offset) == (1, 1 if change == "seek" else 0, 2)
    assert not consumer._cold
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_partition_that_cannot_be_read_keeps_no_other_from_its_records() -> None:
    fs = ColdFileSystem()
    broker = await filled(fs, 5)
    damaged = broker.partitions.leader(TopicPartition("t", 2))
    (segment,) = damaged.log.segments
    fs.open(segment.path, write=True).pwritev([b"\xff" * 20], 30)
    consumer, answers = broker.consumer()
    answer = await next_answer(consumer, answers, ask(0, range(5)))
    assert read(answer) == [0, 1, 3, 4]
    (failed,) = [result for result in answer.results if result.error.code]
    assert (failed.partition, failed.error.code) == (2, errors.CorruptLogError.number)
    consumer.on_closed()
    await broker.__aexit__()


def test_a_slow_disk_ends_a_read_ahead_after_its_time_but_not_before_the_first_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "AHEAD_MS", 100.0)
    now = 0.0

    class Slow:
        def __init__(self, took_ms: float) -> None:
            self.took_ms = took_ms

        def read_cold(self, offset: int, max_bytes: int, up_to: int, *, committed: bool) -> ReadResult:
            nonlocal now
            now += self.took_ms
            return ReadResult(b"x", offset + 1)

    def count(took_ms: float) -> int:
        wanted = [_ColdRead(TopicPartition("t", each), Slow(took_ms), 0, 0, 100, 1) for each in range(50)]
        return len(_read_ahead(wanted, 1_000, False, lambda: now))

    assert [count(took_ms) for took_ms in (0.0, 30.0, 1_000.0)] == [50, 4, 1]
