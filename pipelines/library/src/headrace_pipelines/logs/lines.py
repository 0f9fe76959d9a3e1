"""Convert lines of files to requests, or to dead letters with a reason. Every record becomes either a request or a dead
letter."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..combined_log import reason, request, split
from ..dead_letters import NEEDED, routed
from .schema import REQUEST, REQUESTS

#: Longest time, in seconds, by which a line's time may be after the timestamp of its record. A later time means that
#: the host's clock is wrong; the line would close all windows before its time. (A time in the past is valid, because an
#: old log may be shipped.)
FUTURE_S_MAX = 3_600

_COLUMNS = [column.split()[0] for column in REQUEST.split(", ")]


def parsed(records: DataFrame) -> DataFrame:
    """One row for each record of ``headrace ship``: the source's columns, the columns of a request, and ``reason``
    (null for a good line). ``records`` must have the column ``headers``."""
    rows, is_tick = split(records), F.col("value").isNull()
    ahead_s = F.unix_timestamp("time") - F.unix_timestamp("timestamp")
    is_ahead = F.when(ahead_s > FUTURE_S_MAX, "the time is more than an hour after the time of the record")
    return rows.select(
        *NEEDED,
        F.when(~is_tick, F.coalesce(reason(), is_ahead)).alias("reason"),
        F.when(~is_tick, host_of_path()).alias("host"),
        F.when(is_tick, F.col("timestamp")).otherwise(F.col("time")).alias("time"),
        *request(),
        "text",
    )


def host_of_path() -> Column:
    """The host of a line: the directory of the file in the shipper's header ``path``. The file .../web-07/access.log
    belongs to the host web-07."""
    path = F.filter("headers", lambda each: each["key"] == "path")
    return F.regexp_extract(F.get(path, F.lit(0))["value"].cast("string"), r"([^/]+)/[^/]+$", 1)


def records(rows: DataFrame) -> DataFrame:
    """The rows of ``parsed`` as records: requests for REQUESTS, and bad lines as dead letters."""
    return routed(rows, topic=REQUESTS, key=F.col("host"), value=F.to_json(F.struct(*_COLUMNS)))
