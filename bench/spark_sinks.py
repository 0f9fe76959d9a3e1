"""The sinks of bench/spark.py: ours, and one that drops its Arrow batches, which shows Spark's own limit.

The rows are ``lpad(id, 100, 'x')`` in one column, as in the measurement of Kafka's connector.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

SINK_TOPIC = "spark-bench-sink"
SINK_PARTITIONS = 2


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select(F.lpad(F.col("id").cast("string"), 100, "x").alias("value"))


def fresh_topic(bootstrap_servers: str) -> None:
    """Create the sink's topic again, empty, so that files of an earlier round cost nothing."""
    from headrace import Admin, NewTopic

    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        if SINK_TOPIC in admin.list_topics():
            admin.delete_topics([SINK_TOPIC])
        admin.create_topics([NewTopic(SINK_TOPIC, partitions=SINK_PARTITIONS, replication_factor=1)])


def write(frame: DataFrame, form: str, options: dict[str, str], records: int) -> float:
    """Rows per second, including the query's start and every acknowledgement."""
    began = time.perf_counter()
    frame.write.format(form).options(**options).mode("append").save()
    return records / (time.perf_counter() - began)


def count_written(bootstrap_servers: str) -> int:
    from headrace import Consumer, TopicPartition

    partitions = [TopicPartition(SINK_TOPIC, number) for number in range(SINK_PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap_servers) as consumer:
        return sum(consumer.end_offsets(partitions).values())


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
