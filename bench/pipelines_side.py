"""One side of bench/pipelines.py: a Spark driver that runs jobs of the library over Headrace, or over Kafka.

    pipelines_side.py headrace BOOTSTRAP DIRECTORY
    pipelines_side.py kafka BOOTSTRAP DIRECTORY JAR...       with Spark's connector for Kafka

The transformations are those of the library. Only the source and the sink differ. Each line of standard input is a
command and its arguments, separated by tabs. An answer is one line of JSON, and then a line "done" or "failed WHY"
(kafka_node.py).

    backlog JOB DELIVERY SOURCE PREFIX ROWS    process the present records, and end: seconds, and rows by table
    start JOB DELIVERY SOURCE PREFIX ROWS      process records as they come
    stop                                       process the records so far, and stop: when each batch was visible

The names of topics are those of the library, with the prefix SOURCE if the job only reads the topic, otherwise with the
prefix PREFIX. ROWS is the largest number of rows of a batch.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import __version__ as pyspark_version
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

#: The settings of both sessions. Neither session has other settings, except the defaults of headrace_spark.session().
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
MASTER = "local[2]"
#: Longest time of a job in seconds.
JOB_S = 900
#: The queries parse the fields of this release of the lake's sources. Release 2 includes the fields of release 1.
RELEASE = 2


def without_data_source() -> None:
    """Let the library be imported with a Spark that is too old for our data source. ``headrace_spark`` then is only a
    folder of modules, and crash points (which only tests use) do nothing."""
    spec = find_spec("headrace_spark")
    assert spec is not None
    package = ModuleType("headrace_spark")
    package.__path__ = list(spec.submodule_search_locations or ())
    points = ModuleType("headrace_pipelines.crash_points")
    points.crash_point = lambda name, batch=None: None  # type: ignore[attr-defined]
    sys.modules |= {package.__name__: package, points.__name__: points}


if pyspark_version.startswith("4.0."):
    without_data_source()

from headrace_pipelines.clickstream import parsing  # noqa: E402
from headrace_pipelines.clickstream import schema as clickstream  # noqa: E402
from headrace_pipelines.clickstream.conversions import conversions  # noqa: E402
from headrace_pipelines.clickstream.sessions import sessions  # noqa: E402
from headrace_pipelines.clickstream.views import WATERMARK, counts, views  # noqa: E402
from headrace_pipelines.json_rows import decoded, encoded  # noqa: E402
from headrace_pipelines.lake import schema as lake  # noqa: E402
from headrace_pipelines.lake.lakes import Lake, lakes, write_batch  # noqa: E402
from headrace_pipelines.queries import started  # noqa: E402

TRIGGER = "1 second"
#: The tables of the lake that are counted after a run.
LAYERS = ("bronze", "silver")


@dataclass(frozen=True, slots=True)
class Ends:
    """The source and the sink of a system."""

    format: str
    servers: str

    def read(self, topic: str, rows: int = 0) -> dict[str, str]:
        """Options of a stream, or of a batch, that reads a topic from its start. ``rows``: the largest number of rows
        of a batch."""
        own = {
            "headrace": {"headrace.bootstrap.servers": self.servers, "isolation.level": "read_committed"},
            "kafka": {"kafka.bootstrap.servers": self.servers, "kafka.isolation.level": "read_committed"},
        }
        limit = {"maxOffsetsPerTrigger": str(rows)} if rows else {}
        return {**own[self.format], **limit, "subscribe": topic, "startingOffsets": "earliest"}

    def write(self, delivery: str) -> dict[str, str]:
        """Options of a sink. Kafka's sink has at-least-once delivery only, with acks=all."""
        if self.format == "headrace":
            return {"headrace.bootstrap.servers": self.servers, "headrace.delivery": delivery}
        if delivery != "at-least-once":
            raise ValueError(f"Kafka's sink has no {delivery} delivery")
        return {"kafka.bootstrap.servers": self.servers}


@dataclass
class Run:
    """A run of a job: its queries, and for each query and batch the time at which foreachBatch had written the
    batch."""

    spark: SparkSession
    ends: Ends
    directory: Path
    trigger: dict[str, Any]
    delivery: str
    source: str
    prefix: str
    rows: int
    queries: dict[str, StreamingQuery] = field(default_factory=dict)
    visible: dict[str, dict[int, float]] = field(default_factory=dict)

    def stream(self, topic: str, *, columns: str | None = None) -> DataFrame:
        """A topic as a stream: all columns with headers, or only ``columns``. Kafka's source always has all columns."""
        reader = self.spark.readStream.format(self.ends.format).options(**self.ends.read(topic, self.rows))
        if columns is None:
            return reader.option("includeHeaders", "true").load()
        return (reader.schema(columns) if self.ends.format == "headrace" else reader).load()

    def sink(self, name: str, rows: DataFrame, **options: str) -> None:
        """Start a query that writes records."""
        writer = rows.writeStream.format(self.ends.format).options(**self.ends.write(self.delivery), **options)
        self._start(name, writer)

    def batches(self, name: str, records: DataFrame, write: Callable[[DataFrame, int], None]) -> None:
        """Start a query that calls ``write`` for each batch, and note when the call has ended."""
        visible = self.visible[name] = {}

        def timed(batch: DataFrame, number: int) -> None:
            write(batch, number)
            visible[number] = time.time()

        self._start(name, records.writeStream.foreachBatch(timed))

    def _start(self, name: str, writer: Any) -> None:
        writer = writer.queryName(f"{self.prefix}{name}").trigger(**self.trigger)
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoints" / name))
        (self.queries[name],) = started(writer.start)

    def wait(self) -> None:
        """Wait until all queries have ended. Raises the error of a query."""
        for query in self.queries.values():
            if not query.awaitTermination(JOB_S):
                raise RuntimeError(f"query {query.name} has not ended after {JOB_S} s")

    def count(self, topic: str) -> int:
        """The records that readers see in a topic."""
        frame = self.spark.read.format(self.ends.format).options(**self.ends.read(topic))
        return frame.load().count()


class Clickstream:
    """The four queries of headrace_pipelines.clickstream.job."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def start_first(self) -> None:
        """Start the query that writes the topic that the other queries read."""
        run = self._run
        arrived = parsing.parsed(run.stream(run.source + clickstream.LOG))
        once = arrived.withWatermark("timestamp", WATERMARK).dropDuplicatesWithinWatermark(["line"])
        once = once.observe("lines", *parsing.counted())
        run.sink("requests", parsing.records(once, run.prefix + clickstream.REQUESTS))

    def start_others(self) -> None:
        run = self._run
        for name, rows_of, key, topic in (
            ("sessions", sessions, "address", clickstream.SESSIONS),
            ("counts", counts, "name", clickstream.COUNTS),
            ("conversions", conversions, "address", clickstream.CONVERSIONS),
        ):
            requests = run.stream(run.prefix + clickstream.REQUESTS, columns="value BINARY")
            viewed = views(decoded(requests, clickstream.REQUEST))
            run.sink(name, encoded(rows_of(viewed), key), topic=run.prefix + topic)

    def backlog(self) -> None:
        self.start_first()
        self._run.wait()
        self.start_others()
        self._run.wait()

    def start(self) -> None:
        self.start_first()
        self.start_others()

    def counted(self) -> dict[str, int]:
        topics = (clickstream.REQUESTS, clickstream.SESSIONS, clickstream.COUNTS, clickstream.CONVERSIONS)
        return {topic: self._run.count(self._run.prefix + topic) for topic in topics}


class IntoLakes:
    """The three queries of headrace_pipelines.lake.job, into both lakes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lakes: tuple[Lake, ...] = lakes(run.directory)

    def start(self) -> None:
        for source in lake.SOURCES:
            records = self._run.stream(self._run.source + source.topic)
            self._run.batches(source.name, records, write_batch(self._lakes, source, RELEASE))

    def backlog(self) -> None:
        self.start()
        self._run.wait()

    def counted(self) -> dict[str, int]:
        return {
            f"{each.format} {layer}.{source.name}": each.table(f"{layer}.{source.name}").read().num_rows
            for each in self._lakes
            for layer in LAYERS
            for source in lake.SOURCES
            if each.table(f"{layer}.{source.name}").exists()
        }


JOBS: Mapping[str, Callable[[Run], Clickstream | IntoLakes]] = {"clickstream": Clickstream, "lake": IntoLakes}


class Side:
    """A Spark session, and the commands."""

    def __init__(self, form: str, servers: str, directory: Path, jars: list[str]) -> None:
        self._ends, self._directory = Ends(form, servers), directory
        self._spark = _session(form, jars)
        self._spark.sparkContext.setLogLevel("ERROR")
        self._run: Run | None = None

    def do(self, command: str, *arguments: str) -> dict[str, Any]:
        if command == "backlog":
            return self._backlog(*arguments)
        if command == "start":
            return self._start(*arguments)
        if command == "stop":
            return self._stop()
        raise ValueError(f"no command {command}")

    def _new_run(self, trigger: dict[str, Any], delivery: str, source: str, prefix: str, rows: str) -> Run:
        for query in self._spark.streams.active:  # stop the queries of a run that failed
            query.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        return Run(self._spark, self._ends, self._directory, trigger, delivery, source, prefix, int(rows))

    def _backlog(self, job: str, *where: str) -> dict[str, Any]:
        run = self._new_run({"availableNow": True}, *where)
        made = JOBS[job](run)
        began = time.perf_counter()
        made.backlog()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "counts": made.counted(), "batches": _batches(run)}

    def _start(self, job: str, *where: str) -> dict[str, Any]:
        self._run = self._new_run({"processingTime": TRIGGER}, *where)
        JOBS[job](self._run).start()
        return {}

    def _stop(self) -> dict[str, Any]:
        assert self._run is not None
        run, self._run = self._run, None
        for query in run.queries.values():
            query.processAllAvailable()
            query.stop()
        return {"batches": _batches(run)}


def _batches(run: Run) -> dict[str, list[dict[str, Any]]]:
    """For each query, its batches with rows: the end offsets by partition, the durations (ms), and the time at which
    the batch was visible."""
    return {name: _batches_of(query, run.visible.get(name, {})) for name, query in run.queries.items()}


def _batches_of(query: StreamingQuery, visible: Mapping[int, float]) -> list[dict[str, Any]]:
    found = []
    for batch in query.recentProgress:
        if not batch["numInputRows"]:
            continue
        end = batch["sources"][0]["endOffset"]
        topics = json.loads(end) if isinstance(end, str) else end
        (ends,) = (partitions for topic, partitions in topics.items() if not topic.startswith("$"))
        times = batch["durationMs"]
        found.append(
            {"end": ends, "rows": batch["numInputRows"], "ms": times, "visible": visible.get(batch["batchId"])}
        )
    return found


def _session(form: str, jars: list[str]) -> SparkSession:
    if form == "headrace":
        from headrace_spark import session

        return session("bench", master=MASTER, **SETTINGS)
    builder = SparkSession.builder.appName("bench").master(MASTER).config("spark.jars", ",".join(jars))
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    form, servers, directory, *jars = sys.argv[1:]
    side = Side(form, servers, Path(directory), jars)
    for line in sys.stdin:
        command, *arguments = line.rstrip("\n").split("\t")
        end = "done"
        try:
            print(json.dumps(side.do(command, *arguments)))
        except Exception as failure:  # noqa: BLE001 - the benchmark counts it as a failed sample
            end = "failed " + " ".join(str(failure).split())
        print(end, flush=True)


if __name__ == "__main__":
    main()
