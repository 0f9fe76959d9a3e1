"""Find the pages that visitors viewed before they downloaded a file, by a join of two streams."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .sessions import is_download

#: Longest time between a view and the download that it may have led to.
WITHIN = "30 minutes"


def conversions(viewed: DataFrame) -> DataFrame:
    """Pair each download with each page that the same address viewed at most WITHIN before the download
    (schema.CONVERSION).

    An inner join emits a pair as soon as both rows have arrived. The watermark and WITHIN say how long Spark keeps the
    rows of each side. A tick (a record that only moves the event time) has no address and matches nothing.
    """
    downloads = viewed.where(is_download(F.col("path"))).select(
        F.col("address").alias("visitor"), F.col("time").alias("downloaded"), F.col("path").alias("download")
    )
    pages = viewed.where(~is_download(F.col("path"))).select(
        "address", F.col("time").alias("viewed"), F.col("path").alias("page")
    )
    before = F.col("viewed").between(F.col("downloaded") - F.expr(f"INTERVAL {WITHIN}"), F.col("downloaded"))
    return downloads.join(pages, (F.col("visitor") == F.col("address")) & before).select(
        "address", "downloaded", "download", "viewed", "page"
    )
