"""Work that the event loop passes to threads: flushes of a whole segment, and compression for the topic's codec."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from headrace_core.log import appending
from headrace_core.records import Compression, encode_batch, split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem, TraceEntry
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker, batch, produce
from tests.worlds.waiting import in_loop

ORDERS = TopicPartition("orders", 0)


def now(value: bytes, *, later_ms: int = 0) -> bytes:
    return encode_batch([(int(time.time() * 1000) + later_ms, None, value, [])])


@pytest.mark.parametrize(
    ("static", "first", "last"),
    [
        ({"segment_ms": "1000"}, now(b"a"), now(b"b", later_ms=2000)),
        ({"segment_bytes": "300"}, now(b"a" * 200), now(b"b" * 200)),
        ({"segment_index_bytes": "12", "index_interval_bytes": "0"}, now(b"a"), now(b"b")),
    ],
    ids=["by time", "by size", "by a full index"],
)
@in_loop
async def test_no_roll_flushes_in_the_event_loop(static: dict[str, str], first: bytes, last: bytes) -> None:
    fs = CrashingFileSystem()
    syncs: list[str] = []

    def watch(entry: TraceEntry) -> None:
        if entry.operation == "sync":
            syncs.append(threading.current_thread().name)

    async with SoloBroker(fs, log_flush="os", **static) as broker:
        await broker.topic("orders")
        for _ in range(2):
            assert not (await broker.append("orders", first)).error.code
        fs.on_operation = watch
        for _ in range(2):
            assert not (await broker.append("orders", last)).error.code
        fs.on_operation = None
        log = broker.storage.log(ORDERS)
        assert log is not None
        assert len(log.segments) > 1
        assert syncs
        assert "MainThread" not in syncs


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_a_topic_with_a_codec_of_its_own_costs_the_writers_turn_nothing(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    noise = random.Random(1).randbytes(2000)
    recompress = appending.recompress

    def watched(*arguments: object) -> bytes:
        threads.append(threading.current_thread().name)
        return recompress(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(appending, "recompress", watched)

    async def scenario() -> None:
        async with SoloBroker(CrashingFileSystem(), compression_type="zstd") as broker:
            await broker.topic("orders")
            handler, stream = broker.producer()
            for number in range(5):
                records = [(1000, None, b"%d" % number + noise, [])] * 30
                handler.on_request(produce(number, "orders", encode_batch(records, compression=codec)))
            answers = await stream.wait_sent(5)
            assert [answer.results[0].base_offset for answer in answers] == [0, 30, 60, 90, 120]
            handler.on_closed()
            values = broker.values("orders")
            assert [value[:1] for value in values if value] == [b"%d" % (place // 30) for place in range(150)]
            replica = broker.partitions.leader(ORDERS)
            stored = replica.log.read(0, 1 << 24)
            assert stored is not None
            assert len(split_batches(stored.records)) == 5
            segment = replica.log.active
            for place in segment.places(0, segment.size):
                assert place.header.compression is Compression.ZSTD

    asyncio.run(scenario())
    assert len(threads) == (0 if codec is Compression.ZSTD else 5)
    assert {name.partition("_")[0] for name in threads} <= {"work"}


@in_loop
async def test_a_few_bytes_are_compressed_where_they_are() -> None:
    async with SoloBroker(CrashingFileSystem(), compression_type="gzip") as broker:
        await broker.topic("orders")
        assert not (await broker.append("orders", batch(b"a", b"b"))).error.code
        assert broker.values("orders") == [b"a", b"b"]
