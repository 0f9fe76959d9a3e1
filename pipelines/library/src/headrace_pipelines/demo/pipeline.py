"""The pipeline: departures by window, airport and carrier into Parquet, and queries on the result.

**The watermark.** Spark closes a window when the largest event time read so far, minus the watermark's delay, has
passed the window's end. Spark drops rows whose window has closed. The watermark's delay must cover the largest
difference in event time between the partitions' read positions. The demo publishes events in the order of their time,
so each partition is ordered by time. ``maxOffsetsPerTrigger`` takes the same share of each partition's backlog, so
after a batch the query has read nearly the same fraction of every partition. Aircraft do not fly evenly over the year,
so the same fraction of two partitions may be days apart. With tail numbers as keys, the read positions of two
partitions are at most 6.7 days of event time apart. ``WATERMARK`` is twice the largest difference in event time between
two partitions' read positions.

**The end.** A window closes only when an event with a later time arrives, and no event is later than the last
departure. To close the last windows, the demo publishes to each partition a closing marker with a time months later.
The demo publishes the markers after the query has read all departures: an earlier marker would make the last departures
of other partitions late. Markers only move the watermark; all other steps of the query exclude them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .group import GROUP
from .publish import MARKER_TIMESTAMP_MS, RESULT_TOPIC, TOPIC

WATERMARK = "14 days"
WINDOW = "1 hour"
OFFSETS_PER_TRIGGER = 75_000

VALUE = "carrier STRING, origin STRING, departed BOOLEAN, delay_min INT"


@dataclass(slots=True)
class Progress:
    """Totals over all batches of the query."""

    rows: int = 0
    late_groups: int = 0
    seconds: float = 0.0


def departures_by_window(spark: SparkSession, bootstrap_servers: str) -> DataFrame:
    """The streaming DataFrame: one row per hour, airport and carrier with a scheduled departure."""
    events = (
        spark.readStream.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap_servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        .option("kafka.group.id", GROUP)
        .load()
        .select(
            F.col("timestamp").alias("event_time"), F.from_json(F.col("value").cast("string"), VALUE).alias("event")
        )
        .withWatermark("event_time", WATERMARK)
    )
    # The condition below removes the markers. Spark applies a condition on event_time only after the watermark operator
    # of its plan, so the markers move the watermark before they are removed. Spark would apply a condition on another
    # column before the watermark operator.
    real = events.where(F.col("event_time") < F.timestamp_millis(F.lit(MARKER_TIMESTAMP_MS)))
    return (
        real.groupBy(F.window("event_time", WINDOW).alias("hour"), "event.origin", "event.carrier")
        .agg(
            F.count("*").alias("departures"),
            F.count(F.when(F.col("event.departed"), 1)).alias("departed"),
            F.sum("event.delay_min").alias("delay_min"),
        )
        .select(F.col("hour.start").alias("hour"), "origin", "carrier", "departures", "departed", "delay_min")
    )


def run(frame: DataFrame, output: Path, checkpoint: Path, on_batch: Callable[[dict[str, Any]], None]) -> Progress:
    """Process the records that are in the log now, then return; ``on_batch`` receives the progress of each batch
    (Spark's dictionary)."""
    started = time.perf_counter()
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(output))
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    seen: set[int] = set()
    total = Progress()

    def take() -> None:
        for batch in query.recentProgress:
            if batch["batchId"] in seen:
                continue
            seen.add(batch["batchId"])
            total.rows += batch["numInputRows"]
            total.late_groups += sum(state["numRowsDroppedByWatermark"] for state in batch["stateOperators"])
            on_batch(batch)

    try:
        while not query.awaitTermination(1):
            take()
        take()
    finally:
        if query.isActive:
            query.stop()
    total.seconds = time.perf_counter() - started
    return total


@dataclass(frozen=True, slots=True)
class Totals:
    """Number of scheduled departures of one airport or carrier, and the delay of the departures that took place."""

    name: str
    departures: int
    departed: int
    delay_min: int

    @property
    def mean_departure_delay_min(self) -> float:
        return self.delay_min / self.departed

    def summary(self) -> dict[str, Any]:
        return {"departures": self.departures, "mean_departure_delay_min": self.mean_departure_delay_min}


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of the final batch query; carriers are sorted by mean delay, largest delay first."""

    by_origin: list[Totals]
    by_carrier: list[Totals]
    #: (airport, hour of the day in New York) -> (departures, mean delay in minutes or None if no flight left)
    by_hour: dict[tuple[str, int], tuple[int, float | None]]
    #: Number of rows of the result: combinations of hour, airport and carrier with a scheduled departure.
    groups: int

    @property
    def departures(self) -> int:
        return sum(row.departures for row in self.by_origin)


def ask(spark: SparkSession, output: Path) -> Answer:
    """Run the final batch query on the Parquet files."""
    result = spark.read.parquet(str(output)).cache()
    sums = [F.sum(name).alias(name) for name in ("departures", "departed", "delay_min")]
    try:
        local_hour = F.hour(F.from_utc_timestamp("hour", "America/New_York")).alias("local_hour")
        by_hour = {
            (row.origin, row.local_hour): (row.departures, row.delay_min / row.departed if row.departed else None)
            for row in result.groupBy("origin", local_hour).agg(*sums).collect()
        }
        groups = result.count()
        by_origin = [Totals(*row) for row in result.groupBy("origin").agg(*sums).orderBy("origin").collect()]
        by_carrier = [
            Totals(*row)
            for row in result.groupBy("carrier")
            .agg(*sums)
            .orderBy((F.col("delay_min") / F.col("departed")).desc())
            .collect()
        ]
    finally:
        result.unpersist()
    return Answer(by_origin, by_carrier, by_hour, groups)


def publish_result(spark: SparkSession, output: Path, bootstrap_servers: str) -> int:
    """Publish the Parquet rows as records, keyed by hour, airport and carrier, exactly once; returns the number of
    records that readers see."""
    rows = spark.read.parquet(str(output))
    (
        rows.select(
            F.concat_ws("|", F.date_format("hour", "yyyy-MM-dd'T'HH"), "origin", "carrier").alias("key"),
            F.to_json(F.struct("departures", "departed", "delay_min")).alias("value"),
        )
        .write.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap_servers)
        .option("headrace.delivery", "exactly-once")
        .option("topic", RESULT_TOPIC)
        .mode("append")
        .save()
    )
    written = (
        spark.read.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap_servers)
        .option("subscribe", RESULT_TOPIC)
        .option("isolation.level", "read_committed")
        .schema("key BINARY")
        .load()
    )
    return written.count()
