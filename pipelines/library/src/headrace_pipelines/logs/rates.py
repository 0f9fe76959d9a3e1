"""Error rates by window and host, and alerts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .schema import ALERTS, RATES

#: The watermark's delay. Lines of one host arrive in order. Lines of different hosts arrive some seconds apart, and at
#: the speed of the replay a second is hours of the log.
WATERMARK = "2 days"
WINDOW = "3 hours"
#: A window becomes an alert if at least the share FAILURE_SHARE of its requests failed, and at least FAILURES_MIN
#: requests.
FAILURE_SHARE, FAILURES_MIN = 0.5, 2


def rates(requests: DataFrame) -> DataFrame:
    """Requests, errors and failures of each host in each window (schema.RATE). Ticks are not counted."""
    window = F.window("time", WINDOW).alias("at")
    counted = requests.withWatermark("time", WATERMARK).groupBy(window, "host")
    return counted.agg(
        F.count("status").alias("requests"),
        F.count_if(F.col("status") >= 400).alias("errors"),
        F.count_if(F.col("status") >= 500).alias("failures"),
    ).select(F.col("at.start").alias("window"), "host", "requests", "errors", "failures")


def is_alert() -> Column:
    return (F.col("failures") >= FAILURES_MIN) & (F.col("failures") >= F.col("requests") * FAILURE_SHARE)


def records(rows: DataFrame) -> DataFrame:
    """The rows of ``rates`` as records of RATES; rows that are alerts also become records of ALERTS. A window with only
    a tick is left out. (Spark would apply a filter on the host before the watermark, and then a tick would not move the
    watermark.)"""
    topics = F.when(is_alert(), F.array(F.lit(RATES), F.lit(ALERTS))).otherwise(F.array(F.lit(RATES)))
    value = F.to_json(F.struct("window", "host", "requests", "errors", "failures"))
    return rows.where("requests > 0").select(
        F.explode(topics).alias("topic"), F.col("host").alias("key"), value.alias("value")
    )
