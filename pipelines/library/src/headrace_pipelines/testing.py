"""A harness for tests of streaming jobs: feed timed records, run a job to its end, read its rows, kill its driver.

    def start(spark, site):                            # a job: starts queries, and returns them
        clicks = spark.readStream.format("headrace").options(**site.read("clicks", query="copy")).load()
        copies = clicks.select("key", "value").writeStream.format("headrace")
        return copies.options(**site.write("copies", query="copy")).trigger(**site.trigger).start()

    def test_a_killed_driver_copies_each_click_once(pipeline_harness):
        pipeline_harness.topic("clicks", partitions=2)
        pipeline_harness.topic("copies")
        pipeline_harness.feed("clicks", [TimedRecord(b"one", at=datetime(2026, 1, 1, tzinfo=UTC))])
        pipeline_harness.crash(start, at="decided", batch=0)
        pipeline_harness.run(start)
        assert [record.value for record in pipeline_harness.rows("copies")] == [b"one"]

``run`` runs the job in the process of the test. ``crash`` runs the job in a separate process. At a crash point
(crash_points.py), ``crash`` kills this process, its JVM and its workers with SIGKILL. ``run`` and ``crash`` use the
checkpoints of the same ``Site``, so the next ``run`` continues after the crash. The fixture ``pipeline_harness`` is in
pytest_plugin.py.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace import Admin, Consumer, NewTopic, Producer, Record
from headrace_core.errors import InvalidArgumentError
from headrace_spark import session

from .crash_points import VARIABLE, CrashingDataSource
from .errors import JobFailedError
from .jobs import SETTINGS, Start
from .queries import started
from .sites import Site
from .topics import await_markers, records_in_topic

#: Maximum number of seconds until a job ends, or reaches its crash point.
JOB_S = 240.0
_LOOK_S = 0.05
_LOG_CHARACTERS = 3_000


@dataclass(frozen=True, slots=True)
class TimedRecord:
    """A record with its event time, a datetime with a time zone."""

    value: bytes | None
    at: datetime
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None

    @property
    def timestamp_ms(self) -> int:
        if self.at.tzinfo is None:
            raise InvalidArgumentError(f"at={self.at!r} has no time zone; write datetime(..., tzinfo=UTC)")
        return round((self.at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000)


class Harness:
    """Tests one job on a running cluster. ``spark`` is the session for ``run``; the site's directory is empty at
    first."""

    def __init__(self, spark: SparkSession, site: Site) -> None:
        self.spark, self.site = spark, site
        site.directory.mkdir(parents=True, exist_ok=True)

    def topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic, and return its name in the cluster. Records of any age are kept (``retention.ms=-1``)."""
        new = NewTopic(self.site.topic(name), partitions=partitions, config={"retention.ms": "-1", **(config or {})})
        with Admin(bootstrap_servers=self.site.bootstrap_servers) as admin:
            admin.create_topics([new])
        return new.name

    def feed(self, topic: str, records: Iterable[TimedRecord]) -> None:
        """Send records in their order, and wait until all are acknowledged."""
        with Producer(bootstrap_servers=self.site.bootstrap_servers) as producer:
            futures = [
                producer.send(
                    self.site.topic(topic),
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            for future in futures:
                future.result(timeout=60)

    def rows(self, topic: str) -> list[Record]:
        """The committed records of a topic, in the order of partition and offset."""
        await_markers(self.site.bootstrap_servers)
        with Consumer(
            bootstrap_servers=self.site.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            found = [record for records in records_in_topic(consumer, self.site.topic(topic)) for record in records]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def run(self, start: Start) -> None:
        """Run a job in this process until its queries end. Raises the error of a failed query, and JobFailedError if a
        query does not end within 240 s."""
        run_to_end(start, self.spark, self.site)

    def crash(self, start: Start, *, at: str, batch: int | None = None) -> None:
        """Run a job in a separate process, and kill its driver at the crash point ``at`` of ``batch``. If ``batch`` is
        None, the driver is killed in the first batch that reaches the crash point.

        ``start`` is a function of a module, because the other process imports it. Raises JobFailedError, with the end
        of the driver's output, if the job ends before it reaches the crash point.
        """
        name = f"{start.__module__}:{start.__qualname__}"
        if "<" in name or start.__module__ == "__main__":
            raise InvalidArgumentError(f"crash({name}): another process imports the job; define it in a module")
        held, log = self.site.directory / "held", self.site.directory / "driver.log"
        held.unlink(missing_ok=True)
        point = json.dumps({"name": at, "batch": batch, "file": str(held)})
        site = (self.site.pipeline, self.site.bootstrap_servers, str(self.site.directory), self.site.prefix)
        with log.open("wb") as output:
            driver = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from headrace_pipelines.testing import drive; drive()",
                    str(os.getpid()),
                    name,
                    *site,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, VARIABLE: point, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        where = f"the crash point {at!r}" + ("" if batch is None else f" of batch {batch}")
        deadline = time.monotonic() + JOB_S
        try:
            while not held.exists():
                if os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    raise JobFailedError(f"the job ended before {where}: {_end(log)}")
                if time.monotonic() >= deadline:
                    raise JobFailedError(f"the job did not reach {where} within {JOB_S:.0f} s: {_end(log)}")
                time.sleep(_LOOK_S)
        finally:
            # Kill the process before waiting for its end: until the wait, no other process can get its pid.
            kill_session(driver.pid)
            driver.wait()


def run_to_end(start: Start, spark: SparkSession, site: Site) -> None:
    """Start a job, and wait until its queries end."""
    queries = started(lambda: start(spark, site))
    deadline = time.monotonic() + JOB_S
    try:
        for query in queries:
            if not query.awaitTermination(max(1, int(deadline - time.monotonic()))):
                raise JobFailedError(
                    f"the query {query.name} did not end within {JOB_S:.0f} s; start it with trigger(**site.trigger)"
                )
    finally:
        for query in queries:
            if query.isActive:
                query.stop()


def kill_session(leader: int) -> None:
    """Send SIGKILL to all processes of the session that ``leader`` leads: a driver, its JVM, its workers."""
    deadline = time.monotonic() + 60
    while members := _members(leader):
        for pid in sorted(members, key=os.getpid().__eq__):  # if this process is a member, kill it last
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            raise JobFailedError(f"the processes {members} survive SIGKILL")
        time.sleep(_LOOK_S)


def _members(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == leader and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_CHARACTERS:]


def drive() -> None:
    """Run a job in this process with crash points in the sink; ``crash`` starts a process that calls ``drive``."""
    test, name, pipeline, servers, directory, prefix = sys.argv[1:]
    threading.Thread(target=end_with, args=(int(test),), daemon=True).start()
    module, _, function = name.partition(":")
    start: Any = getattr(importlib.import_module(module), function)
    spark = session(name, master="local[2]", **SETTINGS)
    spark.dataSource.register(CrashingDataSource)
    run_to_end(start, spark, Site(pipeline, servers, Path(directory), prefix, ends=True))


def end_with(parent: int) -> None:
    """Kill this driver, with its session, when the process of the test has died."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    kill_session(os.getpid())
