"""What one Produce request may contain, and how much of it the event loop handles at a time. The counts are of work, so
that no clock is the judge."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from headrace_broker import leader_replica
from headrace_broker.handlers import produce as door
from headrace_broker.handlers.produce import PORTION, ProduceStream, Writers
from headrace_broker.partition.acceptance import needs_thread
from headrace_core.errors import from_number
from headrace_core.log.config import LogConfig
from headrace_core.metadata.shards import SHARD_TOPICS
from headrace_core.records import Compression, encode_batch
from headrace_core.records.types import COMPRESSION_MASK
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1 import produce_pb2
from tests.worlds.solo_broker import FakeStream, SoloBroker, batch, produce
from tests.worlds.waiting import in_loop, until_async

LENGTH_AT = 8


def lying(records: bytes, length: int) -> bytes:
    """The batch with another length in its header."""
    return records[:LENGTH_AT] + struct.pack(">i", length) + records[LENGTH_AT + 4 :]


def request_of(parts: list[bytes], topic: str = "orders") -> Any:
    items = [produce_pb2.ProducePartition(topic=topic, partition=at, records=each) for at, each in enumerate(parts)]
    return produce_pb2.ProduceRequest(correlation_id=1, acks=produce_pb2.ACKS_ALL, partitions=items)


def codes(answer: Any) -> list[str]:
    return [from_number(each.error.code, "").code if each.error.code else "ok" for each in answer.results]


ONE = batch(b"x")
REFUSED = {
    "two": (ONE * 2, "INVALID_RECORD"),
    "three of different codecs": (
        ONE + encode_batch([(1000, None, b"y", [])], compression=Compression.GZIP) + ONE,
        "INVALID_RECORD",
    ),
    "one, then bytes that are no batch": (ONE + b"\0" * 100, "INVALID_RECORD"),
    "one, then a batch that lies about its length": (ONE + lying(ONE, 1 << 30), "INVALID_RECORD"),
    "one, then a bit of the next": (ONE + ONE[:20], "CORRUPT_MESSAGE"),
    "a first length that ends in its records": (lying(ONE + ONE, len(ONE) - 13), "CORRUPT_MESSAGE"),
    "a first length of the two together": (lying(ONE + ONE, 2 * len(ONE) - 12), "CORRUPT_MESSAGE"),
    "a first length of zero": (lying(ONE, 0) + ONE, "CORRUPT_MESSAGE"),
    "a negative first length": (lying(ONE, -12) + ONE, "CORRUPT_MESSAGE"),
    "a first length beyond the end": (lying(ONE, 5_000) + ONE, "CORRUPT_MESSAGE"),
}


@pytest.mark.parametrize("what", REFUSED)
@in_loop
async def test_a_partition_gets_one_batch_of_a_request(what: str) -> None:
    records, code = REFUSED[what]
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 2)
        handler, stream = broker.producer()
        handler.on_request(request_of([records, ONE]))
        (answer,) = await stream.wait_sent(1)
        assert codes(answer) == [code, "ok"]
        assert "orders-0" in answer.results[0].error.message or code == "CORRUPT_MESSAGE"
        assert (broker.values("orders"), broker.values("orders", 1)) == ([], [b"x"])
        handler.on_closed()


@pytest.mark.parametrize("transactional_id", ["", "payments"])
@in_loop
async def test_no_header_is_read_of_a_hundred_thousand_batches(
    transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stopped a broker for a second, and left an object each."""
    seen: list[int] = []
    for name in ("needs_thread", "accept"):
        monkeypatch.setattr(leader_replica, name, lambda *_, **__: seen.append(1))
    monkeypatch.setattr(door, "first_header", lambda *_: seen.append(1))
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        broker.context.verifier = object()  # type: ignore[assignment]
        handler, stream = broker.producer()
        request = produce(1, "orders", ONE * 100_000)
        if transactional_id:
            request.transactional_id, request.transaction_version = transactional_id, 2
        handler.on_request(request)
        assert codes(stream.sent[0]) == ["INVALID_RECORD"]
        assert seen == []
        assert stream.punished, "the connection waits, as after other invalid records"
        handler.on_closed()


@pytest.mark.parametrize(("count", "code"), [(1, "ok"), (3, "ok"), (16, "ok"), (17, "INVALID_RECORD")])
@in_loop
async def test_a_coordinator_joins_a_few_batches(count: int, code: str) -> None:
    stamped = encode_batch([(1000, b"key", b"value", [])], base_sequence=4)
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic(SHARD_TOPICS[0], topic_id=b"shards".ljust(16, b"."))
        stream = FakeStream()
        handler = ProduceStream(broker.context, stream, Writers.COORDINATORS)  # type: ignore[arg-type]
        request = produce(1, SHARD_TOPICS[0], stamped * count)
        request.partitions[0].shard_epoch = 4
        handler.on_request(request)
        (answer,) = await stream.wait_sent(1)
        assert codes(answer) == [code]
        handler.on_closed()


CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("value_bytes", "is_slow"), [(10, False), (3_000, False), (5_000, True), (1 << 17, True)])
def test_the_event_loop_inflates_only_a_few_bytes(codec: Compression, value_bytes: int, is_slow: bool) -> None:
    """A kilobyte of gzip became a megabyte in the event loop, for each of the 2,000 batches of a request."""
    records = encode_batch([(1000, None, b"\0" * value_bytes, [])], compression=codec)
    assert needs_thread(records, LogConfig()) is is_slow


@pytest.mark.parametrize("codec", CODECS)
def test_many_records_without_content_are_inflated_on_a_thread(codec: Compression) -> None:
    records = encode_batch([(1000, None, None, [])] * 1_000, compression=codec)
    assert needs_thread(records, LogConfig())


@pytest.mark.parametrize("codec", [Compression.NONE, *CODECS])
def test_a_batch_is_recompressed_on_a_thread_whatever_its_size(codec: Compression) -> None:
    records = encode_batch([(1000, None, b"small", [])], compression=codec)
    wanted = "gzip" if codec is Compression.ZSTD else "zstd"
    assert needs_thread(records, LogConfig(compression_type=wanted))
    assert not needs_thread(records, LogConfig(compression_type="producer"))


def test_damaged_compressed_records_are_judged_on_a_thread_and_damaged_headers_at_once() -> None:
    records = bytearray(batch(b"not compressed at all" * 5))
    records[22] |= Compression.ZSTD
    assert needs_thread(bytes(records), LogConfig())
    records[22] |= COMPRESSION_MASK
    assert not needs_thread(bytes(records), LogConfig())


async def _portions(broker: SoloBroker, begin: Callable[[], None], done: Callable[[], bool]) -> list[int]:
    """How many appends the leaders got in each iteration of the event loop, until ``done``."""
    counts = [0]
    appending = leader_replica.LeaderReplica.append

    def counted(*arguments: Any, **options: Any) -> None:
        counts[-1] += 1
        appending(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader_replica.LeaderReplica, "append", counted)
        begin()
        for _ in range(1_000):
            if done():
                break
            counts.append(0)
            await asyncio.sleep(0)
    return [each for each in counts if each]


@in_loop
async def test_the_event_loop_handles_a_large_request_in_portions() -> None:
    count = 2 * PORTION + 1
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 3)
        handler, stream = broker.producer()
        request = request_of([ONE] * count)
        for at, each in enumerate(request.partitions):
            each.partition = at % 3
        portions = await _portions(broker, lambda: handler.on_request(request), lambda: not stream.paused)
        assert portions == [PORTION, PORTION, 1]
        (answer,) = await stream.wait_sent(1)
        assert set(codes(answer)) == {"ok"}
        assert len(answer.results) == count
        assert [each.base_offset for each in answer.results] == [at // 3 for at in range(count)], "in their order"
        assert handler.is_idle()
        handler.on_closed()


@in_loop
async def test_a_client_that_goes_away_ends_the_portions_and_leaves_no_memory_taken() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        request = request_of([ONE] * (3 * PORTION))
        for each in request.partitions:
            each.partition = 0

        def begin() -> None:
            handler.on_request(request)
            handler.on_closed()

        assert await _portions(broker, begin, lambda: not stream.paused) == [PORTION]
        assert stream.sent == []
        await until_async(lambda: not broker.context.flow.in_memory)
        assert handler.is_idle()
        assert broker.values("orders") == [b"x"] * PORTION


@in_loop
async def test_appends_that_waited_for_a_slow_check_are_checked_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client queued thousands behind one compressed batch, and all were checked at once."""
    waiting = 2 * leader_replica._CHECKS_AT_ONCE + 5
    counts = [0]
    accept = leader_replica.accept

    def counted(*arguments: Any, **options: Any) -> Any:
        counts[-1] += 1
        return accept(*arguments, **options)

    monkeypatch.setattr(leader_replica, "accept", counted)
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        handler.on_request(
            produce(0, "orders", encode_batch([(1000, None, b"y" * 9_000, [])], compression=Compression.GZIP))
        )
        for at in range(waiting):
            handler.on_request(produce(at + 1, "orders", ONE))
        while len(stream.sent) <= waiting:
            counts.append(0)
            await asyncio.sleep(0)
        assert max(counts) <= leader_replica._CHECKS_AT_ONCE + 1
        assert [each.results[0].base_offset for each in stream.sent] == list(range(waiting + 1))
        handler.on_closed()


@pytest.mark.parametrize("wrong_topic_id", [False, True], ids=["", "and a refusal behind it"])
@in_loop
async def test_an_error_of_a_check_that_waited_does_not_overtake_earlier_appends(wrong_topic_id: bool) -> None:
    """The damaged batch waited for the check of a compressed one. Its error came before the answers of both earlier
    appends, which were still being written."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        handler, stream = broker.producer()
        damaged = bytearray(ONE)
        damaged[-1] ^= 1
        compressed = encode_batch([(1000, None, b"y" * 9_000, [])], compression=Compression.GZIP)
        for number, records in enumerate((compressed, ONE, bytes(damaged), ONE, bytes(damaged))):
            handler.on_request(produce(number, "orders", records))
        count = 5
        if wrong_topic_id:
            request = produce(count, "orders", ONE)
            request.partitions[0].topic_id = b"another topic..."
            handler.on_request(request)
            count += 1
        answers = await stream.wait_sent(count)
        failed = {answer.correlation_id for answer in answers if answer.results[0].error.code}
        assert failed == {2, 4, 5} & set(range(count))
        order = [answer.correlation_id for answer in answers]
        for number in failed:
            assert set(order[: order.index(number)]) >= set(range(number)), order
        assert handler.is_idle()
        assert not handler._unanswered
        handler.on_closed()
