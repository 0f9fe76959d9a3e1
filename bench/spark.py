"""Rows per second through Spark, in and out, beside Spark's own limit. JSON lines, one per sample.

    spark.py [--rounds 3] [--records 5000000] [--bootstrap HOST:PORT] [--only sink] [--set key=value] [--progress]

The query is an aggregate by partition over random 100-byte values in 6 partitions, all seven columns, ``local[2]``. The
stream runs with AvailableNow and a maxOffsetsPerTrigger of one million. Times include the query's start; one round
before the first is not counted (the JVM compiles). Without ``--bootstrap`` a cluster is started and filled. The limit
is a Python data source with ready batches (spark_ready.py). ``sink`` writes as many rows into 2 partitions, acks=all;
``copy`` reads the values of the filled topic and writes them into these 2 partitions. The limit of both is a Python
sink that drops its batches (spark_sinks.py). ``--set`` sets a Spark configuration, ``--progress`` prints each
micro-batch's durations to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

BENCH = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BENCH), os.environ.get("PYTHONPATH")]))
sys.path.insert(0, str(BENCH))

from pyspark.sql import SparkSession  # noqa: E402
from spark_query import VALUE_BYTES, batch, stream, tell  # noqa: E402
from spark_ready import PARTITIONS, ReadyMade  # noqa: E402
from spark_sinks import SINK_TOPIC, Dropping, count_written, fresh_topic, rows, write  # noqa: E402

import headrace_spark  # noqa: E402

TOPIC = "spark-bench"
#: Number of rows in a batch of 4 MiB, as in the source of Headrace.
READY_ROWS = 38_000


@contextlib.contextmanager
def servers(given: str | None) -> Iterator[str]:
    from headrace import LocalCluster

    if given:
        yield given
        return
    with LocalCluster(brokers=1, controllers=1, coordinators=0) as cluster:
        yield cluster.bootstrap_servers


def fill(bootstrap_servers: str, records: int) -> None:
    """Fill the topic with ``records`` random values, the same number in each partition."""
    from headrace import Admin, NewTopic, Producer

    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        if TOPIC in admin.list_topics():
            admin.delete_topics([TOPIC])
        admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS, replication_factor=1)])
    each, chunk = records // PARTITIONS, 50_000
    with Producer(bootstrap_servers=bootstrap_servers, batch_size=1 << 20, linger_ms=20) as producer:
        for start in range(0, each, chunk):
            for partition in range(PARTITIONS):
                values = [os.urandom(VALUE_BYTES) for _ in range(min(chunk, each - start))]
                producer.send_many(TOPIC, values, partition=partition)
        producer.flush(timeout=120)


def sinks(spark: SparkSession, address: str, records: int, number: int) -> None:
    """Our sink and the sink that drops its batches, for generated rows and for rows read from the filled topic."""
    source = {"headrace.bootstrap.servers": address, "subscribe": TOPIC, "startingOffsets": "earliest"}
    frames = {
        "sink": rows(spark, records),
        "copy": spark.read.format("headrace").schema("value BINARY").options(**source).load(),
    }
    for name, frame in frames.items():
        fresh_topic(address)
        options = {"headrace.bootstrap.servers": address, "topic": SINK_TOPIC, "headrace.acks": "all"}
        tell(f"headrace.spark.{name}", write(frame, "headrace", options, records), number)
        if (written := count_written(address)) != records:
            raise SystemExit(f"{written} rows were written, not {records}")
        tell(f"spark.dropping.{name}", write(frame, "dropping", {}, records), number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--bootstrap")
    parser.add_argument("--only", choices=("source", "sink"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--progress", action="store_true")
    asked = parser.parse_args()
    records = asked.records // PARTITIONS * PARTITIONS
    settings = dict(given.split("=", 1) for given in asked.set)
    spark = headrace_spark.session("headrace bench", master="local[2]", **settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ReadyMade)
    spark.dataSource.register(Dropping)
    with servers(asked.bootstrap) as address:
        fill(address, records)
        forms = {
            "headrace.spark": (
                "headrace",
                {"headrace.bootstrap.servers": address, "subscribe": TOPIC, "startingOffsets": "earliest"},
            ),
            "spark.ready_made": ("ready_made", {"records": str(records), "batchRows": str(READY_ROWS)}),
        }
        for number in range(-1, asked.rounds):
            if asked.only != "source":
                sinks(spark, address, records, number)
            if asked.only == "sink":
                continue
            for name, (form, options) in forms.items():
                tell(f"{name}.batch", batch(spark, form, options, records), number)
            for name, (form, options) in forms.items():
                tell(f"{name}.stream", stream(spark, form, options, records, asked.progress), number)
        spark.stop()


if __name__ == "__main__":
    main()
