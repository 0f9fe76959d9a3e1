"""``headrace-pipelines run telemetry``: the fleet, four queries, and the numbers at the end."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace import NewTopic, Producer
from headrace_spark import low_latency_session

from ..access import Access, given_access
from ..dead_letters import dead_letter_topic, header
from ..errors import PipelineFailedError, StoppedError
from ..local_spark import local_spark
from ..outcome import Outcome
from ..places import Places, add_run_flags, cluster_of, positive, whole
from ..queries import LOOK_S, Queries, started
from ..runs import prepared, serving
from ..show import Meter, Show
from ..sites import Site
from ..stopping import Stop
from ..topics import TIMES_OF_DATA, replace_topics
from . import checking, fleet, grains, pictures, schema
from .readings import judged
from .traffic import Traffic, sent_before
from .watching import watched

SOURCES = (schema.READINGS,)
QUERIES = ("minutes", "fives", "quarters", "devices")
PARTITIONS = 4
DEVICES, MINUTES, SPEED, SEED = 10_000, 15, 20.0, 26
TRIGGER = "2 seconds"
#: Maximum number of minutes, in the fleet's time, that a batch of the queries ``minutes`` and ``fives`` reads. The
#: output of a batch becomes visible partition by partition, so the next query may first see only a part of it. If the
#: output spanned more than ``grains.WATERMARK``, the next query would drop the rest as late.
BATCH_MINUTES = 2
#: Milliseconds between a coarser grain's last row and its tick (the record that closes all windows).
TICK_AFTER_MS = 30 * 86_400_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run telemetry``."""
    add_run_flags(parser, "telemetry.*")
    parser.add_argument(
        "--devices", type=whole, default=DEVICES, metavar="N",
        help=f"number of devices; each sends a reading every {fleet.PERIOD_S} seconds (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=whole, default=MINUTES, metavar="N",
        help="minutes of simulated time (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--speed", type=positive, default=SPEED, metavar="X",
        help="simulated seconds that pass in one second (default %(default)g); 1 is real time",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole, default=SEED, metavar="N",
        help="the same seed gives the same records and the same planted faults (default %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    if not arguments.devices or not arguments.minutes:
        raise PipelineFailedError("--devices and --minutes must be 1 or more: a fleet without records has no result")
    given, places = given_access(arguments), Places(out)
    continued = places.begin(show)
    show.step(f"starting Spark ({arguments.master})")
    with (
        local_spark("headrace telemetry", low_latency_session, master=arguments.master) as spark,
        cluster_of(given, places, show) as access,
    ):
        serving(out, access.servers)
        if not continued:
            create_topics(access)
            prepared(out)
        seed, devices, minutes = arguments.seed, arguments.devices, arguments.minutes
        traffic = Traffic(
            access, fleet.deliveries(seed, devices, minutes), devices=devices, minutes=minutes,
            speed=arguments.speed, partitions=PARTITIONS, before=sent_before(access) if continued else None,
        )  # fmt: skip
        site = Site("telemetry", access.servers, out, keys=access.keys)
        job = Job(spark, site, places, show, stop, devices=devices)
        outcome = job.stream(traffic, fleet.plan(seed, devices, minutes), minutes)
    outcome.details.update(continued=continued, seconds=round(time.perf_counter() - began, 3))
    show.step("done")
    return outcome


def create_topics(access: Access) -> None:
    """Create the topics of the pipeline, without records. The topic of the twins is compacted. All topics except the
    topic of the twins keep all records, because retention would compare the records' timestamps (the fleet's time) with
    the clock."""
    new = [
        NewTopic(name, partitions=PARTITIONS, config=TIMES_OF_DATA) for name in schema.TOPICS if name != schema.TWINS
    ]
    new.append(NewTopic(schema.TWINS, partitions=PARTITIONS, config={"cleanup.policy": "compact"}))
    replace_topics(access, "telemetry", new, queries=QUERIES, sources=SOURCES)


class Job:
    """The queries of a run."""

    def __init__(
        self, spark: SparkSession, site: Site, places: Places, show: Show, stop: Stop, *, devices: int
    ) -> None:
        self._spark, self._site, self._places, self._show, self._stop = spark, site, places, show, stop
        self._devices = devices

    # -- the wiring

    def start(self) -> Queries:
        """Start the four queries."""
        rows = BATCH_MINUTES * self._devices  # each device has one row in a minute
        readings = self._stream(schema.READINGS, "minutes", rows_max=rows * 60 // fleet.PERIOD_S)
        minutes = grains.minutes(judged(readings))
        fives = grains.coarser(grains.finer(self._stream(schema.MINUTES, "fives", rows_max=rows)), grains.FIVE)
        quarters = grains.coarser(grains.finer(self._stream(schema.FIVES, "quarters")), grains.QUARTER)
        of_grains = {"minutes": minutes, "fives": fives, "quarters": quarters}
        queries = {
            name: self._started(grains.records(of_grain), name, topic)
            for (name, of_grain), topic in zip(of_grains.items(), schema.GRAINS, strict=True)
        }
        queries["devices"] = self._started(watched(judged(self._stream(schema.READINGS, "devices"))), "devices", None)
        return Queries(queries)

    def _stream(self, topic: str, query: str, *, rows_max: int | None = None) -> DataFrame:
        """``rows_max``: the most records of a batch."""
        reader = self._spark.readStream.format("headrace").options(**self._site.read(topic, query=query))
        return (reader if rows_max is None else reader.option("maxOffsetsPerTrigger", rows_max)).load()

    def _started(self, rows: DataFrame, query: str, topic: str | None) -> StreamingQuery:
        writer = rows.writeStream.format("headrace").options(**self._site.write(topic, query=query))
        (found,) = started(writer.trigger(processingTime=TRIGGER).start)
        return found

    def _records_of(self, topic: str) -> DataFrame:
        """The committed records of a topic."""
        return self._spark.read.format("headrace").options(**self._site.read_all(topic)).load()

    # -- the run

    def stream(self, traffic: Traffic, planned: fleet.Plan, minutes: int) -> Outcome:
        """Send the fleet's records through the queries, close the last windows, and sum up."""
        self._show.step("starting four queries: three grains, and the devices")
        with self._stop.after_batch(), self.start() as queries:
            traffic.start()
            try:
                self._show.step(f"the fleet sends {minutes} minutes of its readings")
                with self._show.meter("records", max(1, traffic.total)) as meter:
                    self._follow(queries, traffic, meter)
                traffic.result()
                end_ms = fleet.START_MS + minutes * 60_000
                self._show.step("closing the last windows: a tick in each topic")
                self._close(queries, traffic, schema.READINGS, end_ms + schema.WATERMARK_MS, ["minutes", "devices"])
                self._close(queries, traffic, schema.MINUTES, end_ms + TICK_AFTER_MS, ["fives"])
                self._close(queries, traffic, schema.FIVES, end_ms + TICK_AFTER_MS, ["quarters"])
                queries.stop_after_batch()
            finally:
                traffic.stop()
            self._show.step("summing up from the topics")
            return self._summarize(queries, traffic, planned, end_ms)

    def _follow(self, queries: Queries, traffic: Traffic, meter: Meter) -> None:
        """Wait until all records are sent."""
        while traffic.is_alive():
            queries.look()
            behind = max(0, traffic.sent - traffic.sent_before - queries.progress["devices"].rows)
            rows, size = queries.state
            meter.at(traffic.sent, f"{behind:,} records to read, state {rows:,} rows {size / 1e6:.1f} MB")
            if self._stop.is_asked:
                self._stopped(queries, traffic)
            self._stop.wait(LOOK_S)
        traffic.result()
        meter.at(traffic.sent)

    def _stopped(self, queries: Queries, traffic: Traffic) -> None:
        traffic.stop()
        queries.stop_after_batch()
        raise StoppedError({"sent": traffic.sent, "queries": queries.totals()})

    def _close(self, queries: Queries, traffic: Traffic, topic: str, tick_ms: int, names: list[str]) -> None:
        """Send a tick to a topic that already has all its records, and wait until the queries have read the tick."""
        with Producer(self._site.access.producer()) as producer:
            producer.send(topic, None, b"tick", timestamp_ms=tick_ms).result(timeout=60)
        if not queries.drain(names, lambda: not self._stop.is_asked):
            self._stopped(queries, traffic)

    # -- the end

    def _summarize(self, queries: Queries, traffic: Traffic, planned: fleet.Plan, end_ms: int) -> Outcome:
        rows = {topic: grains.stored(self._records_of(topic)).cache() for topic in schema.GRAINS}
        of_grains = {topic: _counted(of_grain) for topic, of_grain in rows.items()}
        alarms = [schema.alarm_of(bytes(row["value"])) for row in self._records_of(schema.ALARMS).collect()]
        written, twins = self._twins()
        letters = self._letters()
        good = traffic.kinds[fleet.GOOD]
        wrong = [
            *checking.faults_of_grains(good, of_grains),
            *checking.faults_of_alarms(alarms, planned),
            *checking.faults_of_twins(twins, traffic.newest_ms),
            *checking.faults_of_letters(letters, traffic.bad),
        ]
        if wrong:
            raise PipelineFailedError("; ".join(wrong[:5]))
        by_kind = {kind: sum(each.alarm == kind for each in alarms) for kind in (schema.SILENT, schema.CLEARED)}
        summary: dict[str, Any] = {
            "records": traffic.sent,
            "readings": good,
            "doubled": traffic.kinds[fleet.AGAIN],
            "dead_letters": sum(letters.values()),
            **{topic.removeprefix("telemetry."): rows for topic, (rows, _, _) in of_grains.items()},
            **by_kind,
            "twins": len(twins),
        }
        details = {
            "dead_letters": letters,
            "late_dropped": {name: each.late for name, each in queries.progress.items()},
            "twins_in_topic": written,
            "state_rows": queries.state[0],
            "state_bytes": queries.state[1],
        }
        path = pictures.draw(_shown(rows, alarms), alarms, twins, end_ms, summary, self._places.root)
        self._show.note(f"picture: {path}")
        return Outcome(summary, details)

    def _twins(self) -> tuple[int, dict[str, int]]:
        """The number of records in the topic of the twins, and the time of each twin's reading."""
        rows = self._records_of(schema.TWINS).groupBy("key")
        latest = rows.agg(F.max_by("value", "offset").alias("value"), F.count("*").alias("written"))
        time_ms = F.get_json_object(F.col("value").cast("string"), "$.time_ms").cast("bigint")
        found = latest.select(F.col("key").cast("string"), time_ms, "written").collect()
        return sum(row[2] for row in found), {row[0]: row[1] for row in found}

    def _letters(self) -> dict[str, int]:
        letters = self._records_of(dead_letter_topic(schema.READINGS)).where(header("tries") == "0")  # no replay
        counted = letters.groupBy(header("reason").alias("reason")).count().orderBy("reason").collect()
        return {row["reason"]: row["count"] for row in counted}


def _counted(rows: DataFrame) -> tuple[int, int, int]:
    """For a grain: the number of rows, the number of different pairs of device and window, and the number of
    readings."""
    (found,) = rows.agg(F.count("*"), F.countDistinct("device", "window"), F.sum("readings")).collect()
    return found[0], found[1], found[2] or 0


def _shown(rows: Mapping[str, DataFrame], alarms: list[schema.Alarm]) -> pictures.Shown:
    """The data of the picture. The picture shows the first device that was silent and then sent again; if there is no
    such device, the first device of the fleet. ``rows``: the rows of each grain."""
    back = sorted(each.device for each in alarms if each.alarm == schema.CLEARED)
    device = back[0] if back else fleet.name_of(0)
    of_device = {
        topic: of_grain.where(F.col("device") == device).orderBy("window").collect() for topic, of_grain in rows.items()
    }
    minutes = rows[schema.MINUTES].groupBy("window").agg(F.sum("readings"))
    return pictures.Shown(device, of_device, sorted(tuple(row) for row in minutes.collect()))
