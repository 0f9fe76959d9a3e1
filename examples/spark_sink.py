"""Spark into topics: a frame as a batch, then a stream from one topic to another.

python examples/spark_sink.py [HOST:PORT]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace_spark
from headrace import Admin, LocalCluster, NewTopic
from headrace.errors import TopicAlreadyExistsError


def write_batch(spark: SparkSession, bootstrap: str) -> None:
    """Columns: value (required), key, headers, topic, partition. A key decides the partition, as in Kafka."""
    readings = spark.range(1_000).select(
        F.concat(F.lit("sensor-"), F.col("id") % 7).alias("key"),
        F.to_json(F.struct(F.col("id").alias("reading"), (F.col("id") % 40 - 5).alias("celsius"))).alias("value"),
        F.array(F.struct(F.lit("unit").alias("key"), F.lit(b"celsius").alias("value"))).alias("headers"),
    )
    (
        readings.write.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap)
        .option("headrace.compression.type", "zstd")  # an option with the prefix headrace. sets any key of the producer
        .option("topic", "readings")
        .mode("append")  # Python sinks do not support Spark's default mode, errorifexists
        .save()
    )


def stream_alarms(spark: SparkSession, bootstrap: str, checkpoint: Path) -> None:
    """Copy the existing readings above 30 degrees to another topic. Run the function again for later readings."""
    readings = (
        spark.readStream.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap)
        .option("subscribe", "readings")
        .option("startingOffsets", "earliest")
        .load()
    )
    reading = F.from_json(F.col("value").cast("string"), "reading LONG, celsius INT")
    alarms = readings.select("key", reading.alias("reading")).where("reading.celsius > 30")
    query = (
        alarms.select("key", F.to_json("reading").alias("value"))
        .writeStream.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap)
        .option("topic", "alarms")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(spark: SparkSession, bootstrap: str, directory: Path) -> int:
    """Returns the number of alarms."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        for topic in ("readings", "alarms"):
            with contextlib.suppress(TopicAlreadyExistsError):
                admin.create_topics([NewTopic(topic, partitions=3)])
    write_batch(spark, bootstrap)
    stream_alarms(spark, bootstrap, directory / "checkpoint")
    alarms = (
        spark.read.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap)
        .option("subscribe", "alarms")
        .load()
    )
    alarms.selectExpr("partition", "offset", "string(key)", "string(value)").show(5, truncate=False)
    return alarms.count()


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        servers = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(LocalCluster()).bootstrap_servers
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        print(main(headrace_spark.session("spark_sink"), servers, scratch), "alarms")
