"""Count the viewed pages and the referrers by hour."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

#: The watermark's delay: requests that are older than the watermark are not counted. The lines of the log are only
#: almost in the order of their times, because the server logs a request when its response ends. The replay adds
#: disorder, because Spark reads the partitions of a topic at slightly different positions.
WATERMARK = "1 day"
HOUR = "1 hour"
#: The name that stands for the referrer of a view without a referrer.
DIRECT = "-"


def views(requests: DataFrame) -> DataFrame:
    """The rows that are views or ticks (without an address), with the watermark by which Spark recognizes late rows."""
    return requests.where("is_view OR address IS NULL").withWatermark("time", WATERMARK)


def counts(viewed: DataFrame) -> DataFrame:
    """Views of each page, and from each referrer's host, in each hour (schema.COUNT)."""
    host = F.nullif(F.regexp_extract("referrer", r"^\w+://([^/:?#]+)", 1), F.lit(""))
    kinds = F.array(
        F.struct(F.lit("page").alias("kind"), F.col("path").alias("name")),
        F.struct(F.lit("referrer").alias("kind"), F.coalesce(F.lower(host), F.lit(DIRECT)).alias("name")),
    )
    # A tick (a record that only moves the watermark) has no page, so it is not counted. Spark keeps the window of the
    # last tick in its state, because no later record closes the window.
    each = viewed.select("time", F.explode(kinds).alias("counted")).select("time", "counted.*")
    return (
        each.groupBy(F.window("time", HOUR).alias("hour"), "kind", "name")
        .agg(F.count("*").alias("views"))
        .select(F.col("hour.start").alias("hour"), "kind", "name", "views")
    )


def top(counted: DataFrame, kind: str, most: int) -> DataFrame:
    """The ``most`` viewed names of each hour with their rank from 1; equal counts are in the order of their names."""
    ranks = Window.partitionBy("hour").orderBy(F.col("views").desc(), F.col("name"))
    ranked = counted.where(F.col("kind") == kind).withColumn("rank", F.row_number().over(ranks))
    return ranked.where(F.col("rank") <= most).select("hour", "rank", "name", "views")
