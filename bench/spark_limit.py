"""Spark's own limit, for spark.py: a Python data source with ready Arrow batches, and a sink that drops its batches.

The source has the same rows, columns and tasks as the topic that spark.py fills, but no log, no network and no
decoding. Spark's workers import this module by its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

VALUE_BYTES = 100
PARTITIONS = 6
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"

_made: dict[tuple[int, int], Any] = {}


def ready_batch(partition: int, rows: int) -> pa.RecordBatch:
    """``rows`` rows of one partition, made once per process."""
    import numpy as np
    import pyarrow as pa

    found = _made.get((partition, rows))
    if found is None:
        ends = np.arange(0, VALUE_BYTES * (rows + 1), VALUE_BYTES, dtype=np.int32)
        values = pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(os.urandom(VALUE_BYTES * rows))]
        )
        times = pa.array(np.full(rows, 1_700_000_000_000_000, np.int64))
        found = _made[partition, rows] = pa.RecordBatch.from_arrays(
            [
                pa.nulls(rows, pa.binary()),
                values,
                pa.array(["bench"] * rows),
                pa.array(np.full(rows, partition, np.int32)),
                pa.array(np.arange(rows, dtype=np.int64)),
                times.cast(pa.timestamp("us", tz="UTC")),
                pa.array(np.zeros(rows, np.int32)),
            ],
            names=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
        )
    return found


def batches(partition: int, count: int, rows: int) -> Iterator[pa.RecordBatch]:
    while count > 0:
        size = min(rows, count)
        batch = ready_batch(partition, rows)
        yield batch if size == rows else batch.slice(0, size)
        count -= size


class Reader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self.each, self.rows = int(options["records"]) // PARTITIONS, int(options["batchrows"])

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition((partition, self.each)) for partition in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, records = partition.value
        return batches(number, records, self.rows)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Any) -> None:
        self.each, self.rows = int(options["records"]) // PARTITIONS, int(options["batchrows"])
        self.trigger = -(-int(options["maxoffsetspertrigger"]) // PARTITIONS)

    def initialOffset(self) -> dict[str, int]:
        return {"each": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.trigger * PARTITIONS)

    def prepareForTriggerAvailableNow(self) -> None: ...

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"each": min(self.each, start["each"] + self.trigger)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((partition, end["each"] - start["each"])) for partition in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, records = partition.value
        return batches(number, records, self.rows)


class ReadyMade(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.options)


@dataclass
class Dropped(WriterCommitMessage):
    rows: int


class DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Dropped(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[Any]) -> None: ...


class Dropping(DataSource):
    @classmethod
    def name(cls) -> str:
        return "dropping"

    def writer(self, schema: StructType, overwrite: bool) -> DroppingWriter:
        return DroppingWriter()
