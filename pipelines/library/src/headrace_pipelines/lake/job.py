"""The lake job: two releases of flights, weather and planes. Each source has a topic, from which a query writes two
lakes; at the end the job checks the lakes.

    feed ---> lake.flights, lake.weather, lake.planes ---> one query each ---> bronze, silver, checks ---> gold

A query writes the tables of both formats from one Spark job for each batch, each table exactly once. After the first
release the queries end; for the second release the queries start again from their checkpoints, with the new fields.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace import NewTopic

from ..access import given_access
from ..checkpoints import batches, checkpoints
from ..errors import PipelineFailedError, StoppedError
from ..local_spark import local_spark
from ..outcome import Outcome
from ..places import Places, add_run_flags, cluster_of
from ..queries import LOOK_S, Queries, started
from ..runs import prepared, serving
from ..show import Show
from ..sites import Site
from ..stopping import Stop
from ..topics import replace_topics
from . import feed, pictures, schema
from .figures import days, figures
from .lakes import DELAYS, MAKERS, QUALITY, QUARANTINE, Lake, lakes, refine, write_batch

#: The file with the version of table silver.flights after release 1, for each table format. The pipeline reads these
#: versions by time travel. The job writes the file when release 1 is done.
FIRST = "release-1.json"
#: No topic of this pipeline has dead letters: bad records are in the table checks.quarantine.
SOURCES: tuple[str, ...] = ()
PARTITIONS = 2
#: Maximum number of rows of a batch. Small batches make small files, which the compaction at the end rewrites.
ROWS_OF_A_BATCH = 30_000

_TABLES = (
    *[f"{layer}.{source.name}" for layer in ("bronze", "silver") for source in schema.SOURCES],
    DELAYS, MAKERS, QUARANTINE, QUALITY,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run lake``."""
    add_run_flags(parser, "lake.*")


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    given, places = given_access(arguments), Places(out)
    continued = places.begin(show, "delta", "iceberg", FIRST)
    show.step(f"starting Spark ({arguments.master})")
    with (
        local_spark("headrace lake", master=arguments.master) as spark,
        cluster_of(given, places, show) as access,
    ):
        serving(out, access.servers)
        job = Job(spark, Site("lake", access.servers, out, ends=True, keys=access.keys), places, show, stop)
        if not continued:
            job.create_topics()
            prepared(out)
        outcome = job.run()
    outcome.details.update(continued=continued, seconds=round(time.perf_counter() - began, 3))
    show.step("done")
    return outcome


class Job:
    """The releases of a run, and what they wrote."""

    def __init__(self, spark: SparkSession, site: Site, places: Places, show: Show, stop: Stop) -> None:
        self._spark, self._site, self._places, self._show, self._stop = spark, site, places, show, stop
        self._lakes = lakes(places.root)
        self._sent = dict.fromkeys((source.name for source in schema.SOURCES), 0)

    def run(self) -> Outcome:
        """Run both releases, make the gold tables, compact all tables, and collect the numbers. Skip the steps that
        earlier runs have completed."""
        content = feed.tables()
        first = self._places.root / FIRST
        for release in schema.RELEASES:
            self._release(release, content, is_done=release == 1 and first.exists())
            if release == 1 and not first.exists():
                numbers = {lake.format: lake.table("silver.flights").versions()[-1].number for lake in self._lakes}
                new = first.with_suffix(".new")
                new.write_text(json.dumps(numbers))
                new.replace(first)
        self._show.step("compacting small files")
        compacted = self._compact()
        self._show.step("reading the tables with DuckDB, through Arrow")
        return self._summarize(content, json.loads(first.read_text()), compacted)

    def create_topics(self) -> None:
        """Create the topics, without records. The data are of 2013, so retention would delete them."""
        new = [
            NewTopic(source.topic, partitions=PARTITIONS, config={"retention.ms": "-1"}) for source in schema.SOURCES
        ]
        queries = [source.name for source in schema.SOURCES]
        replace_topics(self._site.access, "lake", new, queries=queries, sources=SOURCES)

    def _release(self, release: int, content: dict[str, Any], *, is_done: bool) -> None:
        records = {source: feed.records(content[source.name], source.name, release) for source in schema.SOURCES}
        total = sum(table.num_rows for table in records.values())
        for source, table in records.items():
            self._sent[source.name] += table.num_rows
        if is_done:
            return
        access = self._site.access
        if feed.releases_sent(access, content["planes"].num_rows) < release:
            if release > 1:
                check_no_open_batch(self._places.root / "checkpoints")
            self._show.step(f"release {release}: sending {total:,} records to lake.flights, .weather and .planes")
            feed.send(access, {source.topic: table for source, table in records.items()})
        self._show.step(f"release {release}: bronze and silver, three queries into two lakes")
        self._stream(release, total)
        self._show.step(f"release {release}: gold")
        for lake in self._lakes:
            refine(self._spark, lake)

    def _stream(self, release: int, total: int) -> None:
        """Run the queries until they have processed all records. Raises StoppedError and QueryFailedError."""
        with self._stop.after_batch():
            every = {
                source.name: start_source(self._spark, self._site, self._lakes, source, release)
                for source in schema.SOURCES
            }
            with Queries(every) as queries, self._show.meter("records", total) as meter:
                while queries.is_active:
                    queries.look()
                    meter.at(min(total, sum(each.rows for each in queries.progress.values())))
                    if self._stop.is_asked:
                        queries.stop_after_batch()
                        raise StoppedError({"release": release, "queries": queries.totals()})
                    time.sleep(LOOK_S)
                queries.look()
                meter.at(sum(each.rows for each in queries.progress.values()))

    def _compact(self) -> dict[str, dict[str, tuple[int, int]]]:
        """The number of data files of each table before and after compaction."""
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for lake in self._lakes:
            done = {name: lake.table(name).compact() for name in _TABLES}
            found[lake.format] = {name: (each.files_before, each.files_after) for name, each in done.items()}
        return found

    def _summarize(
        self, content: dict[str, Any], first: dict[str, int], compacted: dict[str, dict[str, tuple[int, int]]]
    ) -> Outcome:
        delta, iceberg = (figures(lake) for lake in self._lakes)
        earlier = {lake.format: lake.table("silver.flights").read(first[lake.format]) for lake in self._lakes}
        summary = {**delta, "flights_in_release_1": earlier["delta"].num_rows}
        wrong = [] if delta == iceberg else [f"the lakes differ: Delta has {delta}, and Iceberg has {iceberg}"]
        for lake in self._lakes:
            columns = earlier[lake.format].column_names
            if earlier[lake.format].num_rows != summary["flights_in_release_1"] or "arr_delay" in columns:
                wrong.append(f"{lake.format}: silver.flights as of release 1 has other rows or columns: {columns}")
            for source in schema.SOURCES:
                rows = lake.table(f"bronze.{source.name}").read(columns=["offset"]).num_rows
                if rows != self._sent[source.name]:
                    wrong.append(f"{lake.format}: {self._sent[source.name]} {source.name} sent, {rows} in bronze")
        planes = content["planes"]["tailnum"].unique()
        if summary["planes"] != len(planes):
            wrong.append(f"{len(planes)} planes were sent, and silver has {summary['planes']}")
        bad = sum(summary["quarantined"].values())
        if summary["flights"] + summary["weather"] + bad != self._sent["flights"] + self._sent["weather"]:
            wrong.append(f"{self._sent} were sent, but silver has {summary['flights']} flights, {bad} in quarantine")
        if wrong:
            raise PipelineFailedError("; ".join(wrong))
        files = {
            name: (sum(before for before, _ in each.values()), sum(after for _, after in each.values()))
            for name, each in compacted.items()
        }
        path = pictures.draw(days(self._lakes[0]), delta["flights_by_maker"], files, self._places.root / "lake.png")
        self._show.note(f"picture: {path}")
        return Outcome(
            summary,
            {
                "sent": dict(self._sent),
                "batches": batches(self._places.root / "checkpoints"),
                "files": {name: {"before": before, "after": after} for name, (before, after) in files.items()},
                "files_by_table": compacted,
            },
        )


def start_source(
    spark: SparkSession, site: Site, every: tuple[Lake, ...], source: schema.Source, release: int
) -> StreamingQuery:
    """Start the query of a source, which ends at the present end of the topic."""
    records = (
        spark.readStream.format("headrace")
        .options(**site.read(source.topic, query=source.name))
        .option("maxOffsetsPerTrigger", ROWS_OF_A_BATCH)
        .load()
    )
    writer = (
        records.writeStream.foreachBatch(write_batch(every, source, release))
        .queryName(source.name)
        .option("checkpointLocation", str(site.directory / "checkpoints" / source.name))
        .trigger(**site.trigger)
    )
    (query,) = started(writer.start)
    return query


def check_no_open_batch(directory: Path) -> None:
    """Raise PipelineFailedError if a batch has begun and is not committed. Some of the tables may have the batch
    already, by the rules and fields of the previous release. The tables that lack the batch must get the batch by the
    rules and fields of the previous release, too."""
    for each in checkpoints(directory):
        if each.next_batch is not None:
            raise PipelineFailedError(
                f"query {each.query}: batch {each.next_batch} is not committed, and the new release has other rules "
                "for its rows; run the previous release until this batch is committed, then deploy the new release"
            )
