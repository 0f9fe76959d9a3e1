"""from_registry and to_registry in Spark on two cores, and the same records by serializers in Python on one.

    .venv/bin/python bench/schemas_spark.py [--records 2000000] [--rounds 5] [-o json]

The record has seven fields: long, string, double, nullable string, int, boolean, timestamp. Each round runs every
workload once, so that a slow minute affects all of them. A figure is records per second: the median and the best round,
and the median by processor time. The last figure is the rate of two cores (for Python alone: one core) on an idle
machine. The Spark job includes the query's start, and drops its result (format ``noop``).

    spark.rows               only the rows, which every other job computes too
    spark.identity           a function that returns its Arrow batch: the cost of passing rows to Python and back
    spark.to_registry        struct to bytes
    spark.from_registry      bytes to struct; the bytes are in Spark's memory (cached)
    spark.both               struct to bytes to struct, in one Python process per core
    arrow.encode, .decode    the compiled codec alone, one core
    headrace.*, confluent.*  one call for each record, one core
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from measure import cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

import headrace_spark
from headrace.schemas import (
    AvroArrowDeserializer,
    AvroArrowSerializer,
    AvroDeserializer,
    AvroSerializer,
    SchemaRegistry,
)
from headrace_spark import from_registry, to_registry
from tests.worlds.fake_registry import fake_registry

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry import avro as their_avro
    from confluent_kafka.serialization import MessageField, SerializationContext

SUBJECT = "orders-value"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "count", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
CORES = 2
#: Records of the workloads in Python alone, which are converted again and again.
SAMPLE = 10_000


def _family() -> list[int]:
    """The process ids of this process and of all its descendants: the JVM and Spark's Python workers."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # the process has ended
            continue
        below.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += below.get(pid, [])
    return found


def rows(spark: SparkSession, count: int) -> DataFrame:
    number = F.col("id")
    return spark.range(count, numPartitions=2).select(
        F.struct(
            number,
            F.concat(F.lit("customer-"), number % 1000).alias("customer"),
            (number * 0.5).alias("amount"),
            F.when(number % 3 == 0, F.lit("a short note")).alias("note"),
            (number % 100_000).cast("int").alias("count"),
            (number % 2 == 0).alias("paid"),
            F.timestamp_micros(number + 1_700_000_000_000_000).alias("at"),
        ).alias("order")
    )


def spark_workloads(
    spark: SparkSession, registry: SchemaRegistry, count: int
) -> dict[str, Callable[[], tuple[float, float]]]:
    orders = rows(spark, count)
    kind = orders.schema["order"].dataType

    @arrow_udf(kind)  # type: ignore[call-overload,untyped-decorator]
    def identity(values: pa.Array) -> pa.Array:
        return values

    # Use a checkpoint, not a cache, because Spark would use the cache for the other jobs, too.
    stored = orders.select(to_registry("order", registry, subject=SUBJECT).alias("value")).localCheckpoint()

    def job(frame: DataFrame) -> Callable[[], tuple[float, float]]:
        def run() -> tuple[float, float]:
            pids = _family()
            began, cpu = time.perf_counter(), cpu_seconds(pids)
            frame.write.format("noop").mode("overwrite").save()
            elapsed_s, cpu_s = time.perf_counter() - began, cpu_seconds(_family()) - cpu
            return count / elapsed_s, count / (cpu_s / CORES)

        return run

    encoded = orders.select(to_registry("order", registry, subject=SUBJECT).alias("value"))
    decode = from_registry("value", registry, subject=SUBJECT).alias("order")
    return {
        "spark.rows": job(orders),
        "spark.identity": job(orders.select(identity("order").alias("order"))),
        "spark.to_registry": job(encoded),
        "spark.from_registry": job(stored.select(decode)),
        "spark.both": job(encoded.select(decode)),
    }


def python_workloads(registry: SchemaRegistry, url: str) -> dict[str, Callable[[], tuple[float, float]]]:
    version = registry.version(SUBJECT)
    resolved = registry.resolved(version.id)
    values = [
        {
            "id": number,
            "customer": f"customer-{number % 1000}",
            "amount": number * 0.5,
            "note": None if number % 3 else "a short note",
            "count": number,
            "paid": number % 2 == 0,
            "at": 1_700_000_000_000_000 + number,
        }
        for number in range(SAMPLE)
    ]
    ours = AvroSerializer(registry, use_latest_version=True)
    data = [ours("orders", value) for value in values]
    reading, writing = (
        AvroArrowDeserializer(registry, resolved, subject=SUBJECT),
        AvroArrowSerializer(version, resolved),
    )
    column = pa.array(data, pa.binary())
    structs = reading.deserialize(column).values
    assert writing.serialize(structs).values.equals(column)
    client = SchemaRegistryClient({"url": url})
    text = json.dumps(ORDER)
    theirs = their_avro.AvroSerializer(client, text, conf={"auto.register.schemas": False})
    their_reader = their_avro.AvroDeserializer(client)
    context = SerializationContext("orders", MessageField.VALUE)
    assert [theirs(value, context) for value in values[:100]] == data[:100]
    our_reader = AvroDeserializer(registry)

    def timed(work: Callable[[], Any]) -> Callable[[], tuple[float, float]]:
        def run() -> tuple[float, float]:
            began, cpu = time.perf_counter(), time.thread_time()
            work()
            return SAMPLE / (time.perf_counter() - began), SAMPLE / (time.thread_time() - cpu)

        return run

    return {
        "arrow.encode": timed(lambda: writing.serialize(structs)),
        "arrow.decode": timed(lambda: reading.deserialize(column)),
        "headrace.encode": timed(lambda: [ours("orders", each) for each in values]),
        "headrace.decode": timed(lambda: [our_reader("orders", each) for each in data]),
        "confluent.encode": timed(lambda: [theirs(each, context) for each in values]),
        "confluent.decode": timed(lambda: [their_reader(each, context) for each in data]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    given = parser.parse_args()
    with fake_registry() as running, SchemaRegistry(running.url) as registry:
        running.add_avro(SUBJECT, ORDER)
        spark = headrace_spark.session("bench", master=f"local[{CORES}]")
        spark.sparkContext.setLogLevel("ERROR")
        workloads = spark_workloads(spark, registry, given.records) | python_workloads(registry, running.url)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in workloads}
        for at in range(given.rounds + 1):
            for name, work in workloads.items():
                rate = work()
                if at:  # the first round warms up
                    found[name].append(rate)
        spark.stop()
    load = os.getloadavg()[0]
    figures = {
        name: {
            "median": statistics.median(rate for rate, _ in rates),
            "best": max(rate for rate, _ in rates),
            "of_the_cores": statistics.median(rate for _, rate in rates),
        }
        for name, rates in found.items()
    }
    if given.output == "json":
        print(json.dumps({"records": given.records, "load_1m": load, "records_per_s": figures}))
        return 0
    print(f"{given.records:,} records in Spark, {given.rounds} rounds, load of the last minute {load:.1f}")
    print(f"{'records per second':22}{'median':>14}{'best':>14}{'by processor time':>20}")
    for name, each in figures.items():
        print(f"{name:22}{each['median']:>14,.0f}{each['best']:>14,.0f}{each['of_the_cores']:>20,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
