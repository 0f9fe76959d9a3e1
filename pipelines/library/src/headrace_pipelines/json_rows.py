"""Convert rows to and from records of JSON, for topics that only a pipeline itself writes. The module json_parsing
reads the records of other programs, and reports their faults."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def decoded(records: DataFrame, schema: str) -> DataFrame:
    """The rows of a topic of JSON; ``records`` has the column ``value``."""
    return records.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")


def encoded(rows: DataFrame, key: str) -> DataFrame:
    """``rows`` as records of JSON, with the column ``key`` as their key."""
    return rows.select(F.col(key).alias("key"), F.to_json(F.struct(*rows.columns)).alias("value"))
