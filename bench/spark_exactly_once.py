"""Rows per second of a streaming query into the sink, exactly-once beside at-least-once. JSON lines.

    bench/spark_exactly_once.py [--rounds 3] [--records 3000000] [--per-trigger 250000] [--brokers 3]

A query copies records of 100 bytes from a topic with six partitions into another one, on ``local[2]`` (AvailableNow).
``--per-trigger`` bounds a micro-batch; choose it so that a batch takes one second or more. A rate counts the batches
after the first batch, by Spark's own times of its batches. The last line has the ratio of the medians; the bar is 0.8.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_spark import session

SOURCE, PARTITIONS, VALUE_BYTES, CHUNK = "from", 6, 100, 50_000
#: Seconds that the check of the written rows may take.
CHECK_S = 300.0
DELIVERIES = ("at-least-once", "exactly-once")


def fill(servers: str, records: int, brokers: int) -> None:
    """Fill the source topic with ``records`` random values."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(SOURCE, partitions=PARTITIONS, replication_factor=brokers)])
    with Producer(bootstrap_servers=servers) as producer:
        for start in range(0, records, CHUNK):
            values = [os.urandom(VALUE_BYTES) for _ in range(min(CHUNK, records - start))]
            producer.send_many(SOURCE, values, partition=start // CHUNK % PARTITIONS)
        producer.flush(timeout=120)


def copied(spark: Any, servers: str, delivery: str, topic: str, asked: argparse.Namespace) -> dict[str, float]:
    """Copy the source topic; return the rate of the batches after the first batch, and the median time of a batch."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, partitions=PARTITIONS, replication_factor=asked.brokers)])
    source = spark.readStream.format("headrace").option("headrace.bootstrap.servers", servers)
    source = source.option("subscribe", SOURCE).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", asked.per_trigger).load().select("value")
    with tempfile.TemporaryDirectory() as checkpoint:
        sink = rows.writeStream.format("headrace").option("headrace.bootstrap.servers", servers)
        sink = sink.option("topic", topic).option("headrace.delivery", delivery)
        query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    batches = [each for each in query.recentProgress if each["numInputRows"]][1:]
    if not batches:
        raise SystemExit("the query had one batch only: lower --per-trigger")
    times_ms = [each["durationMs"]["triggerExecution"] for each in batches]
    check(servers, topic, asked.records)
    return {
        "rows_per_s": round(sum(each["numInputRows"] for each in batches) / sum(times_ms) * 1e3, 1),
        "batch_ms": statistics.median(times_ms),
    }


def check(servers: str, topic: str, records: int) -> None:
    """Raise SystemExit unless the topic has ``records`` committed records."""
    found = 0
    with Consumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + CHECK_S
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.fetch_arrow(timeout=10.0).num_rows
            if time.monotonic() > deadline:
                raise SystemExit(f"{found} of {records} rows were read after {CHECK_S:.0f} s")
    if found != records:
        raise SystemExit(f"{found} rows were written, not {records}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--per-trigger", type=int, default=250_000)
    parser.add_argument("--brokers", type=int, default=3)
    asked = parser.parse_args()
    rates: dict[str, list[float]] = {delivery: [] for delivery in DELIVERIES}
    with LocalCluster(brokers=asked.brokers, controllers=1, coordinators=1, mode="process") as cluster:
        servers = cluster.bootstrap_servers
        fill(servers, asked.records, asked.brokers)
        spark = session("exactly once", master="local[2]")
        spark.sparkContext.setLogLevel("ERROR")
        copied(spark, servers, DELIVERIES[1], "warm-up", asked)  # warm-up: Java compiles the query's code
        for number in range(asked.rounds):
            for delivery in DELIVERIES if number % 2 else DELIVERIES[::-1]:
                found = copied(spark, servers, delivery, f"{delivery}-{number}", asked)
                print(json.dumps({"delivery": delivery, **found}), flush=True)
                rates[delivery].append(found["rows_per_s"])
        spark.stop()
    medians = [statistics.median(rates[delivery]) for delivery in DELIVERIES]
    print(json.dumps({"exactly-once of at-least-once": round(medians[1] / medians[0], 3), "bar": 0.8}))


if __name__ == "__main__":
    main()
