"""The fields of a line of a web server's log, in Apache's combined format::

10.0.0.7 - - [17/May/2015:10:05:03 +0000] "GET /about/ HTTP/1.1" 200 5400 "http://example.com/" "Mozilla/5.0"
address       time                         request line          status size referrer            agent
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

#: Longest line in bytes; Apache accepts request lines and header fields of 8 KiB.
LINE_BYTES_MAX = 65_536

# The pattern uses possessive quantifiers (*+), so it needs linear time and a constant stack for any line.
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_LINE = rf"^(\S+) [^\[]*\[([^\]]+)\] {_QUOTED} (\d{{3}})(?= |$)(?: (\d{{1,18}}|-))?(?: {_QUOTED}(?: {_QUOTED})?)?"
_GROUPS = {"address": 1, "time": 2, "request_line": 3, "status": 4, "bytes": 5, "referrer": 6, "agent": 7}
_TIME_FORMAT = "dd/MMM/yyyy:HH:mm:ss Z"

#: The reasons of lines that are no requests.
EMPTY = "the line is empty"
TOO_LONG = f"the line is longer than {LINE_BYTES_MAX} bytes"
NO_FORMAT = "no line of Apache's combined format: needs address, time, request and status"
NO_REQUEST = "the request line is empty"
WRONG_TIME = "the time is not like 17/May/2015:10:05:03 +0000"


def fields(text: str) -> dict[str, Column]:
    """The fields of the line in the column ``text``, each a text; null if a field is missing or empty. ``time`` is a
    timestamp."""
    found = {name: F.nullif(F.regexp_extract(text, _LINE, group), F.lit("")) for name, group in _GROUPS.items()}
    return found | {"time": F.try_to_timestamp(found["time"], F.lit(_TIME_FORMAT))}


def method_of(request_line: str) -> Column:
    return F.get(F.split(request_line, " "), F.lit(0))


def path_of(request_line: str) -> Column:
    """The path without its query."""
    return F.substring_index(F.get(F.split(request_line, " "), F.lit(1)), "?", 1)


def reason() -> Column:
    """Why a line is no request: the first reason that applies; null for a request. Needs the columns of ``fields``,
    ``text`` and ``is_long``."""
    return (
        F.when(F.col("is_long"), TOO_LONG)
        .when(F.col("text") == "", EMPTY)
        .when(F.col("status").isNull(), NO_FORMAT)
        .when(F.col("request_line").isNull(), NO_REQUEST)
        .when(F.col("time").isNull(), WRONG_TIME)
    )
