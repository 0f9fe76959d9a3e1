"""A table as a DataFrame: a batch up to given offsets, or a stream.

If a statement names them, a frame also has the columns ``_partition``, ``_offset``, ``_timestamp``, ``_key`` and
``_reason``. ``_key`` is the record's key as text; ``_reason`` says why a record cannot be parsed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace import Admin, Consumer, TopicPartition
from headrace_core.errors import InvalidArgumentError
from headrace_spark import from_registry

from ..access import Registry
from ..expectations import REASON
from ..json_parsing import parse_json
from ..registry_parsing import parse_registry
from ..sites import Site
from ..topics import markers_written
from .arrivals import ROWS_MAX
from .catalog import Table
from .rewriting import AsOf

_RAW = ("key", "value", "topic", "partition", "offset", "timestamp")
_READ_KEY = "headrace_sql_key"


def position_columns() -> dict[str, Column]:
    """The columns that a statement may name, and their values in the frame of the source."""
    return {
        "_partition": F.col("partition"),
        "_offset": F.col("offset"),
        "_timestamp": F.col("timestamp"),
        "_key": F.col("key").cast("string"),
        "_reason": F.col(REASON),
    }


@dataclass(frozen=True, slots=True)
class Ends:
    """For each partition of a topic, at one time: the first offset, and one past the last offset."""

    begins: Mapping[int, int]
    ends: Mapping[int, int]


def ends_of(consumer: Consumer, admin: Admin, topic: str, is_cancelled: threading.Event) -> Ends:
    """The offsets that a reader of committed records can read now. Waits until committed and aborted transactions have
    all their markers, so that a statement reads the rows of earlier statements. Raises UnknownTopicOrPartitionError,
    and the errors of ``markers_written``.
    """
    markers_written(admin, is_cancelled=is_cancelled)
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
    begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    return Ends({p.partition: begins[p] for p in partitions}, {p.partition: ends[p] for p in partitions})


def ends_as_of(consumer: Consumer, topic: str, now: Ends, as_of: AsOf) -> Mapping[int, int]:
    """The end of each partition at ``as_of``. Raises InvalidArgumentError if the topic does not have the position
    ``as_of``."""
    if as_of.timestamp_ms is not None:
        times = {TopicPartition(topic, number): as_of.timestamp_ms for number in now.ends}
        found = consumer.offsets_for_times(times)
        return {each.partition: now.ends[each.partition] if at is None else at.offset for each, at in found.items()}
    given = dict(as_of.offsets)
    if -1 in given:
        if len(now.ends) != 1:
            example = ", ".join(f"{number} = {end}" for number, end in sorted(now.ends.items()))
            raise InvalidArgumentError(
                f"{topic} has {len(now.ends)} partitions; give the offset of each: AS OF OFFSET ({example})"
            )
        given = {next(iter(now.ends)): given[-1]}
    if given.keys() != now.ends.keys():
        named = ", ".join(map(str, sorted(now.ends)))
        raise InvalidArgumentError(f"{topic} has the partitions {named}; give the offset of each")
    for number, offset in given.items():
        if not now.begins[number] <= offset <= now.ends[number]:
            raise InvalidArgumentError(
                f"partition {number} of {topic} has the offsets {now.begins[number]} to {now.ends[number]}, "
                f"and not {offset}"
            )
    return given


class Frames:
    """Makes the frames of tables. ``registry``: the URL or the settings of the registry; None: the default one."""

    def __init__(self, spark: SparkSession, site: Site, registry: Registry) -> None:
        self._spark, self._site, self._registry = spark, site, registry

    def batch(self, table: Table, ends: Mapping[int, int], words: Collection[str]) -> DataFrame:
        """The rows of a table up to ``ends``, by partition. ``words``: the names in the statement."""
        raw = (
            self._spark.read.format("headrace")
            .options(**self._site.access.source())
            .option("subscribe", table.topic)
            .option("startingOffsets", "earliest")
            .option("endingOffsets", json.dumps({table.topic: {str(number): end for number, end in ends.items()}}))
            .option("isolation.level", "read_committed")
            .load()
        )
        return self._decoded(newest(raw) if table.is_latest else raw, table, words)

    def stream(self, table: Table, query: str, words: Collection[str]) -> DataFrame:
        """The rows of a stream from its first record on. ``query``: the query's name, from which its consumer group
        gets its name."""
        raw = self._spark.readStream.format("headrace").options(**self._site.read(table.topic, query=query)).load()
        return self._decoded(raw, table, words)

    def live(self, table: Table, words: Collection[str], starting: str) -> DataFrame:
        """A stream of the rows as they arrive. ``starting``: the offsets at which the stream starts, ``earliest`` or
        ``latest``."""
        options = {
            **self._site.access.source(),
            "subscribe": table.topic,
            "startingOffsets": starting,
            "maxOffsetsPerTrigger": str(ROWS_MAX),
            "isolation.level": "read_committed",
        }
        raw = self._spark.readStream.format("headrace").options(**options).load()
        return self._decoded(raw, table, words)

    def schema(self, table: Table) -> StructType:
        """The columns of a table. Raises the errors of Spark for an unknown type, and the errors of the registry."""
        if table.columns:
            return cast("StructType", StructType.fromDDL(table.ddl))
        empty = self._spark.createDataFrame([], "value BINARY")
        found = empty.select(from_registry("value", self._registry, subject=table.subject).alias("data"))
        kind = found.schema["data"].dataType
        if not isinstance(kind, StructType):
            raise InvalidArgumentError(
                f"the schema of {table.subject} is not an Avro record; declare the columns, with format='json'"
            )
        return kind

    def check(self, table: Table) -> None:
        """Raise UnsupportedFieldError if the format cannot hold a column of the table."""
        if table.format == "json":
            parse_json(self._spark.createDataFrame([], "value BINARY"), table.ddl)

    def _decoded(self, raw: DataFrame, table: Table, words: Collection[str]) -> DataFrame:
        records = raw.select(*_RAW).where(F.col("value").isNotNull())
        if table.format == "avro":
            parsed = parse_registry(records, self._registry, subject=table.subject)
        elif table.format == "text":
            (name,) = self.schema(table).fieldNames()
            text = F.struct(F.col("value").cast("string").alias(name))
            parsed = records.withColumn("data", text).withColumn(REASON, F.lit(None).cast("string"))
        else:
            parsed = parse_json(records, table.ddl)
        if "_reason" not in words:
            parsed = parsed.where(F.col(REASON).isNull() if table.bad_records == "skip" else _sound(table))
        asked = [value.alias(name) for name, value in position_columns().items() if name in words]
        fields = [F.col("data").getField(name).alias(name) for name in self.schema(table).fieldNames()]
        return parsed.select(*fields, *asked)


def newest(raw: DataFrame) -> DataFrame:
    """The newest record of each key; a key whose newest record has no value (a tombstone) has no row. Records without a
    key are left out. Within a partition the newest record is the one with the highest offset, as in compaction. A key
    is in two partitions only if partitions were added; then the record with the later timestamp is the newest one."""
    whole, key = F.struct(*_RAW), F.col("key").alias(_READ_KEY)
    in_partitions = raw.where(F.col("key").isNotNull()).groupBy(key, "partition")
    last = in_partitions.agg(F.max_by(whole, "offset").alias("last")).groupBy(_READ_KEY)
    return last.agg(F.max_by("last", F.struct("last.timestamp", "last.offset")).alias("newest")).select("newest.*")


def _sound(table: Table) -> Column:
    """True for a record without a reason. A record with a reason fails the query; the error names the record."""
    message = F.concat(
        F.lit(f"{table.name}: a record cannot be parsed: {table.topic}-"), F.col("partition"), F.lit("@"),
        F.col("offset"), F.lit(": "), F.col(REASON),
        F.lit("; name _reason in the SELECT to see such records, or declare the table WITH (bad_records = 'skip')"),
    )  # fmt: skip
    return F.when(F.col(REASON).isNull(), F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))
