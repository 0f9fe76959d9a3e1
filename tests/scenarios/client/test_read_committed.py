"""isolation.level=read_committed, through every way to read. Each way of reading returns the committed records once, in
order, and no other records.

The log is random (tests/worlds/transactional_log.py). max.partition.fetch.bytes cuts the results at many batches.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, OffsetRange, RangeReader, TopicPartition
from headrace.errors import CorruptMessageError, RequestTimedOutError
from headrace_core.records import ABORT, COMMIT, RecordIterator
from tests.worlds.transactional_log import Row, TransactionalLog
from tests.worlds.waiting import until

T0 = TopicPartition("t", 0)
SETTINGS: dict[str, Any] = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "retry.backoff.ms": 5,
    "fetch.max.wait.ms": 100,
}


def consumer(cluster: Any, **settings: Any) -> Consumer:
    given = {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}}
    found = Consumer(given, bootstrap_servers=cluster.bootstrap_servers)
    found.assign([T0])
    return found


def row(record: Any) -> Row:
    return Row(record.offset, record.key, record.value)


def rows_of(table: Any) -> list[Row]:
    return [Row(*each) for each in zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True)]


def poll(inp: Consumer) -> list[Row]:
    return [row(record) for record in inp.poll(0.2, max_records=3)]


def arrow(inp: Consumer) -> list[Row]:
    table = inp.fetch_arrow(0.2, max_bytes=300)
    return [] if table is None else rows_of(table)


def read_all(read: Callable[[Consumer], list[Row]], inp: Consumer, end: int) -> list[Row]:
    found: list[Row] = []

    def at_end() -> bool:
        found.extend(read(inp))
        return inp.position(T0) >= end

    until(at_end)
    return found


@pytest.mark.parametrize("read", [poll, arrow])
@pytest.mark.parametrize("partition_bytes", [1, 400, 1 << 20])
def test_poll_and_arrow_return_the_committed_records_only(
    fake: Any, read: Callable[[Consumer], list[Row]], partition_bytes: int
) -> None:
    for seed in range(3):
        log = TransactionalLog.random(seed)
        fake.put("t", 0, log)
        with consumer(fake, max_partition_fetch_bytes=partition_bytes) as inp:
            assert read_all(read, inp, log.last_stable_offset) == log.committed, f"seed {seed}"
            assert inp.position(T0) == log.last_stable_offset
            assert inp.end_offsets([T0]) == {T0: log.last_stable_offset}


def test_iteration_returns_the_committed_records_only(fake: Any) -> None:
    log = TransactionalLog.random(5)
    fake.put("t", 0, log)
    with consumer(fake, max_partition_fetch_bytes=300) as inp:
        assert [row(record) for record in itertools.islice(inp, len(log.committed))] == log.committed


def test_read_uncommitted_returns_every_record(fake: Any) -> None:
    log = TransactionalLog.random(6)
    fake.put("t", 0, log)
    assert log.committed != log.rows
    with consumer(fake, isolation_level="read_uncommitted") as inp:
        assert read_all(poll, inp, log.end_offset) == log.rows
        assert inp.end_offsets([T0]) == {T0: log.end_offset}


def test_a_seek_into_any_offset_returns_the_committed_records_from_there(fake: Any) -> None:
    log = TransactionalLog.random(7)
    fake.put("t", 0, log)
    with consumer(fake, max_partition_fetch_bytes=500) as inp:
        for start in range(0, log.last_stable_offset, 7):
            inp.seek(T0, start)
            rest = [each for each in log.committed if each.offset >= start]
            assert read_all(poll, inp, log.last_stable_offset) == rest, f"from {start}"


def test_the_asyncio_twin_returns_the_same(fake: Any) -> None:
    log = TransactionalLog.random(8)
    fake.put("t", 0, log)

    async def main() -> list[Row]:
        found: list[Row] = []
        async with AsyncConsumer(SETTINGS, bootstrap_servers=fake.bootstrap_servers) as inp:
            inp.assign([T0])
            async for record in inp:
                found.append(row(record))
                if len(found) == len(log.committed) // 3:
                    break
            found += [row(record) for record in await inp.poll(5, max_records=len(log.committed) // 3)]
            while await inp.position(T0) < log.last_stable_offset:
                table = await inp.fetch_arrow(0.2)
                found += [] if table is None else rows_of(table)
        return found

    assert asyncio.run(asyncio.wait_for(main(), 60)) == log.committed


@pytest.mark.parametrize("columns", [None, ["value", "key", "offset"]])
def test_a_range_reader_returns_the_committed_records_of_its_range(fake: Any, columns: list[str] | None) -> None:
    log = TransactionalLog.random(9)
    fake.put("t", 0, log)
    stable = log.last_stable_offset
    for start, end in [(0, stable), (3, stable - 2), (stable // 2, stable // 2 + 5), (stable - 1, stable)]:
        reader = functools.partial(
            RangeReader, [OffsetRange("t", 0, start, end)], SETTINGS, bootstrap_servers=fake.bootstrap_servers
        )
        expected = [each for each in log.committed if start <= each.offset < end]
        with reader(max_partition_fetch_bytes=300) as found:
            rows = [each for batch in found.arrow_batches(max_bytes=500, columns=columns) for each in rows_of(batch)]
        assert rows == expected
        with reader() as found:
            records = [each for part in found.slices() for each in RecordIterator([part.records])]
        assert [row(each) for each in records if start <= each.offset < end] == expected


def test_an_open_transaction_is_returned_once_it_is_committed(fake: Any) -> None:
    log = TransactionalLog()
    log.write(producer_id=1)
    log.end(1, COMMIT)
    log.write(2, producer_id=2)
    log.write()
    fake.put("t", 0, log)
    with consumer(fake) as inp:
        assert [each.offset for each in read_all(poll, inp, 2)] == [0]
        assert inp.poll(0.15) == []
        assert inp.metrics()["records-lag-max"] == 0, "the end is the last stable offset"
        log.end(2, COMMIT)
        fake.put("t", 0, log)
        assert [each.offset for each in read_all(poll, inp, 6)] == [2, 3, 4]


def test_lag_counts_to_the_last_stable_offset(fake: Any) -> None:
    log = TransactionalLog()
    log.write(5)
    log.write(5, producer_id=1)
    fake.put("t", 0, log)
    with consumer(fake) as inp, consumer(fake, isolation_level="read_uncommitted") as all_of_it:
        for each, lag in ((inp, 4), (all_of_it, 9)):
            assert len(until(functools.partial(each.poll, 0.2, max_records=1))) == 1
            assert each.metrics()["records-lag-max"] == lag
        inp.seek(T0, 8)
        assert inp.metrics()["records-lag-max"] == 0, "a position above the last stable offset is no negative lag"


def test_a_range_past_an_open_transaction_times_out_and_says_why(fake: Any) -> None:
    log = TransactionalLog()
    log.write(2)
    log.write(producer_id=1)
    fake.put("t", 0, log)
    ranges = [OffsetRange("t", 0, 0, 3)]
    with (
        RangeReader(ranges, SETTINGS, bootstrap_servers=fake.bootstrap_servers, default_api_timeout_ms=2_000) as reader,
        pytest.raises(RequestTimedOutError, match=r"t-0 at 2; read_committed waits for open transactions"),
    ):
        list(reader.slices())


def test_a_damaged_batch_of_an_aborted_transaction_raises_after_the_records_before_it(fake: Any) -> None:
    log = TransactionalLog()
    log.write(2)
    log.write(producer_id=1)
    log.end(1, ABORT)
    log.write()
    log.batches[1] = log.batches[1][:-1] + b"\xff"
    fake.put("t", 0, log)
    with consumer(fake) as inp:
        assert [record.offset for record in until(functools.partial(inp.poll, 0.2))] == [0, 1]
        for _ in range(2):
            with pytest.raises(CorruptMessageError):
                inp.poll(5)
        inp.seek(T0, 3)
        assert [each.offset for each in read_all(poll, inp, 5)] == [4]
