"""The fields of a line of a web server's log, in Apache's combined format::

10.0.0.7 - - [17/May/2015:10:05:03 +0000] "GET /about/ HTTP/1.1" 200 5400 "http://example.com/" "Mozilla/5.0"
address       time                         request line          status size referrer            agent
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .dead_letters import NEEDED

#: Longest line in bytes; Apache accepts request lines and header fields of 8 KiB.
LINE_BYTES_MAX = 65_536

# The pattern uses possessive quantifiers (*+), so it needs linear time and a constant stack for any line.
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_LINE = rf"^(\S+) [^\[]*\[([^\]]+)\] {_QUOTED} (\d{{3}})(?= |$)(?: (\d{{1,18}}|-))?(?: {_QUOTED}(?: {_QUOTED})?)?"
_GROUPS = {"address": 1, "time": 2, "request_line": 3, "status": 4, "bytes": 5, "referrer": 6, "agent": 7}
_TIME_FORMAT = "dd/MMM/yyyy:HH:mm:ss Z"

#: The reasons why a line is not a request.
EMPTY = "the line is empty"
TOO_LONG = f"the line is longer than {LINE_BYTES_MAX} bytes"
NO_FORMAT = "not a line of Apache's combined format: needs address, time, request and status"
NO_REQUEST = "the request line is empty"
WRONG_TIME = "the time is not like 17/May/2015:10:05:03 +0000"


def fields(text: str) -> dict[str, Column]:
    """The fields of the line in the column ``text``, each a text; null if a field is missing or empty. ``time`` is a
    timestamp."""
    found = {name: F.nullif(F.regexp_extract(text, _LINE, group), F.lit("")) for name, group in _GROUPS.items()}
    return found | {"time": F.try_to_timestamp(found["time"], F.lit(_TIME_FORMAT))}


def split(records: DataFrame, *more: Column) -> DataFrame:
    """The records of lines with the columns ``more``, ``is_long``, ``text`` and those of ``fields``. ``text`` is the
    line without its end, or null for a line that is too long. Of the source's columns, only NEEDED are kept."""
    is_long = F.octet_length("value") > LINE_BYTES_MAX
    text = F.when(~is_long, F.rtrim(F.col("value").cast("string"), F.lit("\r\n ")))
    rows = records.select(*more, *NEEDED, is_long.alias("is_long"), text.alias("text"))
    return rows.select("*", *(each.alias(name) for name, each in fields("text").items()))


def request() -> list[Column]:
    """The columns of a request except its time, from the rows of ``split``. The path has no query string."""
    words = F.split("request_line", " ")
    return [
        F.col("address"),
        F.get(words, F.lit(0)).alias("method"),
        F.substring_index(F.get(words, F.lit(1)), "?", 1).alias("path"),
        F.col("status").cast("int").alias("status"),
        F.when(F.col("bytes") != "-", F.col("bytes")).cast("bigint").alias("bytes"),
        F.coalesce("referrer", F.lit("-")).alias("referrer"),
        F.coalesce("agent", F.lit("-")).alias("agent"),
    ]


def reason() -> Column:
    """The reason why a line is not a request: the first reason that applies; null for a request. Needs the rows of
    ``split``."""
    return (
        F.when(F.col("is_long"), TOO_LONG)
        .when(F.col("text") == "", EMPTY)
        .when(F.col("status").isNull(), NO_FORMAT)
        .when(F.col("request_line").isNull(), NO_REQUEST)
        .when(F.col("time").isNull(), WRONG_TIME)
    )
