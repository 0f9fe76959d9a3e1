"""The job: records of the topic skeleton become rows of skeleton-clean, or dead letters, each exactly once."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace_pipelines.dead_letters import LARGE_RECORDS, routed
from headrace_pipelines.sites import Site

from .rows import judged

#: The topics that the pipeline reads. Bad records of TOPIC go to TOPIC.dead-letters.
SOURCES = ("skeleton",)
CLEAN = "skeleton-clean"


def start(spark: SparkSession, site: Site) -> StreamingQuery:
    """Start the query ``clean``. A pipeline with several queries returns a list of them."""
    source = spark.readStream.format("headrace").options(**site.read("skeleton", query="clean"))
    # The limit keeps the first batch after a pause small.
    records = source.option("maxOffsetsPerTrigger", 50_000).load()
    rows = routed(judged(records), topic=site.topic(CLEAN), key=F.col("key"), value=F.to_json("data"))
    clean = rows.writeStream.format("headrace").options(**site.write(query="clean"), **LARGE_RECORDS)
    return clean.trigger(**site.trigger).start()
