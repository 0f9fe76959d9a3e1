"""Visits: the views of one address with gaps of at most half an hour, and how far each visit went through the
funnel."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

#: Spark begins a new session when a pause is as long as the gap, so the gap is a moment longer than half an hour.
GAP = "30 minutes 1 millisecond"

#: The steps of the funnel, in order: a visitor arrives, then reads something, then downloads a file.
FUNNEL = ("arrived", "read", "downloaded")
READ = r"^/(articles|blog|presentations|projects)/."
DOWNLOAD = r"^/files/.*\.(?!html?$)\w+$"


def is_download(path: Column) -> Column:
    return F.regexp_like(path, F.lit(DOWNLOAD))


def sessions(viewed: DataFrame) -> DataFrame:
    """The sessions of views (schema.SESSION); ``viewed`` has ``time``, ``address`` and ``path``.

    A tick (a record that only moves the watermark) becomes a session without an address. Spark keeps the session of the
    last tick in its state, because no later record closes the session. (Spark would apply a filter on the address
    before the watermark, and then a tick would not move the watermark.)
    """
    page = F.struct("time", "path")
    grouped = viewed.groupBy(F.session_window("time", GAP).alias("session"), "address").agg(
        F.sort_array(F.collect_list(page)).alias("pages")
    )
    first, last = F.element_at("pages", 1), F.element_at("pages", -1)
    return grouped.select(
        "address",
        first["time"].alias("began"),
        last["time"].alias("ended"),
        F.size("pages").alias("views"),
        first["path"].alias("first_page"),
        last["path"].alias("last_page"),
        funnel("pages").alias("funnel"),
    )


def funnel(pages: str) -> Column:
    """The number of steps of FUNNEL that the viewed pages take; a step counts only after the previous step."""

    def first_time(pattern: str, since: Column) -> Column:
        matching = F.filter(pages, lambda page: (page["time"] >= since) & F.regexp_like(page["path"], F.lit(pattern)))
        return F.array_min(F.transform(matching, lambda page: page["time"]))

    read = first_time(READ, F.element_at(pages, 1)["time"])
    downloaded = first_time(DOWNLOAD, read)
    return F.when(downloaded.isNotNull(), 3).when(read.isNotNull(), 2).otherwise(1)
