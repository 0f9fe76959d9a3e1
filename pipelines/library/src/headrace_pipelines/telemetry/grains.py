"""Downsampling: each device by minute, by five minutes and by fifteen minutes.

The coarser grains are computed from the finer grains. Counts, lows, highs and sums of whole numbers combine exactly, so
the coarser grains are the same as if they were computed from the readings. The queries of the coarser grains read far
fewer rows. Only the query of the minutes has to recognize readings that were sent twice.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..expectations import REASON
from ..json_rows import decoded
from .schema import GRAIN

MINUTE, FIVE, QUARTER = WIDTHS = ("1 minute", "5 minutes", "15 minutes")
#: The watermark's delay. Rows of a finer grain arrive in the order of their windows, except within one batch of the
#: finer query.
WATERMARK = "5 minutes"

_COLUMNS = [column.split()[0] for column in GRAIN.split(", ")]


def minutes(readings: DataFrame) -> DataFrame:
    """Rows of the finest grain from the rows of ``readings.judged``. A reading that was sent twice counts once."""
    good = readings.where(F.col(REASON).isNull()).select("device", "time_ms", "centi_celsius", "battery", "at")
    once = good.dropDuplicatesWithinWatermark(["device", "time_ms"])
    counted = once.groupBy(F.window("at", MINUTE).alias("at"), "device").agg(
        F.count("time_ms").alias("readings"),
        F.min("centi_celsius").alias("low"),
        F.max("centi_celsius").alias("high"),
        F.sum("centi_celsius").alias("total"),
        F.min("battery").alias("battery"),
    )
    return _shaped(counted)


def finer(records: DataFrame) -> DataFrame:
    """The rows in the records of a finer grain, with the event time ``at``. In the row of a tick, all other fields are
    null."""
    at = F.when(F.col("value").isNull(), F.col("timestamp"))
    rows = records.select(at.alias("tick"), F.from_json(F.col("value").cast("string"), GRAIN).alias("row"))
    timed = rows.select(F.coalesce("tick", "row.window").alias("at"), *(f"row.{name}" for name in _COLUMNS))
    return timed.withWatermark("at", WATERMARK)


def coarser(rows: DataFrame, width: str) -> DataFrame:
    """Rows of a coarser grain from the rows of ``finer``. ``width`` is a multiple of the width of the finer windows."""
    counted = rows.groupBy(F.window("at", width).alias("at"), "device").agg(
        F.sum("readings").alias("readings"),
        F.min("low").alias("low"),
        F.max("high").alias("high"),
        F.sum("total").alias("total"),
        F.min("battery").alias("battery"),
    )
    return _shaped(counted)


def records(rows: DataFrame) -> DataFrame:
    """Rows of a grain as records. A window with only a tick is left out; the reason is in ``logs.rates.records``."""
    value = F.to_json(F.struct(*_COLUMNS))
    return rows.where("readings > 0").select(F.col("device").alias("key"), value.alias("value"))


def stored(records: DataFrame) -> DataFrame:
    """The rows of a grain's topic, without its ticks."""
    return decoded(records.where("value IS NOT NULL"), GRAIN)


def _shaped(counted: DataFrame) -> DataFrame:
    numbers = ("low", "high", "total", "battery")
    return counted.select(
        "device",
        F.col("at.start").alias("window"),
        F.coalesce("readings", F.lit(0)).alias("readings"),
        *(F.col(name).cast("bigint").alias(name) for name in numbers),
    )
