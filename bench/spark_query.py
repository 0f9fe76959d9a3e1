"""The query of spark.py: an aggregate over a topic, as a batch and as a stream. As a script, it reads a topic of Kafka.

    spark_query.py BOOTSTRAP TOPIC RECORDS ROUNDS JAR...

The script runs in the Spark version that Spark's connector for Kafka needs (kafka_connector.py), so it imports only
pyspark. It prints the same JSON lines as spark.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

VALUE_BYTES = 100
PER_TRIGGER = 1_000_000
#: The settings of ``headrace_spark.session`` that matter to the time of the query.
SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2"}


def aggregate(frame: DataFrame) -> DataFrame:
    return frame.groupBy("partition").agg(F.count("*").alias("rows"), F.sum(F.length("value")).alias("bytes"))


def batch(spark: SparkSession, form: str, options: dict[str, str], records: int) -> float:
    began = time.perf_counter()
    result = aggregate(spark.read.format(form).options(**options).load()).collect()
    seconds = time.perf_counter() - began
    check(sum(row.rows for row in result), sum(row.bytes for row in result), records)
    return records / seconds


def stream(spark: SparkSession, form: str, options: dict[str, str], records: int, progress: bool) -> float:
    began = time.perf_counter()
    frame = spark.readStream.format(form).options(**options, maxOffsetsPerTrigger=PER_TRIGGER).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            aggregate(frame)
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName("bench")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - began
    result = spark.table("bench").collect()
    check(sum(row.rows for row in result), sum(row.bytes for row in result), records)
    if progress:
        for recent in query.recentProgress:
            print(recent["batchId"], recent["numInputRows"], json.dumps(recent["durationMs"]), file=sys.stderr)
    return records / seconds


def check(rows: int, size: int, records: int) -> None:
    if rows != records or size != records * VALUE_BYTES:
        raise SystemExit(f"{rows} rows of {size} bytes were read, not {records} of {records * VALUE_BYTES}")


def tell(name: str, value: float, number: int) -> None:
    if number >= 0:
        print(json.dumps({"sample": name, "value": round(value), "unit": "rows/s"}), flush=True)


def main(bootstrap: str, topic: str, records: int, rounds: int, jars: list[str]) -> None:
    builder = SparkSession.builder.master("local[2]").appName("kafka bench")
    for key, value in {**SETTINGS, "spark.jars": ",".join(jars)}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    for number in range(-1, rounds):
        tell("kafka.spark.batch", batch(spark, "kafka", options, records), number)
        tell("kafka.spark.stream", stream(spark, "kafka", options, records, progress=False), number)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
