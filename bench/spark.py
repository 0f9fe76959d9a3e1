"""Rows per second through Spark, in and out, beside Spark's own limit and beside Spark's connector for Kafka.

    spark.py [--rounds 3] [--only source|sink|kafka] [--set key=value] [--smoke] [--save]

The query is an aggregate by partition over random 100-byte values in 6 partitions, all seven columns, ``local[2]``. The
stream runs with AvailableNow and a maxOffsetsPerTrigger of one million. Times include the query's start; one round
before the first is not counted (the JVM compiles).

    source   reads of a topic of Headrace, and of a Python data source with ready batches (spark_limit.py)
    sink     writes as many rows, ``lpad(id, 100, 'x')``, into 2 partitions with acks=all; ``copy`` writes the values of
             the filled topic. The limit of both is a Python sink that drops its batches
    kafka    the same query over a topic of Kafka, in the older Spark that its connector is published for

``--set`` sets a Spark configuration. Each side runs in a process of its own, because it keeps a JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from kafka_node import SETTINGS, SMOKE_WARM_UP_S, KafkaNode, connector_jars, python_path
from measure import PYTHON, WORK, Samples, add_lines, begin, flags, run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from report import finish

VALUE_BYTES, PARTITIONS = 100, 6
RECORDS, SMOKE_RECORDS = 4_999_998, 60_000  #: Multiples of PARTITIONS.
PER_TRIGGER = 1_000_000
TOPIC, SINK_TOPIC, SINK_PARTITIONS = "spark-bench", "spark-bench-sink", 2
#: Number of rows in a batch of 4 MiB, as in the source of Headrace.
READY_ROWS = 38_000
#: The settings of ``headrace_spark.session`` that matter to the time of the query.
SESSION = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2"}


# -- the queries ------------------------------------------------------------------------------------------------------


def aggregate(frame: DataFrame) -> DataFrame:
    return frame.groupBy("partition").agg(F.count("*").alias("rows"), F.sum(F.length("value")).alias("bytes"))


def batch(spark: SparkSession, form: str, options: dict[str, str], records: int) -> float:
    began = time.perf_counter()
    result = aggregate(spark.read.format(form).options(**options).load()).collect()
    seconds = time.perf_counter() - began
    check(sum(row.rows for row in result), sum(row.bytes for row in result), records)
    return records / seconds


def stream(spark: SparkSession, form: str, options: dict[str, str], records: int) -> float:
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
    return records / seconds


def check(rows: int, size: int, records: int) -> None:
    if rows != records or size != records * VALUE_BYTES:
        raise SystemExit(f"{rows} rows of {size} bytes were read, not {records} of {records * VALUE_BYTES}")


def tell(name: str, value: float, number: int) -> None:
    if number >= 0:
        print(json.dumps({"sample": name, "value": round(value), "unit": "rows/s"}), flush=True)


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select(F.lpad(F.col("id").cast("string"), 100, "x").alias("value"))


def write(frame: DataFrame, form: str, options: dict[str, str], records: int) -> float:
    """Rows per second, including the query's start and every acknowledgement."""
    began = time.perf_counter()
    frame.write.format(form).options(**options).mode("append").save()
    return records / (time.perf_counter() - began)


# -- Headrace, and Spark's limit --------------------------------------------------------------------------------------


def fresh_topic(servers: str, name: str, partitions: int) -> None:
    """Create a topic again, empty, so that files of an earlier round cost nothing."""
    from headrace import Admin, NewTopic

    with Admin(bootstrap_servers=servers) as admin:
        if name in admin.list_topics():
            admin.delete_topics([name])
        admin.create_topics([NewTopic(name, partitions=partitions, replication_factor=1)])


def fill(bootstrap_servers: str, records: int) -> None:
    """Fill the topic with ``records`` random values, the same number in each partition."""
    from headrace import Producer

    fresh_topic(bootstrap_servers, TOPIC, PARTITIONS)
    each, chunk = records // PARTITIONS, 50_000
    with Producer(bootstrap_servers=bootstrap_servers, batch_size=1 << 20, linger_ms=20) as producer:
        for start in range(0, each, chunk):
            for partition in range(PARTITIONS):
                values = [os.urandom(VALUE_BYTES) for _ in range(min(chunk, each - start))]
                producer.send_many(TOPIC, values, partition=partition)
        producer.flush(timeout=120)


def count_written(bootstrap_servers: str) -> int:
    from headrace import Consumer, TopicPartition

    partitions = [TopicPartition(SINK_TOPIC, number) for number in range(SINK_PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap_servers) as consumer:
        return sum(consumer.end_offsets(partitions).values())


def sinks(spark: SparkSession, address: str, records: int, number: int) -> None:
    """Our sink and the sink that drops its batches, for generated rows and for rows read from the filled topic."""
    source = {"headrace.bootstrap.servers": address, "subscribe": TOPIC, "startingOffsets": "earliest"}
    frames = {
        "sink": rows(spark, records),
        "copy": spark.read.format("headrace").schema("value BINARY").options(**source).load(),
    }
    for name, frame in frames.items():
        fresh_topic(address, SINK_TOPIC, SINK_PARTITIONS)
        options = {"headrace.bootstrap.servers": address, "topic": SINK_TOPIC, "headrace.acks": "all"}
        tell(f"headrace.spark.{name}", write(frame, "headrace", options, records), number)
        if (written := count_written(address)) != records:
            raise SystemExit(f"{written} rows were written, not {records}")
        tell(f"spark.dropping.{name}", write(frame, "dropping", {}, records), number)


def headrace(records: int, rounds: int, part: str, settings: dict[str, str]) -> None:
    """Print the samples of ``part``: source, sink, or "" for both."""
    from spark_limit import Dropping, ReadyMade

    import headrace_spark
    from headrace import LocalCluster

    spark = headrace_spark.session("headrace bench", master="local[2]", **settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ReadyMade)
    spark.dataSource.register(Dropping)
    with LocalCluster(brokers=1, controllers=1, coordinators=0) as cluster:
        address = cluster.bootstrap_servers
        fill(address, records)
        ours = {"headrace.bootstrap.servers": address, "subscribe": TOPIC, "startingOffsets": "earliest"}
        forms = {
            "headrace.spark": ("headrace", ours),
            "spark.ready_made": ("ready_made", {"records": str(records), "batchRows": str(READY_ROWS)}),
        }
        for number in range(-1, rounds):
            if part != "source":
                sinks(spark, address, records, number)
            if part == "sink":
                continue
            for name, (form, options) in forms.items():
                tell(f"{name}.batch", batch(spark, form, options, records), number)
            for name, (form, options) in forms.items():
                tell(f"{name}.stream", stream(spark, form, options, records), number)
        spark.stop()


# -- Kafka ------------------------------------------------------------------------------------------------------------


def kafkas(bootstrap: str, records: int, rounds: int, jars: list[str]) -> None:
    """Print the samples of Spark's connector for Kafka. Runs in the Spark version that the connector needs."""
    builder = SparkSession.builder.master("local[2]").appName("kafka bench")
    for key, value in {**SESSION, "spark.jars": ",".join(jars)}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    for number in range(-1, rounds):
        tell("kafka.spark.batch", batch(spark, "kafka", options, records), number)
        tell("kafka.spark.stream", stream(spark, "kafka", options, records), number)
    spark.stop()


def connector(samples: Samples, rounds: int, records: int) -> None:
    """Fill a topic of Kafka, and read it with Spark's connector for Kafka."""
    from headrace_spark import find_java

    environment = {"JAVA_HOME": str(find_java()), "PYTHONPATH": python_path()}
    jars = [str(jar) for jar in connector_jars()]
    with KafkaNode(WORK / "kafka-spark", warm_up_s=SMOKE_WARM_UP_S) as kafka:
        kafka.create_topic(TOPIC)
        kafka.producer_perf(TOPIC, records, setting=SETTINGS[-1])
        arguments = [kafka.bootstrap, str(records), str(rounds), *jars]
        add_lines(samples, run([PYTHON, __file__, "--kafka-side", *arguments], timeout_s=1200, env=environment))


# -- the run ----------------------------------------------------------------------------------------------------------


def measure(samples: Samples, rounds: int, only: str = "", *, smoke: bool = False, more: tuple[str, ...] = ()) -> None:
    """Add the samples of the part ``only``, or of all parts. ``more``: flags of Headrace's side."""
    records = SMOKE_RECORDS if smoke else RECORDS
    if only != "kafka":
        command = [PYTHON, __file__, "--headrace-side", only or "both", str(records), str(rounds), *more]
        folders = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])  # workers import spark_limit
        environment = {"PYTHONPATH": os.pathsep.join(folders)}
        add_lines(samples, run(command, timeout_s=1200, env=environment))
    if only in ("", "kafka"):
        connector(samples, rounds, records)


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    if asked.only not in ("", "source", "sink", "kafka"):
        parser.error("--only: choose from source, sink, kafka")
    samples = begin(asked)
    more = [word for setting in asked.set for word in ("--set", setting)]
    measure(samples, asked.rounds, asked.only, smoke=asked.smoke, more=tuple(more))
    return finish(samples, asked, what="spark")


def headrace_side(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("records", type=int)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args(words)
    settings = dict(given.split("=", 1) for given in asked.set)
    headrace(asked.records, asked.rounds, asked.part, settings)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--headrace-side"]:
        headrace_side(sys.argv[2:])
    elif sys.argv[1:2] == ["--kafka-side"]:
        kafkas(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    else:
        sys.exit(main())
