"""Every reader bounds the bytes that it decodes, one record aside, however well they were compressed; and it loses no
record where it stops."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from headrace import AsyncConsumer, Consumer, TopicPartition
from headrace.errors import CorruptMessageError
from headrace.fetch import OffsetRange, RangeReader
from headrace_core.records import Compression, encode_batch
from headrace_core.records.arrow import data_bytes
from tests.worlds.waiting import until

VALUE = 100_000
LIMIT = 250_000
COUNT = 60


def fill(fake: Any, partitions: int = 1, per_batch: int = 20) -> None:
    """Zeros, in batches that decode to two megabytes."""
    fake.create("t", partitions)
    for partition in range(partitions):
        for _ in range(COUNT // per_batch):
            rows = [(1, None, bytes(VALUE), None)] * per_batch
            fake.append("t", partition, encode_batch(rows, compression=Compression.ZSTD))


def assigned(consumer: Any, partitions: int) -> None:
    consumer.assign([TopicPartition("t", number) for number in range(partitions)])


def is_bounded(table: pa.Table, limit: int = LIMIT) -> bool:
    return table.num_rows == 1 or sum(map(data_bytes, table.to_batches())) <= limit


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("per_batch", [1, 20, 60])
@pytest.mark.parametrize("limit", [1, LIMIT, 10 * LIMIT])
def test_fetch_arrow_returns_no_more_than_its_limit(fake: Any, partitions: int, per_batch: int, limit: int) -> None:
    fill(fake, partitions, per_batch)
    found: dict[int, list[int]] = defaultdict(list)
    with Consumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assigned(consumer, partitions)
        while sum(map(len, found.values())) < partitions * COUNT:
            table = consumer.fetch_arrow(30, max_bytes=limit)
            assert is_bounded(table, limit)
            for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
                found[partition].append(offset)
            for partition, offsets in found.items():
                assert consumer.position(TopicPartition("t", partition)) == offsets[-1] + 1
        assert consumer.metrics()["records-consumed-total"] == partitions * COUNT
    assert list(found.values()) == [list(range(COUNT))] * partitions


def test_fetch_arrow_without_the_offset_column_goes_on_where_it_stopped(fake: Any) -> None:
    fake.create("t")
    rows = [(1, None, b"%05d" % number + bytes(VALUE), None) for number in range(COUNT)]
    fake.append("t", 0, encode_batch(rows, compression=Compression.ZSTD))
    found: list[bytes] = []
    with Consumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assigned(consumer, 1)
        while len(found) < COUNT:
            table = consumer.fetch_arrow(30, max_bytes=LIMIT, columns=["value"])
            assert table.column_names == ["value"]
            assert is_bounded(table)
            found += [value[:5] for value in table["value"].to_pylist()]
    assert found == [b"%05d" % number for number in range(COUNT)]


def test_fetch_arrow_and_poll_in_turn_read_every_record_once(fake: Any) -> None:
    fill(fake)
    found: list[int] = []
    with Consumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assigned(consumer, 1)
        while len(found) < COUNT:
            found += consumer.fetch_arrow(30, max_bytes=LIMIT)["offset"].to_pylist()
            if len(found) < COUNT:
                found += [record.offset for record in consumer.poll(30, max_records=1)]
            if len(found) == 30:
                consumer.seek(TopicPartition("t", 0), 30)
    assert found == list(range(COUNT))


def test_damage_behind_the_limit_is_raised_after_the_records_before_it(fake: Any) -> None:
    fill(fake)
    fake.append("t", 0, encode_batch([(1, None, b"x" * 50, None)]))
    fake.logs["t", 0][-1] = fake.logs["t", 0][-1][:-1] + b"y"
    found: list[int] = []
    with Consumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assigned(consumer, 1)
        with pytest.raises(CorruptMessageError):  # noqa: PT012
            while True:
                found += consumer.fetch_arrow(30, max_bytes=LIMIT)["offset"].to_pylist()
    assert found == list(range(COUNT))


def test_asyncio_fetch_arrow_is_bounded_too(fake: Any) -> None:
    fill(fake)

    async def main() -> None:
        async with AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            assigned(consumer, 1)
            found: list[int] = []
            while len(found) < COUNT:
                table = await consumer.fetch_arrow(30, max_bytes=LIMIT)
                assert is_bounded(table)
                found += table["offset"].to_pylist()
            assert found == list(range(COUNT))

    asyncio.run(main())


@pytest.mark.parametrize("partitions", [1, 3])
def test_poll_returns_no_more_than_fetch_max_bytes(fake: Any, partitions: int) -> None:
    fill(fake, partitions)
    found: dict[int, list[int]] = defaultdict(list)
    with Consumer(
        bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest", fetch_max_bytes=LIMIT
    ) as consumer:
        assigned(consumer, partitions)
        while sum(map(len, found.values())) < partitions * COUNT:
            records = consumer.poll(30)
            assert sum(len(record.value or b"") for record in records[:-1]) < LIMIT
            for record in records:
                found[record.partition].append(record.offset)
    assert list(found.values()) == [list(range(COUNT))] * partitions


@pytest.mark.parametrize("partitions", [1, 3])
def test_range_reader_yields_no_more_than_its_limit(fake: Any, partitions: int) -> None:
    """The Spark source sends each of these Arrow batches to the JVM."""
    fill(fake, partitions)
    ranges = [OffsetRange("t", number, 5, COUNT - 5) for number in range(partitions)]
    found: dict[int, list[int]] = defaultdict(list)
    with RangeReader(ranges, bootstrap_servers=fake.bootstrap_servers) as reader:
        for batch in reader.arrow_batches(max_bytes=LIMIT):
            assert batch.num_rows == 1 or data_bytes(batch) <= LIMIT
            for partition, offset in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True):
                found[partition].append(offset)
    assert list(found.values()) == [list(range(5, COUNT - 5))] * partitions


@pytest.mark.parametrize("first", ["arrow", "poll"])
def test_a_record_counts_once_whichever_calls_return_it(fake: Any, first: str) -> None:
    fill(fake)
    with Consumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assigned(consumer, 1)
        found = 0 if first == "arrow" else len(consumer.poll(30, max_records=3))
        while found < COUNT:
            found += consumer.fetch_arrow(30, max_bytes=LIMIT).num_rows
            found += len(consumer.poll(0, max_records=3))
        assert found == COUNT
        assert consumer.metrics()["records-consumed-total"] == COUNT


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_fetch_arrow_raises_for_damage_although_other_partitions_have_records(fake: Any, damaged: int) -> None:
    fake.create("t", 3)
    good = encode_batch([(1, None, b"value", None)] * 10)
    fake.append("t", damaged, good)
    fake.append("t", damaged, good[:-1] + bytes([good[-1] ^ 1]))
    others = {0, 1, 2} - {damaged}
    found: dict[int, list[int]] = defaultdict(list)
    outcomes = []
    with Consumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assigned(consumer, 3)
        for _ in range(10):
            for partition in others:
                fake.append("t", partition, good)
            if outcomes:
                until(lambda: consumer.metrics()["queued-bytes"] > 0, "a batch is fetched")
            try:
                table = consumer.fetch_arrow(30)
            except CorruptMessageError:
                outcomes.append("error")
                continue
            outcomes.append("records")
            for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
                found[partition].append(offset)
    assert outcomes.count("error") >= 3
    assert outcomes.count("records") >= 3  # between the errors
    assert found.pop(damaged) == list(range(10))
    assert set(found) == others
    assert all(offsets == list(range(len(offsets))) for offsets in found.values())
