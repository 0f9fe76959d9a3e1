"""The clickstream job: cluster, topics, four queries, the replay of the log, and the numbers at the end.

    replay ---> clickstream.log ---> query requests ---> clickstream.requests ---> queries sessions, counts, conversions

Each query has a checkpoint of its own and writes its topic exactly once. The queries read with ``read_committed``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace import NewTopic

from ..access import given_access
from ..checkpoints import batches, checkpoints
from ..dead_letters import LARGE_RECORDS, header
from ..errors import PipelineFailedError, StoppedError
from ..json_rows import decoded, encoded
from ..local_spark import local_spark
from ..outcome import Outcome
from ..places import Places, add_run_flags, cluster_of, positive, whole
from ..queries import LOOK_S, Queries, started
from ..runs import prepared, serving
from ..show import Meter, Show
from ..sites import Site
from ..stopping import Stop
from ..topics import TIMES_OF_DATA, replace_topics
from . import parsing, pictures, schema
from .conversions import conversions
from .replay import COPIES_MAX, Line, Replay, Sent, lines, lines_in_topic, read_log, send_tick
from .sessions import sessions
from .summary import summarized
from .views import WATERMARK, counts, views

PARTITIONS = 2
TRIGGER = "1 second"
#: Maximum number of rows of a batch, to be multiplied by the number of copies of the log in the replay. The rows of a
#: batch become visible partition by partition. The times of a batch's rows must therefore differ by less than the
#: watermark delay of the queries that read the rows.
ROWS_OF_A_BATCH = 2_000
SPEED = 10_000.0
REPEAT_EVERY = 100

TOPICS = (schema.LOG, schema.REQUESTS, schema.SESSIONS, schema.COUNTS, schema.CONVERSIONS)

SOURCES = (schema.LOG,)
#: The names of the queries in start order: the first query writes what the other queries read.
_IN_ORDER = (["requests"], ["sessions", "counts", "conversions"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run clickstream``."""
    add_run_flags(parser, "clickstream.*")
    parser.add_argument("--log", type=Path, metavar="FILE", help="a log in Apache's combined format, plain or gzipped")
    parser.add_argument(
        "--speed", type=positive, default=SPEED, metavar="X",
        help="seconds of the log that pass in one second (default %(default)g: 83 hours in half a minute)",
    )  # fmt: skip
    parser.add_argument(
        "--multiply", type=_copies, default=1, metavar="N",
        help="send each line N times, with different addresses (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--repeat-every", type=whole, default=REPEAT_EVERY, metavar="N",
        help="send every N-th line twice; the results stay the same (default %(default)s; 0: send no line twice)",
    )  # fmt: skip


def _copies(text: str) -> int:
    value = int(text)
    if not 1 <= value <= COPIES_MAX:
        raise argparse.ArgumentTypeError(f"{text}: must be from 1 to {COPIES_MAX}")
    return value


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    content = list(lines(read_log(arguments.log), arguments.multiply))
    if not content:
        raise PipelineFailedError(f"the log {arguments.log} is empty; give a log with lines")
    given, places = given_access(arguments), Places(out)
    continued = places.begin(show)
    show.step(f"starting Spark ({arguments.master})")
    with (
        local_spark("headrace clickstream", master=arguments.master) as spark,
        cluster_of(given, places, show) as access,
    ):
        site = Site("clickstream", access.servers, out, keys=access.keys)
        job = Job(spark, site, places, show, stop, rows=ROWS_OF_A_BATCH * arguments.multiply)
        serving(out, access.servers)
        if not continued:
            job.create_topics()
            prepared(out)
        there = lines_in_topic(access) if continued else None
        replay = Replay(access, content, speed=arguments.speed, repeat_every=arguments.repeat_every, there=there)
        outcome = job.stream(content, replay, is_continued=continued > 0)
    outcome.details.update(continued=continued, seconds=round(time.perf_counter() - began, 3))
    show.step("done")
    return outcome


class Job:
    """The queries of a run and their topics. ``rows``: the maximum number of rows of a batch."""

    def __init__(self, spark: SparkSession, site: Site, places: Places, show: Show, stop: Stop, *, rows: int) -> None:
        self._spark, self._site, self._places = spark, site, places
        self._show, self._stop, self._rows = show, stop, rows
        # The query's position is the number of rows that earlier runs have read, because the topic has no gaps or
        # markers.
        positions = {each.query: each.position for each in checkpoints(places.root / "checkpoints")}
        self._read_before = positions.get("requests", 0)

    def create_topics(self) -> None:
        """Create the topics, without records. The log is of 2015, so the default retention would delete its records."""
        new = [NewTopic(name, partitions=PARTITIONS, config=TIMES_OF_DATA) for name in TOPICS]
        queries = [query for names in _IN_ORDER for query in names]
        replace_topics(self._site.access, "clickstream", new, queries=queries, sources=SOURCES)

    # -- the wiring

    def start(self) -> Queries:
        """Start the four queries."""
        arrived = parsing.parsed(self._stream(schema.LOG, "requests"))
        once = arrived.withWatermark("timestamp", WATERMARK).dropDuplicatesWithinWatermark(["line"])
        once = once.observe("lines", *parsing.counted())
        records = parsing.records(once, schema.REQUESTS)
        queries = {
            "requests": self._sink("requests", records.writeStream.options(**LARGE_RECORDS))
        }  # a dead letter is as large as its line

        for name, rows_of, key, topic in (
            ("sessions", sessions, "address", schema.SESSIONS),
            ("counts", counts, "name", schema.COUNTS),
            ("conversions", conversions, "address", schema.CONVERSIONS),
        ):
            viewed = views(decoded(self._stream(schema.REQUESTS, name, columns="value BINARY"), schema.REQUEST))
            queries[name] = self._sink(name, encoded(rows_of(viewed), key).writeStream, topic)
        return Queries(queries)

    def _stream(self, topic: str, query: str, columns: str | None = None) -> DataFrame:
        """``columns``: the columns that the query needs; the source transfers only these."""
        reader = self._spark.readStream.format("headrace").options(**self._site.read(topic, query=query))
        if columns is not None:
            reader = reader.schema(columns).option("includeHeaders", "false")
        return reader.option("maxOffsetsPerTrigger", self._rows).load()

    def _sink(self, name: str, writer: DataStreamWriter, topic: str | None = None) -> StreamingQuery:
        """Start a query; without ``topic`` the column ``topic`` names the topics."""
        writer = (
            writer.format("headrace").options(**self._site.write(topic, query=name)).trigger(processingTime=TRIGGER)
        )
        (query,) = started(writer.start)
        return query

    def _records_of(self, topic: str) -> DataFrame:
        """The records that readers see in a topic now."""
        return self._spark.read.format("headrace").options(**self._site.read_all(topic)).load()

    def _rows_of(self, topic: str, columns: str) -> DataFrame:
        return decoded(self._records_of(topic), columns)

    # -- the run

    def stream(self, content: list[Line], replay: Replay, *, is_continued: bool) -> Outcome:
        """Replay the log through the queries, close the last windows, and sum up."""
        self._show.step(f"starting four queries, watermark {WATERMARK}, each with an exactly-once topic")
        with self._stop.after_batch(), self.start() as queries:
            self._show.step(f"replaying {len(content):,} lines by the log's own clock, to topic {schema.LOG}")
            replay.start()
            try:
                with self._show.meter("lines", len(content)) as meter:
                    self._follow(queries, replay, meter)
                replay.result()
                sent = replay.total
                self._show.step("closing the last windows and sessions: one tick, 30 days later")
                send_tick(self._site.access, content)
                for names in _IN_ORDER:
                    if not queries.drain(names, lambda: not self._stop.is_asked):
                        self._stopped(queries, replay)
                queries.stop_after_batch()
            finally:
                replay.stop()
            self._show.step("summing up from the topics")
            return self._summarize(queries, sent, is_continued=is_continued)

    def _follow(self, queries: Queries, replay: Replay, meter: Meter) -> None:
        """Show progress until the queries have processed all lines. Raises StoppedError."""

        def look() -> bool:
            rows = self._read_before + queries.progress["requests"].rows
            meter.at(min(rows, meter.total), self._note(queries, replay))
            return not self._stop.is_asked

        while replay.is_alive():
            queries.look()
            if not look():
                self._stopped(queries, replay)
            replay.join(LOOK_S)
        replay.result()
        for names in _IN_ORDER:
            if not queries.drain(names, look):
                self._stopped(queries, replay)

    def _note(self, queries: Queries, replay: Replay) -> str:
        first = queries.progress["requests"]
        behind = first.observed["good"] - min(queries.progress[name].rows for name in _IN_ORDER[1])
        lag_s = replay.lag_s(self._read_before + first.rows - max(0, behind))
        watermark = queries.watermark
        at = "none yet" if watermark is None else f"{watermark:%d %b %H:%M}"
        state_rows, state_bytes = queries.state
        return (
            f"lag {lag_s:.1f} s, watermark {at}, state {state_rows:,} rows {state_bytes / 1e6:.1f} MB, "
            f"{first.observed['bad']:,} dead letters, {replay.left_s() + lag_s:.0f} s left"
        )

    def _stopped(self, queries: Queries, replay: Replay) -> None:
        replay.stop()
        queries.stop_after_batch()
        raise StoppedError({"sent": replay.sent, "queries": queries.totals()})

    def _summarize(self, queries: Queries, sent: Sent, *, is_continued: bool) -> Outcome:
        requests = self._rows_of(schema.REQUESTS, schema.REQUEST).cache()
        counted = self._rows_of(schema.COUNTS, schema.COUNT).cache()
        visits = self._rows_of(schema.SESSIONS, schema.SESSION).cache()
        letters = self._records_of(schema.DEAD_LETTERS).groupBy(header("reason").alias("reason")).count().collect()
        first = queries.progress["requests"]
        outcome = summarized(requests, visits, counted)
        outcome.details.update(
            {
                "conversions": self._rows_of(schema.CONVERSIONS, schema.CONVERSION).count(),
                "lines": sent.lines,
                "dead_letters": {row["reason"]: row["count"] for row in letters},
                "repeats_sent": sent.repeats,
                "repeats_dropped": first.repeats,
                "late_dropped": {name: each.late for name, each in queries.progress.items()},
                "batches": batches(self._places.root / "checkpoints"),
                "state_rows": {name: each.state_rows for name, each in queries.progress.items()},
            }
        )
        figures = {**outcome.summary, **outcome.details}
        _check(figures, is_continued=is_continued)
        for path in pictures.draw(requests, counted, figures, self._places.root):
            self._show.note(f"picture: {path}")
        return outcome


def _check(figures: dict[str, Any], *, is_continued: bool) -> None:
    """Check that every line is a request, a dead letter, or counted as late, and that every view is counted for its
    page.

    In a continued run, the queries of earlier runs may have dropped rows, so the run only checks that there are not too
    many rows.
    """
    late = figures["late_dropped"]
    dead = sum(figures["dead_letters"].values())
    wrong = []
    known = figures["requests"] + dead + late["requests"]
    if known > figures["lines"] or (known < figures["lines"] and not is_continued):
        wrong.append(
            f"{figures['lines']} lines were sent, but there are {figures['requests']} requests, {dead} dead letters "
            f"and {late['requests']} late lines"
        )
    if figures["repeats_sent"] != figures["repeats_dropped"] and not late["requests"] and not is_continued:
        wrong.append(f"{figures['repeats_sent']} lines were repeated, {figures['repeats_dropped']} repeats dropped")
    counted = sum(figures["views_by_page"].values())
    if counted > figures["views"] or (counted < figures["views"] and not late["counts"] and not is_continued):
        wrong.append(f"{figures['views']} views, but {counted} in the counts of pages")
    if wrong:
        raise PipelineFailedError("; ".join(wrong))
