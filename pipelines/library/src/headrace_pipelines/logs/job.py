"""``headrace-pipelines run logs``: hosts, a shipper, three queries, and the numbers at the end."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace import Consumer, NewTopic, Producer, TopicPartition

from ..access import Access, given_access
from ..clickstream.replay import read_log
from ..dead_letters import LARGE_RECORDS, dead_letter_topic, header
from ..errors import PipelineFailedError, StoppedError
from ..json_rows import decoded
from ..local_spark import local_spark
from ..members import Member
from ..outcome import Outcome
from ..places import Places, add_run_flags, cluster_of, positive, whole
from ..queries import LOOK_S, Queries, started
from ..replays import is_replayed
from ..runs import prepared, serving
from ..show import Meter, Show
from ..sites import Site
from ..stopping import Stop
from ..topics import TIMES_OF_DATA, replace_topics
from ..workers import Worker
from . import archive, lines, pictures, rates, schema, shipping
from .hosts import FILE, HostLine, Hosts, host_lines

SOURCES = (schema.LINES,)
QUERIES = ("lines", "archive", "rates")
PARTITIONS = 4
SPEED = 6_000.0
TRIGGER = "1 second"
#: Time from the last line to the tick (a record that moves the event time), long enough to close all windows.
TICK_AFTER_MS = 30 * 86_400_000
#: Maximum time without a shipped line after the hosts have written all lines.
STALL_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run logs``."""
    add_run_flags(parser, "logs.*")
    parser.add_argument("--log", type=Path, metavar="FILE", help="a log in Apache's combined format, plain or gzipped")
    parser.add_argument(
        "--speed", type=positive, default=SPEED, metavar="X",
        help="seconds of the log that pass in one second (default %(default)g: 83 hours in 50 seconds)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-days", type=whole, default=0, metavar="N",
        help="the archive keeps the newest N days (default %(default)s: all)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    content = host_lines(read_log(arguments.log))
    if not content:
        raise PipelineFailedError(f"the log {arguments.log} is empty; give a log with lines")
    given, places = given_access(arguments), Places(out)
    continued = places.begin(show, "hosts", "archive", "logs", "shipper.name")
    show.step(f"starting Spark ({arguments.master})")
    with (
        local_spark("headrace logs", master=arguments.master) as spark,
        cluster_of(given, places, show) as access,
    ):
        serving(out, access.servers)
        if not continued:
            create_topics(access)
            # The shipper's positions are stored under its name, so a new run needs a shipper with a new name.
            (out / "shipper.name").write_text(f"logs-{uuid.uuid4().hex[:12]}")
            prepared(out)
        hosts = Hosts(out / "hosts", content, speed=arguments.speed)
        job = Job(spark, Site("logs", access.servers, out, keys=access.keys), places, show, stop, arguments.keep_days)
        outcome = job.stream(content, hosts, is_continued=continued > 0)
    outcome.details.update(continued=continued, seconds=round(time.perf_counter() - began, 3))
    show.step("done")
    return outcome


def create_topics(access: Access) -> None:
    """Create the topics of the pipeline, without records."""
    new = [NewTopic(name, partitions=PARTITIONS, config=TIMES_OF_DATA) for name in schema.TOPICS]
    replace_topics(access, "logs", new, queries=QUERIES, sources=SOURCES)


class Arrived(Worker):
    """Reads the shipped lines as a second consumer, for the check: ``by_path`` has the lines of each file in order."""

    def __init__(self, access: Access) -> None:
        super().__init__("logs arrived")
        self._access = access
        self.by_path: dict[str, list[bytes]] = defaultdict(list)
        self.count = 0

    def work(self) -> None:
        with Consumer(self._access.consumer() | {"isolation.level": "read_committed"}) as consumer:
            consumer.assign([TopicPartition(schema.LINES, part) for part in range(PARTITIONS)])
            consumer.seek_to_beginning()
            while not self.is_stopped.is_set():
                for record in consumer.poll(0.5):
                    if record.value is not None and not is_replayed(record):
                        self.by_path[(dict(record.headers)["path"] or b"").decode()].append(record.value)
                        self.count += 1


def send_tick(access: Access, content: list[HostLine]) -> None:
    """Send the record that closes the last windows."""
    with Producer(access.producer()) as producer:
        after_ms = max(line.time_ms for line in content) + TICK_AFTER_MS
        producer.send(schema.LINES, None, b"tick", timestamp_ms=after_ms).result(timeout=60)


def _follows(log: Path) -> int:
    """The number of times that a shipper has opened the files."""
    return log.read_text(errors="replace").splitlines().count(shipping.FOLLOWS) if log.exists() else 0


class Job:
    """The queries and the shipper of a run."""

    def __init__(self, spark: SparkSession, site: Site, places: Places, show: Show, stop: Stop, keep_days: int) -> None:
        self._spark, self._site, self._places = spark, site, places
        self._show, self._stop, self._keep_days = show, stop, keep_days

    # -- the wiring

    def start(self) -> Queries:
        """Start the three queries."""
        shipped = lines.parsed(self._stream(schema.LINES, "lines"))
        writer = lines.records(shipped).writeStream.format("headrace").options(**LARGE_RECORDS)
        queries = {"lines": self._started(writer.options(**self._site.write(query="lines")))}
        requests = decoded(self._stream(schema.REQUESTS, "archive"), schema.REQUEST)
        write = archive.write_batch(self._places.root / "archive", self._keep_days)
        writer = requests.writeStream.foreachBatch(write).queryName("archive")
        queries["archive"] = self._started(writer.option("checkpointLocation", str(self._places.checkpoint("archive"))))
        counted = rates.rates(decoded(self._stream(schema.REQUESTS, "rates"), schema.REQUEST))
        writer = rates.records(counted).writeStream.format("headrace")
        queries["rates"] = self._started(writer.options(**self._site.write(query="rates")))
        return Queries(queries)

    def _stream(self, topic: str, query: str) -> DataFrame:
        return self._spark.readStream.format("headrace").options(**self._site.read(topic, query=query)).load()

    def _started(self, writer: Any) -> StreamingQuery:
        (query,) = started(writer.trigger(processingTime=TRIGGER).start)
        return query

    def _shipper(self) -> Member:
        """Start the shipper, and wait until it has opened the hosts' files: a new shipper does not know the files that
        were rotated before."""
        name = (self._places.root / "shipper.name").read_text()
        files = str(self._places.root / "hosts" / "*" / FILE)
        words = [sys.executable, "-m", "headrace_pipelines.logs.shipping", name, files]
        log = self._places.root / "logs" / "shipper.log"
        before = _follows(log)  # lines of earlier runs
        shipper = Member("shipper", words, log, self._site.access)
        deadline_s = time.monotonic() + STALL_S
        while _follows(log) == before and not self._stop.is_asked:
            if time.monotonic() > deadline_s:
                shipper.stop()
                raise PipelineFailedError(f"the shipper has opened no file in {STALL_S:g} s; see {log}")
            shipper.look()
            self._stop.wait(LOOK_S / 10)
        return shipper

    def _records_of(self, topic: str) -> DataFrame:
        """The records that readers see in a topic now."""
        return self._spark.read.format("headrace").options(**self._site.read_all(topic)).load()

    # -- the run

    def stream(self, content: list[HostLine], hosts: Hosts, *, is_continued: bool) -> Outcome:
        """Let the hosts write, ship the lines through the queries, close the last windows, and sum up."""
        arrived = Arrived(self._site.access)
        hosts.prepare()
        self._show.step("starting three queries, and the shipper of the hosts' files")
        with self._stop.after_batch(), self.start() as queries:
            shipper = self._shipper()
            try:
                arrived.start()
                self._show.step(f"{len({line.host for line in content})} hosts write {len(content):,} lines")
                hosts.start()
                with self._show.meter("lines", len(content)) as meter:
                    self._follow(queries, hosts, arrived, shipper, meter)
                hosts.result()
                # The tick must be the last record of its topics. If the tick is in the batch of the last lines, readers
                # may see the tick before the lines of other partitions.
                self._drain(queries, hosts, "lines")
                self._show.step("closing the last windows: one tick, 30 days later")
                send_tick(self._site.access, content)
                self._drain(queries, hosts, "lines")
                self._drain(queries, hosts, "archive", "rates")
                queries.stop_after_batch()
            finally:
                hosts.stop()
                shipper.stop()
                arrived.stop()
            arrived.result()
            self._show.step("summing up from the topics and the archive")
            return self._summarize(content, arrived, queries, shipper, is_continued=is_continued)

    def _follow(self, queries: Queries, hosts: Hosts, arrived: Arrived, shipper: Member, meter: Meter) -> None:
        """Wait until all lines of the hosts are in the topic."""
        before, changed_s = -1, time.monotonic()
        while arrived.count < meter.total:
            queries.look()
            shipper.look()
            meter.at(min(arrived.count, meter.total), f"{queries.progress['lines'].rows:,} parsed")
            if self._stop.is_asked:
                self._stopped(queries, hosts)
            for each in (hosts, arrived):
                if not each.is_alive():
                    each.result()
            if arrived.count != before:
                before, changed_s = arrived.count, time.monotonic()
            elif not hosts.is_alive() and time.monotonic() - changed_s > STALL_S:
                raise PipelineFailedError(
                    f"{before} of {meter.total} lines arrived, and no more in the last {STALL_S:g} s; see "
                    f"{self._places.root / 'logs'}:\n{shipper.tail()}"
                )
            self._stop.wait(LOOK_S)
        meter.at(meter.total)

    def _drain(self, queries: Queries, hosts: Hosts, *names: str) -> None:
        if not queries.drain(list(names), lambda: not self._stop.is_asked):
            self._stopped(queries, hosts)

    def _stopped(self, queries: Queries, hosts: Hosts) -> None:
        hosts.stop()
        queries.stop_after_batch()
        raise StoppedError({"written": hosts.written, "queries": queries.totals()})

    def _summarize(
        self, content: list[HostLine], arrived: Arrived, queries: Queries, shipper: Member, *, is_continued: bool
    ) -> Outcome:
        requests = decoded(self._records_of(schema.REQUESTS), schema.REQUEST).where("host IS NOT NULL").cache()
        counted = decoded(self._records_of(schema.RATES), schema.RATE).cache()
        alerts = decoded(self._records_of(schema.ALERTS), schema.RATE).orderBy("window", "host").collect()
        # Count only lines from the hosts' files (tries 0): a replayed line would be a second dead letter of the same
        # line.
        letters = self._records_of(dead_letter_topic(schema.LINES)).where(header("tries") == "0")
        letters = letters.groupBy(header("reason").alias("reason")).count()
        totals = requests.agg(
            F.count("*").alias("requests"),
            F.countDistinct("host").alias("hosts"),
            F.count_if(F.col("status") >= 400).alias("errors"),
            F.count_if(F.col("status") >= 500).alias("failures"),
        ).collect()[0]
        dead = {row["reason"]: row["count"] for row in letters.collect()}
        in_windows = counted.agg(F.sum("requests")).collect()[0][0] or 0
        kept = archive.count(self._places.root / "archive")
        summary = {
            "lines": arrived.count,
            **totals.asDict(),
            "dead_letters": sum(dead.values()),
            "windows": counted.count(),
            "alerts": [[f"{row['window']:%Y-%m-%dT%H:%M}", row["host"], row["failures"]] for row in alerts],
            "archived": sum(kept.values()),
        }
        is_late = is_continued or queries.progress["rates"].late > 0  # an earlier run may have dropped rows, too
        self._check(content, arrived, summary, in_windows, is_late=is_late)
        path = pictures.draw(counted.orderBy("window").collect(), alerts, self._places.root)
        self._show.note(f"picture: {path}")
        return Outcome(
            summary,
            {
                "dead_letters": dead,
                "late_dropped": summary["requests"] - in_windows,
                "days": kept,
                "deaths_of_the_shipper": shipper.deaths,
            },
        )

    def _check(
        self, content: list[HostLine], arrived: Arrived, summary: dict[str, Any], in_windows: int, *, is_late: bool
    ) -> None:
        """Check that every line of each host arrived once and in order, and became a request or a dead letter. Also
        check that every request is in a window and in the archive. ``is_late``: the query of the windows has dropped
        late requests. Spark counts the dropped pairs of a host and a window, not the dropped requests."""
        expected: dict[str, list[bytes]] = defaultdict(list)
        for line in content:
            expected[str(self._places.root / "hosts" / line.host / FILE)].append(line.text)
        wrong = [
            f"{path}: {len(found)} lines, not the {len(expected[path])} that its host wrote, or not in order"
            for path in sorted({*expected, *arrived.by_path})
            if (found := arrived.by_path.get(path, [])) != expected.get(path, [])
        ]
        if summary["requests"] + summary["dead_letters"] != len(content):
            wrong.append(
                f"{len(content)} lines, {summary['requests']} requests, {summary['dead_letters']} dead letters"
            )
        missing = summary["requests"] - in_windows
        if missing < 0 or (missing and not is_late):
            wrong.append(f"{summary['requests']} requests, {in_windows} in windows, and none was late")
        if not self._keep_days and summary["archived"] != summary["requests"]:
            wrong.append(f"{summary['requests']} requests, {summary['archived']} in the archive")
        if wrong:
            raise PipelineFailedError("; ".join(wrong[:5]))
