"""The numbers of a run, from the topics that the pipeline wrote."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..outcome import Outcome
from .sessions import FUNNEL


def summarized(requests: DataFrame, sessions: DataFrame, counts: DataFrame) -> Outcome:
    """Count requests, crawlers, visitors, sessions, views by page and errors. The details are the number of views, and
    the funnel.

    A *request* is a good line. A *visitor* is an address with at least one request that is not from a crawler. An
    *error* is a request with a status of 400 or more.
    """
    (row,) = (
        requests.where("address IS NOT NULL")
        .agg(
            F.count("*").alias("requests"),
            F.count_if("is_crawler").alias("crawler_requests"),
            F.count_distinct(F.when(~F.col("is_crawler"), F.col("address"))).alias("visitors"),
            F.count_if(F.col("status") >= 400).alias("errors"),
            F.count_if("is_view").alias("views"),
        )
        .collect()
    )
    pages = counts.where("kind = 'page'").groupBy("name").agg(F.sum("views").alias("views"))
    steps = [F.count_if(F.col("funnel") >= number).alias(name) for number, name in enumerate(FUNNEL, 1)]
    (visits,) = sessions.agg(F.count("*").alias("sessions"), *steps).collect()
    summary = {
        "requests": row["requests"],
        "crawler_requests": row["crawler_requests"],
        "visitors": row["visitors"],
        "sessions": visits["sessions"],
        "views_by_page": {
            page["name"]: page["views"] for page in pages.orderBy(F.col("views").desc(), F.col("name")).collect()
        },
        "errors": row["errors"],
    }
    return Outcome(summary, {"views": row["views"], "funnel": {name: visits[name] for name in FUNNEL}})
