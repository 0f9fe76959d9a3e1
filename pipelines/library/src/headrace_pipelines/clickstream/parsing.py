"""Parse the lines of the log into requests, and bad lines into dead letters with a reason. Every line becomes either a
request or a dead letter.

A line is a request if it has an address, a time, a request line and a status (combined_log.py). Size, referrer and
agent may be missing. An agent without its closing quotation mark counts as missing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..combined_log import reason as reason_of_line
from ..combined_log import request, split
from ..dead_letters import NEEDED, good, header, routed
from .schema import LINE_HEADER, REQUEST

#: Largest allowed difference between the time in a line and the timestamp of its record.
CLOCK_S_MAX = 86_400

#: Words in the agents of crawlers. A request with the agent ``-`` also counts as a crawler request.
_CRAWLERS = r"(?i)bot|crawl|spider|slurp|feed|archiver"
#: Matches files that pages load; a request for one of these files is not a view.
_ASSETS = r"(?i)\.(png|jpg|jpeg|gif|ico|css|js|svg|ttf|woff|eot)$"


def parsed(records: DataFrame) -> DataFrame:
    """One row for each record of the log: its position, the request, and the reason if the line is bad.

    ``records`` has the columns of the Spark source, ``headers`` included. Each row has the columns of ``records``,
    ``reason`` (null for a good line), and the columns of a request. When a replay of dead letters sends a line again,
    the line gets a new name (column ``line``). The query then does not drop the line as a repeat.
    """
    position = F.concat_ws("-", "topic", F.concat_ws("@", "partition", "offset"))
    name = F.filter("headers", lambda each: each["key"] == LINE_HEADER)
    line = F.concat_ws("#", F.coalesce(F.get(name, F.lit(0))["value"].cast("string"), position), header("tries"))
    is_tick = F.col("value").isNull()
    rows = split(records, line.alias("line")).select(
        *("line", *NEEDED),
        F.when(~is_tick, _reason()).alias("reason"),
        F.when(is_tick, F.col("timestamp")).otherwise(F.col("time")).alias("time"),
        *request(),
    )
    rows = rows.withColumn("is_crawler", is_crawler(F.col("agent")))
    return rows.withColumn("is_view", is_view())


#: The columns of a parsed request (a good line of the log).
_REQUEST = [column.split()[0] for column in REQUEST.split(", ")]


def _reason() -> Column:
    """Why a line is bad: the first reason that applies; null for a good line."""
    distance_s = F.abs(F.unix_timestamp("time") - F.unix_timestamp("timestamp"))
    is_far = F.when(distance_s > CLOCK_S_MAX, "the time is more than a day from the time of the record")
    return F.coalesce(reason_of_line(), is_far)


def is_crawler(agent: Column) -> Column:
    """Whether a request with this agent comes from a crawler, a feed reader, or a client without a name."""
    return (agent == "-") | F.regexp_like(agent, F.lit(_CRAWLERS))


def is_view() -> Column:
    """Whether a person received a page: a successful GET that is neither from a crawler nor for a file that a page
    loads."""
    return F.coalesce(
        (F.col("method") == "GET")
        & ~F.col("is_crawler")
        & F.col("status").isin(200, 304)
        & ~F.regexp_like("path", F.lit(_ASSETS)),
        F.lit(False),
    )


def counted() -> list[Column]:
    """Counts of good and bad rows of ``parsed``, for ``DataFrame.observe``."""
    return [F.count_if(F.col("reason").isNull()).alias("good"), F.count("reason").alias("bad")]


def requests(rows: DataFrame) -> DataFrame:
    """The good rows of ``parsed``, including ticks, with only the columns of a request."""
    return good(rows).select(*_REQUEST)


def records(rows: DataFrame, topic: str) -> DataFrame:
    """The rows of ``parsed`` as records: requests for ``topic``, and bad lines as dead letters."""
    return routed(rows, topic=topic, key=F.col("address"), value=F.to_json(F.struct(*_REQUEST)))
