"""Fetches and offsets under read_committed: their end is the last stable offset, and answers name aborted transactions;
on leaders and followers, through elections and restarts."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from headrace_broker.handlers.offsets import OffsetsService
from headrace_broker.leader_replica import LeaderReplica
from headrace_core import errors
from headrace_core.records import read_header, split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem, TraceEntry
from headrace_protos.v1 import common_pb2, offsets_pb2
from tests.scenarios.broker.test_cold_reads import ColdFileSystem, reading
from tests.scenarios.broker.test_replicas_that_are_read import ORDERS, OTHER, Pair
from tests.worlds.log_world import (
    ABORT,
    COMMIT,
    NOW_MS,
    Transactions,
    committed_offsets,
    committed_values,
    marker,
    stable_offset_of,
    transactional,
)
from tests.worlds.replication_messages import a_push, an_answer, an_update
from tests.worlds.solo_broker import SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

COMMITTED = common_pb2.ISOLATION_LEVEL_READ_COMMITTED


def committed(correlation_id: int, *topics: str, **keys: Any) -> Any:
    request = fetch(correlation_id, *topics, **keys)
    request.isolation_level = COMMITTED
    return request


async def append(broker: SoloBroker, *batches: bytes) -> None:
    """Append directly to the log, without a Produce request."""
    replica = broker.partitions.leader(ORDERS)
    headers = [read_header(batch) for batch in batches]
    writer = replica._writer
    await writer.append(replica.log, b"".join(batches), leader_epoch=replica.leader.leader_epoch, headers=headers)


def aborted_in(result: Any) -> list[tuple[int, int]]:
    return [(each.producer_id, each.first_offset) for each in result.aborted_transactions]


async def one_answer(broker: SoloBroker, request: Any) -> Any:
    """The only result of the answer to a request on a stream of its own."""
    consumer, answers = broker.consumer()
    consumer.on_request(request)
    (answer,) = await answers.wait_sent(1)
    consumer.on_closed()
    (result,) = answer.results
    return result


async def latest(broker: SoloBroker, *, isolation: Any = COMMITTED, timestamp_ms: int = -1) -> int:
    item = offsets_pb2.ListOffsetsPartition(
        topic="orders", partition=0, timestamp_ms=timestamp_ms, current_leader_epoch=-1
    )
    request = offsets_pb2.ListOffsetsRequest(partitions=[item], isolation_level=isolation)
    (result,) = (await OffsetsService(broker.context).ListOffsets(request, None)).results
    assert not result.error.code, result.error
    offset: int = result.offset
    return offset


@in_loop
async def test_an_open_transaction_delays_only_read_committed_readers() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await append(broker, transactional(7, 0), transactional(8, 0), marker(7, COMMIT))
        all_of_it = await one_answer(broker, fetch(1, "orders", max_wait_ms=0))
        assert (all_of_it.next_offset, all_of_it.high_watermark, all_of_it.last_stable_offset) == (3, 3, 1)
        result = await one_answer(broker, committed(1, "orders", max_wait_ms=0))
        assert (result.next_offset, result.high_watermark, result.last_stable_offset) == (1, 3, 1)
        assert [span.base_offset for span in split_batches(result.records)] == [0]
        assert not aborted_in(result)
        assert await latest(broker) == 1
        assert await latest(broker, isolation=common_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED) == 3
        assert await latest(broker, timestamp_ms=NOW_MS) == 0
        await append(broker, marker(8, ABORT))
        assert await latest(broker) == 4
        result = await one_answer(broker, committed(1, "orders", max_wait_ms=0))
        assert (result.next_offset, aborted_in(result)) == (4, [(8, 1)])
        assert not aborted_in(await one_answer(broker, fetch(1, "orders", max_wait_ms=0)))


@in_loop
async def test_records_by_time_end_at_the_stable_offset() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await append(broker, transactional(7, 0))
        assert await latest(broker, timestamp_ms=NOW_MS) == -1
        assert await latest(broker, timestamp_ms=-3) == -1
        assert await latest(broker, isolation=0, timestamp_ms=NOW_MS) == 0
        await append(broker, marker(7, COMMIT))
        assert await latest(broker, timestamp_ms=NOW_MS) == 0


@in_loop
async def test_a_poll_that_waits_for_bytes_is_answered_by_the_marker_that_releases_them() -> None:
    """The marker alone has fewer bytes than the poll waits for."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        consumer, answers = broker.consumer()
        consumer.on_request(committed(1, "orders", min_bytes=1500))
        await append(broker, transactional(7, 0, 100))
        await append(broker, transactional(7, 100, 100))
        assert not answers.sent
        await append(broker, marker(7, COMMIT))
        ((result,),) = [answer.results for answer in await answers.wait_sent(1)]
        assert result.next_offset == 201
        consumer.on_request(committed(2, min_bytes=400))  # the session goes on, with another transaction
        await append(broker, transactional(7, 200, 100))
        assert len(answers.sent) == 1
        await append(broker, marker(7, ABORT))
        (result,) = (await answers.wait_sent(2))[1].results
        assert (result.fetch_offset, result.next_offset, aborted_in(result)) == (201, 302, [(7, 201)])
        consumer.on_closed()


def test_bytes_of_an_open_transaction_cost_a_waiting_poll_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the bytes of an open transaction woke a poll, each poll would read all records of the transaction again."""

    async def scenario() -> None:
        async with SoloBroker(CrashingFileSystem()) as broker:
            await broker.topic("orders")
            await broker.topic("payments")
            await append(broker, transactional(7, 0, 50), marker(7, COMMIT))
            await append(broker, transactional(8, 0))
            reads = 0
            read = LeaderReplica.read

            def counted(*args: Any, **keys: Any) -> Any:
                nonlocal reads
                reads += 1
                return read(*args, **keys)

            monkeypatch.setattr(LeaderReplica, "read", counted)
            consumer, answers = broker.consumer()
            consumer.on_request(committed(1, "orders", "payments", min_bytes=3000))
            assert reads == 1
            for number in range(20):
                await append(broker, transactional(8, 1 + number * 20, 20))
            assert (reads, answers.sent) == (1, [])
            await append(broker, marker(8, ABORT))
            (answer,) = await answers.wait_sent(1)
            assert [each.next_offset for each in answer.results if each.records] == [51 + 1 + 20 * 20 + 1]
            await append(broker, transactional(7, 50))
            consumer.on_request(committed(2, min_bytes=300))
            await broker.append("payments", batch(b"p" * 400))  # bytes of other partitions count as ever
            answer = (await answers.wait_sent(2))[1]
            assert [(each.topic, each.next_offset) for each in answer.results if each.records] == [("payments", 1)]
            consumer.on_closed()

    asyncio.run(scenario())


@in_loop
async def test_a_poll_with_little_to_read_waits_for_its_time() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await append(broker, transactional(7, 0))
        result = await one_answer(broker, committed(1, "orders", max_wait_ms=50))
        assert (result.next_offset, bytes(result.records)) == (0, b"")
        assert (result.high_watermark, result.last_stable_offset) == (1, 0)


@in_loop
async def test_a_marker_counts_once_it_is_replicated() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        pair.follows(0)
        await append(broker, transactional(7, 0, 2))
        pair.follows(2)
        await append(broker, marker(7, COMMIT))
        await append(broker, transactional(8, 0))
        consumer, answers = broker.consumer()
        consumer.on_request(committed(1, "orders"))
        pair.follows(2)
        replica = broker.partitions.leader(ORDERS)
        assert (replica.leader.high_watermark, replica.last_stable_offset) == (2, 0)
        assert not answers.sent
        pair.follows(4)
        (result,) = (await answers.wait_sent(1))[0].results
        assert (result.next_offset, result.high_watermark, result.last_stable_offset) == (3, 4, 3)
        consumer.on_closed()


@in_loop
async def test_a_follower_and_the_leader_that_it_becomes_answer_as_the_leader_before() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin(leader=OTHER)
        replica = pair.followed
        replica.join(1)
        replica.joined(an_answer(1))
        transactions = Transactions(random.Random(5))
        made = transactions.batches(0, 60)
        transactions.written += [written for _, written in made]
        end = made[-1][1].next_offset
        data = b"".join(_of_epoch(batch, 3) for batch, _ in made)
        replica.pushed(a_push(1, data, 0, 0), data)
        await until(lambda: replica.log_end == end)
        for high_watermark in range(end + 1):
            replica.updated(an_update(1, high_watermark, 0))
            assert replica.last_stable_offset == stable_offset_of(transactions.written, end, high_watermark)
        request = committed(1, "orders", max_wait_ms=0)
        request.rack = "b"
        result = await one_answer(broker, request)
        found = committed_values(result.records, 0, aborted_in(result))
        assert [offset for offset, _ in found] == committed_offsets(transactions.written, end)
        assert result.last_stable_offset == replica.last_stable_offset
        await broker.new_leader("orders", 1, 4)
        led = broker.partitions.leader(ORDERS)
        assert led.last_stable_offset == stable_offset_of(transactions.written, end, led.leader.high_watermark)


def _of_epoch(batch: bytes, leader_epoch: int) -> bytes:
    return batch[:12] + leader_epoch.to_bytes(4, "big") + batch[16:]


async def _read_all(broker: SoloBroker, end: int, rng: random.Random) -> list[tuple[int, bytes]]:
    """All committed records, in answers of random sizes."""
    found: list[tuple[int, bytes]] = []
    consumer, answers = broker.consumer()
    offset, number = 0, 0
    while offset < end:
        number += 1
        request = committed(number, *(("orders",) if number == 1 else ()), max_wait_ms=0)
        request.max_bytes = rng.randint(1, 2_000)
        consumer.on_request(request)
        answer = (await answers.wait_sent(number))[-1]
        for result in answer.results:
            assert not result.error.code, result.error
            assert result.next_offset <= result.last_stable_offset
            found += committed_values(result.records, result.fetch_offset, aborted_in(result))
            offset = result.next_offset
    consumer.on_closed()
    return found


@in_loop
async def test_answers_of_any_size_give_each_committed_record_once_also_after_a_restart_and_from_the_disk(
    rng: random.Random,
) -> None:
    fs = ColdFileSystem()
    transactions = Transactions(rng)
    async with SoloBroker(fs, segment_bytes="2000") as broker:
        await broker.topic("orders")
        log = broker.partitions.leader(ORDERS).log
        while len(log.segments) < 7:
            made = transactions.batches(log.log_end_offset, rng.randint(1, 8))
            transactions.written += [written for _, written in made]
            await append(broker, *(batch for batch, _ in made))
        end = stable_offset_of(transactions.written, log.log_end_offset, log.log_end_offset)
        wanted = committed_offsets(transactions.written, log.log_end_offset)
        for _ in range(5):
            assert [offset for offset, _ in await _read_all(broker, end, rng)] == wanted
        image = broker.image
    async with SoloBroker(fs, image=image, segment_bytes="2000") as broker:
        fs.cold = True  # its indexes, too
        for _ in range(5):
            assert [offset for offset, _ in await _read_all(broker, end, rng)] == wanted
        assert await latest(broker) == end


class OneColdTopic(ColdFileSystem):
    """Only the files of "orders" are not in the page cache."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        file = super().open(path, write=write, create=create)
        return file if "/orders-0/" in path else file._file


async def parked(broker: SoloBroker, fs: ColdFileSystem) -> tuple[Any, Any]:
    """A stream that has read an aborted transaction of "orders" from the disk, but has not sent it yet. Records of
    "payments", which arrived during the read from the disk, fill the response."""
    await broker.topic("orders")
    await broker.topic("payments")
    await append(broker, transactional(7, 0), marker(7, ABORT))
    replica = broker.partitions.leader(ORDERS)
    await replica._writer.run(replica.log.roll, log=replica.log)
    fs.cold = True
    fs.go.clear()
    consumer, answers = broker.consumer()
    request = committed(1, "payments", "orders")
    request.max_bytes = 1
    consumer.on_request(request)
    await reading(fs)
    await broker.append("payments", batch(b"p"))
    fs.go.set()
    ((result, described),) = [answer.results for answer in await answers.wait_sent(1)]
    assert (result.topic, result.next_offset) == ("payments", 1)
    assert (described.topic, described.next_offset, described.records) == ("orders", 0, b"")
    return consumer, answers


@in_loop
async def test_the_event_loop_reads_no_transaction_index_from_the_disk() -> None:
    fs = OneColdTopic()
    async with SoloBroker(fs) as broker:
        consumer, answers = await parked(broker, fs)
        broker.partitions.leader(ORDERS).log.segments[0].txn_index.unload()
        blocked: list[str] = []

        def look(entry: TraceEntry) -> None:
            if entry.path.endswith(".txnindex") and threading.current_thread() is threading.main_thread():
                blocked.append(entry.operation)

        fs.on_operation = look
        consumer.on_request(committed(2))
        (result,) = (await answers.wait_sent(2))[1].results
        assert (result.topic, result.next_offset, aborted_in(result)) == ("orders", 1, [(7, 0)])
        assert not blocked
        consumer.on_closed()


@in_loop
async def test_records_that_were_read_before_the_log_was_cut_are_read_again() -> None:
    fs = OneColdTopic()
    async with SoloBroker(fs) as broker:
        consumer, answers = await parked(broker, fs)
        replica = broker.partitions.leader(ORDERS)
        writer = replica._writer
        await writer.run(lambda: writer.directory.truncate(replica.log, 0), log=replica.log)
        await append(broker, batch(b"x", b"y", b"z"))
        consumer.on_request(committed(2))
        (result,) = (await answers.wait_sent(2))[1].results
        assert committed_values(result.records, 0, aborted_in(result)) == [(0, b"x"), (1, b"y"), (2, b"z")]
        consumer.on_closed()


@in_loop
async def test_a_position_outside_of_the_log_is_refused_with_the_stable_offset() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await append(broker, transactional(7, 0, 5))
        result = await one_answer(broker, committed(1, "orders", offset=9))
        assert result.error.code == errors.OffsetOutOfRangeError.number
        assert (result.high_watermark, result.last_stable_offset) == (5, 0)
        waiting = await one_answer(broker, committed(1, "orders", offset=5, max_wait_ms=10))
        assert not waiting.error.code, "behind the stable offset, but in the log: it waits"
