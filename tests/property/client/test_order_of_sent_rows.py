"""Records are in a partition in the order in which they were sent: the rows of send_arrow, whatever their columns, the
records of send_many, and calls of all kinds one after the other."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.accumulator import Accumulator, NativeProducer, TopicQueues
from headrace.partitioners import key_partition
from headrace.producer.arrow import arrow_batches
from headrace_core.records import Compression, decode_batch

NULL_OR_KEYS = st.none() | st.sampled_from([b"a", b"b", b"c", b"dd"])


class Sending:
    """A producer without a sender: the queues of one topic, and what is in each partition."""

    def __init__(self, partitions: int, batch_bytes: int, *, ignore_keys: bool = False) -> None:
        self.partitions = partitions
        self.accumulator = Accumulator(
            batch_bytes=batch_bytes,
            buffer_bytes=1 << 30,
            wake=lambda: None,
            slow=lambda *_: None,
            ignore_keys=ignore_keys,
        )
        self.accumulator.yield_us = 0
        self.topic = self.accumulator.topics["t"] = TopicQueues(self.accumulator, "t", partitions, 1 << 20)
        self.sender = SimpleNamespace(compression=Compression.NONE, compression_level=None)

    def check_open(self) -> None:
        """The producer is open."""

    def send_arrow(self, table: pa.Table) -> None:
        for partition, data, count in arrow_batches(self, "t", table):
            assert self.accumulator.append_encoded("t", partition, data, count) is not None

    def send_many(self, items: list[Any], partition: int | None = None) -> None:
        prepared = self.accumulator.prepare_many("t", items, partition)
        when = time.time_ns() // 1_000_000
        assert self.accumulator.append_many("t", prepared, 0, partition, when, []) == len(items)

    def send(self, value: bytes, key: bytes | None, partition: int | None) -> None:
        NativeProducer(self.accumulator).send("t", value, key, partition=partition)

    def in_partitions(self) -> dict[int, list[tuple[bytes | None, int]]]:
        """The (key, number) of the records of each partition, in their order."""
        found: dict[int, list[tuple[bytes | None, int]]] = defaultdict(list)
        for queue in self.topic.queues:
            while (batch := self.accumulator.take(queue, partial=True)) is not None:
                data = batch.data if batch.builder is None else batch.builder.build()
                found[queue.partition] += [(record.key, int(record.value)) for record in decode_batch(data)]
        return found


def check(
    sending: Sending, rows: list[tuple[bytes | None, int | None]], found: dict[int, list[tuple[bytes | None, int]]]
) -> None:
    """``rows``: the key and partition that were given for each record."""
    at = {number: partition for partition, records in found.items() for _, number in records}
    assert sorted(at) == list(range(len(rows))), "a record is missing, or there twice"
    for records in found.values():
        numbers = [number for _, number in records]
        assert numbers == sorted(numbers), "the order has changed"
        assert all(rows[number][0] == key for key, number in records)
    for number, (key, partition) in enumerate(rows):
        if partition is not None:
            assert at[number] == partition
        elif key is not None and not sending.accumulator.ignore_keys:
            assert at[number] == key_partition(key, sending.partitions)


def column(values: list[Any], kind: pa.DataType, cuts: list[int]) -> pa.ChunkedArray:
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    return pa.chunked_array([pa.array(values[a:b], kind) for a, b in itertools.pairwise(edges)], kind)


@st.composite
def tables(draw: st.DrawFn, partitions: int) -> tuple[pa.Table, list[tuple[bytes | None, int | None]]]:
    count = draw(st.integers(0, 120))
    keys = draw(st.lists(NULL_OR_KEYS, min_size=count, max_size=count))
    wanted = draw(st.lists(st.none() | st.integers(0, partitions - 1), min_size=count, max_size=count))
    cuts = draw(st.lists(st.integers(0, 120), max_size=3))
    columns: dict[str, Any] = {"value": column([b"%d" % n for n in range(count)], pa.binary(), cuts)}
    rows: list[tuple[bytes | None, int | None]] = [(None, None)] * count
    if draw(st.booleans()):
        kind = draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.string()]))
        columns["key"] = column(
            [each if kind != pa.string() or each is None else each.decode() for each in keys], kind, cuts
        )
        rows = [(key, None) for key in keys]
    if draw(st.booleans()):
        columns["partition"] = column(wanted, draw(st.sampled_from([pa.int32(), pa.int64()])), cuts)
        rows = [(key, partition) for (key, _), partition in zip(rows, wanted, strict=True)]
    if draw(st.booleans()):
        columns["timestamp"] = column(list(range(count)), pa.int64(), cuts)
    if draw(st.booleans()):
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = column(
            [[{"key": "h", "value": b"x"}] if n % 3 else None for n in range(count)], kind, cuts
        )
    return pa.table(columns), rows


PARTITIONS = st.integers(1, 5)
BATCH_BYTES = st.sampled_from([100, 200, 400, 2_000])


@given(data=st.data(), partitions=PARTITIONS, batch_bytes=BATCH_BYTES, ignore_keys=st.booleans())
def test_rows_of_a_table_keep_their_order(data: Any, partitions: int, batch_bytes: int, ignore_keys: bool) -> None:
    sending = Sending(partitions, batch_bytes, ignore_keys=ignore_keys)
    table, rows = data.draw(tables(partitions))
    sending.send_arrow(table)
    check(sending, rows, sending.in_partitions())


@given(
    items=st.lists(NULL_OR_KEYS, max_size=150),
    partitions=PARTITIONS,
    batch_bytes=BATCH_BYTES,
    ignore_keys=st.booleans(),
)
def test_records_of_a_list_keep_their_order(
    items: list[bytes | None], partitions: int, batch_bytes: int, ignore_keys: bool
) -> None:
    sending = Sending(partitions, batch_bytes, ignore_keys=ignore_keys)
    sending.send_many([(key, b"%d" % number) for number, key in enumerate(items)])
    check(sending, [(key, None) for key in items], sending.in_partitions())


@given(data=st.data(), partitions=PARTITIONS, batch_bytes=BATCH_BYTES)
def test_calls_of_all_kinds_keep_their_order(data: Any, partitions: int, batch_bytes: int) -> None:
    sending = Sending(partitions, batch_bytes)
    rows: list[tuple[bytes | None, int | None]] = []
    for kind in data.draw(st.lists(st.sampled_from(["send", "send_many", "send_arrow"]), max_size=8)):
        first = len(rows)
        if kind == "send_arrow":
            table, more = data.draw(tables(partitions))
            values = column([b"%d" % (first + n) for n in range(len(more))], pa.binary(), [])
            sending.send_arrow(table.set_column(table.column_names.index("value"), "value", values))
        else:
            keys = data.draw(st.lists(NULL_OR_KEYS, max_size=20))
            partition = data.draw(st.none() | st.integers(0, partitions - 1))
            more = [(key, partition) for key in keys]
            values = [b"%d" % (first + number) for number in range(len(keys))]
            if kind == "send_many":
                sending.send_many(list(zip(keys, values, strict=True)), partition)
            for key, value in zip(keys, values, strict=True) if kind == "send" else ():
                sending.send(value, key, partition)
        rows += more
    check(sending, rows, sending.in_partitions())


def test_rows_without_a_key_beside_rows_with_one_use_many_partitions() -> None:
    """The sticky partition changes from batch to batch, also where keys are mixed in."""
    sending = Sending(6, 500)
    keys = [b"a" if number % 50 == 0 else None for number in range(3_000)]
    values = [b"%d" % number for number in range(3_000)]
    sending.send_arrow(pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))
    found = sending.in_partitions()
    check(sending, [(key, None) for key in keys], found)
    assert min(len(found[partition]) for partition in range(6)) > 100
